//! Splitters: how a text is cut into words before merging, by the name in `tokenizer.ggml.pre`.
//!
//! In: a name from a file or the caller, bytes. Out: words, which joined are the bytes.
//!
//! S1  A name is either in the table or refused; there is no default and no guess.
//! S2  Steps apply one after another, each inside the pieces of the step before. A match is a piece and so is each gap
//!     between matches.
//! S3  The expressions are the ones the models were trained with, so `(?i:'s)` also takes `'ſ`. They match characters only: a byte that is none lies in a gap.
//! S4  Splitting is linear in the text.
//!
//! The expressions look ahead, and automata cannot. But they do so in few ways only, which are taken from their ends and done by hand ([`Tail`], [`Digits`]); the
//! tests compare with a backtracking engine that takes the expressions as they are.
//!
//! The expressions are facts published with the models (their `tokenizer.json`) and collected in llama.cpp's table of
//! names. Where that table holds an approximation and the original is known, the original stands here.
//! Cost: a splitter takes some milliseconds to compile; a megabyte about 15 ms.

use crate::error::VocabError;
use crate::keys::clip;
use regex_automata::meta::{Config, Regex};
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Anchored, Input};
use std::ops::Range;

/// Vocabularies that cut text alike.
pub(crate) struct Family {
    /// Values of `tokenizer.ggml.pre`, parted by spaces.
    names: &'static str,
    /// The expressions, in the order in which they apply.
    steps: fn() -> Vec<String>,
    /// A word that is itself a token is taken as that token without merging.
    pub(crate) whole_words: bool,
    /// What to assume about the beginning-of-text token where the file says nothing.
    pub(crate) add_bos: bool,
    /// The vocabulary spells text in UTF-8 with `▁` for a space and `<0xNN>` for stray bytes, not in the byte alphabet.
    pub(crate) metaspace: bool,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.names)
    }
}

impl Family {
    pub(crate) fn named(name: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.names.split(' ').any(|known| known == name))
    }

    /// As [`named`](Self::named); `source` says where the name stands.
    pub(crate) fn find(name: Option<&str>, source: &'static str) -> Result<&'static Family, VocabError> {
        let known = || splitter_names().join(", ");
        let Some(name) = name else { return Err(VocabError::NoSplitter { known: known() }) };
        Family::named(name).ok_or_else(|| VocabError::UnknownSplitter {
            found: clip(name.as_bytes()),
            source_name: source,
            known: known(),
        })
    }
}

/// Every known splitter by the name that files use, in order.
pub fn splitter_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names.split(' ')).collect();
    names.sort_unstable();
    names
}

const NUMBER: &str = r"\p{N}";
/// it's, don't, we're, I've, I'm, she'll, he'd
const SHORT: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
/// A run of space leaves its last character to the word behind it.
const SPACE: &str = r"|\s+(?!\S)|\s+";
const SPACE_BY_POWERS: &str = r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const CAPITALS: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
const SMALLS: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
const LEAD: &str = r"[^\r\n\p{L}\p{N}]?";
/// Han, Hiragana, Katakana.
const CJK: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{30ff}]+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const NUMBERS3: &str = r"\p{N}{1,3}";
const SIGNS: &str = r"[^\s\p{L}\p{N}]+[\r\n]*";
const ASCII_SIGN: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"##;
const NO_PUNCTUATION: &str = " ?[^(\\s|.,!?\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+";
// Escaped, not spelled out: editors normalize some of these characters, and the ranges with them.
const DEEPSEEK_LETTERS: &str = "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\
\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\
\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\
\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\
\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\
\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\
\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\
\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\
\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\
\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\
\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\
\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+";
const DEEPSEEK_EAST: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
const EAST_ASIA: &str = "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{8c48}-\u{faff}\u{3040}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}\
-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\
\u{1100}-\u{11ff}]+";
const DIGITS_TO_WORD_END: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
const DIGITS_AHEAD: &str = r"(?=(\d{3})+(?!\d))";
const NUMBERS_TO_END: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";

fn cl100k(letters: &str, numbers: &str, signs: &str) -> String {
    format!(r"{SHORT}|{LEAD}{letters}|{numbers}| ?{signs}|\s*[\r\n]+{SPACE}")
}

fn llama3() -> String {
    cl100k(r"\p{L}+", NUMBERS3, SIGNS)
}

fn qwen2() -> String {
    cl100k(r"\p{L}+", NUMBER, SIGNS)
}

fn cased(numbers: &str, short: &str) -> String {
    let words = format!("{LEAD}{CAPITALS}*{SMALLS}+{short}|{LEAD}{CAPITALS}+{SMALLS}*{short}");
    format!(r"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+{SPACE}")
}

fn gpt4o() -> String {
    cased(NUMBERS3, &format!("{SHORT}?"))
}

fn marked(rest: &str) -> String {
    format!(r"{ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+{rest}{SPACE}")
}

fn deepseek3() -> String {
    marked(r"[\r\n]*|\s*[\r\n]+")
}

fn kimi() -> String {
    let not_han = |class: &str| format!(r"{}&&[^\p{{Han}}]]", &class[..class.len() - 1]);
    let (capitals, smalls) = (not_han(CAPITALS), not_han(SMALLS));
    format!(
        r"[\p{{Han}}]+|{LEAD}{capitals}*{smalls}+{SHORT}?|{LEAD}{capitals}+{smalls}*{SHORT}?|{NUMBERS3}| ?{SIGNS}|\s*[\r\n]+{SPACE}"
    )
}

macro_rules! family {
    ($names:expr, [$($step:expr),+ $(,)?] $(, $flag:ident)*) => {
        Family { $($flag: true,)* ..Family { names: $names, steps: || vec![$(String::from($step)),+], whole_words: false, add_bos: false, metaspace: false } }
    };
}

const FAMILIES: &[Family] = &[
    family!("default", [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    family!(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        [llama3()],
        whole_words,
        add_bos
    ),
    family!("dbrx smaug-bpe chatglm-bpe", [llama3()]),
    family!("glm4 glm5", [llama3()], whole_words),
    family!("minicpm5", [NUMBERS3, cl100k(r"\p{L}+", r"\p{N}+", SIGNS)], whole_words),
    family!("jais-2", [llama3().replace(SPACE, SPACE_BY_POWERS)]),
    family!(
        "deepseek-llm",
        [
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
            r"\s+$",
            DEEPSEEK_EAST,
            NUMBER
        ]
    ),
    family!("deepseek-coder", [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_EAST, NUMBER]),
    family!("deepseek-v3 hunyuan-dense joyai-llm hy_v4", [NUMBERS3, CJK, deepseek3()]),
    family!("spark2_5", [NUMBERS3, CJK, marked(r"|[\r\n]"), NUMBER]),
    family!(
        "youtu",
        [
            format!(
                "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\
                 \u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|{CJK}"
            ),
            cased(NUMBER, &format!("{SHORT}?"))
        ],
        whole_words
    ),
    family!("falcon", [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    family!("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", [NUMBER, GPT2]),
    family!(
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert roberta-bpe \
         jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        [GPT2]
    ),
    family!("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", [qwen2()]),
    family!("laguna", [r"[^\n]+|[\n]+", qwen2()]),
    family!("ufakzeka", [qwen2().replace(&format!("{SHORT}|"), "")]),
    family!("qwen35", [cl100k(r"[\p{L}\p{M}]+", NUMBER, r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*")]),
    family!("seed-coder", [cl100k(r"\p{L}+", NUMBER, r"[^\s\p{L}\p{N}\r\n]+")]),
    family!("poro-chat bloom gpt3-finnish", [NO_PUNCTUATION]),
    family!("viking", [NO_PUNCTUATION, NUMBER]),
    family!("tekken", [cased(NUMBER, "")], whole_words, add_bos),
    family!("gpt-4o llama4 kanana2 talkie minimax-m2", [gpt4o()]),
    family!("granite-embed-multi-97m", [gpt4o()], whole_words),
    family!("tiny_aya cohere2moe", [DIGITS_TO_WORD_END, gpt4o()]),
    family!("kimi-k2", [kimi()]),
    family!("superbpe", [r"\p{N}+", DIGITS_AHEAD]),
    family!(
        "bailingmoe bailingmoe2 llada-moe",
        // Published with possessive repetitions; nothing behind them could make them give back what they took.
        [format!(r"'(?i:[sdmt]|ll|ve|re)|{LEAD}\p{{L}}+|{NUMBER}| ?{SIGNS}|\s*[\r\n]{SPACE}")]
    ),
    family!("afmoe", [NUMBERS_TO_END, EAST_ASIA, deepseek3()]),
    family!(
        "exaone-moe",
        [format!(
            r"{SHORT}|{LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|{NUMBER}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]{SPACE}"
        )]
    ),
    family!(
        "chameleon",
        [
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            NUMBER,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2
        ],
        add_bos
    ),
    family!("gemma4 granite-embed-multi-311m sarvam-moe", [r"\n+"], metaspace),
];

/// How the last alternatives of an expression take a run of white space that no other alternative takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// They do not.
    None,
    /// All of the run at the end of a piece; elsewhere its last character begins the next word, if there is another.
    Space,
    /// As `Space`, in parts of 512, 256 … 1 characters.
    Powers,
}

/// Digits in threes, counted from the right end of their run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    /// Where the word ends with them.
    ToWordEnd,
    /// Each group is a piece.
    ToEnd,
    /// Pieces begin at groups of three; what is left of the first group, or right of the last, joins what is beside it.
    Ahead,
}

#[derive(Debug)]
enum Step {
    /// Pattern 0, and as pattern 1 the run of white space.
    Expression { regex: Regex, tail: Tail },
    /// Pattern 0 finds runs, `word` a character of a word.
    Digits { runs: Regex, word: Regex, digits: Digits },
}

/// A family's cuts, compiled.
#[derive(Debug)]
pub(crate) struct Splitter {
    steps: Vec<Step>,
}

fn compiled(patterns: &[&str]) -> Regex {
    let config = Config::new().which_captures(WhichCaptures::Implicit).utf8_empty(false);
    // The table is ours, and a test compiles all of it.
    Regex::builder().configure(config).build_many(patterns).unwrap_or_else(|error| panic!("{patterns:?}: {error}"))
}

impl Step {
    fn new(step: &str) -> Step {
        let digits = |runs, digits| Step::Digits { runs: compiled(&[runs]), word: compiled(&[r"\w"]), digits };
        match step {
            DIGITS_TO_WORD_END => return digits(r"\d+", Digits::ToWordEnd),
            DIGITS_AHEAD => return digits(r"\d+", Digits::Ahead),
            NUMBERS_TO_END => return digits(r"\p{N}+", Digits::ToEnd),
            _ => {}
        }
        for (end, tail) in [(SPACE, Tail::Space), (SPACE_BY_POWERS, Tail::Powers)] {
            if let Some(others) = step.strip_suffix(end) {
                return Step::Expression { regex: compiled(&[others, r"\s+"]), tail };
            }
        }
        Step::Expression { regex: compiled(&[step]), tail: Tail::None }
    }

    /// The ends of the pieces of a text that is not empty, rising; some may be equal.
    fn ends(&self, text: &[u8], end: &mut dyn FnMut(usize)) {
        match self {
            Step::Expression { regex, tail } => matches(regex, *tail, text, end),
            Step::Digits { runs, word, digits } => groups(runs, word, *digits, text, end),
        }
        end(text.len());
    }
}

fn matches(regex: &Regex, tail: Tail, text: &[u8], end: &mut dyn FnMut(usize)) {
    let mut at = 0;
    while at < text.len() {
        // Mostly a match begins where the last one ended; then no backward search for its beginning is needed.
        let here = Input::new(text).range(at..).anchored(Anchored::Yes);
        let (start, to, pattern) = match regex.search_half(&here) {
            Some(found) => (at, found.offset(), found.pattern().as_usize()),
            None => match regex.search(&Input::new(text).range(at..)) {
                Some(found) => (found.start(), found.end(), found.pattern().as_usize()),
                None => return,
            },
        };
        end(start);
        at = if pattern == 0 { to } else { space(tail, &text[start..to], start, to == text.len(), end) };
        end(at);
    }
}

/// Takes a run of white space that begins at `start`; gives where to go on.
fn space(tail: Tail, run: &[u8], start: usize, at_end: bool, end: &mut dyn FnMut(usize)) -> usize {
    let is_first = |byte: &u8| byte & 0xc0 != 0x80;
    if at_end && tail == Tail::Space {
        return start + run.len();
    }
    let last = run.iter().rposition(is_first).unwrap_or_default();
    if tail == Tail::Space {
        return start + if last == 0 { run.len() } else { last };
    }
    let mut left = run.iter().filter(|byte| is_first(byte)).count();
    let mut at = 0;
    while left > 0 && (at_end || left > 1 || at == 0) {
        let fits = |power: &usize| left > *power || left == *power && at_end;
        let taken = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1].into_iter().find(fits).unwrap_or(1);
        let mut firsts = run[at..].iter().enumerate().filter(|(_, byte)| is_first(byte)).map(|(i, _)| i);
        at = firsts.nth(taken).map_or(run.len(), |i| at + i);
        left -= taken;
        end(start + at);
    }
    start + at
}

fn groups(runs: &Regex, word: &Regex, digits: Digits, text: &[u8], end: &mut dyn FnMut(usize)) {
    for run in runs.find_iter(text) {
        let behind = Input::new(text).range(run.end()..).anchored(Anchored::Yes);
        if digits == Digits::ToWordEnd && word.search_half(&behind).is_some() {
            continue;
        }
        if digits != Digits::Ahead {
            end(run.start());
        }
        let firsts: Vec<usize> = run.range().filter(|at| text[*at] & 0xc0 != 0x80).collect();
        firsts.iter().skip(firsts.len() % 3).step_by(3).for_each(|at| end(*at));
        if digits != Digits::Ahead {
            end(run.end());
        }
    }
}

impl Splitter {
    pub(crate) fn new(family: &Family) -> Splitter {
        Splitter { steps: (family.steps)().iter().map(|step| Step::new(step)).collect() }
    }

    /// Gives the words of a text in order, by place; none is empty.
    pub(crate) fn cut(&self, text: &[u8], word: &mut dyn FnMut(Range<usize>)) {
        cut(&self.steps, text, 0, word);
    }
}

fn cut(steps: &[Step], text: &[u8], base: usize, word: &mut dyn FnMut(Range<usize>)) {
    let Some((step, rest)) = steps.split_first() else { return word(base..base + text.len()) };
    let mut start = 0;
    step.ends(text, &mut |end| {
        if start < end {
            cut(rest, &text[start..end], base + start, word);
            start = end;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [&str; 11] = [
        "Hello WORLD, it's 1234567 x12 \u{4e2d}\u{6587}\u{6f22}\u{5b57}abc'LL   \n\n  (x):\n\ttabs\r\n\r\n'Tis I'D 'sS '\u{17f}",
        "  a\u{a0}b\u{3000}c \u{c87}\u{c82} e\u{301}a\u{308} \u{e1c}\u{e39}\u{e49} \u{10d0}\u{10d1} \u{b5}\u{212b}\u{2126} ",
        "\u{1c5}\u{2b0} \u{ff21}\u{ff5a}\u{ff01}\u{3002} 42 \u{4e2d}\u{ff0c}\u{3002}\u{3001}\u{964}\u{6d4}\u{60c}",
        "<sentinel:12>IMGIMGABCZ $+<=>^~|` ... \u{2026}\u{201c}q\u{201d}\u{2014} 1,000,000.00 v1.2.3 \u{bd}\u{2167} ",
        "\u{1100}\u{1161} \u{628}\u{650}\u{633}\u{652} \u{a000}\u{2f00} \u{1780}\u{1000} \u{3105}\u{31a0} \u{fe30}\u{ff65} \u{ac00}\u{b098}\u{b2e4}",
        "camelCaseHTTPServer2Go snake_case __init__ -> :: && || ;; {}();  \n \n\n   end   ",
        "1 12 123 1234 12345 123456 1234567 1234a a1234 1234_ \u{bd}1234 1234\u{bd}5 \u{661}\u{662}\u{663}\u{664} 12.3456",
        "     \u{2003}\u{2003} x\u{2003}\u{2003}y\u{2003}",
        "",
        " ",
        "\n",
    ];

    /// S2 word for word, by an engine that takes the expressions as they are.
    fn pieces(text: &str, steps: &[fancy_regex::Regex]) -> Vec<String> {
        let mut found = vec![text.to_owned()];
        for step in steps {
            let mut cut = Vec::new();
            for piece in found {
                let mut at = 0;
                for found in step.find_iter(&piece) {
                    let found = found.unwrap();
                    cut.extend([piece[at..found.start()].to_owned(), found.as_str().to_owned()]);
                    at = found.end();
                }
                cut.push(piece[at..].to_owned());
            }
            found = cut.into_iter().filter(|piece| !piece.is_empty()).collect();
        }
        found
    }

    fn words(splitter: &Splitter, text: &[u8]) -> Vec<Vec<u8>> {
        let mut words = Vec::new();
        splitter.cut(text, &mut |word| words.push(text[word].to_vec()));
        words
    }

    /// Runs and samples in a random order.
    fn texts() -> Vec<String> {
        let runs = [
            " ", "\n", "\r\n", "7", "x", "X", "xY", ".", "\u{4e2d}", "e\u{301}", "'s", "a ", " \n", "-1 ", "\u{2003}",
            "\u{bd}",
        ];
        let mut state = 7u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut texts: Vec<String> = SAMPLES.map(String::from).to_vec();
        for _ in 0..20 {
            texts.push((0..12).map(|_| runs[below(runs.len())].repeat(1 + below(9))).collect());
        }
        texts.push([" ".repeat(1100), "x".into(), " ".repeat(515), "\u{2003}".repeat(600)].concat());
        // A run that fits at the end of a text, and does not where a word follows.
        texts.extend([2, 4, 8, 64, 512, 1024].map(|n| format!("x{0}x{0}", " ".repeat(n))));
        texts
    }

    #[test]
    fn each_splitter_cuts_as_its_expressions_say() {
        for family in FAMILIES {
            let splitter = Splitter::new(family);
            let steps: Vec<_> = (family.steps)().iter().map(|step| fancy_regex::Regex::new(step).unwrap()).collect();
            for text in texts() {
                let found: Vec<String> =
                    words(&splitter, text.as_bytes()).into_iter().map(|w| String::from_utf8(w).unwrap()).collect();
                assert_eq!(found, pieces(&text, &steps), "{}: {text:?}", family.names);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_characters_are_cut_without_loss() {
        for family in FAMILIES {
            let splitter = Splitter::new(family);
            for text in texts() {
                for (cut, stray) in [(1, &b"\xff"[..]), (2, b"\xe4\xb8"), (3, b"\xa0")] {
                    let (before, behind) = text.as_bytes().split_at(cut.min(text.len()));
                    let bytes = [before, stray, behind].concat();
                    assert_eq!(words(&splitter, &bytes).concat(), bytes);
                }
            }
        }
    }

    #[test]
    fn every_name_is_in_one_family() {
        let names = splitter_names();
        assert!(names.len() > 80);
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(names.iter().all(|name| Family::named(name).is_some()) && Family::named("").is_none());
    }
}

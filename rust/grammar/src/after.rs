//! A constraint that begins inside an answer: behind a text that the model writes, or behind its thinking.
//!
//! In: drafts and committed tokens. Out: masks that allow everything up to the text, and the grammar's from there.
//!
//! A1  Up to the end of the text the answer is free. A token may hold the end of the text and what comes after it only if the grammar, or the space before it,
//!     can begin so.
//! A2  Between the text and the grammar up to [`MAX_SPACE`] bytes of whitespace may stand, in tokens of whitespace alone; the grammar's own tokens come first.
//! A3  With an opening mark, the answer begins with the grammar (and space before it), or with the mark: then it is free up to the text. So an answer with
//!     thinking and one without both end as the grammar says.
//!
//! Cost: while the answer is free, one look at the bytes of each token of the vocabulary for each state of the match, at its first use.

use std::collections::HashMap;
use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokTrie};
use quoth_engine::Result;
use quoth_engine::constraint::{Constraint, Mask};
use quoth_engine::vocab::Vocab;

use crate::machine::Machine;

/// Bytes of whitespace before the grammar.
const MAX_SPACE: usize = 8;

/// Where in an answer a grammar begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Start {
    /// With the first token.
    #[default]
    Now,
    /// Behind this text.
    After {
        /// The text; not empty.
        text: String,
        /// A token that opens what the text closes (A3); `None`: it is open already, or the text comes in any case.
        open: Option<u32>,
    },
}

impl Start {
    /// Behind `text` in an answer to `prompt`. Where `text` closes an element (`</think>`) for whose opening tag the vocabulary has a token, the answer may
    /// begin with that token or do without the element; behind a prompt that has opened it, it is open already.
    pub fn after(text: &str, vocab: &Vocab, prompt: &[u32]) -> Start {
        let token = |text: String| (0..vocab.n_vocab() as u32).find(|id| vocab.token_bytes(*id) == text.as_bytes());
        let open =
            text.strip_prefix("</").filter(|rest| rest.ends_with('>')).and_then(|rest| token(format!("<{rest}")));
        let close = token(text.to_owned());
        let last = prompt.iter().rev().find(|id| Some(**id) == open || Some(**id) == close);
        let is_open = open.is_some() && last.copied() == open;
        Start::After { text: text.to_owned(), open: open.filter(|_| !is_open) }
    }
}

/// How far an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// So many bytes of the text are matched.
    Free(usize),
    /// So many bytes of space have been seen; whether the opening mark may stand here.
    Space(usize, bool),
    Inside,
}

/// See the module.
pub(crate) struct After {
    machine: Machine,
    text: Arc<[u8]>,
    open: Option<u32>,
    env: TokEnv,
    phase: Phase,
    /// What may come in the free part, by bytes matched.
    free: HashMap<usize, Mask>,
    /// What may come at the start of the grammar, by the phase.
    first: Option<Mask>,
}

/// What a token is, where the grammar has not begun.
enum Entry {
    /// The next phase, and bytes that the grammar takes with it.
    To(Phase, Vec<u8>),
    /// A token of the grammar.
    Inner,
    Refused,
}

impl After {
    pub(crate) fn new(machine: Machine, start: &Start, env: TokEnv) -> After {
        let (text, open) = match start {
            Start::Now => (String::new(), None),
            Start::After { text, open } => (text.clone(), *open),
        };
        let phase = match (text.is_empty(), open) {
            (true, _) => Phase::Inside,
            (false, None) => Phase::Free(0),
            (false, Some(_)) => Phase::Space(0, true),
        };
        After { machine, text: text.into_bytes().into(), open, env, phase, free: HashMap::new(), first: None }
    }

    /// The bytes of a token; of a mark, its text.
    fn bytes(&self, token: u32) -> &[u8] {
        let trie = self.env.tok_trie();
        if token as usize >= trie.vocab_size() {
            return &[];
        }
        let bytes = trie.token(token);
        bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
    }

    /// Bytes of the text that are matched after one more.
    fn matched(&self, mut at: usize, byte: u8) -> usize {
        loop {
            if self.text[at] == byte {
                return at + 1;
            }
            if at == 0 {
                return 0;
            }
            // The longest end of what was matched that is a beginning, too. Texts are short.
            at = (0..at).rev().find(|n| self.text[..*n] == self.text[at - n..at]).unwrap_or(0);
        }
    }

    /// Where the free part goes with a token: the bytes matched, or what is left of the token behind the text.
    fn free_step<'b>(&self, mut at: usize, bytes: &'b [u8]) -> std::result::Result<usize, &'b [u8]> {
        for (i, byte) in bytes.iter().enumerate() {
            at = self.matched(at, *byte);
            if at == self.text.len() {
                return Err(&bytes[i + 1..]);
            }
        }
        Ok(at)
    }

    /// What a token leads to from a phase before the grammar.
    fn entry(&mut self, phase: Phase, token: u32) -> Result<Entry> {
        match phase {
            Phase::Inside => Ok(Entry::Inner),
            Phase::Free(at) => {
                let bytes = self.bytes(token).to_vec();
                match self.free_step(at, &bytes) {
                    Ok(at) => Ok(Entry::To(Phase::Free(at), Vec::new())),
                    Err(rest) => {
                        let text = rest.trim_ascii_start();
                        let space = rest.len() - text.len();
                        match (text.is_empty(), space > MAX_SPACE) {
                            (_, true) => Ok(Entry::Refused),
                            (true, _) => Ok(Entry::To(Phase::Space(space, false), Vec::new())),
                            (false, _) => Ok(Entry::To(Phase::Inside, text.to_vec())),
                        }
                    }
                }
            }
            Phase::Space(seen, opens) => {
                if opens && Some(token) == self.open {
                    return Ok(Entry::To(Phase::Free(0), Vec::new()));
                }
                if self.first_mask()?.allows(token) {
                    return Ok(Entry::Inner);
                }
                let bytes = self.bytes(token);
                let seen = seen + bytes.len();
                let space = !bytes.is_empty() && bytes.trim_ascii_start().is_empty() && seen <= MAX_SPACE;
                Ok(if space { Entry::To(Phase::Space(seen, opens), Vec::new()) } else { Entry::Refused })
            }
        }
    }

    fn first_mask(&mut self) -> Result<&Mask> {
        if self.first.is_none() {
            self.first = Some(self.machine.mask()?);
        }
        Ok(self.first.get_or_insert(Mask::All))
    }

    /// What may come in a phase before the grammar.
    fn mask_of(&mut self, phase: Phase) -> Result<Mask> {
        match phase {
            Phase::Inside => self.machine.mask(),
            Phase::Free(at) => {
                if !self.free.contains_key(&at) {
                    let mask = self.free_mask(at)?;
                    self.free.insert(at, mask);
                }
                Ok(self.free[&at].clone())
            }
            Phase::Space(..) => {
                let n_vocab = self.env.tok_trie().vocab_size() as u32;
                let mut words = vec![0; n_vocab.div_ceil(32) as usize];
                for token in 0..n_vocab {
                    if !matches!(self.entry(phase, token)?, Entry::Refused) {
                        words[token as usize / 32] |= 1 << (token % 32);
                    }
                }
                Ok(Mask::Set(words))
            }
        }
    }

    fn free_mask(&mut self, at: usize) -> Result<Mask> {
        let n_vocab = self.env.tok_trie().vocab_size() as u32;
        let mut refused = Vec::new();
        for token in 0..n_vocab {
            let bytes = self.bytes(token);
            let Err(rest) = self.free_step(at, bytes) else { continue };
            let text = rest.trim_ascii_start().to_vec();
            let space = rest.len() - text.len();
            if space > MAX_SPACE || !text.is_empty() && !self.can_begin(&text)? {
                refused.push(token);
            }
        }
        if refused.is_empty() {
            return Ok(Mask::All);
        }
        let mut words = vec![u32::MAX; n_vocab.div_ceil(32) as usize];
        if !n_vocab.is_multiple_of(32) {
            words[n_vocab as usize / 32] = (1 << (n_vocab % 32)) - 1;
        }
        refused.iter().for_each(|token| words[*token as usize / 32] &= !(1 << (token % 32)));
        Ok(Mask::Set(words))
    }

    /// Whether the grammar can begin with these bytes.
    fn can_begin(&mut self, bytes: &[u8]) -> Result<bool> {
        self.machine.try_bytes(bytes)
    }

    /// Walks to the start of the grammar: how many tokens of `draft` that takes, and bytes that the grammar then takes. `visit` sees each phase.
    fn approach(&mut self, draft: &[u32], mut visit: impl FnMut(&mut After, Phase) -> Result<()>) -> Result<Approach> {
        let mut phase = self.phase;
        for (taken, token) in draft.iter().enumerate() {
            if phase == Phase::Inside {
                return Ok(Approach::Inside { taken, bytes: Vec::new() });
            }
            visit(self, phase)?;
            match self.entry(phase, *token)? {
                Entry::To(Phase::Inside, bytes) if self.machine.try_bytes(&bytes)? => {
                    return Ok(Approach::Inside { taken: taken + 1, bytes });
                }
                Entry::To(Phase::Inside, _) | Entry::Refused => return Ok(Approach::Refused { taken }),
                Entry::To(next, _) => phase = next,
                Entry::Inner => return Ok(Approach::Entered { taken }),
            }
        }
        if phase == Phase::Inside {
            return Ok(Approach::Inside { taken: draft.len(), bytes: Vec::new() });
        }
        visit(self, phase)?;
        Ok(Approach::Refused { taken: draft.len() })
    }
}

/// How far a draft leads towards the grammar.
enum Approach {
    /// To the grammar; the rest of the draft is the grammar's, behind these bytes.
    Inside { taken: usize, bytes: Vec<u8> },
    /// To the grammar, whose first token is the next one. Its place has been visited.
    Entered { taken: usize },
    /// Not to it, or no further.
    Refused { taken: usize },
}

impl Constraint for After {
    fn masks(&mut self, draft: &[u32], out: &mut Vec<Mask>) -> Result<()> {
        let approach = self.approach(draft, |after, phase| {
            out.push(after.mask_of(phase)?);
            Ok(())
        })?;
        match approach {
            Approach::Refused { .. } => Ok(()),
            Approach::Inside { taken, bytes } => {
                self.machine.behind(&bytes, |machine| machine.masks(&draft[taken..], out))
            }
            Approach::Entered { taken } => {
                // The grammar's first mask is part of the one that was pushed.
                let mut masks = Vec::new();
                self.machine.masks(&draft[taken..], &mut masks)?;
                out.extend(masks.into_iter().skip(1));
                Ok(())
            }
        }
    }

    fn valid_prefix(&mut self, draft: &[u32]) -> Result<usize> {
        match self.approach(draft, |_, _| Ok(()))? {
            Approach::Refused { taken } => Ok(taken),
            Approach::Inside { taken, bytes } => {
                Ok(taken + self.machine.behind(&bytes, |machine| machine.valid_prefix(&draft[taken..]))?)
            }
            Approach::Entered { taken } => Ok(taken + self.machine.valid_prefix(&draft[taken..])?),
        }
    }

    fn forced(&mut self, max: usize, out: &mut Vec<u32>) -> Result<()> {
        if self.phase == Phase::Inside { self.machine.forced(max, out) } else { Ok(()) }
    }

    fn likely(&mut self, max: usize, out: &mut Vec<u32>) -> Result<()> {
        if self.phase == Phase::Inside { self.machine.likely(max, out) } else { Ok(()) }
    }

    fn commit(&mut self, token: u32) -> Result<bool> {
        match self.entry(self.phase, token)? {
            Entry::Inner => {
                self.phase = Phase::Inside;
                self.machine.commit(token)
            }
            Entry::To(phase, bytes) if bytes.is_empty() || self.machine.take_bytes(&bytes)? => {
                self.phase = phase;
                Ok(false)
            }
            _ => Err(quoth_engine::Error::Constraint(format!(
                "token {token} was committed, expected one that the grammar can begin with"
            ))),
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(After {
            machine: self.machine.copy(),
            text: self.text.clone(),
            open: self.open,
            env: self.env.clone(),
            phase: self.phase,
            free: self.free.clone(),
            first: self.first.clone(),
        })
    }
}

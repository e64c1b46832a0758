//! The slow twins: what the indexes claim, written the obvious way.
//!
//! In: streams of the tests. Out: the right answers, to compare with after each token.
//!
//! O1  Brute force looks at every earlier position and knows no automaton.
//! O2  `Recipe` is the textbook automaton with hash maps, explicit prefix states and a match cursor of its own; it also
//!     says *which* earlier occurrence is quoted. It shares no code with `suffix`.

use std::collections::HashMap;

/// Length of the longest suffix of `stream` that also ends earlier.
pub(crate) fn longest_earlier_suffix(stream: &[u32]) -> usize {
    (0..stream.len()).map(|end| common_suffix(&stream[..end], stream)).max().unwrap_or(0)
}

/// Length of the longest suffix of `fed` that occurs anywhere in `document`.
pub(crate) fn longest_suffix_within(document: &[u32], fed: &[u32]) -> usize {
    (0..=document.len()).map(|end| common_suffix(&document[..end], fed)).max().unwrap_or(0)
}

/// Ends of the earlier occurrences of the longest repeated suffix: `stream[..end]` ends with it.
pub(crate) fn earlier_ends(stream: &[u32]) -> Vec<usize> {
    let len = longest_earlier_suffix(stream);
    (1..stream.len()).filter(|&end| len > 0 && common_suffix(&stream[..end], stream) >= len).collect()
}

/// What follows `stream[..end]`, and past the end of the stream what follows in the copy itself.
pub(crate) fn copy_from(stream: &[u32], end: usize, max: usize) -> Vec<u32> {
    let mut text = stream.to_vec();
    for i in 0..max {
        text.push(text[end + i]);
    }
    text.split_off(stream.len())
}

fn common_suffix(a: &[u32], b: &[u32]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[derive(Default, Clone)]
struct State {
    len: usize,
    link: Option<usize>,
    sample: usize,
    edges: HashMap<u32, usize>,
}

/// The automaton recipe, literally, over a stream that begins with a token of its own. `sample` is the end of a noted
/// occurrence, that first token counted.
pub(crate) struct Recipe {
    states: Vec<State>,
    last: usize,
    n: usize,
    cursor: usize,
    pub(crate) match_len: usize,
}

impl Recipe {
    pub(crate) fn new() -> Self {
        let mut recipe = Self { states: vec![State::default()], last: 0, n: 0, cursor: 0, match_len: 0 };
        recipe.append(u32::MAX);
        recipe
    }

    /// The end of the occurrence that a draft would quote from.
    pub(crate) fn sample(&self) -> Option<usize> {
        (self.match_len > 0).then(|| self.states[self.cursor].sample - 1)
    }

    pub(crate) fn append(&mut self, token: u32) {
        let end = self.n;
        self.n += 1;
        if self.match_len > 0 {
            self.states[self.cursor].sample = end;
        }
        loop {
            if let Some(&next) = self.states[self.cursor].edges.get(&token) {
                self.cursor = next;
                self.match_len += 1;
                break;
            }
            match self.states[self.cursor].link {
                Some(link) => {
                    self.cursor = link;
                    self.match_len = self.states[link].len;
                }
                None => {
                    self.match_len = 0;
                    break;
                }
            }
        }
        let new = self.states.len();
        self.states.push(State { len: self.n, link: Some(0), sample: self.n, ..State::default() });
        let mut p = Some(self.last);
        while let Some(at) = p {
            if at != 0 {
                self.states[at].sample = end;
            }
            if self.states[at].edges.contains_key(&token) {
                break;
            }
            self.states[at].edges.insert(token, new);
            p = self.states[at].link;
        }
        if let Some(at) = p {
            self.link_new(new, at, token);
        }
        self.last = new;
    }

    fn link_new(&mut self, new: usize, from: usize, token: u32) {
        let q = self.states[from].edges[&token];
        let len = self.states[from].len + 1;
        if self.states[q].len == len {
            self.states[new].link = Some(q);
            return;
        }
        let clone = self.states.len();
        self.states.push(State { len, ..self.states[q].clone() });
        let mut p = Some(from);
        while let Some(at) = p {
            if self.states[at].edges.get(&token) != Some(&q) {
                break;
            }
            if at != 0 {
                self.states[at].sample = self.n - 1;
            }
            self.states[at].edges.insert(token, clone);
            p = self.states[at].link;
        }
        self.states[q].link = Some(clone);
        self.states[new].link = Some(clone);
        if self.cursor == q && self.match_len <= len {
            self.cursor = clone;
        }
    }
}

/// Deterministic pseudo-random numbers for streams (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// True with the probability `p`.
    pub(crate) fn chance(&mut self, p: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= p
    }
}

/// Random streams: uniform, and with quotations of their own past.
pub(crate) fn random_stream(dice: &mut Dice, alphabet: u32, len: usize) -> Vec<u32> {
    let quoting = dice.below(2) == 1;
    let mut stream: Vec<u32> = Vec::with_capacity(len);
    while stream.len() < len {
        if quoting && stream.len() > 4 && dice.below(4) == 0 {
            let from = dice.below(stream.len() as u32) as usize;
            let count = (1 + dice.below(12) as usize).min(len - stream.len());
            for i in 0..count {
                stream.push(stream[from + i]);
            }
        } else {
            stream.push(dice.below(alphabet));
        }
    }
    stream
}

/// Streams that are hard for a suffix automaton: runs, periods, Fibonacci, Thue-Morse, de Bruijn, and the worst cases for
/// its numbers of states and transitions.
pub(crate) fn adversarial_streams() -> Vec<Vec<u32>> {
    let n = 300;
    let mut streams: Vec<Vec<u32>> = vec![vec![], vec![7], vec![7; n], (0..n as u32).collect()];
    for period in [2, 3, 7, 31, 64] {
        streams.push((0..n as u32).map(|i| i % period).collect());
        streams.push((0..n as u32).map(|i| if i == 150 { 99 } else { i % period }).collect());
    }
    let (mut a, mut b) = (vec![0], vec![0, 1]);
    while b.len() < n {
        (a, b) = (b.clone(), [b, a].concat());
    }
    streams.push(b);
    streams.push((0..n as u32).map(|i| i.count_ones() & 1).collect());
    streams.push(de_bruijn(2, 8));
    streams.push(de_bruijn(5, 3));
    streams.push([vec![0], vec![1; n]].concat());
    streams.push([vec![0], vec![1; n / 2], vec![2; n / 2], vec![0]].concat());
    streams.push([vec![1; n / 3], vec![0], vec![1; n / 3], vec![2], vec![1; n / 3]].concat());
    streams.push(vec![u32::MAX - 1; 40]);
    streams
}

/// The cyclic sequence in which each word of `length` letters occurs once, by the standard Lyndon construction.
fn de_bruijn(letters: u32, length: usize) -> Vec<u32> {
    let (mut word, mut out) = (vec![0u32], Vec::new());
    while !word.is_empty() {
        if length.is_multiple_of(word.len()) {
            out.extend(&word);
        }
        word = word.iter().cycle().take(length).copied().collect();
        while word.last() == Some(&(letters - 1)) {
            word.pop();
        }
        if let Some(last) = word.last_mut() {
            *last += 1;
        }
    }
    out
}

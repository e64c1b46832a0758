//! What is done to a sound file: one kind of lie at a time, sometimes several.
//!
//! Lies about the layout are written over the finished bytes, at a place that holds a number of that kind; lies about the content change the parts before
//! they are put together, so that what is read before them is sound.

use crate::dice::Dice;
use crate::parts::{ARRAY, Field, Key, Parts, STRING, Tensor, Value, Whole, width};

/// A kind of lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Nothing.
    Sound,
    /// Random bytes in the header.
    Bytes,
    /// The file ends early, or goes on.
    Cut,
    /// The length of a text.
    Length,
    /// A number of keys, tensors or elements.
    Count,
    /// A type of a value or tensor, or the version.
    Type,
    /// The number of axes, or their lengths.
    Shape,
    /// Where tensors lie, and how aligned.
    Offset,
    /// A name that stands twice.
    Twice,
    /// Text that is not UTF-8, or too long.
    Text,
    /// Arrays in arrays.
    Nest,
    /// A number that could be right.
    Number,
    /// A value of another type.
    Retype,
    /// Keys, tensors or elements that are missing or more than they should be.
    Lose,
    /// Keys and tensors of another file.
    Splice,
    /// The beginning of one file and the end of another.
    Graft,
    /// Weights.
    Data,
}

/// All kinds.
pub(crate) const KINDS: [Kind; 17] = [
    Kind::Sound,
    Kind::Bytes,
    Kind::Cut,
    Kind::Length,
    Kind::Count,
    Kind::Type,
    Kind::Shape,
    Kind::Offset,
    Kind::Twice,
    Kind::Text,
    Kind::Nest,
    Kind::Number,
    Kind::Retype,
    Kind::Lose,
    Kind::Splice,
    Kind::Graft,
    Kind::Data,
];

/// Numbers at the edge of something.
const EDGES: [u64; 22] = [
    0,
    1,
    2,
    7,
    31,
    33,
    255,
    256,
    4096,
    65_535,
    65_536,
    (1 << 22) + 1,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    (1 << 61) + 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// A damaged copy of a seed; `other` is what is spliced in.
pub(crate) fn damaged(kind: Kind, seed: &Parts, other: &Parts, dice: &mut Dice) -> Vec<u8> {
    let mut parts = seed.clone();
    let times = if dice.once_in(3) { 1 + dice.below(4) } else { 1 };
    for _ in 0..times {
        content(kind, &mut parts, other, dice);
    }
    let mut whole = parts.write();
    for _ in 0..times {
        layout(kind, &mut whole, other, dice);
    }
    whole.bytes
}

/// Changes the parts.
fn content(kind: Kind, parts: &mut Parts, other: &Parts, dice: &mut Dice) {
    if parts.keys.is_empty() {
        return;
    }
    match kind {
        Kind::Offset => offsets(parts, dice),
        Kind::Twice => twice(parts, dice),
        Kind::Text => texts(parts, dice),
        Kind::Nest => {
            if let Some(key) = some(&mut parts.keys, dice) {
                let inner = std::mem::replace(&mut key.value, Value::Raw(Vec::new()));
                let depth = 1 + dice.below(40);
                let leaf = if key.ty == ARRAY { inner } else { Value::List(key.ty, vec![inner]) };
                key.ty = ARRAY;
                key.value = (0..depth).fold(leaf, |inner, _| Value::List(ARRAY, vec![inner]));
            }
        }
        Kind::Number => number(parts, dice),
        Kind::Retype => {
            if let Some(key) = some(&mut parts.keys, dice) {
                retype(key, dice);
            }
        }
        Kind::Lose => lose(parts, dice),
        Kind::Splice => splice(parts, other, dice),
        Kind::Shape if dice.once_in(2) => {
            if let Some(tensor) = some(&mut parts.tensors, dice) {
                reshape(tensor, dice);
            }
        }
        Kind::Data => {
            if let Some(tensor) = some(&mut parts.tensors, dice) {
                spoil(&mut tensor.data, dice);
            }
        }
        _ => {}
    }
}

/// Changes the finished bytes.
fn layout(kind: Kind, whole: &mut Whole, other: &Parts, dice: &mut Dice) {
    let len = whole.bytes.len();
    match kind {
        Kind::Bytes => {
            let head = [24, 400, whole.data, len][dice.below(4)].min(len);
            let at = dice.below(head.max(1)).min(len - 1);
            whole.bytes[at] = if dice.once_in(2) { dice.next() as u8 } else { whole.bytes[at] ^ (1 << dice.below(8)) };
        }
        Kind::Cut if dice.once_in(8) => whole.bytes.extend(dice.bytes(40)),
        Kind::Cut => {
            let head = [24.min(len), whole.data.min(len), len][dice.below(3)];
            whole.bytes.truncate(dice.below(head.max(1)));
        }
        Kind::Length => lie(whole, dice, |field| field == Field::Length),
        Kind::Count => lie(whole, dice, |field| matches!(field, Field::Keys | Field::Tensors | Field::Count)),
        Kind::Type => match dice.below(8) {
            0 => lie(whole, dice, |field| field == Field::Version),
            1 => whole.bytes[4..8].reverse(),
            2 => {
                let magic = [*b"GGML", *b"text", *b"{\"a\"", *b"PK\x03\x04", [0x80, 2, 0, 0], *b"ggjt", *b"FUGG"];
                whole.bytes[..4].copy_from_slice(&dice.pick(&magic)[..]);
            }
            _ => types(whole, dice),
        },
        Kind::Shape => lie(whole, dice, |field| matches!(field, Field::Axes | Field::Axis)),
        Kind::Offset if dice.once_in(2) => lie(whole, dice, |field| field == Field::Offset),
        Kind::Text if dice.once_in(2) => over_text(whole, dice),
        Kind::Graft => {
            let tail = other.write().bytes;
            let (keep, from) = (dice.below(len), dice.below(tail.len()));
            whole.bytes.truncate(keep);
            whole.bytes.extend(&tail[from..]);
        }
        _ => {}
    }
}

fn some<'a, T>(from: &'a mut [T], dice: &mut Dice) -> Option<&'a mut T> {
    if from.is_empty() { None } else { Some(&mut from[dice.below(from.len())]) }
}

/// Writes another number over one of a kind.
fn lie(whole: &mut Whole, dice: &mut Dice, fits: impl Fn(Field) -> bool) {
    let places: Vec<_> = whole.fields.iter().filter(|(_, field)| fits(*field)).copied().collect();
    if places.is_empty() {
        return;
    }
    let (at, field) = *dice.pick(&places);
    let n = if matches!(field, Field::Version | Field::Axes) { 4 } else { 8 };
    let mut old = [0; 8];
    old[..n].copy_from_slice(&whole.bytes[at..at + n]);
    let old = u64::from_le_bytes(old);
    let left = (whole.bytes.len() - at - n) as u64;
    let new = match dice.below(8) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_mul(2),
        3 => left,
        4 => left + 1,
        5 => old.wrapping_add(dice.below(64) as u64),
        _ => *dice.pick(&EDGES),
    };
    whole.bytes[at..at + n].copy_from_slice(&new.to_le_bytes()[..n]);
}

/// Another type of a value or a tensor.
fn types(whole: &mut Whole, dice: &mut Dice) {
    let tensor = dice.once_in(2);
    let fits = |field| if tensor { field == Field::TensorType } else { field == Field::ValueType };
    let places: Vec<_> = whole.fields.iter().filter(|(_, field)| fits(*field)).map(|(at, _)| *at).collect();
    if places.is_empty() {
        return;
    }
    let at = *dice.pick(&places);
    let new = if dice.once_in(4) { *dice.pick(&EDGES) as u32 } else { dice.below(if tensor { 45 } else { 14 }) as u32 };
    whole.bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
}

/// Bytes that are not UTF-8, over a text.
fn over_text(whole: &mut Whole, dice: &mut Dice) {
    let texts: Vec<_> = whole
        .fields
        .iter()
        .filter_map(|(at, field)| if let Field::Text(n) = field { Some((*at, *n)) } else { None })
        .collect();
    if texts.is_empty() {
        return;
    }
    let (at, n) = *dice.pick(&texts);
    let wrong: [&[u8]; 6] = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88", b"\0", b"\xe2\x82"];
    let wrong = *dice.pick(&wrong);
    let start = at + dice.below(n);
    let end = (start + wrong.len()).min(at + n);
    whole.bytes[start..end].copy_from_slice(&wrong[..end - start]);
}

fn offsets(parts: &mut Parts, dice: &mut Dice) {
    match dice.below(4) {
        0 => {
            let alignments = [0u32, 1, 4, 8, 16, 64, 100, 4096, 8192, 1 << 31, u32::MAX];
            let alignment = *dice.pick(&alignments);
            parts.keys.retain(|key| key.name != b"general.alignment");
            let value = Value::Raw(alignment.to_le_bytes().to_vec());
            parts.keys.push(Key { name: b"general.alignment".to_vec(), ty: 4, value });
            // Half of the time the file is as it says.
            if dice.once_in(2) && (alignment as usize).is_power_of_two() && alignment <= 4096 {
                parts.alignment = alignment as usize;
            }
        }
        1 => parts.tensors.reverse(),
        2 => {
            let step = *dice.pick(&[1u64, 4, 32, 64, 4096]);
            if let Some(tensor) = some(&mut parts.tensors, dice) {
                tensor.offset = Some(step * dice.below(20) as u64);
            }
        }
        _ => {
            if let Some(tensor) = some(&mut parts.tensors, dice) {
                let n = dice.below(tensor.data.len() + 1);
                tensor.data.truncate(n);
            }
        }
    }
}

fn twice(parts: &mut Parts, dice: &mut Dice) {
    if dice.once_in(2) {
        let (n, at) = (parts.keys.len(), dice.below(parts.keys.len()));
        let key = parts.keys[at].clone();
        match dice.below(3) {
            0 => parts.keys.push(key),
            1 => parts.keys[dice.below(n)].name = key.name,
            _ => parts.keys.insert(dice.below(n), key),
        }
    } else if let n @ 1.. = parts.tensors.len() {
        let at = dice.below(n);
        let tensor = parts.tensors[at].clone();
        match dice.below(3) {
            0 => parts.tensors.push(tensor),
            1 => parts.tensors[dice.below(n)].name = tensor.name,
            _ => parts.tensors.insert(dice.below(n), tensor),
        }
    }
}

fn texts(parts: &mut Parts, dice: &mut Dice) {
    let long = vec![b'x'; *dice.pick(&[0usize, 64, 255, 256, 300, 5_000])];
    match dice.below(4) {
        0 => {
            if let Some(tensor) = some(&mut parts.tensors, dice) {
                tensor.name = long;
            }
        }
        1 => {
            if let Some(key) = some(&mut parts.keys, dice) {
                key.name = long;
            }
        }
        2 => {
            let vocabularies = ["gpt2", "llama", "gemma4", "bert", "t5", "", "GPT2"];
            let splitters = ["llama-bpe", "qwen2", "foo", "", "default"];
            let names = [("tokenizer.ggml.model", &vocabularies[..]), ("tokenizer.ggml.pre", &splitters[..])];
            let (name, values) = *dice.pick(&names);
            let text = dice.pick(values).as_bytes().to_vec();
            if let Some(key) = parts.key(name) {
                (key.ty, key.value) = (STRING, Value::Text(text));
            }
        }
        _ => {
            let archs = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gemma4", "qwen35", "mamba", "gpt2", ""];
            let text = dice.pick(&archs).as_bytes().to_vec();
            if let Some(key) = parts.key("general.architecture") {
                (key.ty, key.value) = (STRING, Value::Text(text));
            }
        }
    }
}

/// Another number of the same type, in a key or in an array: one that could be right, or one at an edge.
fn number(parts: &mut Parts, dice: &mut Dice) {
    // Where names begin with an architecture the numbers size a model; half of the changes go there.
    let model: Vec<usize> =
        (0..parts.keys.len()).filter(|i| !parts.keys[*i].name.starts_with(b"tokenizer.") && *i > 0).collect();
    let at = if dice.once_in(2) && !model.is_empty() { *dice.pick(&model) } else { dice.below(parts.keys.len()) };
    let key = &mut parts.keys[at];
    let (ty, raw) = match &mut key.value {
        Value::Raw(raw) => (key.ty, raw),
        Value::List(ty, elements) => match some(elements, dice) {
            Some(Value::Raw(raw)) => (*ty, raw),
            _ => return,
        },
        Value::Text(_) => return,
    };
    let n = raw.len();
    if matches!(ty, 6 | 12) {
        let values = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.0, 1e-45];
        let value = *dice.pick(&values);
        *raw = if ty == 6 { (value as f32).to_le_bytes().to_vec() } else { value.to_le_bytes().to_vec() };
        return;
    }
    let mut old = [0; 8];
    old[..n].copy_from_slice(raw);
    let old = u64::from_le_bytes(old);
    let new = match dice.below(8) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_mul(2),
        3 => old / 2,
        4 => old.wrapping_add(dice.below(64) as u64),
        5 => dice.below(70) as u64,
        6 => 0u64.wrapping_sub(old),
        _ => *dice.pick(&EDGES),
    };
    raw.copy_from_slice(&new.to_le_bytes()[..n]);
}

fn retype(key: &mut Key, dice: &mut Dice) {
    let fixed = [0u32, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12];
    let to = *dice.pick(&fixed);
    let bytes = |dice: &mut Dice| Value::Raw(if to == 7 { vec![1] } else { dice.bytes(width(to).unwrap()) });
    let old = std::mem::replace(&mut key.value, Value::Raw(Vec::new()));
    (key.ty, key.value) = match (dice.below(4), old) {
        (0, _) => (STRING, Value::Text(b"7".to_vec())),
        (1, Value::List(ty, elements)) => (ty, elements.into_iter().next().unwrap_or(Value::Raw(vec![0; 8]))),
        (1, old) => (ARRAY, Value::List(key.ty, vec![old; 3])),
        // The same number in another width.
        (2, Value::Raw(raw)) if !matches!(key.ty, 6 | 12) && !matches!(to, 6 | 12) => {
            let mut wide = raw;
            wide.resize(8, 0);
            wide.truncate(width(to).unwrap());
            (to, Value::Raw(wide))
        }
        (_, Value::List(_, elements)) => {
            let n = elements.len();
            (ARRAY, Value::List(to, (0..n).map(|_| bytes(dice)).collect()))
        }
        _ => (to, bytes(dice)),
    };
    if width(key.ty).is_some_and(|n| !matches!(&key.value, Value::Raw(raw) if raw.len() == n)) {
        key.value = Value::Raw(vec![0; width(key.ty).unwrap()]);
    }
}

fn lose(parts: &mut Parts, dice: &mut Dice) {
    match dice.below(5) {
        0 if !parts.keys.is_empty() => drop(parts.keys.remove(dice.below(parts.keys.len()))),
        1 if !parts.tensors.is_empty() => drop(parts.tensors.remove(dice.below(parts.tensors.len()))),
        2 => parts.tensors.clear(),
        3 => {
            let n = dice.below(60);
            parts.keys.truncate(n);
        }
        _ => {
            let lists = parts.keys.iter_mut().filter_map(|key| match &mut key.value {
                Value::List(_, elements) if !elements.is_empty() => Some(elements),
                _ => None,
            });
            let mut lists: Vec<_> = lists.collect();
            if let Some(elements) = some(&mut lists, dice) {
                let n = dice.below(2 * elements.len());
                let last = elements[0].clone();
                elements.resize(n, last);
            }
        }
    }
}

fn splice(parts: &mut Parts, other: &Parts, dice: &mut Dice) {
    match dice.below(3) {
        0 => {
            let key = dice.pick(&other.keys).clone();
            parts.keys.retain(|old| old.name != key.name);
            parts.keys.insert(dice.below(parts.keys.len() + 1), key);
        }
        1 if !other.tensors.is_empty() => {
            let tensor = dice.pick(&other.tensors).clone();
            parts.tensors.retain(|old| old.name != tensor.name);
            parts.tensors.insert(dice.below(parts.tensors.len() + 1), tensor);
        }
        _ => {
            // The model of one under the vocabulary of the other.
            let own = |key: &Key| !key.name.starts_with(b"tokenizer.");
            parts.keys.retain(own);
            parts.keys.extend(other.keys.iter().filter(|key| !own(key)).cloned());
        }
    }
}

/// Another shape, of data that fit it as often as not.
fn reshape(tensor: &mut Tensor, dice: &mut Dice) {
    match dice.below(5) {
        0 => tensor.dims.reverse(),
        1 => tensor.dims.push(1 + dice.below(2) as u64),
        2 => drop(tensor.dims.pop()),
        3 => tensor.dims.iter_mut().for_each(|dim| *dim = dim.div_ceil(2)),
        _ => {
            let axis = dice.below(tensor.dims.len().max(1));
            if let Some(dim) = tensor.dims.get_mut(axis) {
                *dim = *dice.pick(&EDGES);
            }
        }
    }
}

/// Weights that are not numbers, or too large.
fn spoil(data: &mut [u8], dice: &mut Dice) {
    if data.is_empty() {
        return;
    }
    for _ in 0..1 + dice.below(8) {
        let at = dice.below(data.len()) & !3;
        let floats = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, -0.0];
        let halves = [0x7e00u32, 0x7c00, 0xfc00, 0x7bff].map(f32::from_bits);
        let value = if dice.once_in(2) { *dice.pick(&floats) } else { *dice.pick(&halves) };
        let end = (at + 4).min(data.len());
        data[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
    }
}

#[test]
fn damage_of_each_kind_changes_most_files_and_follows_from_its_number() {
    let seeds: Vec<Parts> = crate::seeds::all().iter().map(|(_, bytes)| Parts::read(bytes)).collect();
    for kind in KINDS {
        let mut changed = 0;
        for case in 0..200u64 {
            let make = || {
                let mut dice = Dice(case);
                let (a, b) = (dice.below(seeds.len()), dice.below(seeds.len()));
                (damaged(kind, &seeds[a], &seeds[b], &mut dice), seeds[a].write().bytes)
            };
            let (bytes, seed) = make();
            assert_eq!(bytes, make().0, "{kind:?} {case}");
            changed += usize::from(bytes != seed);
        }
        let least = if kind == Kind::Sound { 0 } else { 100 };
        assert!(changed >= least && (changed == 0) == (kind == Kind::Sound), "{kind:?}: {changed} of 200");
    }
}

//! The bytes of a chunk of keys and values of one head: how a position is written and read.
//!
//! f16: `[8 key panels][head_dim][16 keys]` halves, then `[head_dim / 16 value panels][128 slots][16 columns]` halves.
//! f32: the same with floats.
//! q8_0: keys as Q8_0 panels ([`crate::format`]); then `[value panels][32 quads][16 columns][4 slots]` signed bytes, so that a word holds what four slots, one
//! quad, have in a column; then `[head_dim / 32][128 slots]` half-precision scales.
//!
//! Numbers saturate (halves at ±65504) instead of overflowing. A NaN stays in a key, where it reaches every later score; in a value it becomes zero, because a
//! value is multiplied by the zero weights of queries that may not see it (A4); the row that made it is itself NaN and says so.

use std::ops::Range;

use super::{CHUNK, Values};
use crate::act::ActKind;
use crate::fetch::fetch;
use crate::format::{Format, PANEL};
use crate::half::{f16_to_f32, f32_to_f16};
use crate::set::KernelSet;

/// How the cache stores numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// IEEE single precision: twice the memory of f16, and nothing rounded.
    F32,
    /// IEEE half precision.
    F16,
    /// Blocks of 32 signed bytes with a half-precision scale.
    Q8_0,
}

/// The geometry of one head's chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    kind: KvKind,
    head_dim: usize,
}

/// The greatest finite half.
pub(super) const HALF_MAX: f32 = 65504.0;

/// Narrows to a half that is finite unless `x` is NaN.
fn narrow(x: f32) -> u16 {
    // `clamp` keeps a NaN.
    f32_to_f16(x.clamp(-HALF_MAX, HALF_MAX))
}

/// Codes and scale of 32 numbers by the formula of [`crate::act`], the scale in half precision.
fn quantize(set: &KernelSet, x: &[f32], codes: &mut [i8; 32]) -> u16 {
    let mut tile = [0u32; 8 + crate::act::EXTRAS_32];
    set.pack(ActKind::Q32, x, 32, &mut tile);
    narrow(crate::act::unpack_row(ActKind::Q32, &tile, 1, 32, 0, 0, codes))
}

/// Numbers that are narrowed together.
const PART: usize = 64;

/// Slots whose codes of a column lie together.
pub(super) const QUAD: usize = 4;

/// Where column `d` of a slot lies in a panel of q8_0 values.
fn in_quads(slot: usize, d: usize) -> usize {
    (slot / QUAD * PANEL + d) * QUAD + slot % QUAD
}

/// Columns of a value that are written together, and so the least that threads can share out: what one scale of q8_0 is for.
pub const VALUE_PART: usize = 32;

/// Up to [`PART`] numbers as halves.
fn halves(set: &KernelSet, x: &[f32]) -> [u16; PART] {
    let mut halves = [0; PART];
    // SAFETY: the set's functions run on this CPU.
    unsafe { (set.attend_fns().halve)(x, &mut halves[..x.len()]) };
    halves
}

impl KvLayout {
    /// A layout for heads of `head_dim` numbers. `None` if `kind` cannot store them (q8_0 wants a multiple of 32).
    pub fn new(kind: KvKind, head_dim: usize) -> Option<Self> {
        let fits = head_dim > 0 && (kind != KvKind::Q8_0 || head_dim.is_multiple_of(32));
        fits.then_some(KvLayout { kind, head_dim })
    }

    /// How numbers are stored.
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    /// Numbers a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// [`Self::head_dim`] rounded up to whole panels.
    pub fn padded(&self) -> usize {
        self.head_dim.div_ceil(PANEL) * PANEL
    }

    /// How queries are packed for these keys.
    pub fn query_kind(&self) -> ActKind {
        self.key_format().act_kind()
    }

    pub(crate) fn key_format(&self) -> Format {
        match self.kind {
            KvKind::F32 => Format::F32,
            KvKind::F16 => Format::F16,
            KvKind::Q8_0 => Format::Q8_0,
        }
    }

    /// How values that are floats are stored; `None` if they are codes with scales.
    pub(crate) fn floats(&self) -> Option<Values> {
        match self.kind {
            KvKind::F32 => Some(Values::F32),
            KvKind::F16 => Some(Values::F16),
            KvKind::Q8_0 => None,
        }
    }

    /// Blocks of [`VALUE_PART`] columns with scales; none in a cache of floats.
    pub(crate) fn scaled_blocks(&self) -> usize {
        if self.kind == KvKind::Q8_0 { self.head_dim / VALUE_PART } else { 0 }
    }

    pub(crate) fn key_panel_bytes(&self) -> usize {
        PANEL * self.key_format().row_bytes(self.head_dim)
    }

    pub(crate) fn values_at(&self) -> usize {
        CHUNK / PANEL * self.key_panel_bytes()
    }

    /// Bytes of the 16 columns of a slot. Of floats they lie together.
    pub(crate) fn value_row_bytes(&self) -> usize {
        match self.kind {
            KvKind::F32 => 4 * PANEL,
            KvKind::F16 => 2 * PANEL,
            KvKind::Q8_0 => PANEL,
        }
    }

    pub(crate) fn value_panel_bytes(&self) -> usize {
        CHUNK * self.value_row_bytes()
    }

    fn scales_at(&self) -> usize {
        self.values_at() + self.padded() / PANEL * self.value_panel_bytes()
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.scales_at() + self.scaled_blocks() * CHUNK * 2
    }

    /// The scales of a chunk's values: halves, `[head_dim / 32][128 slots]`.
    pub(crate) fn value_scales<'c>(&self, chunk: &'c [u8]) -> &'c [u8] {
        &chunk[self.scales_at()..]
    }

    /// Bytes of the keys of a chunk; the values follow them.
    pub fn key_bytes(&self) -> usize {
        self.values_at()
    }

    /// Asks for the lines that writing the key of a slot will touch, given the key bytes of a chunk: each of its numbers lies in another.
    pub fn fetch_key(&self, keys: &[u8], slot: usize) {
        let panel = slot / PANEL * self.key_panel_bytes();
        fetch(&keys[panel..panel + self.key_panel_bytes()]);
    }

    /// Writes the key of a slot, `head_dim` floats, into the key bytes of a chunk.
    pub fn write_key(&self, set: &KernelSet, keys: &mut [u8], slot: usize, key: &[f32]) {
        assert!(slot < CHUNK && key.len() == self.head_dim && keys.len() == self.key_bytes());
        let (panel, lane) = (slot / PANEL * self.key_panel_bytes(), slot % PANEL);
        match self.kind {
            KvKind::F32 => {
                for (d, x) in key.iter().enumerate() {
                    put_float(keys, panel + (d * PANEL + lane) * 4, x.clamp(-f32::MAX, f32::MAX));
                }
            }
            KvKind::F16 => {
                for (i, part) in key.chunks(PART).enumerate() {
                    for (d, half) in halves(set, part)[..part.len()].iter().enumerate() {
                        put(keys, panel + ((i * PART + d) * PANEL + lane) * 2, *half);
                    }
                }
            }
            KvKind::Q8_0 => {
                let half_area = panel + self.head_dim / 32 * 8 * 4 * PANEL;
                let mut codes = [0i8; 32];
                for (b, x) in key.chunks_exact(32).enumerate() {
                    let scale = quantize(set, x, &mut codes);
                    for (i, code) in codes.iter().enumerate() {
                        keys[panel + ((b * 8 + i / 4) * PANEL + lane) * 4 + i % 4] = *code as u8;
                    }
                    put(keys, half_area + (b * PANEL + lane) * 2, scale);
                }
            }
        }
    }

    /// Parts of [`VALUE_PART`] columns of a value; the last may be shorter.
    pub fn value_parts(&self) -> usize {
        self.head_dim.div_ceil(VALUE_PART)
    }

    /// Where the codes and the scales of part `p` of all values lie in a chunk. Only q8_0 has scales.
    pub fn value_part(&self, p: usize) -> (Range<usize>, Range<usize>) {
        let panels = p * (VALUE_PART / PANEL)..((p + 1) * (VALUE_PART / PANEL)).min(self.padded() / PANEL);
        let codes = |panel: usize| self.values_at() + panel * self.value_panel_bytes();
        let scales = if self.kind == KvKind::Q8_0 { p..p + 1 } else { 0..0 };
        let scales_at = |p: usize| self.scales_at() + p * CHUNK * 2;
        (codes(panels.start)..codes(panels.end), scales_at(scales.start)..scales_at(scales.end))
    }

    /// Writes part of the value of a slot into the bytes that [`Self::value_part`] names.
    pub fn write_value(&self, set: &KernelSet, (codes, scales): (&mut [u8], &mut [u8]), slot: usize, value: &[f32]) {
        let row = self.value_row_bytes();
        assert!(slot < CHUNK && value.len() <= VALUE_PART && codes.len() >= value.len().div_ceil(PANEL) * CHUNK * row);
        let panels = codes.chunks_exact_mut(CHUNK * row);
        match self.kind {
            KvKind::F32 => {
                for (panel, value) in panels.zip(value.chunks(PANEL)) {
                    for (d, x) in value.iter().enumerate() {
                        let finite = if x.is_nan() { 0.0 } else { x.clamp(-f32::MAX, f32::MAX) };
                        put_float(panel, slot * row + d * 4, finite);
                    }
                }
            }
            KvKind::F16 => {
                let halves = halves(set, value);
                for (panel, halves) in panels.zip(halves[..value.len()].chunks(PANEL)) {
                    for (d, half) in halves.iter().enumerate() {
                        put(panel, slot * row + d * 2, if half & 0x7fff > 0x7c00 { 0 } else { *half });
                    }
                }
            }
            KvKind::Q8_0 => {
                let mut codes = [0i8; 32];
                let scale = quantize(set, value, &mut codes);
                let finite = f16_to_f32(scale).is_finite();
                for (panel, codes) in panels.zip(codes.chunks(PANEL)) {
                    for (d, code) in codes.iter().enumerate() {
                        panel[in_quads(slot, d)] = if finite { *code as u8 } else { 0 };
                    }
                }
                put(scales, slot * 2, if finite { scale } else { 0 });
            }
        }
    }

    /// Writes key and value of a slot into a chunk that no other thread uses.
    pub fn write(&self, set: &KernelSet, chunk: &mut [u8], slot: usize, key: &[f32], value: &[f32]) {
        assert_eq!(value.len(), self.head_dim);
        self.write_key(set, &mut chunk[..self.key_bytes()], slot, key);
        for (p, value) in value.chunks(VALUE_PART).enumerate() {
            let (codes, scales) = self.value_part(p);
            let (before, after) = chunk.split_at_mut(codes.end);
            let scales = &mut after[scales.start - codes.end..scales.end - codes.end];
            self.write_value(set, (&mut before[codes], scales), slot, value);
        }
    }

    pub(super) fn value_at(&self, slot: usize, d: usize) -> usize {
        let width = self.value_row_bytes() / PANEL;
        let inside =
            if self.kind == KvKind::Q8_0 { in_quads(slot, d % PANEL) } else { (slot * PANEL + d % PANEL) * width };
        self.values_at() + d / PANEL * self.value_panel_bytes() + inside
    }

    /// Copies the first `slots` slots of a chunk into another, as they are.
    pub fn copy(&self, from: &[u8], to: &mut [u8], slots: usize) {
        self.for_each_byte(slots, |at| to[at] = from[at]);
    }

    /// Whether the first `slots` slots of two chunks hold the same bytes.
    pub fn same(&self, a: &[u8], b: &[u8], slots: usize) -> bool {
        let mut same = true;
        self.for_each_byte(slots, |at| same &= a[at] == b[at]);
        same
    }

    /// Calls `f` with every byte offset that belongs to the first `slots` slots.
    fn for_each_byte(&self, slots: usize, mut f: impl FnMut(usize)) {
        (0..slots).for_each(|slot| self.for_each_byte_of(slot, &mut f));
    }

    /// Calls `f` with every byte offset that belongs to a slot.
    pub(super) fn for_each_byte_of(&self, slot: usize, mut f: impl FnMut(usize)) {
        let width = self.value_row_bytes() / PANEL;
        let (panel, lane) = (slot / PANEL * self.key_panel_bytes(), slot % PANEL);
        for d in 0..self.head_dim {
            match self.kind {
                KvKind::F32 => (0..4).for_each(|i| f(panel + (d * PANEL + lane) * 4 + i)),
                KvKind::F16 => (0..2).for_each(|i| f(panel + (d * PANEL + lane) * 2 + i)),
                KvKind::Q8_0 => f(panel + (d / 4 * PANEL + lane) * 4 + d % 4),
            }
            (0..width).for_each(|i| f(self.value_at(slot, d) + i));
        }
        let half_area = panel + self.head_dim / 32 * 8 * 4 * PANEL;
        for b in 0..self.scaled_blocks() {
            (0..2).for_each(|i| f(half_area + (b * PANEL + lane) * 2 + i));
            (0..2).for_each(|i| f(self.scales_at() + (b * CHUNK + slot) * 2 + i));
        }
    }

    /// Reads key and value of a slot back as floats.
    pub fn read(&self, chunk: &[u8], slot: usize, key: &mut [f32], value: &mut [f32]) {
        let (panel, lane) = (slot / PANEL * self.key_panel_bytes(), slot % PANEL);
        let half = |at: usize| f16_to_f32(u16::from_le_bytes([chunk[at], chunk[at + 1]]));
        let float = |at: usize| f32::from_le_bytes([chunk[at], chunk[at + 1], chunk[at + 2], chunk[at + 3]]);
        for d in 0..self.head_dim {
            (key[d], value[d]) = match self.kind {
                KvKind::F32 => (float(panel + (d * PANEL + lane) * 4), float(self.value_at(slot, d))),
                KvKind::F16 => (half(panel + (d * PANEL + lane) * 2), half(self.value_at(slot, d))),
                KvKind::Q8_0 => {
                    let scales = panel + self.head_dim / 32 * 8 * 4 * PANEL;
                    let k = chunk[panel + (d / 4 * PANEL + lane) * 4 + d % 4] as i8;
                    let v = chunk[self.value_at(slot, d)] as i8;
                    (
                        f32::from(k) * half(scales + (d / 32 * PANEL + lane) * 2),
                        f32::from(v) * half(self.scales_at() + (d / 32 * CHUNK + slot) * 2),
                    )
                }
            };
        }
    }
}

fn put(chunk: &mut [u8], at: usize, half: u16) {
    chunk[at..at + 2].copy_from_slice(&half.to_le_bytes());
}

fn put_float(chunk: &mut [u8], at: usize, x: f32) {
    chunk[at..at + 4].copy_from_slice(&x.to_le_bytes());
}

//! The packs: formula, edge values, and equality of the sets.

use super::*;
use crate::set::KernelSet;

/// A small generator, so that every run sees the same values.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }

    /// Roughly normal, now and then large.
    pub(crate) fn float(&mut self) -> f32 {
        let x = (0..4).map(|_| (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0).sum::<f32>();
        if self.below(50) == 0 { x * 30.0 } else { x }
    }
}

fn rows(m: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..m * k).map(|_| random.float()).collect()
}

#[test]
fn tiles_cover_all_rows_once_and_differ_by_at_most_one_row() {
    for m in 1..600 {
        let mut next = 0;
        let sizes: Vec<usize> = tiles(m)
            .map(|(first, rows)| {
                assert_eq!(first, next);
                next = first + rows;
                rows
            })
            .collect();
        let (least, most) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
        assert!(least > 0 && most <= MAX_TILE && most - least <= 1, "{sizes:?} of {m}");
        assert_eq!(next, m);
    }
}

#[test]
fn codes_are_the_nearest_multiples_of_the_scale() {
    for kind in [ActKind::Q32, ActKind::Q256] {
        let (m, k) = (3, 512);
        let x = rows(m, k, 7);
        let mut tile = vec![0; m * kind.row_words(k)];
        KernelSet::scalar().pack(kind, &x, k, &mut tile);
        for r in 0..m {
            for b in 0..k / kind.block() {
                let mut codes = [0i8; 256];
                let d = unpack_row(kind, &tile, m, k, r, b, &mut codes);
                for (i, code) in codes[..kind.block()].iter().enumerate() {
                    let v = f64::from(x[r * k + b * kind.block() + i]);
                    let ratio = v / f64::from(d);
                    // The scale of a block of 32 is rounded to 2^-11 of itself, which moves a code of 127 by 0.062.
                    assert!((ratio - f64::from(*code)).abs() <= 0.5 + 0.063, "{ratio} {code}");
                    assert!(*code >= -127);
                }
            }
        }
    }
}

#[test]
fn ties_go_to_even_and_edges_keep_their_promise() {
    let mut x = vec![0.0f32; 32];
    x[0] = 127.0;
    x[1] = 0.5;
    x[2] = 1.5;
    x[3] = -2.5;
    for set in KernelSet::available() {
        let mut tile = vec![0; ActKind::Q32.row_words(32)];
        set.pack(ActKind::Q32, &x, 32, &mut tile);
        let mut codes = [0i8; 32];
        assert_eq!(unpack_row(ActKind::Q32, &tile, 1, 32, 0, 0, &mut codes), 1.0);
        assert_eq!(codes[..4], [127, 0, 2, -2]);
    }
    for (value, scale_is) in
        [(f32::NAN, f32::NAN), (f32::INFINITY, f32::NAN), (1e-30, 0.0), (f32::MIN_POSITIVE / 4.0, 0.0)]
    {
        let mut y = vec![0.0f32; 256];
        y[77] = value;
        for set in KernelSet::available() {
            for kind in [ActKind::Q32, ActKind::Q256] {
                let mut tile = vec![0; kind.row_words(256)];
                set.pack(kind, &y, 256, &mut tile);
                let mut codes = [1i8; 256];
                let d = unpack_row(kind, &tile, 1, 256, 0, 77 / kind.block(), &mut codes);
                assert_eq!(d.to_bits(), f32::to_bits(scale_is), "{} {value}", set.name());
                assert!(codes[..kind.block()].iter().all(|c| *c == 0));
            }
        }
    }
}

#[test]
fn every_set_packs_the_same_words() {
    for kind in [ActKind::F32, ActKind::Q32, ActKind::Q256] {
        for m in 1..=MAX_TILE {
            let k = 768;
            let mut x = rows(m, k, 99 + m as u64);
            // Some blocks are zero, tiny or broken.
            x[32..64].fill(0.0);
            x[64..96].fill(1e-35);
            x[100] = f32::NAN;
            x[300] = f32::NEG_INFINITY;
            let mut expected = vec![0; m * kind.row_words(k)];
            KernelSet::scalar().pack(kind, &x, k, &mut expected);
            for set in KernelSet::available() {
                let mut tile = vec![0; expected.len()];
                set.pack(kind, &x, k, &mut tile);
                assert!(tile == expected, "{} {kind:?} {m} rows", set.name());
            }
        }
    }
}

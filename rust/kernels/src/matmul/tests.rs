//! The products: every set equals plain code bit for bit, whatever the batch; plain code is near the mathematics; extremes do not overflow.

use super::*;
use crate::act::tests::Random;
use crate::act::{ActKind, MAX_TILE};
use crate::format::tests::{panels_of, put_scales, random_rows};
use crate::set::KernelSet;

/// What stands where nothing was written.
const MARK: u32 = 0x1234_5678;

/// `m · n` outputs of a product, computed panel range by panel range.
fn multiply(set: &KernelSet, w: &Panels<'_>, x: &[f32], m: usize, ranges: &[(usize, usize)]) -> Vec<f32> {
    let kind = set.act_kind(w.format());
    let mut words = Vec::new();
    for (first, rows) in tiles(m) {
        let mut tile = vec![0; rows * kind.row_words(w.k())];
        set.pack(kind, &x[first * w.k()..(first + rows) * w.k()], w.k(), &mut tile);
        words.extend(tile);
    }
    let acts = Acts::new(kind, m, w.k(), &words);
    // One more column than the product has: it must stay untouched.
    let stride = w.n() + 1;
    let mut out = vec![f32::from_bits(MARK); m * stride];
    for (first, count) in ranges {
        // SAFETY: `out` has m rows of `stride` floats and this thread alone writes it.
        unsafe { set.multiply(w, *first, *count, &acts, Out::new(out.as_mut_ptr(), stride)) };
    }
    assert!(out.chunks_exact(stride).all(|row| row[w.n()].to_bits() == MARK), "a column past n was written");
    out.chunks_exact(stride).flat_map(|row| row[..w.n()].to_vec()).collect()
}

fn same(a: &[f32], b: &[f32], what: &str) {
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.to_bits(), b.to_bits(), "{what}, output {i}: {a} {b}");
    }
}

fn floats(n: usize, random: &mut Random) -> Vec<f32> {
    (0..n).map(|_| random.float()).collect()
}

#[test]
fn every_set_equals_plain_code_for_every_format_and_batch() {
    let mut random = Random(42);
    for format in Format::ALL {
        let len = format.layout().len;
        for (n, k) in [(16, len), (37, 3 * len), (1, 2 * len), (64, if len == 1 { 77 } else { 5 * len })] {
            let rows = random_rows(format, n, k, &mut random);
            let bytes = panels_of(format, n, k, &rows);
            let w = Panels::new(format, n, k, &bytes);
            let x = floats(33 * k, &mut random);
            let all = multiply(&KernelSet::scalar(), &w, &x, 33, &[(0, w.count())]);
            for set in KernelSet::available() {
                for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 17, 33] {
                    let out = multiply(&set, &w, &x[..m * k], m, &[(0, w.count())]);
                    same(&out, &all[..m * n], &format!("{set:?} {format:?} n={n} k={k} m={m}"));
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours_nor_on_how_panels_are_shared_out() {
    let mut random = Random(43);
    for format in Format::ALL {
        let (n, k) = (90, 256);
        let rows = random_rows(format, n, k, &mut random);
        let bytes = panels_of(format, n, k, &rows);
        let w = Panels::new(format, n, k, &bytes);
        let x = floats(MAX_TILE * k, &mut random);
        for set in KernelSet::available() {
            let all = multiply(&set, &w, &x, MAX_TILE, &[(4, 2), (0, 1), (1, 3)]);
            for r in 0..MAX_TILE {
                let one = multiply(&set, &w, &x[r * k..(r + 1) * k], 1, &[(0, w.count())]);
                same(&all[r * n..(r + 1) * n], &one, &format!("{set:?} {format:?} row {r}"));
            }
        }
    }
}

#[test]
fn a_product_writes_the_columns_of_its_panels_alone() {
    let mut random = Random(46);
    for format in Format::ALL {
        let (n, k) = (90, 256);
        let bytes = panels_of(format, n, k, &random_rows(format, n, k, &mut random));
        let w = Panels::new(format, n, k, &bytes);
        for set in KernelSet::available() {
            for (m, (first, count)) in [(1, (1, 1)), (5, (1, 3)), (MAX_TILE, (0, 5)), (2 * MAX_TILE, (2, 1))] {
                let x = floats(m * k, &mut random);
                let out = multiply(&set, &w, &x, m, &[(first, count)]);
                for (i, y) in out.iter().enumerate() {
                    let own = (first * PANEL..(first + count) * PANEL).contains(&(i % n));
                    assert_eq!(y.to_bits() != MARK, own, "{set:?} {format:?} m={m} column {}", i % n);
                }
            }
        }
    }
}

/// The exact product of dequantized weights and dequantized activations, in f64.
fn exact(w: &Panels<'_>, x: &[f32], kind: ActKind) -> Vec<(f64, f64)> {
    let k = w.k();
    let mut tile = vec![0; kind.row_words(k)];
    KernelSet::scalar().pack(kind, x, k, &mut tile);
    let mut a = vec![0f64; k];
    for b in 0..k / kind.block() {
        let mut codes = [0i8; 256];
        let d = crate::act::unpack_row(kind, &tile, 1, k, 0, b, &mut codes);
        for (i, code) in codes[..kind.block()].iter().enumerate() {
            a[b * kind.block() + i] = f64::from(d) * f64::from(*code);
        }
    }
    let mut row = vec![0f32; k];
    (0..w.n())
        .map(|n| {
            w.dequantize_row(n, &mut row);
            let terms = row.iter().zip(&a).map(|(w, a)| f64::from(*w) * a);
            (terms.clone().sum(), terms.map(f64::abs).sum())
        })
        .collect()
}

#[test]
fn plain_code_is_near_the_exact_product_of_what_it_was_given() {
    let mut random = Random(44);
    for format in Format::ALL.into_iter().filter(|f| f.act_kind() != ActKind::F32) {
        let (n, k) = (32, 1024);
        let rows = random_rows(format, n, k, &mut random);
        let bytes = panels_of(format, n, k, &rows);
        let w = Panels::new(format, n, k, &bytes);
        let x = floats(k, &mut random);
        let out = multiply(&KernelSet::scalar(), &w, &x, 1, &[(0, w.count())]);
        // A block adds a few rounded steps (about 6 of 2^-24 each); minimums can cancel, so the bound is on the sum of magnitudes.
        for (y, (exact, magnitude)) in out.iter().zip(exact(&w, &x, format.act_kind())) {
            assert!((f64::from(*y) - exact).abs() <= 64.0 * magnitude * 2f64.powi(-24), "{format:?}: {y} {exact}");
        }
    }
}

#[test]
fn the_test_mode_is_near_the_exact_product_with_float_activations() {
    let mut random = Random(45);
    for format in Format::ALL {
        let (n, k) = (20, 512);
        let rows = random_rows(format, n, k, &mut random);
        let bytes = panels_of(format, n, k, &rows);
        let w = Panels::new(format, n, k, &bytes);
        let x = floats(k, &mut random);
        let out = multiply(&KernelSet::reference(), &w, &x, 1, &[(0, w.count())]);
        let mut row = vec![0f32; k];
        for (n, y) in out.iter().enumerate() {
            w.dequantize_row(n, &mut row);
            let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let magnitude: f64 = row.iter().zip(&x).map(|(w, x)| (f64::from(*w) * f64::from(*x)).abs()).sum();
            assert!((f64::from(*y) - exact).abs() <= k as f64 * magnitude * 2f64.powi(-24), "{format:?}");
        }
    }
}

#[test]
fn extreme_codes_and_scales_stay_exact_in_every_set() {
    for format in Format::ALL.into_iter().filter(|f| f.act_kind() != ActKind::F32) {
        let (n, k) = (16, 512);
        for fill in [0x00u8, 0xff, 0x80, 0x7f] {
            let mut rows = vec![fill; n * format.row_bytes(k)];
            for block in rows.chunks_exact_mut(format.layout().bytes) {
                put_scales(format, block, || 1.0);
            }
            let bytes = panels_of(format, n, k, &rows);
            let w = Panels::new(format, n, k, &bytes);
            for sign in [1.0f32, -1.0] {
                // Every code is 127 or -127, and every scale is 1.
                let x: Vec<f32> = (0..k).map(|_| sign * 127.0).collect();
                let wanted = exact(&w, &x, format.act_kind());
                for set in KernelSet::available() {
                    let out = multiply(&set, &w, &x, 1, &[(0, 1)]);
                    for (y, (exact, _)) in out.iter().zip(&wanted) {
                        // All intermediate values are integers; what remains is rounding them to f32 a few times.
                        assert!(
                            (f64::from(*y) - exact).abs() <= exact.abs() * 1e-6,
                            "{set:?} {format:?} {fill:#x}: {y} {exact}"
                        );
                    }
                    same(&out, &multiply(&KernelSet::scalar(), &w, &x, 1, &[(0, 1)]), "extreme");
                }
            }
        }
    }
}

#[test]
fn a_broken_activation_never_looks_like_a_number() {
    let mut random = Random(46);
    for format in Format::ALL {
        let (n, k) = (16, 512);
        let rows = random_rows(format, n, k, &mut random);
        let bytes = panels_of(format, n, k, &rows);
        let w = Panels::new(format, n, k, &bytes);
        for broken in [f32::NAN, f32::INFINITY] {
            let mut x = floats(k, &mut random);
            x[300] = broken;
            for set in KernelSet::available() {
                let out = multiply(&set, &w, &x, 1, &[(0, 1)]);
                assert!(out.iter().all(|y| !y.is_finite()), "{set:?} {format:?}");
            }
        }
    }
}

//! Attention: near the mathematics, equal in every set, independent of company, and blind to what may not be seen.

use super::*;
use crate::act::tests::Random;
use crate::act::tiles;

struct Cache {
    layout: KvLayout,
    chunks: Vec<Vec<u8>>,
}

impl Cache {
    fn new(layout: KvLayout, keys: &[Vec<f32>], values: &[Vec<f32>]) -> Self {
        let mut cache = Cache { layout, chunks: Vec::new() };
        for (p, (k, v)) in keys.iter().zip(values).enumerate() {
            cache.write(p, k, v);
        }
        cache
    }

    fn write(&mut self, p: usize, key: &[f32], value: &[f32]) {
        while self.chunks.len() <= p / CHUNK {
            // Memory that was never written; the engine allocates zeros.
            self.chunks.push(vec![0x7e; self.layout.chunk_bytes()]);
        }
        let slot = p % CHUNK;
        self.layout.write(&KernelSet::best(), &mut self.chunks[p / CHUNK], slot, key, value);
    }
}

fn vectors(n: usize, dim: usize, random: &mut Random) -> Vec<Vec<f32>> {
    (0..n).map(|_| (0..dim).map(|_| random.float()).collect()).collect()
}

/// All queries against keys `from[r] ..= upto[r]`.
fn attend(set: &KernelSet, cache: &Cache, queries: &[Vec<f32>], visible: &[(usize, usize)]) -> Vec<Vec<f32>> {
    let layout = &cache.layout;
    let mut partial = Partial::new(layout);
    let mut results = Vec::new();
    for (first, rows) in tiles(queries.len()) {
        let q: Vec<f32> = queries[first..first + rows].concat();
        let mut tile = vec![0; rows * layout.query_kind().row_words(layout.head_dim())];
        pack_queries(set, layout, &q, &mut tile);
        let mut running = Running::new(layout);
        for (c, bytes) in cache.chunks.iter().enumerate() {
            let slots: Vec<(usize, usize)> = visible[first..first + rows]
                .iter()
                .map(|(from, to)| (from.saturating_sub(c * CHUNK).min(CHUNK), to.saturating_sub(c * CHUNK).min(CHUNK)))
                .collect();
            chunk(set, layout, bytes, Queries { tile: &tile, rows }, &slots, &mut partial, &[]);
            let see = (0..rows).filter(|r| slots[*r].0 < slots[*r].1);
            running.take(set, see, (&partial.m, &partial.l, &partial.o));
        }
        for r in 0..rows {
            let mut result = vec![0.0; layout.head_dim()];
            running.finish(r, &mut result);
            results.push(result);
        }
    }
    results
}

fn layouts() -> Vec<KvLayout> {
    [
        (KvKind::F32, 32),
        (KvKind::F16, 64),
        (KvKind::F16, 24),
        (KvKind::Q8_0, 64),
        (KvKind::Q8_0, 32),
        (KvKind::Q8_0, 160),
    ]
    .into_iter()
    .map(|(kind, dim)| KvLayout::new(kind, dim).unwrap())
    .collect()
}

/// The query as the scores see it: quantized for q8_0 keys.
fn as_multiplied(layout: &KvLayout, q: &[f32]) -> Vec<f32> {
    if layout.kind() != KvKind::Q8_0 {
        return q.to_vec();
    }
    let kind = layout.query_kind();
    let mut tile = vec![0; kind.row_words(q.len())];
    pack_queries(&KernelSet::scalar(), layout, q, &mut tile);
    let mut codes = [0i8; 32];
    let blocks = (0..q.len() / 32).map(|b| (crate::act::unpack_row(kind, &tile, 1, q.len(), 0, b, &mut codes), codes));
    blocks.flat_map(|(d, codes)| codes.map(|c| d * f32::from(c))).collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn results_are_near_the_mathematics_on_the_stored_numbers() {
    let mut random = Random(21);
    for layout in layouts() {
        let dim = layout.head_dim();
        let n = 700;
        let cache = Cache::new(layout, &vectors(n, dim, &mut random), &vectors(n, dim, &mut random));
        let queries: Vec<Vec<f32>> =
            vectors(5, dim, &mut random).iter().map(|q| q.iter().map(|x| x * 0.1).collect()).collect();
        let visible = [(0, 1), (0, 256), (0, 257), (100, 700), (511, 513)];
        let results = attend(&KernelSet::scalar(), &cache, &queries, &visible);
        for ((q, (from, to)), result) in queries.iter().zip(visible).zip(results) {
            let q = as_multiplied(&layout, q);
            let mut weights = Vec::new();
            let mut values = Vec::new();
            for p in from..to {
                let (mut k, mut v) = (vec![0.0; dim], vec![0.0; dim]);
                layout.read(&cache.chunks[p / CHUNK], p % CHUNK, &mut k, &mut v);
                weights.push(q.iter().zip(&k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>().exp());
                values.push(v);
            }
            let total: f64 = weights.iter().sum();
            // What rounding the weights to bytes may do at most (A6): half a step of each block's greatest weight, in each chunk.
            let mut rounding = vec![0f64; dim];
            if layout.kind() == KvKind::Q8_0 {
                for (b, rounding) in rounding.chunks_mut(VALUE_PART).enumerate() {
                    for (c, chunk) in cache.chunks.iter().enumerate() {
                        let seen = from.max(c * CHUNK)..to.min((c + 1) * CHUNK);
                        let scale = |p: usize| f64::from(scale_at(&layout, chunk, b, p % CHUNK));
                        let top = seen.clone().map(|p| weights[p - from] * scale(p)).fold(0.0, f64::max);
                        let codes = seen.map(|p| {
                            values[p - from][b * VALUE_PART..].iter().map(move |v| f64::from(*v).abs() / scale(p))
                        });
                        for codes in codes {
                            rounding
                                .iter_mut()
                                .zip(codes)
                                .for_each(|(sum, code)| *sum += 0.5 / 255.0 * top / total * code);
                        }
                    }
                }
            }
            for d in 0..dim {
                let exact: f64 = weights.iter().zip(&values).map(|(w, v)| w / total * f64::from(v[d])).sum();
                // Scores of up to 20 carry relative errors of 64 · 2^-24; they move the weights, and values of up to 100, by as much.
                assert!(
                    (f64::from(result[d]) - exact).abs() < 2e-4 * (1.0 + exact.abs()) + rounding[d],
                    "{layout:?}: {} {exact}",
                    result[d]
                );
            }
        }
    }
}

/// The scale of the values of block `b` at a slot.
fn scale_at(layout: &KvLayout, chunk: &[u8], b: usize, slot: usize) -> f32 {
    let at = (b * CHUNK + slot) * 2;
    let scales = layout.value_scales(chunk);
    crate::half::f16_to_f32(u16::from_le_bytes([scales[at], scales[at + 1]]))
}

/// A query over a q8_0 cache, written from A1, A6 and A3 alone, an output at a time. `corrupt` changes the weights of a chunk and block after they were made.
fn twin(cache: &Cache, q: &[f32], (from, to): (usize, usize), corrupt: impl Fn(usize, usize, &mut [i64])) -> Vec<f32> {
    let (layout, dim) = (&cache.layout, cache.layout.head_dim());
    let mut tile = vec![0; layout.query_kind().row_words(dim)];
    pack_queries(&KernelSet::scalar(), layout, q, &mut tile);
    let blocks = dim / 32;
    let mut total: Option<(f32, f32, Vec<f32>)> = None;
    for (c, chunk) in cache.chunks.iter().enumerate() {
        let slots = from.saturating_sub(c * CHUNK).min(CHUNK)..to.saturating_sub(c * CHUNK).min(CHUNK);
        if slots.is_empty() {
            continue;
        }
        let mut score = [f32::NEG_INFINITY; CHUNK];
        for slot in slots.clone() {
            score[slot] = 0.0;
            for b in 0..blocks {
                let mut a = [0i8; 32];
                let dq = crate::act::unpack_row(layout.query_kind(), &tile, 1, dim, 0, b, &mut a);
                let mut block = [0u8; 34];
                let panel = &chunk[slot / PANEL * layout.key_panel_bytes()..][..layout.key_panel_bytes()];
                layout.key_format().layout().gather(panel, blocks, slot % PANEL, b, &mut block);
                let dk = crate::half::f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
                let sum: i64 = block[2..].iter().zip(a).map(|(k, a)| i64::from(*k as i8) * i64::from(a)).sum();
                score[slot] = (dk * dq).mul_add(sum as f32, score[slot]);
            }
        }
        let m = score.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let p = score.map(|s| crate::order::exp2((s - m) * crate::order::LOG2_E));
        let mut lanes = [0f32; LANES];
        p.iter().enumerate().for_each(|(slot, p)| lanes[slot % LANES] += p);
        let l = crate::order::fold(&lanes);
        let mut o = Vec::new();
        for b in 0..blocks {
            let w: Vec<f32> = slots.clone().map(|slot| p[slot] * scale_at(layout, chunk, b, slot)).collect();
            let top = w.iter().copied().fold(0.0, f32::max);
            let inverse = if top > 0.0 { 255.0 / top } else { 0.0 };
            let mut codes: Vec<i64> = w.iter().map(|w| (w * inverse).round_ties_even() as i64).collect();
            corrupt(c, b, &mut codes);
            for d in 32 * b..32 * (b + 1) {
                let values = slots.clone().map(|slot| i64::from(chunk[layout.value_at(slot, d)] as i8));
                let sum: i64 = codes.iter().zip(values).map(|(code, v)| code * v).sum();
                o.push(top * (1.0 / 255.0) * sum as f32);
            }
        }
        total = Some(match total {
            None => (m, l, o),
            Some((before, sum, all)) => {
                let most = if m > before { m } else { before };
                let (old, new) = (crate::order::exp(before - most), crate::order::exp(m - most));
                let all = all.iter().zip(&o).map(|(all, o)| o.mul_add(new, all * old)).collect();
                (most, l.mul_add(new, sum * old), all)
            }
        });
    }
    let (_, l, o) = total.unwrap();
    o.iter().map(|o| o * (1.0 / l)).collect()
}

#[test]
fn every_set_gives_the_bits_of_a_twin_that_is_written_from_the_rules() {
    let mut random = Random(26);
    for layout in layouts().into_iter().filter(|layout| layout.kind() == KvKind::Q8_0) {
        let (n, dim) = (600, layout.head_dim());
        let cache = Cache::new(layout, &vectors(n, dim, &mut random), &vectors(n, dim, &mut random));
        // Flat, ordinary and steep weights.
        let scales = [0.01, 0.1, 1.0];
        let queries: Vec<Vec<f32>> = (0..30)
            .map(|i| vectors(1, dim, &mut random).remove(0).iter().map(|x| x * scales[i % 3]).collect())
            .collect();
        let visible: Vec<(usize, usize)> =
            (0..30).map(|r| if r % 4 == 3 { (37 * r % 500, 501 + r) } else { (0, 20 * r + 1) }).collect();
        let expected: Vec<Vec<f32>> =
            queries.iter().zip(&visible).map(|(q, seen)| twin(&cache, q, *seen, |_, _, _| ())).collect();
        for set in KernelSet::available() {
            for rows in 1..=MAX_TILE {
                let found: Vec<Vec<f32>> = queries
                    .chunks(rows)
                    .zip(visible.chunks(rows))
                    .flat_map(|(q, seen)| attend(&set, &cache, q, seen))
                    .collect();
                assert!(bits(&found) == bits(&expected), "{set:?} {layout:?}, tiles of {rows}");
            }
        }
        // A comparison that one step of one weight escapes would prove little. Query 24 has flat weights.
        let off = twin(&cache, &queries[24], visible[24], |c, b, codes| codes[7] += i64::from((c, b) == (3, 0)));
        assert!(bits(&[off]) != bits(&expected[24..=24]), "{layout:?}");
    }
}

#[test]
fn sums_at_their_bound_are_exact() {
    // Equal keys, so all weights are 255; codes of values at ±127 and, in bytes that no value has, −128.
    for set in KernelSet::available() {
        let layout = KvLayout::new(KvKind::Q8_0, 64).unwrap();
        let (key, value) = (vec![1.0; 64], vec![127.0; 64]);
        for (byte, code) in [(127u8, 127.0), (129, -127.0), (128, -128.0)] {
            let mut cache = Cache::new(layout, &vec![key.clone(); CHUNK], &vec![value.clone(); CHUNK]);
            for d in 0..64 {
                (0..CHUNK).for_each(|slot| cache.chunks[0][layout.value_at(slot, d)] = byte);
            }
            let sum = 128.0 * 255.0 * code;
            let expected = scale_at(&layout, &cache.chunks[0], 0, 0) * (1.0 / 255.0) * sum * (1.0 / 128.0);
            for rows in [1, 2, 4, 9] {
                let found = attend(&set, &cache, &vec![vec![0.1; 64]; rows], &vec![(0, CHUNK); rows]);
                assert!(found.concat().iter().all(|x| x.to_bits() == expected.to_bits()), "{set:?} {byte}");
            }
        }
    }
}

#[test]
fn weights_of_bytes_do_not_depend_on_what_lies_in_other_slots() {
    let mut random = Random(27);
    for layout in layouts().into_iter().filter(|layout| layout.kind() == KvKind::Q8_0) {
        let dim = layout.head_dim();
        let mut cache = Cache::new(layout, &vectors(128, dim, &mut random), &vectors(128, dim, &mut random));
        let queries = vectors(4, dim, &mut random);
        let visible = [(0, 1), (0, 17), (17, 33), (100, 128)];
        for set in KernelSet::available() {
            let expected = bits(&attend(&set, &cache, &queries, &visible));
            for (r, seen) in visible.iter().enumerate() {
                let kept = cache.chunks[0].clone();
                // Scales of any bits, infinities, NaNs and negative numbers among them.
                for byte in &mut cache.chunks[0] {
                    *byte = random.next() as u8;
                }
                for slot in seen.0..seen.1 {
                    layout.for_each_byte_of(slot, |at| cache.chunks[0][at] = kept[at]);
                }
                let found = attend(&set, &cache, &queries, &visible);
                assert!(bits(&found[r..=r]) == expected[r * dim..(r + 1) * dim], "{set:?} {layout:?} query {r}");
                cache.chunks[0] = kept;
            }
        }
    }
}

#[test]
fn every_set_and_every_company_gives_the_same_bits() {
    let mut random = Random(22);
    for layout in layouts() {
        let n = 600;
        let cache = Cache::new(
            layout,
            &vectors(n, layout.head_dim(), &mut random),
            &vectors(n, layout.head_dim(), &mut random),
        );
        let queries = vectors(30, layout.head_dim(), &mut random);
        let visible: Vec<(usize, usize)> = (0..30).map(|r| (if r % 3 == 0 { r * 10 } else { 0 }, 500 + r)).collect();
        let expected = attend(&KernelSet::scalar(), &cache, &queries, &visible);
        for set in KernelSet::available() {
            assert!(bits(&attend(&set, &cache, &queries, &visible)) == bits(&expected), "{set:?} {layout:?}");
            for r in 0..30 {
                let alone = attend(&set, &cache, &queries[r..=r], &visible[r..=r]);
                assert!(bits(&alone) == bits(&expected[r..=r]), "{set:?} {layout:?} query {r}");
            }
        }
    }
}

#[test]
fn what_a_query_may_not_see_cannot_change_it() {
    let mut random = Random(23);
    for layout in layouts() {
        let dim = layout.head_dim();
        let (keys, values) = (vectors(300, dim, &mut random), vectors(300, dim, &mut random));
        let mut cache = Cache::new(layout, &keys, &values);
        let queries = vectors(2, dim, &mut random);
        let visible = [(3, 40), (0, 300)];
        let before = attend(&KernelSet::best(), &cache, &queries, &visible);
        for broken in [1e30, f32::NAN, f32::NEG_INFINITY] {
            for p in [0, 2, 40, 41, 299] {
                cache.write(p, &vec![broken; dim], &vec![broken; dim]);
            }
            let after = attend(&KernelSet::best(), &cache, &queries, &visible);
            assert_eq!(bits(&before[..1]), bits(&after[..1]), "{layout:?} {broken}");
            // The query that may see them does: a NaN among its keys reaches everything.
            assert!(!broken.is_nan() || after[1].iter().all(|x| x.is_nan()), "{layout:?} {broken}");
        }
    }
}

#[test]
fn writing_a_position_touches_no_other_and_reading_returns_what_was_stored() {
    let mut random = Random(24);
    for layout in layouts() {
        let dim = layout.head_dim();
        let mut chunk = vec![0u8; layout.chunk_bytes()];
        let mut owner = vec![usize::MAX; layout.chunk_bytes()];
        for slot in 0..CHUNK {
            for pass in 0..2 {
                let before = chunk.clone();
                let (k, v) = (vectors(1, dim, &mut random).remove(0), vectors(1, dim, &mut random).remove(0));
                layout.write(&KernelSet::best(), &mut chunk, slot, &k, &v);
                for at in (0..chunk.len()).filter(|at| chunk[*at] != before[*at]) {
                    assert!(
                        owner[at] == usize::MAX || owner[at] == slot,
                        "byte {at} of slots {} and {slot}",
                        owner[at]
                    );
                    owner[at] = slot;
                }
                let (mut rk, mut rv) = (vec![0.0; dim], vec![0.0; dim]);
                layout.read(&chunk, slot, &mut rk, &mut rv);
                let step = if layout.kind() == KvKind::F16 { 1e-3 } else { 1e-2 };
                for (stored, given) in rk.iter().zip(&k).chain(rv.iter().zip(&v)) {
                    let bound = step * (1.0 + k.iter().chain(&v).fold(0f32, |m, x| m.max(x.abs())));
                    assert!((stored - given).abs() <= bound, "pass {pass}: {stored} {given}");
                }
            }
        }
        let mut copy = vec![0u8; chunk.len()];
        layout.copy(&chunk, &mut copy, 100);
        assert!(layout.same(&chunk, &copy, 100));
        assert!(!layout.same(&chunk, &copy, 101));
    }
}

#[test]
fn every_set_stores_the_same_bytes() {
    let mut random = Random(25);
    for layout in layouts() {
        let dim = layout.head_dim();
        let mut x: Vec<f32> = (0..dim).map(|_| random.float()).collect();
        x[..8].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65519.0, 65521.0, -70000.0, 1e-8, -0.0]);
        for x in [x.clone(), x[8..].iter().chain(&[1.0; 8]).copied().collect()] {
            let bytes = |set: &KernelSet| {
                let mut chunk = vec![0u8; layout.chunk_bytes()];
                layout.write(set, &mut chunk, 37, &x, &x);
                chunk
            };
            let expected = bytes(&KernelSet::scalar());
            for set in KernelSet::available() {
                assert!(bytes(&set) == expected, "{set:?} {layout:?}");
            }
        }
    }
}

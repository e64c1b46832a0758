//! The promise across machines: fixed inputs, and digests of the outputs that every set on every architecture must reproduce.
//!
//! The other tests compare the sets of one machine with plain code on that machine; these numbers compare machines. A digest may change only with the
//! contract itself (a formula, an order): then all of them are printed, ready to be pasted here, and the change is named in the commit.

use crate::act::tests::Random;
use crate::act::{ActKind, tiles};
use crate::attend::{CHUNK, KvKind, KvLayout, Partial, Queries, Running, chunk, pack_queries};
use crate::format::tests::{panels_of, random_rows};
use crate::matmul::{Acts, Out, Panels};
use crate::{Format, KernelSet, order};

/// Made on x86-64 by plain code.
const DIGESTS: &[(&str, u64)] = &[
    ("exp", 0xa4597f844460883c),
    ("halves", 0x32c361f9d0c48055),
    ("weights F32", 0x75e92e2b4034249c),
    ("weights F16", 0x9ce9d8dd542e0a80),
    ("weights BF16", 0xe19c1a7009b0b4c7),
    ("weights Q8_0", 0x7730c3c3b3161f86),
    ("weights Q4_0", 0x5bc2f86fd48898e3),
    ("weights Q4_1", 0xa7299a1c98170598),
    ("weights Q5_0", 0x4f872229248248e8),
    ("weights Q5_1", 0x4af4f3c6f08c82d0),
    ("weights IQ4_NL", 0x3a27a69357b56e48),
    ("weights Q2_K", 0x8da3368be1ab7b2e),
    ("weights Q3_K", 0x4c4de2e293a208eb),
    ("weights Q4_K", 0x84580edfc38154f0),
    ("weights Q5_K", 0x9fde963d4bde148a),
    ("weights Q6_K", 0xf65eb651a9bdfac3),
    ("weights IQ4_XS", 0x652a01b9267ea37b),
    ("weights MXFP4", 0xe7e710f8d6c5f827),
    ("weights IQ2_XXS", 0x659a72a1abf88241),
    ("weights IQ2_XS", 0x0eb4b536a5fbef27),
    ("weights IQ2_S", 0x301ea3e2359e091f),
    ("weights IQ3_XXS", 0x8ab17973bdbbc1c7),
    ("weights IQ3_S", 0xfd2186a9dc0db4fe),
    ("weights IQ1_S", 0x6597c99fd71b4a82),
    ("weights IQ1_M", 0x5b207962496982bd),
    ("weights TQ1_0", 0x6b39ee5481148961),
    ("weights TQ2_0", 0xb29b9ecc51b156f7),
    ("weights NVFP4", 0x8393a7939ea4f847),
    ("product F32", 0x3f202f1603e29188),
    ("product F16", 0x50a6c1256adf62f7),
    ("product BF16", 0x12491f219b72807b),
    ("product Q8_0", 0x85354ac741c7062a),
    ("product Q4_0", 0x34fde81e88438f11),
    ("product Q4_1", 0x32ac22c346a84508),
    ("product Q5_0", 0xc932ae5a6a93808f),
    ("product Q5_1", 0x2630bcc1679a19b4),
    ("product IQ4_NL", 0x886d38fcc36f3638),
    ("product Q2_K", 0x949dde313355d408),
    ("product Q3_K", 0x78467d5743479f58),
    ("product Q4_K", 0x85d261e79c859a98),
    ("product Q5_K", 0x504cb908239f8d34),
    ("product Q6_K", 0x9dd7b43bb5c49030),
    ("product IQ4_XS", 0x7bd0a7a8c568c2ff),
    ("product MXFP4", 0x6b245cd6d7aa8c00),
    ("product IQ2_XXS", 0xf8216714b43759a8),
    ("product IQ2_XS", 0xb0ea69fa641badb8),
    ("product IQ2_S", 0x7c3062a573a014c8),
    ("product IQ3_XXS", 0x349fdd638bcc57e2),
    ("product IQ3_S", 0xd5b4ea284da2ed48),
    ("product IQ1_S", 0x758398722cbf907f),
    ("product IQ1_M", 0x2b64874a14822e25),
    ("product TQ1_0", 0xc413ddbf09e1aaa2),
    ("product TQ2_0", 0x1cdd43c7c0c89ac4),
    ("product NVFP4", 0xad9ace0471ce7260),
    ("attention F32", 0x1a660b7b34469caf),
    ("attention F16", 0xbe7e530648f9cfcc),
    ("attention Q8_0", 0xdf7320ff0f66ebb7),
    ("activations Q32", 0x40c24eca4bba40a0),
    ("activations Q256", 0xc7e71e1ceef1afab),
    ("norm", 0x2b84a8e457a18113),
    ("rotation", 0xde4f8d6ecd59bffe),
    ("silu", 0x5bf674adec8cfa5f),
    ("gelu", 0xc838438586fff1b2),
    ("cap", 0x482e34b49f5a6288),
    ("float product F32", 0x3f202f1603e29188),
    ("float product F16", 0x50a6c1256adf62f7),
    ("float product BF16", 0x12491f219b72807b),
    ("float product Q8_0", 0xd26bb98f595426ea),
    ("float product Q4_0", 0xd28e9c2e3a6c1f72),
    ("float product Q4_1", 0x07f07c313b3e085f),
    ("float product Q5_0", 0x4c6be2f360226881),
    ("float product Q5_1", 0x2a714d98f6eb1418),
    ("float product IQ4_NL", 0x7290c49c10e8690c),
    ("float product Q2_K", 0x02a350e530796d88),
    ("float product Q3_K", 0xb7ac10c0bb49dc9d),
    ("float product Q4_K", 0x995d0cef989ef1a5),
    ("float product Q5_K", 0x3a06b452e3dabe23),
    ("float product Q6_K", 0x6d7c27c7a5d26867),
    ("float product IQ4_XS", 0x0155ed4e43562607),
    ("float product MXFP4", 0xefc164a306009df0),
    ("float product IQ2_XXS", 0x494965fc1f550a87),
    ("float product IQ2_XS", 0x7a592296067300a5),
    ("float product IQ2_S", 0x799805a87acf3153),
    ("float product IQ3_XXS", 0xa9d81a6f81c04ecf),
    ("float product IQ3_S", 0x777d10e75477741b),
    ("float product IQ1_S", 0xa5386a93d4372457),
    ("float product IQ1_M", 0xe50b94a54afe5f5f),
    ("float product TQ1_0", 0xe2b312ca41fb2707),
    ("float product TQ2_0", 0xa210cb15b6f16cc4),
    ("float product NVFP4", 0xad9ace0471ce7260),
];

/// FNV-1a over the bits of what was computed.
struct Digest(u64);

impl Digest {
    fn of(words: impl IntoIterator<Item = u32>) -> u64 {
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        words.into_iter().for_each(|word| digest.take(word));
        digest.0
    }

    fn of_floats(x: &[f32]) -> u64 {
        // Signs and payloads of NaNs are no promise, and none should be here.
        Self::of(x.iter().map(|x| {
            assert!(!x.is_nan());
            x.to_bits()
        }))
    }

    fn take(&mut self, word: u32) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

fn floats(n: usize, random: &mut Random) -> Vec<f32> {
    (0..n).map(|_| random.float()).collect()
}

/// Rows packed tile by tile.
fn packed(set: &KernelSet, kind: ActKind, x: &[f32], k: usize) -> Vec<u32> {
    let mut words = Vec::new();
    for (first, rows) in tiles(x.len() / k) {
        let mut tile = vec![0; rows * kind.row_words(k)];
        set.pack(kind, &x[first * k..(first + rows) * k], k, &mut tile);
        words.extend(tile);
    }
    words
}

/// 37 outputs of 11 rows: whole and partial panels, two sizes of tile.
fn product(set: &KernelSet, format: Format) -> u64 {
    let (n, k, m) = (37, 768, 11);
    let mut random = Random(1000 + format as u64);
    let bytes = panels_of(format, n, k, &random_rows(format, n, k, &mut random));
    let w = Panels::new(format, n, k, &bytes);
    let kind = set.act_kind(format);
    let words = packed(set, kind, &floats(m * k, &mut random), k);
    let mut out = vec![0f32; m * n];
    // SAFETY: `out` has m rows of n floats and this thread alone writes it.
    unsafe { set.multiply(&w, 0, w.count(), &Acts::new(kind, m, k, &words), Out::new(out.as_mut_ptr(), n)) };
    Digest::of_floats(&out)
}

/// Seven queries over 300 positions, the last of them causal.
fn attention(set: &KernelSet, kind: KvKind) -> u64 {
    let (dim, n, rows) = (64, 300usize, 7);
    let layout = KvLayout::new(kind, dim).unwrap();
    let mut random = Random(2000 + kind as u64);
    let mut chunks = vec![vec![0u8; layout.chunk_bytes()]; n.div_ceil(CHUNK)];
    for p in 0..n {
        let (key, value) = (floats(dim, &mut random), floats(dim, &mut random));
        layout.write(set, &mut chunks[p / CHUNK], p % CHUNK, &key, &value);
    }
    let q: Vec<f32> = floats(rows * dim, &mut random).iter().map(|x| x * 0.125).collect();
    let mut tile = vec![0; rows * layout.query_kind().row_words(dim)];
    pack_queries(set, &layout, &q, &mut tile);
    let mut partial = Partial::new(&layout);
    let mut running = Running::new(&layout);
    for (c, bytes) in chunks.iter().enumerate() {
        let seen = |r: usize| (n - rows + r + 1 - c * CHUNK).min(CHUNK);
        let visible: Vec<(usize, usize)> = (0..rows).map(|r| (0, seen(r))).collect();
        chunk(set, &layout, bytes, Queries { tile: &tile, rows }, &visible, &mut partial, &[]);
        running.take(set, 0..rows, (&partial.m, &partial.l, &partial.o));
    }
    let mut results = vec![0f32; rows * dim];
    results.chunks_exact_mut(dim).enumerate().for_each(|(r, result)| running.finish(r, result));
    let stored = chunks.concat();
    let stored = stored.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Digest::of(stored.chain(results.iter().map(|x| x.to_bits())))
}

/// Norm, rotation, gated units, the soft cap: what lanes compute.
fn lanes(set: &KernelSet, what: &str) -> u64 {
    let n = 1003;
    let mut random = Random(3000);
    let (x, w) = (floats(n, &mut random), floats(n, &mut random));
    let mut out = w.clone();
    match what {
        "norm" => set.rms_norm(&x, Some(&w), 1e-5, &mut out),
        "rotation" => {
            // Points of the circle without trigonometry.
            let t = &x[..50];
            let cos: Vec<f32> = t.iter().map(|t| (1.0 - t * t) / (1.0 + t * t)).collect();
            let sin: Vec<f32> = t.iter().map(|t| (t + t) / (1.0 + t * t)).collect();
            out.chunks_exact_mut(100).for_each(|head| set.rotate(head, &cos, &sin));
        }
        "silu" => set.silu_mul(&x, &mut out),
        "gelu" => set.gelu_mul(&x, &mut out),
        _ => set.soft_cap(&mut out, 2.5),
    }
    Digest::of_floats(&out)
}

/// Digests that belong to no set: `exp`, conversions of halves, weights read from files.
fn common() -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let exps: Vec<f32> = (0..40_000).map(|i| order::exp((i - 20_000) as f32 * 0.004_8)).collect();
    found.push(("exp".to_owned(), Digest::of_floats(&exps)));
    let mut random = Random(4000);
    let halves = (0..20_000).map(|_| {
        u32::from(crate::half::f32_to_f16(random.float() * f32::from_bits((97 + random.below(50) as u32) << 23)))
    });
    found.push(("halves".to_owned(), Digest::of(halves)));
    for format in Format::ALL {
        let raw = random_rows(format, 1, 2048, &mut random);
        let mut values = vec![0.0; 2048];
        format.dequantize(&raw, &mut values);
        found.push((format!("weights {format:?}"), Digest::of_floats(&values)));
    }
    found
}

fn of_set(set: &KernelSet) -> Vec<(String, u64)> {
    let mode = if set.name() == "reference" { "float product" } else { "product" };
    let mut found: Vec<(String, u64)> =
        Format::ALL.into_iter().map(|format| (format!("{mode} {format:?}"), product(set, format))).collect();
    for kind in [KvKind::F32, KvKind::F16, KvKind::Q8_0] {
        found.push((format!("attention {kind:?}"), attention(set, kind)));
    }
    for kind in [ActKind::Q32, ActKind::Q256] {
        let words = packed(set, kind, &floats(10 * 1024, &mut Random(5000)), 1024);
        found.push((format!("activations {kind:?}"), Digest::of(words)));
    }
    for what in ["norm", "rotation", "silu", "gelu", "cap"] {
        found.push((what.to_owned(), lanes(set, what)));
    }
    found
}

#[test]
fn every_set_of_every_machine_reproduces_the_digests() {
    let mut all = common();
    all.extend(of_set(&KernelSet::scalar()));
    all.extend(of_set(&KernelSet::reference()).into_iter().take(Format::ALL.len()));
    let listing: String = all.iter().map(|(name, digest)| format!("    ({name:?}, 0x{digest:016x}),\n")).collect();
    assert!(all.iter().map(|(name, digest)| (name.as_str(), *digest)).eq(DIGESTS.iter().copied()), "found:\n{listing}");
    // A run for a certain CPU shows here that the sets of that CPU were there.
    println!("sets: {}", KernelSet::available().iter().map(KernelSet::detail).collect::<Vec<_>>().join(", "));
    for set in KernelSet::available() {
        for (name, digest) in of_set(&set) {
            let promised = DIGESTS.iter().find(|(n, _)| *n == name).unwrap().1;
            assert_eq!(digest, promised, "{set:?}, {name}");
        }
    }
}

//! The forward against a naive one ([`crate::twin`]).
//!
//! The twin knows how far single precision may lead from it, so the difference must stay within a few standard deviations: [`SIGMAS`].

use crate::batch::feed;
use crate::models::{FAMILIES, Made, Scaling, Spec};
use crate::twin::Twin;
use quoth_engine::session::Session;
use quoth_kernels::attend::KvKind;
use quoth_kernels::{Format, KernelSet};

/// Standard deviations that a difference may have: of half a million normal numbers the largest has 5. The largest seen is 2.7.
const SIGMAS: f64 = 6.0;

/// Compares all rows; gives the largest difference in standard deviations.
fn check(spec: &Spec, n: usize) -> f64 {
    let made = Made::new(spec);
    let tokens = crate::models::Dice(spec.seed ^ 99).tokens(n, spec.n_vocab);
    let golden = Twin { made: &made }.forward(&tokens);
    let model = made.load(KernelSet::reference(), 2, n.max(256));
    let mut session = Session::new(model, KvKind::F32).unwrap();
    // In parts, so that what windows no longer see is forgotten on the way.
    let rows: Vec<_> = tokens.chunks(67).flat_map(|part| feed(&mut session, part)).collect();
    let (mut worst, mut loosest): (f64, f64) = (0.0, 0.0);
    for (row, golden) in rows.iter().zip(&golden) {
        for (got, want) in row.iter().zip(golden) {
            loosest = loosest.max(want.v.sqrt());
            worst = worst.max((f64::from(f32::from_bits(*got)) - want.x).abs() / want.v.sqrt());
        }
    }
    assert!(worst < SIGMAS, "{spec:?}: {worst:.1} standard deviations");
    // A bound that allowed more would not tell a wrong formula from a rounding.
    assert!(SIGMAS * loosest < 1e-3 * spec.logit_std, "{spec:?}: the bound is {:.1e}", SIGMAS * loosest);
    worst
}

/// Sizes that no block, panel or lane divides.
fn odd(arch: &'static str) -> Spec {
    Spec {
        n_embd: 45,
        n_ff: 77,
        n_head: 6,
        n_head_kv: 3,
        head_dim: 10,
        rope_dims: 10,
        n_vocab: 101,
        ..odd_extras(Spec::of(arch, Format::F32))
    }
}

fn odd_extras(spec: Spec) -> Spec {
    let experts = if spec.experts.0 > 0 { (5, 2, 13) } else { (0, 0, 0) };
    let (window, per_layer) = (spec.window.min(9), spec.per_layer.min(7));
    Spec { experts, window, per_layer, ..spec }
}

#[test]
fn every_family_is_the_naive_forward_up_to_rounding() {
    for family in FAMILIES {
        let spec = Spec::of(family, Format::F32);
        check(&spec, 150);
        check(&Spec { tied: !spec.tied, seed: 2, ..spec.clone() }, 40);
        check(&odd(family), 40);
        check(&Spec { n_head: 5, n_head_kv: 1, n_layer: 3, shared: 0, seed: 3, ..odd(family) }, 30);
        check(&Spec { n_head: 1, n_head_kv: 1, n_layer: 1, shared: 0, ..odd(family) }, 20);
    }
}

#[test]
fn every_rotary_scaling_is_the_naive_one() {
    for arch in ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3"] {
        for scaling in [Scaling::Linear(4.0), Scaling::Yarn(8.0, 64), Scaling::Yarn(4.0, 4096)] {
            let seed = if arch == "qwen3moe" { 5 } else { 1 };
            check(&Spec { scaling, seed, ..Spec::of(arch, Format::F32) }, 60);
        }
        check(&Spec { rope_dims: 12, ..Spec::of(arch, Format::F32) }, 40);
        check(&Spec { rope_dims: 6, scaling: Scaling::Yarn(2.0, 128), ..odd(arch) }, 40);
    }
    check(&Spec { scaling: Scaling::Factors, ..Spec::of("llama", Format::F32) }, 60);
    check(&Spec { scaling: Scaling::Factors, ..odd("llama") }, 40);
}

#[test]
fn windows_of_any_width_are_a_mask_over_full_attention_for_four_times_the_window_and_more() {
    // Windows beside the edges of chunks of 128, the narrowest, and one that forgets many times over.
    for (family, window, n) in [
        ("gemma3", 160, 640),
        ("gemma4", 160, 640),
        ("gemma4moe", 128, 512),
        ("gemma3", 1, 40),
        ("gemma4moe", 127, 140),
        ("gemma3", 129, 140),
        ("gemma3", 16, 420),
        ("llama", 100, 400),
    ] {
        check(&Spec { window, ..Spec::of(family, Format::F32) }, n);
    }
}

#[test]
fn optional_biases_of_llama_count() {
    check(&Spec { biases: true, ..Spec::of("llama", Format::F32) }, 40);
    check(&Spec { biases: true, ..odd("llama") }, 40);
}

#[test]
fn every_weight_format_is_read_as_its_dequantized_weights() {
    for (i, format) in Format::ALL.into_iter().enumerate() {
        check(&Spec { tied: i % 2 == 0, ..Spec::of(FAMILIES[i % 7], format) }, 12);
    }
}

#[test]
fn the_bound_tells_a_wrong_formula_from_a_rounding() {
    // The twin of one model against the engine with another whose rotation differs by one part in a thousand.
    let spec = Spec { scaling: Scaling::Linear(1.001), ..Spec::of("qwen3", Format::F32) };
    let other = Spec { scaling: Scaling::None, ..spec.clone() };
    let made = Made::new(&spec);
    let tokens = crate::models::Dice(5).tokens(40, spec.n_vocab);
    let golden = Twin { made: &made }.forward(&tokens);
    let model = Made::new(&other).load(KernelSet::reference(), 1, 256);
    let mut session = Session::new(model, KvKind::F32).unwrap();
    let mut worst: f64 = 0.0;
    for (row, golden) in feed(&mut session, &tokens).iter().zip(&golden) {
        for (got, want) in row.iter().zip(golden) {
            worst = worst.max((f64::from(f32::from_bits(*got)) - want.x).abs() / want.v.sqrt());
        }
    }
    assert!(worst > 20.0 * SIGMAS, "{worst}");
}

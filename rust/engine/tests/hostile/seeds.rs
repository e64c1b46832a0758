//! Sound files to begin with, as small as the formats allow: 16 to 32 numbers wide, a vocabulary of 40 tokens.

use quoth_engine::gguf::GgmlType;
use quoth_engine::gguf::testing::{GgufBuilder, Kv};

use crate::dice::Dice;

/// Tokens of each vocabulary.
const N_VOCAB: usize = 40;
/// Width of the stream; heads; numbers a head; width of the feed-forward.
const N_EMBD: u64 = 32;
const N_HEAD: u64 = 2;
const HEAD_DIM: u64 = 16;
const N_FF: u64 = 32;
const N_EXPERT: u64 = 2;

/// Names and bytes of all seeds.
pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let mut all: Vec<(&'static str, Vec<u8>)> =
        ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gemma4"].map(|arch| (arch, model(arch))).to_vec();
    all.extend([
        ("values", values()),
        ("vocabulary gpt2", vocabulary(GgufBuilder::new(), "gpt2").build()),
        ("vocabulary llama", vocabulary(GgufBuilder::new(), "llama").build()),
        ("vocabulary gemma4", vocabulary(GgufBuilder::new(), "gemma4").build()),
    ]);
    all
}

/// A value of every type, tensors of several types and ranks.
fn values() -> Vec<u8> {
    GgufBuilder::new()
        .kv("general.architecture", "llama")
        .kv("general.alignment", 32u32)
        .every_type()
        .zeros("x", &[3, 2], GgmlType::F32)
        .zeros("y", &[64], GgmlType::Q8_0)
        .zeros("z", &[256, 1, 2, 1], GgmlType::Q4_K)
        .zeros("i", &[7], GgmlType::I8)
        .build()
}

/// Adds a vocabulary of [`N_VOCAB`] tokens.
fn vocabulary(builder: GgufBuilder, kind: &str) -> GgufBuilder {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<|im_end|>"].map(String::from).to_vec();
    let mut kinds = vec![2, 3, 3, 3];
    if kind == "llama" {
        tokens.extend((0..16).map(|b| format!("<0x{:02X}>", b * 16)));
        kinds.extend([6; 16]);
    }
    tokens.extend(["a", "b", "ab", "\u{120}", "\u{2581}", "é", "user"].map(String::from));
    for i in tokens.len()..N_VOCAB {
        tokens.push(format!("w{i}"));
    }
    kinds.resize(N_VOCAB, 1);
    kinds[N_VOCAB - 1] = 4;
    let merges: &[&str] = if kind == "llama" { &[] } else { &["a b", "\u{120} a", "u ser"] };
    let mut builder = builder
        .kv("tokenizer.ggml.model", kind)
        .kv("tokenizer.ggml.tokens", Kv::strs(&tokens))
        .kv("tokenizer.ggml.token_type", Kv::I32s(kinds))
        .kv("tokenizer.ggml.scores", (0..N_VOCAB).map(|i| -(i as f32)).collect::<Vec<_>>())
        .kv("tokenizer.ggml.merges", Kv::strs(merges))
        .kv("tokenizer.ggml.bos_token_id", 1u32)
        .kv("tokenizer.ggml.eos_token_id", 2u32)
        .kv("tokenizer.ggml.eot_token_id", 3u32)
        .kv("tokenizer.ggml.unknown_token_id", 0u32)
        .kv("tokenizer.ggml.padding_token_id", 99u32)
        .kv("tokenizer.ggml.add_bos_token", true)
        .kv("tokenizer.ggml.add_eos_token", false)
        .kv("tokenizer.ggml.add_space_prefix", true)
        .kv("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
        .kv("tokenizer.chat_template.tool_use", "T");
    if kind == "gpt2" {
        builder = builder.kv("tokenizer.ggml.pre", "qwen2");
    }
    builder
}

/// A model of a family, of random weights.
fn model(arch: &'static str) -> Vec<u8> {
    let gemma = arch.starts_with("gemma");
    let n_layer: u64 = if gemma { 3 } else { 2 };
    let n_head_kv = 1;
    let kind = match arch {
        "gemma4" => "gemma4",
        "gemma3" | "llama" => "llama",
        _ => "gpt2",
    };
    let key = |name: &str| format!("{arch}.{name}");
    let mut b = GgufBuilder::new()
        .kv("general.architecture", arch)
        .kv(&key("context_length"), 64u32)
        .kv(&key("embedding_length"), N_EMBD as u32)
        .kv(&key("block_count"), n_layer as u32)
        .kv(&key("feed_forward_length"), N_FF as u32)
        .kv(&key("attention.head_count"), N_HEAD as u32)
        .kv(&key("attention.head_count_kv"), n_head_kv as u32)
        .kv(&key("attention.key_length"), HEAD_DIM as u32)
        .kv(&key("attention.value_length"), HEAD_DIM as u32)
        .kv(&key("attention.layer_norm_rms_epsilon"), 1e-5f32)
        .kv(&key("rope.dimension_count"), HEAD_DIM as u32)
        .kv(&key("rope.freq_base"), 10_000f32);
    match arch {
        "llama" => {
            b = b
                .kv(&key("rope.scaling.type"), "yarn")
                .kv(&key("rope.scaling.factor"), 2f32)
                .kv(&key("rope.scaling.original_context_length"), 32u32);
        }
        "qwen2" => b = b.kv(&key("rope.scaling.type"), "linear").kv(&key("rope.scaling.factor"), 2f32),
        "qwen3moe" | "gemma4" => {
            b = b
                .kv(&key("expert_count"), N_EXPERT as u32)
                .kv(&key("expert_used_count"), 1u32)
                .kv(&key("expert_feed_forward_length"), N_FF as u32);
        }
        _ => {}
    }
    if gemma {
        let pattern = Kv::Bools(vec![true, false, true]);
        b = b.kv(&key("attention.sliding_window"), 4u32).kv(&key("attention.sliding_window_pattern"), pattern);
    }
    if arch == "gemma4" {
        b = b
            .kv(&key("attention.key_length_swa"), HEAD_DIM as u32)
            .kv(&key("attention.value_length_swa"), HEAD_DIM as u32)
            .kv(&key("rope.dimension_count_swa"), HEAD_DIM as u32)
            .kv(&key("rope.freq_base_swa"), 10_000f32)
            .kv(&key("attention.shared_kv_layers"), 1u32)
            .kv(&key("embedding_length_per_layer_input"), N_EMBD as u32)
            .kv(&key("final_logit_softcapping"), 30f32);
    }
    let mut w = Weights { builder: vocabulary(b, kind), dice: Dice(arch.len() as u64) };
    weights(&mut w, arch, n_layer, n_head_kv);
    w.builder.build()
}

struct Weights {
    builder: GgufBuilder,
    dice: Dice,
}

impl Weights {
    /// Numbers about 1, or weights about 0.
    fn add(&mut self, name: &str, dims: &[u64], quantized: bool) {
        let n = dims.iter().product::<u64>() as usize;
        let (ty, data) = if quantized {
            // Scale 1/256 as a half, then codes.
            let block = |dice: &mut Dice| [vec![0x00, 0x1c], dice.bytes(32)].concat();
            (GgmlType::Q8_0, (0..n / 32).flat_map(|_| block(&mut self.dice)).collect())
        } else {
            let mean = if dims.len() == 1 { 1.0 } else { 0.0 };
            let value = |dice: &mut Dice| mean + (dice.below(1000) as f32 / 500.0 - 1.0) * 0.2;
            (GgmlType::F32, (0..n).flat_map(|_| value(&mut self.dice).to_le_bytes()).collect::<Vec<u8>>())
        };
        self.builder = std::mem::take(&mut self.builder).tensor(name, dims, ty, &data);
    }

    fn vector(&mut self, name: &str, n: u64) {
        self.add(name, &[n], false);
    }

    fn matrix(&mut self, name: &str, k: u64, n: u64) {
        self.add(name, &[k, n], k.is_multiple_of(32));
    }
}

fn weights(w: &mut Weights, arch: &str, n_layer: u64, n_head_kv: u64) {
    let (gemma, moe) = (arch.starts_with("gemma"), arch == "qwen3moe" || arch == "gemma4");
    w.add("token_embd.weight", &[N_EMBD, N_VOCAB as u64], false);
    w.vector("output_norm.weight", N_EMBD);
    if arch == "llama" {
        w.matrix("output.weight", N_EMBD, N_VOCAB as u64);
    }
    if arch == "llama" || arch == "gemma4" {
        w.vector("rope_freqs.weight", HEAD_DIM / 2);
    }
    if arch == "gemma4" {
        w.matrix("per_layer_token_embd.weight", N_EMBD * n_layer, N_VOCAB as u64);
        w.matrix("per_layer_model_proj.weight", N_EMBD, N_EMBD * n_layer);
        w.vector("per_layer_proj_norm.weight", N_EMBD);
    }
    for layer in 0..n_layer {
        let name = |role: &str| format!("blk.{layer}.{role}");
        let shares = arch == "gemma4" && layer == 2;
        w.vector(&name("attn_norm.weight"), N_EMBD);
        w.vector(&name("ffn_norm.weight"), N_EMBD);
        w.matrix(&name("attn_q.weight"), N_EMBD, N_HEAD * HEAD_DIM);
        w.matrix(&name("attn_output.weight"), N_HEAD * HEAD_DIM, N_EMBD);
        if !shares {
            w.matrix(&name("attn_k.weight"), N_EMBD, n_head_kv * HEAD_DIM);
            w.matrix(&name("attn_v.weight"), N_EMBD, n_head_kv * HEAD_DIM);
        }
        if arch.starts_with("qwen3") || gemma {
            w.vector(&name("attn_q_norm.weight"), HEAD_DIM);
            if !shares {
                w.vector(&name("attn_k_norm.weight"), HEAD_DIM);
            }
        }
        if arch == "qwen2" {
            w.vector(&name("attn_q.bias"), N_HEAD * HEAD_DIM);
            w.vector(&name("attn_k.bias"), n_head_kv * HEAD_DIM);
            w.vector(&name("attn_v.bias"), n_head_kv * HEAD_DIM);
        }
        if gemma {
            w.vector(&name("post_attention_norm.weight"), N_EMBD);
            w.vector(&name("post_ffw_norm.weight"), N_EMBD);
        }
        if arch == "gemma4" {
            w.matrix(&name("inp_gate.weight"), N_EMBD, N_EMBD);
            w.matrix(&name("proj.weight"), N_EMBD, N_EMBD);
            w.vector(&name("post_norm.weight"), N_EMBD);
            w.vector(&name("layer_output_scale.weight"), 1);
            w.vector(&name("ffn_gate_inp.scale"), N_EMBD);
            w.vector(&name("ffn_down_exps.scale"), N_EXPERT);
            w.vector(&name("post_ffw_norm_1.weight"), N_EMBD);
            w.vector(&name("pre_ffw_norm_2.weight"), N_EMBD);
            w.vector(&name("post_ffw_norm_2.weight"), N_EMBD);
            w.add(&name("ffn_gate_up_exps.weight"), &[N_EMBD, 2 * N_FF, N_EXPERT], true);
        } else if moe {
            w.add(&name("ffn_gate_exps.weight"), &[N_EMBD, N_FF, N_EXPERT], true);
            w.add(&name("ffn_up_exps.weight"), &[N_EMBD, N_FF, N_EXPERT], true);
        }
        if moe {
            w.add(&name("ffn_down_exps.weight"), &[N_FF, N_EMBD, N_EXPERT], true);
            w.add(&name("ffn_gate_inp.weight"), &[N_EMBD, N_EXPERT], false);
        }
        if arch != "qwen3moe" {
            w.matrix(&name("ffn_gate.weight"), N_EMBD, N_FF);
            w.matrix(&name("ffn_up.weight"), N_EMBD, N_FF);
            w.matrix(&name("ffn_down.weight"), N_FF, N_EMBD);
        }
    }
}

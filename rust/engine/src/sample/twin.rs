//! The slow twin: the same definitions, by sorting everything, in f64 with `libm`.
//!
//! It shares no code with what it checks except the random number, which has published answers of its own.

use super::{SampleError, Sampling, philox4x32, uniform};

/// How far the twin's borders are moved to tell a rounding from a fault.
const NUDGE: f64 = 1e-9;

/// Evenly spread noise in (-scale, scale), the same for the same seed.
pub(super) fn noise(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    (0..n as u64).map(|i| (uniform(seed ^ 0x9e37_79b9, i) as f32 * 2.0 - 1.0) * scale).collect()
}

/// Noise with the shape of a model's logits: bell-shaped, a few far above the rest.
pub(super) fn logits(seed: u64, n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| {
            let words = philox4x32([i as u32, 1, 2, 3], [seed as u32, (seed >> 32) as u32]);
            let bell: f64 = words.iter().map(|&w| f64::from(w) / 4_294_967_296.0 - 0.5).sum::<f64>() * 4.0;
            let lift = if words[0] < u32::MAX / 1000 { f64::from(words[1] % 997) / 80.0 } else { 0.0 };
            (bell + lift) as f32
        })
        .collect()
}

/// The row after biases, bans and penalties.
pub(super) fn patched(sampling: &Sampling, row: &[f32], history: &[u32]) -> Vec<f32> {
    let mut row = row.to_vec();
    for &(token, bias) in &sampling.logit_bias {
        row[token as usize] = if bias == f32::NEG_INFINITY { bias } else { row[token as usize] + bias };
    }
    for &token in &sampling.banned {
        row[token as usize] = f32::NEG_INFINITY;
    }
    let start = history.len().saturating_sub(sampling.repeat_last_n);
    let window = &history[start..];
    for token in 0..row.len() as u32 {
        let count = window.iter().filter(|&&t| t == token).count();
        if count > 0 {
            let x = &mut row[token as usize];
            *x = if *x > 0.0 { *x / sampling.repeat_penalty } else { *x * sampling.repeat_penalty };
            *x -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
        }
    }
    row
}

/// All tokens, descending by logit, ties to the lower id.
pub(super) fn ranking(row: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    ids.sort_by(|&a, &b| row[b as usize].partial_cmp(&row[a as usize]).expect("no NaN").then(a.cmp(&b)));
    ids
}

/// The exact distribution over kept tokens, ascending by id, unnormalised; `nudge` moves the borders of top-p and min-p.
pub(super) fn distribution(sampling: &Sampling, row: &[f32], nudge: f64) -> Vec<(u32, f64)> {
    let mut ids = ranking(row);
    let high = row[ids[0] as usize];
    let weight = |id: u32| {
        let x = row[id as usize];
        if x == high { 1.0 } else { libm::exp((f64::from(x) - f64::from(high)) / f64::from(sampling.temperature)) }
    };
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k);
    }
    if sampling.top_p < 1.0 {
        let total: f64 = ids.iter().map(|&id| weight(id)).sum();
        let mut running = 0.0;
        let mut keep = 0;
        while keep < ids.len() {
            running += weight(ids[keep]);
            keep += 1;
            if running >= (f64::from(sampling.top_p) + nudge) * total {
                break;
            }
        }
        ids.truncate(keep);
    }
    ids.retain(|&id| weight(id) >= f64::from(sampling.min_p) * (1.0 + nudge));
    ids.sort_unstable();
    ids.into_iter().map(|id| (id, weight(id))).collect()
}

/// The tokens that a correct sampler may choose: one, but where a border lies within a billionth of a token.
pub(super) fn choices(
    sampling: &Sampling,
    row: &[f32],
    history: &[u32],
    draw_index: u64,
    pos: usize,
) -> Result<Vec<u32>, SampleError> {
    if let Some(token) = row.iter().position(|x| x.is_nan()) {
        return Err(SampleError::NotANumber { pos, token: token as u32 });
    }
    let row = patched(sampling, row, history);
    if row.iter().all(|&x| x == f32::NEG_INFINITY) {
        return Err(SampleError::AllMasked { pos });
    }
    if sampling.temperature <= 0.0 {
        return Ok(vec![ranking(&row)[0]]);
    }
    let u = uniform(sampling.seed, draw_index);
    let mut tokens = Vec::new();
    for border in [0.0, -NUDGE, NUDGE] {
        let kept = distribution(sampling, &row, border);
        let total: f64 = kept.iter().map(|&(_, w)| w).sum();
        for shift in [0.0, -NUDGE, NUDGE] {
            let mut running = 0.0;
            let mut chosen = None;
            for &(id, weight) in kept.iter().filter(|&&(_, w)| w > 0.0) {
                chosen = Some(id);
                running += weight;
                if running > (u + shift) * total {
                    break;
                }
            }
            tokens.extend(chosen);
        }
    }
    tokens.dedup();
    Ok(tokens)
}

//! Mixture of experts: a router chooses some experts for each row, and each expert that was chosen is read once for all its rows.
//!
//! - **E1** A row's result depends on its own numbers alone (I4): the router's softmax is a plain sum in ascending order, ties go to the lower expert, and a
//!   row adds its experts' results by falling probability, `acc = fma(weight, y, acc)`.
//! - **E2** Rows are grouped by expert; within a group they keep their order. A slot is a (row, choice) pair, numbered group by group.
//!
//! Cost: seven jobs a layer; weights of the chosen experts once, so a verify costs what the *union* of its rows' experts costs.

use quoth_kernels::order::exp;

use super::Model;
use super::forward::{Scratch, at_least};
use super::rows::{Packed, with_packed};
use super::weights::{ExpertWeights, GateUp};
use crate::shared::Shared;

/// Memory of experts, kept between forwards.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    logits: Vec<f32>,
    /// Normed rows, the experts' input.
    normed: Vec<f32>,
    /// Chosen experts and their weights, `[m][used]`.
    chosen: Vec<(usize, f32)>,
    /// Slot of each choice, `[m][used]`.
    slot_of: Vec<usize>,
    /// Rows by slot.
    row_of: Vec<usize>,
    /// Experts with rows: (expert, first slot, end slot).
    groups: Vec<(usize, usize, usize)>,
    packs: Vec<Packed>,
    floats: Vec<Vec<f32>>,
    /// Gate and up by slot, `[slots][2 · n_ff]`.
    wide: Vec<f32>,
    /// Results by slot, `[slots][n_embd]`.
    by_slot: Vec<f32>,
    /// Results by row, `[m][n_embd]`.
    out: Vec<f32>,
}

impl Memory {
    /// The experts' result, `[m][n_embd]`.
    pub(crate) fn rows(&self) -> &[f32] {
        &self.out
    }
}

impl Model {
    /// The experts' part of a feed-forward, to [`Memory::rows`]. `norm` is the weight of the layer's own norm.
    pub(crate) fn experts(&self, weights: &ExpertWeights, norm: &[f32], m: usize, scratch: &mut Scratch) {
        self.route(weights, norm, m, scratch);
        let memory = &mut scratch.experts;
        group(memory, m, weights.config.count, weights.config.used);
        let (n_embd, n_ff) = (self.config.n_embd, weights.config.n_ff);
        let slots = memory.row_of.len();
        at_least(&mut memory.wide, slots * 2 * n_ff);
        at_least(&mut memory.by_slot, slots * n_embd);
        at_least(&mut memory.out, m * n_embd);
        memory.packs.resize_with(memory.groups.len().max(memory.packs.len()), Packed::default);
        memory.floats.resize_with(self.pool.count(), Vec::new);
        let Memory { normed, chosen, slot_of, row_of, groups, packs, floats, wide, by_slot, out, .. } = memory;
        let (normed, groups, row_of) = (&*normed, &*groups, &*row_of);

        // The groups' rows.
        let gate_kinds = self.kinds(weights.gate_up.iter().take(1).flat_map(|g| match g {
            GateUp::Apart { gate, up } => [gate, up],
            GateUp::Joined(both) => [both, both],
        }));
        self.pack_groups(groups, (gate_kinds, n_embd), packs, floats, &|slot, row| {
            row.copy_from_slice(&normed[row_of[slot] * n_embd..(row_of[slot] + 1) * n_embd]);
        });

        // Gate and up: panels of all groups, shared out.
        let wides = Shared::new(wide);
        let all_packs = &*packs;
        self.pool.run(|worker| {
            let panels = |g: &GateUp| match g {
                GateUp::Apart { gate, up } => gate.panels() + up.panels(),
                GateUp::Joined(both) => both.panels(),
            };
            let sizes = || groups.iter().map(|(e, ..)| panels(&weights.gate_up[*e]));
            for (i, range) in shares(worker.share(sizes().sum()), sizes()) {
                let (expert, first, _) = groups[i];
                let at = first * 2 * n_ff;
                // SAFETY: panels are shared out, and a panel's columns of its group's slots belong to it alone.
                unsafe {
                    match &weights.gate_up[expert] {
                        GateUp::Joined(both) => self.product(both, range, &all_packs[i], &wides, (at, 2 * n_ff), &[]),
                        GateUp::Apart { gate, up } => {
                            let cut = gate.panels();
                            let gates = range.start.min(cut)..range.end.min(cut);
                            let ups = range.start.max(cut) - cut..range.end.max(cut) - cut;
                            self.product(gate, gates, &all_packs[i], &wides, (at, 2 * n_ff), &[]);
                            self.product(up, ups, &all_packs[i], &wides, (at + n_ff, 2 * n_ff), &[]);
                        }
                    }
                }
            }
        });

        // The hidden rows.
        let wide = &*wide;
        let down_kinds = self.kinds(weights.down.iter().take(1));
        self.pack_groups(groups, (down_kinds, n_ff), packs, floats, &|slot, row| {
            let (gate, up) = wide[slot * 2 * n_ff..(slot + 1) * 2 * n_ff].split_at(n_ff);
            row.copy_from_slice(up);
            self.gated(gate, row);
        });

        // Down.
        let results = Shared::new(by_slot);
        let all_packs = &*packs;
        self.pool.run(|worker| {
            let sizes = || groups.iter().map(|(e, ..)| weights.down[*e].panels());
            for (i, range) in shares(worker.share(sizes().sum()), sizes()) {
                let (expert, first, _) = groups[i];
                // SAFETY: panels are shared out, and a panel's columns of its group's slots belong to it alone.
                unsafe {
                    self.product(&weights.down[expert], range, &all_packs[i], &results, (first * n_embd, n_embd), &[])
                };
            }
        });

        // A row's experts, joined by falling probability.
        let (by_slot, chosen, slot_of) = (&*by_slot, &*chosen, &*slot_of);
        let (out, used) = (Shared::new(out), weights.config.used);
        self.pool.run(|worker| {
            for r in worker.share(m) {
                // SAFETY: rows of this worker's share.
                let row = unsafe { out.part(r * n_embd..(r + 1) * n_embd) };
                row.fill(0.0);
                for choice in r * used..(r + 1) * used {
                    let (weight, slot) = (chosen[choice].1, slot_of[choice]);
                    let y = &by_slot[slot * n_embd..(slot + 1) * n_embd];
                    row.iter_mut().zip(y).for_each(|(acc, y)| *acc = weight.mul_add(*y, *acc));
                }
            }
        });
    }

    /// Packs the rows of every group into `packs`, groups shared out. `fill` gives the floats of a slot.
    fn pack_groups(
        &self,
        groups: &[(usize, usize, usize)],
        (kinds, k): (super::rows::Kinds, usize),
        packs: &mut [Packed],
        floats: &mut [Vec<f32>],
        fill: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        let (packs, floats) = (Shared::new(packs), Shared::new(floats));
        self.pool.run(|worker| {
            // SAFETY: element i belongs to worker i alone.
            let floats = &mut unsafe { floats.part(worker.index..worker.index + 1) }[0];
            for i in worker.share(groups.len()) {
                let (_, first, end) = groups[i];
                // SAFETY: groups are shared out, and element i belongs to group i alone.
                let pack = &mut unsafe { packs.part(i..i + 1) }[0];
                pack.fill(&self.set, (kinds, end - first, k), &|r, row| fill(first + r, row), floats);
            }
        });
    }

    /// Normed rows, and each row's chosen experts with their weights.
    fn route(&self, weights: &ExpertWeights, norm: &[f32], m: usize, scratch: &mut Scratch) {
        let (n_embd, eps) = (self.config.n_embd, self.config.eps);
        let super::config::Experts { count, used, .. } = weights.config;
        let Scratch { x, own, common, experts, .. } = scratch;
        let Memory { logits, normed, chosen, .. } = experts;
        at_least(logits, m * count);
        at_least(normed, m * n_embd);
        chosen.resize(m * used, (0, 0.0));
        let x = &*x;
        let row = |r: usize| &x[r * n_embd..(r + 1) * n_embd];
        let router_input = |r: usize, out: &mut [f32]| match &weights.beside {
            None => self.set.rms_norm(row(r), Some(norm), eps, out),
            Some(beside) => {
                self.set.rms_norm(row(r), Some(&beside.router_scale), eps, out);
                let width = (n_embd as f32).sqrt();
                out.iter_mut().for_each(|v| *v /= width);
            }
        };
        let outputs = Shared::new(logits);
        let kinds = self.kinds([&weights.router]);
        with_packed(&self.pool, &self.set, (kinds, m, n_embd), &router_input, own, common, &|worker, packed, _| {
            // SAFETY: each worker uses the columns of its share.
            unsafe {
                self.product(&weights.router, worker.share(weights.router.panels()), packed, &outputs, (0, count), &[])
            };
        });
        let logits = &*logits;
        let (normed, chosen) = (Shared::new(normed), Shared::new(chosen));
        let input_norm = weights.beside.as_ref().map_or(norm, |beside| &beside.pre_norm);
        self.pool.run(|worker| {
            for r in worker.share(m) {
                // SAFETY: rows of this worker's share.
                let (normed, chosen) =
                    unsafe { (normed.part(r * n_embd..(r + 1) * n_embd), chosen.part(r * used..(r + 1) * used)) };
                self.set.rms_norm(row(r), Some(input_norm), eps, normed);
                choose(&logits[r * count..(r + 1) * count], chosen);
                if let Some(beside) = &weights.beside {
                    chosen.iter_mut().for_each(|(e, w)| *w *= beside.expert_scale[*e]);
                }
            }
        });
    }
}

/// The most probable experts of a row, best first, with probabilities made to sum to 1.
fn choose(logits: &[f32], chosen: &mut [(usize, f32)]) {
    let most = logits.iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m });
    let mut total = 0.0;
    let probabilities: Vec<f32> = logits
        .iter()
        .map(|x| {
            let p = exp(x - most);
            total += p;
            p
        })
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // By the logits themselves, which tell more apart than rounded probabilities do; a NaN goes last, and shows in the weights.
    let key = |e: usize| if logits[e].is_nan() { f32::NEG_INFINITY } else { logits[e] };
    order.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(a.cmp(b)));
    let mut sum = 0.0;
    for (choice, e) in chosen.iter_mut().zip(order) {
        *choice = (e, probabilities[e] / total);
        sum += choice.1;
    }
    chosen.iter_mut().for_each(|(_, w)| *w /= sum);
}

/// Orders the choices by expert, rows within an expert ascending.
fn group(memory: &mut Memory, m: usize, count: usize, used: usize) {
    let Memory { chosen, slot_of, row_of, groups, .. } = memory;
    groups.clear();
    row_of.clear();
    slot_of.resize(m * used, 0);
    for expert in 0..count {
        let first = row_of.len();
        for choice in (0..m * used).filter(|c| chosen[*c].0 == expert) {
            slot_of[choice] = row_of.len();
            row_of.push(choice / used);
        }
        if row_of.len() > first {
            groups.push((expert, first, row_of.len()));
        }
    }
}

/// Cuts a share of consecutive units into the parts that lie in each of several runs of units: (run, units within it).
fn shares(
    share: std::ops::Range<usize>,
    sizes: impl Iterator<Item = usize>,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let mut start = 0;
    sizes.enumerate().filter_map(move |(i, size)| {
        let from = share.start.clamp(start, start + size) - start;
        let to = share.end.clamp(start, start + size) - start;
        start += size;
        (from < to).then_some((i, from..to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_experts_are_chosen_ties_go_to_the_lower_and_weights_sum_to_one() {
        let mut chosen = [(0, 0.0); 3];
        choose(&[1.0, 3.0, -2.0, 3.0, 2.0], &mut chosen);
        assert_eq!(chosen.map(|c| c.0), [1, 3, 4]);
        assert!((chosen.iter().map(|c| c.1).sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(chosen[0].1, chosen[1].1);
        assert!((chosen[2].1 / chosen[0].1 - (-1f32).exp()).abs() < 1e-6);
    }

    #[test]
    fn choices_are_grouped_by_expert_with_rows_in_order() {
        let mut memory =
            Memory { chosen: vec![(2, 0.5), (0, 0.5), (2, 0.9), (1, 0.1), (0, 0.6), (2, 0.4)], ..Memory::default() };
        group(&mut memory, 3, 4, 2);
        assert_eq!(memory.groups, [(0, 0, 2), (1, 2, 3), (2, 3, 6)]);
        assert_eq!(memory.row_of, [0, 2, 1, 0, 1, 2]);
        assert_eq!(memory.slot_of, [3, 0, 4, 2, 1, 5]);
    }

    #[test]
    fn shares_of_runs_cover_every_unit_once() {
        let sizes = [3usize, 0, 5, 1];
        for count in 1..6 {
            let mut seen = Vec::new();
            for index in 0..count {
                let worker = crate::pool::Worker { index, count };
                seen.extend(shares(worker.share(9), sizes.into_iter()).flat_map(|(i, r)| r.map(move |u| (i, u))));
            }
            let all: Vec<_> = sizes.iter().enumerate().flat_map(|(i, n)| (0..*n).map(move |u| (i, u))).collect();
            assert_eq!(seen, all);
        }
    }
}

//! From tensors in a file to panels in memory: a plan first, then all threads at once.
//!
//! In: checked tensor descriptions. Out: one arena that holds every matrix as panels ([`quoth_kernels::format`]), and small vectors as floats.
//!
//! - **L1** The arena is as large as the tensors it holds (rows padded to 16): there is no second copy, and the file is not needed afterwards.
//! - **L2** A tensor that the family wants and the file lacks, one of another shape, of a type that is not computed with, and one that the family did not ask for are
//!   errors by name, before anything is read.
//! - **L3** A tensor that a family may have, all of its layers have or none: one that only some have is missing in the others.
//! - **L4** Rows of q and k whose rotary pairs are adjacent are reordered here, so that the forward knows one layout.
//!
//! Cost: each byte is read once and written once; all threads take jobs of about a megabyte.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memmap2::MmapMut;
use quoth_kernels::Format;
use quoth_kernels::format::PANEL;
use quoth_kernels::matmul::Panels;

use super::family::{Pairs, Presence};
use super::keys::file_name;
use crate::error::{Error, Result};
use crate::gguf::{GgufFile, TensorInfo};
use crate::pool::Pool;
use crate::shared::Shared;

/// Raw bytes that one job reads.
const JOB_BYTES: usize = 1 << 20;

/// Where panels begin: a cache line.
const ALIGN: usize = 64;

/// A matrix in the arena: `n` rows of `k` weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) format: Format,
    pub(crate) n: usize,
    pub(crate) k: usize,
    at: usize,
    /// Whether it lies in the arena of the model that lends it ([`super::Model::panels`]).
    lent: bool,
}

impl Matrix {
    fn bytes(&self) -> usize {
        self.n.div_ceil(PANEL) * PANEL * self.format.panel_row_bytes(self.k)
    }

    /// The same matrix, as a drafter names it that has it from this one's model.
    pub(crate) fn lent(self) -> Matrix {
        Matrix { lent: true, ..self }
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }
}

/// The memory of all matrices.
#[derive(Debug)]
pub(crate) struct Arena(Option<MmapMut>);

impl Arena {
    /// Zeroed memory, on large pages where the system has them.
    pub(crate) fn new(bytes: usize, what: &'static str) -> Result<Arena> {
        if bytes == 0 {
            return Ok(Arena(None));
        }
        let map = MmapMut::map_anon(bytes).map_err(|source| Error::Memory { bytes, what, source })?;
        // Large pages save page walks; where the system refuses the advice, nothing else changes.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Arena(Some(map)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }

    /// The panels of a matrix.
    pub(crate) fn panels(&self, m: &Matrix) -> Panels<'_> {
        Panels::new(m.format, m.n, m.k, &self.bytes()[m.at..m.at + m.bytes()])
    }
}

/// How the rows of a matrix lie in the file.
#[derive(Debug, Clone, Copy)]
enum Rows {
    AsTheyAre,
    /// Within each head, of the first `dims` rows pair i stands at 2i and 2i + 1; it goes to i and i + dims / 2.
    AdjacentPairs {
        head_dim: usize,
        dims: usize,
    },
}

impl Rows {
    /// Rows that must be read together.
    fn unit(self, n: usize) -> usize {
        match self {
            Rows::AsTheyAre => PANEL,
            Rows::AdjacentPairs { head_dim, .. } if head_dim % PANEL == 0 => head_dim,
            Rows::AdjacentPairs { .. } => n.next_multiple_of(PANEL),
        }
    }

    /// The row in the file of row `row`.
    fn source(self, row: usize) -> usize {
        match self {
            Rows::AsTheyAre => row,
            Rows::AdjacentPairs { head_dim, dims } => {
                let (head, i, half) = (row / head_dim * head_dim, row % head_dim, dims / 2);
                head + if i < half {
                    2 * i
                } else if i < dims {
                    2 * (i - half) + 1
                } else {
                    i
                }
            }
        }
    }
}

/// Some rows of one matrix.
#[derive(Debug, Clone, Copy)]
struct Job {
    tensor: usize,
    /// First row of the matrix within the tensor (experts follow one another).
    base: usize,
    rows: Rows,
    matrix: Matrix,
    from: usize,
    to: usize,
}

/// What is to be loaded: the family asks, the plan checks and remembers.
pub(crate) struct Plan<'a> {
    file: &'a GgufFile,
    arch: &'static str,
    jobs: Vec<Job>,
    bytes: usize,
    asked: HashSet<String>,
    /// Optional tensors by their role in a layer: whether the first layer that was asked about has it, and its name there.
    optional: HashMap<String, (bool, String)>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(file: &'a GgufFile, arch: &'static str) -> Self {
        Plan { file, arch, jobs: Vec::new(), bytes: 0, asked: HashSet::new(), optional: HashMap::new() }
    }

    /// Whether the file has a tensor; asking does not use it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Whether the file has an optional tensor of a layer; all layers that are asked about must agree (L3).
    pub(crate) fn has_in_every_layer(&mut self, name: &str, shape: &[usize]) -> Result<bool> {
        let has = self.has(name);
        let role = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, role)| role);
        // Biases of query, key and value come together.
        let role = if matches!(role, "attn_k.bias" | "attn_v.bias") { "attn_q.bias" } else { role };
        let (first, first_name) = self.optional.entry(role.to_owned()).or_insert_with(|| (has, name.to_owned()));
        if *first == has {
            return Ok(has);
        }
        let tensor = if has { first_name.clone() } else { name.to_owned() };
        let expected = shape.iter().map(|d| *d as u64).collect();
        Err(Error::MissingTensor { file: file_name(self.file), tensor, expected })
    }

    /// Accepts a tensor that some writers keep and no computation uses; its shape must fit all the same.
    pub(crate) fn unused(&mut self, name: &str, shape: &[usize]) -> Result<()> {
        if self.has(name) { self.find(name, shape).map(drop) } else { Ok(()) }
    }

    /// The tensor of this name and exactly this shape, its type checked.
    fn find(&mut self, name: &str, shape: &[usize]) -> Result<(usize, &'a TensorInfo, Format)> {
        let expected: Vec<u64> = shape.iter().map(|d| *d as u64).collect();
        let Some(tensor) = self.file.tensor(name) else {
            return Err(Error::MissingTensor { file: file_name(self.file), tensor: name.to_owned(), expected });
        };
        // GGUF drops trailing axes of length 1, and some writers keep them.
        let trimmed = |dims: &[u64]| {
            let end = dims.iter().rposition(|d| *d != 1).map_or(1, |i| i + 1);
            dims[..end].to_vec()
        };
        if trimmed(tensor.shape()) != trimmed(&expected) {
            let found = tensor.shape().to_vec();
            return Err(Error::TensorShape { file: file_name(self.file), tensor: name.to_owned(), found, expected });
        }
        self.file.check_supported(tensor)?;
        let format = Format::from_ggml_id(tensor.ty.id()).ok_or_else(|| {
            Error::Internal(format!("tensor type {} passes the reader's check and has no kernels", tensor.ty.name()))
        })?;
        self.asked.insert(name.to_owned());
        let index = self.file.tensors().iter().position(|t| std::ptr::eq(t, tensor)).unwrap_or_default();
        Ok((index, tensor, format))
    }

    /// A matrix of `n` rows of `k` weights.
    pub(crate) fn matrix(&mut self, name: &str, k: usize, n: usize) -> Result<Matrix> {
        self.matrix_of(name, k, n, Rows::AsTheyAre)
    }

    /// The rows of q or k: heads of `head_dim` rows, of which the first `dims` rotate.
    pub(crate) fn rotary(
        &mut self,
        name: &str,
        k: usize,
        n: usize,
        pairs: Pairs,
        head_dim: usize,
        dims: usize,
    ) -> Result<Matrix> {
        match pairs {
            Pairs::Halves => self.matrix(name, k, n),
            Pairs::Adjacent => self.matrix_of(name, k, n, Rows::AdjacentPairs { head_dim, dims }),
        }
    }

    fn matrix_of(&mut self, name: &str, k: usize, n: usize, rows: Rows) -> Result<Matrix> {
        let (tensor, _, format) = self.find(name, &[k, n])?;
        Ok(self.place(tensor, 0, format, k, n, rows))
    }

    /// The `count` matrices of a tensor of experts.
    pub(crate) fn experts(&mut self, name: &str, k: usize, n: usize, count: usize) -> Result<Vec<Matrix>> {
        let (tensor, _, format) = self.find(name, &[k, n, count])?;
        Ok((0..count).map(|e| self.place(tensor, e * n, format, k, n, Rows::AsTheyAre)).collect())
    }

    fn place(&mut self, tensor: usize, base: usize, format: Format, k: usize, n: usize, rows: Rows) -> Matrix {
        let matrix = Matrix { format, n, k, at: self.bytes, lent: false };
        self.bytes = (self.bytes + matrix.bytes()).next_multiple_of(ALIGN);
        let unit = rows.unit(n);
        let per_job = (JOB_BYTES / (unit * format.row_bytes(k)).max(1)).max(1) * unit;
        for from in (0..n).step_by(per_job) {
            self.jobs.push(Job { tensor, base, rows, matrix, from, to: n.min(from + per_job) });
        }
        matrix
    }

    /// A vector of `n` floats, read at once.
    pub(crate) fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        let (_, tensor, format) = self.find(name, &[n])?;
        let mut raw = vec![0; tensor.n_bytes as usize];
        self.file.read_tensor(tensor, 0..tensor.n_bytes, &mut raw)?;
        let mut values = vec![0.0; n];
        format.dequantize(&raw, &mut values);
        match values.iter().find(|v| !v.is_finite()) {
            None => Ok(values),
            Some(found) => {
                Err(Error::TensorValue { file: file_name(self.file), tensor: name.to_owned(), found: *found })
            }
        }
    }

    /// `n` whole numbers of 64 bits, read at once.
    pub(crate) fn integers(&mut self, name: &str, n: usize) -> Result<Vec<i64>> {
        let expected = vec![n as u64];
        let Some(tensor) = self.file.tensor(name) else {
            return Err(Error::MissingTensor { file: file_name(self.file), tensor: name.to_owned(), expected });
        };
        if tensor.shape() != expected || tensor.ty.name() != "I64" {
            let found = tensor.shape().to_vec();
            return Err(Error::TensorShape { file: file_name(self.file), tensor: name.to_owned(), found, expected });
        }
        self.asked.insert(name.to_owned());
        let mut raw = vec![0; n * 8];
        self.file.read_tensor(tensor, 0..raw.len() as u64, &mut raw)?;
        Ok(raw.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// A vector that may, must or must not be there.
    pub(crate) fn vector_if(&mut self, presence: Presence, name: &str, n: usize) -> Result<Option<Vec<f32>>> {
        match presence {
            Presence::Needed => self.vector(name, n).map(Some),
            Presence::Optional if self.has_in_every_layer(name, &[n])? => self.vector(name, n).map(Some),
            Presence::Optional | Presence::Never => Ok(None),
        }
    }

    /// As [`Self::vector_if`] for a bias of q or k, reordered as their rows are.
    pub(crate) fn rotary_vector_if(
        &mut self,
        presence: Presence,
        name: &str,
        n: usize,
        pairs: Pairs,
        head_dim: usize,
        dims: usize,
    ) -> Result<Option<Vec<f32>>> {
        let rows = match pairs {
            Pairs::Halves => Rows::AsTheyAre,
            Pairs::Adjacent => Rows::AdjacentPairs { head_dim, dims },
        };
        let values = self.vector_if(presence, name, n)?;
        Ok(values.map(|values| (0..n).map(|row| values[rows.source(row)]).collect()))
    }

    /// Reads everything that was asked for. `progress` gets bytes done and bytes in all, on the calling thread, and stops the loading by returning false.
    pub(crate) fn load(self, pool: &Pool, progress: &mut (dyn FnMut(usize, usize) -> bool + Send)) -> Result<Arena> {
        if let Some(extra) = self.file.tensors().iter().find(|t| !self.asked.contains(&t.name)) {
            let (tensor, arch) = (extra.name.clone(), self.arch.to_owned());
            return Err(Error::ExtraTensor { file: file_name(self.file), tensor, arch });
        }
        let mut arena = Arena::new(self.bytes, "weights")?;
        let memory = Shared::new(arena.bytes_mut());
        let (next, done, told) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let stop = AtomicBool::new(false);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let progress = Mutex::new(progress);
        let fail = |error: Error| {
            stop.store(true, Ordering::Relaxed);
            if let Ok(mut failure) = failure.lock() {
                failure.get_or_insert(error);
            }
        };
        pool.run(|worker| {
            let mut raw = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let Some(job) = self.jobs.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let row_bytes = job.matrix.format.panel_row_bytes(job.matrix.k);
                let start = job.matrix.at + job.from * row_bytes;
                let end = job.matrix.at + job.to.next_multiple_of(PANEL) * row_bytes;
                // SAFETY: jobs cover disjoint panels (they start at multiples of 16 rows), and each is taken once.
                let panels = unsafe { memory.part(start..end) };
                if let Err(error) = run_job(self.file, job, &mut raw, panels) {
                    return fail(error);
                }
                let done = done.fetch_add(end - start, Ordering::Relaxed) + end - start;
                if worker.index == 0
                    && let Ok(mut progress) = progress.lock()
                {
                    told.store(done, Ordering::Relaxed);
                    if !progress(done, self.bytes) {
                        return fail(Error::Cancelled);
                    }
                }
            }
        });
        match failure.into_inner() {
            // The last jobs, of a small file all, may have been other threads'.
            Ok(None) => {
                let last = told.into_inner() < self.bytes;
                match progress.into_inner().is_ok_and(|progress| !last || progress(self.bytes, self.bytes)) {
                    true => Ok(arena),
                    false => Err(Error::Cancelled),
                }
            }
            Ok(Some(error)) => Err(error),
            Err(_) => Err(Error::Internal("a thread panicked while loading".into())),
        }
    }
}

fn run_job(file: &GgufFile, job: &Job, raw: &mut Vec<u8>, panels: &mut [u8]) -> Result<()> {
    let Job { matrix, from, to, .. } = *job;
    let row_bytes = matrix.format.row_bytes(matrix.k);
    raw.resize((to - from) * row_bytes, 0);
    let start = ((job.base + from) * row_bytes) as u64;
    file.read_tensor(&file.tensors()[job.tensor], start..start + raw.len() as u64, raw)?;
    let layout = matrix.format.layout();
    let panel_bytes = PANEL * matrix.format.panel_row_bytes(matrix.k);
    let mut ordered = Vec::new();
    for (first, panel) in (from..to).step_by(PANEL).zip(panels.chunks_exact_mut(panel_bytes)) {
        let last = to.min(first + PANEL);
        let rows = match job.rows {
            Rows::AsTheyAre => &raw[(first - from) * row_bytes..(last - from) * row_bytes],
            reordered => {
                ordered.clear();
                for row in first..last {
                    let at = (reordered.source(row) - from) * row_bytes;
                    ordered.extend_from_slice(&raw[at..at + row_bytes]);
                }
                &ordered
            }
        };
        layout.pack_panel(rows, row_bytes, panel);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pairs_become_halves_and_the_rest_of_a_head_stays() {
        let rows = Rows::AdjacentPairs { head_dim: 8, dims: 6 };
        let order: Vec<_> = (0..16).map(|row| rows.source(row)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15]);
    }
}

//! Numbers in, numbers out: the arithmetic of a transformer, in several instruction sets that agree in every bit.
//!
//! Place in the flow: `engine` owns buffers, threads and files; this crate gets slices and fills slices. It has no dependencies, starts no
//! threads and does no I/O, so that every set can be compiled and run anywhere.
//!
//! # The contract (each rule is proved by a test that cites it)
//!
//! - **N1 Integers are exact.** Products and sums inside a block are `i32` and cannot overflow; each format states its bound.
//! - **N2 One float step per (output, block), blocks in ascending order.** A format with a minimum has a second step after the first. A SIMD
//!   float lane is a *different output*, never a piece of one sum. All float steps of a product are fused (`mul_add`).
//! - **N3 Float reductions over lanes** (norm, softmax sum) use exactly 16 virtual lanes and one fold tree ([`order::fold`]).
//! - **N4 Only operations that IEEE 754 fixes**: `+ - * / sqrt`, conversions, `mul_add`. `exp` and `exp2` are polynomials of our own
//!   ([`order::exp`], [`order::exp2`]).
//! - **N5 An output element is a function of its weight row and its activation row.** Batch, tiling and threads reorder outputs, never the
//!   additions within one. Attention walks keys in chunks of [`attend::CHUNK`] absolute positions, and what it
//!   quantizes for a query is a function of what this query sees.
//! - **N6 Default float environment**: round to nearest even, no flush to zero.
//! - **N7 Quantized activations lie in [-127, 127]**, rounded half to even, by one formula ([`act`]).
//! - **N8 The key/value cache stores what was computed**: writing position `p` touches nothing of any other position.
//!
//! [`NUMERICS`] numbers this arithmetic; a change that moves a bit of any result, or a byte of a cached chunk, raises it.
//!
//! # The map
//!
//! | module | what |
//! | --- | --- |
//! | [`format`] | the weight formats: block layout, unpacking, and the row panels that all sets read |
//! | [`act`] | activations: rows of floats to packed rows of signed bytes |
//! | [`matmul`] | panels times packed rows |
//! | [`norm`], [`rope`], [`glu`], [`attend`], [`top`] | the rest of a layer, and what is wanted of a row of logits |
//! | [`set`] | the dispatch table, chosen once |
//! | [`order`], [`half`] | lanes, fold tree, `exp`; half precision |

pub mod act;
pub mod attend;
#[cfg(test)]
mod digests;
pub mod env;
mod fetch;
pub mod format;
pub mod glu;
pub mod half;
mod lanes;
pub mod matmul;
pub mod norm;
pub mod order;
pub mod rope;
pub mod set;
pub mod top;

/// The version of the arithmetic: results of two builds with the same number are the same in every bit.
pub const NUMERICS: u32 = 1;

pub use format::Format;
pub use set::KernelSet;

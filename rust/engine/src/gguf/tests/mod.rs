//! Tests of the reader: what sound files say, how unsound ones are refused, and that nothing else happens.

mod access;
mod faults;
mod files;
mod mutation;
mod roundtrip;

use super::testing::GgufBuilder;
use super::{Fault, GgmlType, GgufFile};

/// Opens bytes that must be refused, and gives the reason.
fn fault(bytes: Vec<u8>) -> Fault {
    match GgufFile::from_bytes("m.gguf", bytes) {
        Err(error) => error.fault().expect("a fault of the content").clone(),
        Ok(file) => panic!("opened: {file:?}"),
    }
}

/// A small model with a value of every type and tensors of several types.
fn small() -> GgufBuilder {
    GgufBuilder::new()
        .kv("general.architecture", "llama")
        .kv("a.u8", 200u8)
        .kv("a.i8", -3i8)
        .kv("a.u16", 60_000u16)
        .kv("a.i16", -300i16)
        .kv("a.u32", 70_000u32)
        .kv("a.i32", -70_000i32)
        .kv("a.f32", 1.5f32)
        .kv("a.bool", true)
        .kv("a.u64", 1u64 << 40)
        .kv("a.i64", -(1i64 << 40))
        .kv("a.f64", 1e-5f64)
        .kv("b.u32", vec![1u32, 2, 3])
        .kv("b.i32", vec![-1i32, 2])
        .kv("b.f32", vec![0.5f32, -2.0])
        .kv("b.bool", vec![true, false, true])
        .kv("b.str", super::testing::Kv::strs(["a", "", "é", "long enough to be seen"]))
        .tensor("x", &[3, 2], GgmlType::F32, &(0..24).collect::<Vec<u8>>())
        .tensor("y", &[64], GgmlType::Q8_0, &(0..68).collect::<Vec<u8>>())
        .tensor("z", &[256, 1, 2, 1], GgmlType::Q4_K, &vec![7; 288])
}

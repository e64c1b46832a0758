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
        .every_type()
        .tensor("x", &[3, 2], GgmlType::F32, &(0..24).collect::<Vec<u8>>())
        .tensor("y", &[64], GgmlType::Q8_0, &(0..68).collect::<Vec<u8>>())
        .tensor("z", &[256, 1, 2, 1], GgmlType::Q4_K, &vec![7; 288])
}

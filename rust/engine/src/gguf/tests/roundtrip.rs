//! Whatever the writer writes, the reader reads.

use crate::gguf::testing::{GgufBuilder, Kv};
use crate::gguf::{GgmlType, GgufFile, Value};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn values() -> impl Strategy<Value = Kv> {
    prop_oneof![
        any::<u8>().prop_map(Kv::U8),
        any::<i8>().prop_map(Kv::I8),
        any::<u16>().prop_map(Kv::U16),
        any::<i16>().prop_map(Kv::I16),
        any::<u32>().prop_map(Kv::U32),
        any::<i32>().prop_map(Kv::I32),
        any::<f32>().prop_map(Kv::F32),
        any::<bool>().prop_map(Kv::Bool),
        ".{0,40}".prop_map(Kv::Str),
        any::<u64>().prop_map(Kv::U64),
        any::<i64>().prop_map(Kv::I64),
        any::<f64>().prop_map(Kv::F64),
        vec(any::<u32>(), 0..20).prop_map(Kv::U32s),
        vec(any::<i32>(), 0..20).prop_map(Kv::I32s),
        vec(any::<f32>(), 0..20).prop_map(Kv::F32s),
        vec(any::<bool>(), 0..20).prop_map(Kv::Bools),
        vec(vec(any::<u8>(), 0..12), 0..20).prop_map(Kv::Strs),
    ]
}

/// Equality by text, so that a NaN equals itself.
fn same(written: &Kv, read: Value) -> bool {
    fn list<T: std::fmt::Debug>(values: &[T], read: Value, one: impl Fn(&T) -> String) -> bool {
        let Value::Array(array) = read else { return false };
        array.iter().map(|v| format!("{v:?}")).eq(values.iter().map(one))
    }
    match written {
        Kv::Str(s) => read == Value::String(s.as_bytes()),
        Kv::U32s(v) => list(v, read, |x| format!("U32({x:?})")),
        Kv::I32s(v) => list(v, read, |x| format!("I32({x:?})")),
        Kv::F32s(v) => list(v, read, |x| format!("F32({x:?})")),
        Kv::Bools(v) => list(v, read, |x| format!("Bool({x:?})")),
        Kv::Strs(v) => list(v, read, |x| format!("String({x:?})")),
        scalar => format!("{scalar:?}") == format!("{read:?}"),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        keys in btree_map("[a-z.]{1,12}", values(), 0..12),
        shapes in vec((vec(1u64..5, 1..=4), 0usize..41, any::<u8>()), 0..6),
        alignment in prop_oneof![Just(None), Just(Some(8u32)), Just(Some(64))],
    ) {
        let mut builder = GgufBuilder::new();
        if let Some(alignment) = alignment {
            builder = builder.alignment(alignment);
        }
        for (key, value) in &keys {
            builder = builder.kv(key, value.clone());
        }
        let mut data = Vec::new();
        for (i, (dims, ty, byte)) in shapes.iter().enumerate() {
            let ty = GgmlType::all().nth(*ty).expect("41 types");
            let mut dims = dims.clone();
            dims[0] *= ty.block_size();
            let n = dims.iter().product::<u64>() / ty.block_size() * ty.block_bytes();
            data.push(vec![*byte; n as usize]);
            builder = builder.tensor(&format!("t{i}"), &dims, ty, &data[i]);
        }
        let file = GgufFile::from_bytes("m.gguf", builder.build()).expect("sound");
        prop_assert_eq!(file.metadata().len(), keys.len() + usize::from(alignment.is_some()));
        for (key, value) in &keys {
            prop_assert!(same(value, file.metadata().get(key).expect("present")), "{}", key);
        }
        prop_assert_eq!(file.tensors().len(), shapes.len());
        for (i, expected) in data.iter().enumerate() {
            let tensor = file.tensor(&format!("t{i}")).expect("present");
            let mut out = vec![!expected[0]; expected.len()];
            file.read_tensor(tensor, 0..tensor.n_bytes, &mut out).expect("inside");
            prop_assert_eq!(&out, expected);
        }
    }
}

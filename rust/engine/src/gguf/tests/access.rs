//! Typed access to metadata and to tensor data.

use super::{GgmlType, GgufFile, fault, small};
use crate::gguf::testing::{GgufBuilder, Kv};
use crate::gguf::{Array, Fault, Metadata, Value};

fn open(builder: GgufBuilder) -> GgufFile {
    GgufFile::from_bytes("m.gguf", builder.build()).expect("a sound file")
}

fn why<T: std::fmt::Debug>(result: Result<T, crate::gguf::GgufError>) -> Fault {
    result.expect_err("refused").fault().expect("a fault").clone()
}

#[test]
fn every_value_reads_back_as_written_in_the_files_order() {
    let file = open(small());
    let meta = file.metadata();
    assert_eq!(meta.get("general.architecture"), Some(Value::String(b"llama")));
    assert_eq!(meta.get("a.u8"), Some(Value::U8(200)));
    assert_eq!(meta.get("a.i8"), Some(Value::I8(-3)));
    assert_eq!(meta.get("a.u16"), Some(Value::U16(60_000)));
    assert_eq!(meta.get("a.i16"), Some(Value::I16(-300)));
    assert_eq!(meta.get("a.u32"), Some(Value::U32(70_000)));
    assert_eq!(meta.get("a.i32"), Some(Value::I32(-70_000)));
    assert_eq!(meta.get("a.f32"), Some(Value::F32(1.5)));
    assert_eq!(meta.get("a.bool"), Some(Value::Bool(true)));
    assert_eq!(meta.get("a.u64"), Some(Value::U64(1 << 40)));
    assert_eq!(meta.get("a.i64"), Some(Value::I64(-(1 << 40))));
    assert_eq!(meta.get("a.f64"), Some(Value::F64(1e-5)));
    assert_eq!(meta.get("no"), None);
    let keys: Vec<&str> = meta.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), 17);
    assert_eq!((keys[0], keys[1], keys[16]), ("general.architecture", "a.u8", "b.str"));
}

#[test]
fn integers_convert_where_they_fit_and_only_there() {
    let file = open(small());
    let meta = file.metadata();
    assert_eq!(meta.get_u32("a.u8").expect("fits"), Some(200));
    assert_eq!(meta.get_u32("a.u16").expect("fits"), Some(60_000));
    assert_eq!(meta.get_i32("a.i8").expect("fits"), Some(-3));
    assert_eq!(meta.get_i32("a.u32").expect("fits"), Some(70_000));
    assert_eq!(meta.get_u64("a.u64").expect("fits"), Some(1 << 40));
    assert_eq!(meta.get_u32("absent").expect("no key, no error"), None);
    let range = |key: &str, found: &str| Fault::OutOfRange { key: key.into(), expected: "u32", found: found.into() };
    assert_eq!(why(meta.get_u32("a.i8")), range("a.i8", "-3"));
    assert_eq!(why(meta.get_u32("a.u64")), range("a.u64", "1099511627776"));
    assert_eq!(why(meta.get_u32("a.i64")), range("a.i64", "-1099511627776"));
}

#[test]
fn a_mismatch_names_key_expected_and_found() {
    let file = open(small());
    let meta = file.metadata();
    let wrong = |key: &str, expected, found: &str| Fault::WrongType { key: key.into(), expected, found: found.into() };
    assert_eq!(why(meta.get_u32("a.f32")), wrong("a.f32", "u32", "f32"));
    assert_eq!(why(meta.get_u32("a.bool")), wrong("a.bool", "u32", "bool"));
    assert_eq!(why(meta.get_f32("a.u32")), wrong("a.u32", "f32", "u32"));
    assert_eq!(why(meta.get_bool("a.u8")), wrong("a.u8", "bool", "u8"));
    assert_eq!(why(meta.get_str("b.str")), wrong("b.str", "string", "array of string"));
    assert_eq!(why(meta.get_array_str("b.u32")), wrong("b.u32", "array of string", "array of u32"));
    assert_eq!(why(meta.get_array_u32("b.f32")), wrong("b.f32", "array of u32", "array of f32"));
    assert_eq!(why(meta.get_array_f32("a.f32")), wrong("a.f32", "array of f32", "f32"));
    assert_eq!(why(meta.get_array_bool("b.i32")), wrong("b.i32", "array of bool", "array of i32"));
    assert_eq!(why(meta.need_u32("no")), Fault::MissingKey { key: "no".into(), expected: "u32" });
    assert_eq!(why(meta.need_f32("no")), Fault::MissingKey { key: "no".into(), expected: "f32" });
    assert_eq!(why(meta.need_str("no")), Fault::MissingKey { key: "no".into(), expected: "string" });
    let text = meta.get_u32("a.f32").expect_err("refused").to_string();
    assert_eq!(text, "m.gguf: key `a.f32` is f32, expected u32");
}

#[test]
fn arrays_read_back_and_convert() {
    let file = open(small());
    let meta = file.metadata();
    assert_eq!(meta.get_array_u32("b.u32").expect("numbers"), Some(vec![1, 2, 3]));
    assert_eq!(meta.get_array_i32("b.u32").expect("numbers"), Some(vec![1, 2, 3]));
    assert_eq!(meta.get_array_i32("b.i32").expect("numbers"), Some(vec![-1, 2]));
    assert!(matches!(why(meta.get_array_u32("b.i32")), Fault::OutOfRange { found, .. } if found == "-1"));
    assert_eq!(meta.get_array_f32("b.f32").expect("numbers"), Some(vec![0.5, -2.0]));
    assert_eq!(meta.get_array_bool("b.bool").expect("booleans"), Some(vec![true, false, true]));
    let strings = meta.get_array_str("b.str").expect("strings").expect("present");
    let texts: Vec<&[u8]> = strings.iter().collect();
    assert_eq!(texts, [&b"a"[..], b"", "é".as_bytes(), b"long enough to be seen"]);
    assert_eq!((strings.get(3), strings.get(4)), (Some(texts[3]), None));
    let Some(Value::Array(array)) = meta.get("b.bool") else { panic!("an array") };
    let array: Array = array;
    assert_eq!((array.get(2), array.get(3)), (Some(Value::Bool(true)), None));
}

#[test]
fn a_number_for_each_layer_comes_from_one_number_or_from_an_array_of_that_length() {
    let file = open(GgufBuilder::new().kv("one", 8u32).kv("three", vec![8i32, 2, 8]).kv("text", "8"));
    let meta = file.metadata();
    assert_eq!(meta.get_per_layer_u32("one", 3).expect("repeated"), Some(vec![8; 3]));
    assert_eq!(meta.get_per_layer_u32("three", 3).expect("as it is"), Some(vec![8, 2, 8]));
    assert_eq!(meta.get_per_layer_u32("none", 3).expect("no key, no error"), None);
    let fault = why(meta.get_per_layer_u32("three", 4));
    assert_eq!(fault, Fault::ArrayLength { key: "three".into(), expected: 4, found: 3 });
    assert!(matches!(why(meta.get_per_layer_u32("text", 3)), Fault::WrongType { .. }));
}

#[test]
fn text_that_is_not_utf8_is_refused_by_the_getter_and_kept_as_bytes() {
    let bad = [3, 0, 0, 0, 0, 0, 0, 0, b'a', 0xff, b'b'];
    let file = open(GgufBuilder::new().kv_raw(b"t", 8, &bad).kv("ts", vec![vec![0xffu8, 0], vec![]]));
    let meta: &Metadata = file.metadata();
    assert_eq!(meta.get("t"), Some(Value::String(b"a\xffb")));
    assert_eq!(why(meta.get_str("t")), Fault::NotUtf8 { what: "the value of key `t`".into() });
    let strings = meta.get_array_str("ts").expect("bytes are not judged").expect("present");
    assert_eq!(strings.iter().collect::<Vec<_>>(), [&[0xff, 0][..], b""]);
}

#[test]
fn floats_narrow_where_they_stay_finite() {
    let file = open(GgufBuilder::new().kv("small", 1e-5f64).kv("big", 1e300f64).kv("inf", f64::INFINITY));
    assert_eq!(file.metadata().get_f32("small").expect("fits"), Some(1e-5));
    assert!(matches!(why(file.metadata().get_f32("big")), Fault::OutOfRange { .. }));
    assert_eq!(file.metadata().get_f32("inf").expect("the file says so"), Some(f32::INFINITY));
}

#[test]
fn tensors_are_described_with_place_and_size_and_read_in_ranges() {
    let file = open(small());
    assert_eq!((file.version(), file.alignment()), (3, 32));
    let names: Vec<&str> = file.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["x", "y", "z"]);
    let x = file.tensor("x").expect("present");
    assert_eq!((x.shape(), x.n_elements(), x.n_rows(), x.row_len(), x.row_bytes()), (&[3, 2][..], 6, 2, 3, 12));
    let y = file.tensor("y").expect("present");
    assert_eq!((y.ty, y.n_bytes, y.offset), (GgmlType::Q8_0, 68, x.offset + 32));
    let z = file.tensor("z").expect("present");
    assert_eq!((z.dims, z.n_dims, z.n_bytes, z.row_bytes()), ([256, 1, 2, 1], 4, 288, 144));
    assert_eq!(file.tensor("w"), None);
    assert_eq!(file.file_size(), z.offset + z.n_bytes);
    let mut out = [0; 10];
    file.read_tensor(y, 20..30, &mut out).expect("inside");
    assert_eq!(out.to_vec(), (20..30).collect::<Vec<u8>>());
    file.read_tensor(y, 68..68, &mut []).expect("nothing at the end is inside");
}

#[test]
fn reading_outside_a_tensor_is_refused() {
    let file = open(small());
    let y = file.tensor("y").expect("present");
    for (range, len) in [(60..69, 9), (0..10, 9), (0..10, 11), (70..70, 0), (u64::MAX - 4..u64::MAX, 4)] {
        let mut out = vec![0; len];
        let found = why(file.read_tensor(y, range.clone(), &mut out));
        let (start, end, buffer) = (range.start, range.end, len as u64);
        assert_eq!(found, Fault::ReadRange { tensor: "y".into(), start, end, n_bytes: 68, buffer });
    }
}

#[test]
fn an_unsupported_type_is_described_and_only_loading_refuses_it_by_name() {
    let file = open(GgufBuilder::new().zeros("q", &[256], GgmlType::Q8_K).zeros("w", &[32], GgmlType::Q4_0));
    let q = file.tensor("q").expect("described");
    assert_eq!((q.ty, q.n_bytes, q.ty.supported()), (GgmlType::Q8_K, 292, false));
    let refused = file.check_supported(q).expect_err("no kernels");
    assert_eq!(refused.to_string(), "m.gguf: tensor `q` is of type Q8_K, which the engine cannot compute with");
    file.check_supported(file.tensor("w").expect("described")).expect("has kernels");
}

#[test]
fn version_2_reads_like_version_3() {
    let two = open(small().version(2));
    let three = open(small());
    assert_eq!(two.version(), 2);
    assert_eq!(two.tensors(), three.tensors());
    assert!(two.metadata().iter().eq(three.metadata().iter()));
}

#[test]
fn data_follows_the_alignment_of_the_file() {
    for alignment in [8u32, 16, 32, 64, 4096] {
        let file = open(GgufBuilder::new().alignment(alignment).zeros("a", &[1], GgmlType::F32).tensor(
            "b",
            &[2],
            GgmlType::I8,
            &[5, 6],
        ));
        assert_eq!(file.alignment(), u64::from(alignment));
        let b = file.tensor("b").expect("present");
        assert_eq!(b.offset % u64::from(alignment), 0);
        let mut out = [0; 2];
        file.read_tensor(b, 0..2, &mut out).expect("inside");
        assert_eq!(out, [5, 6]);
    }
    for (value, found) in [(0u32, 0), (4, 4), (24, 24), (33, 33), (8192, 8192)] {
        assert_eq!(fault(GgufBuilder::new().kv("general.alignment", value).build()), Fault::Alignment { found });
    }
    let text = fault(GgufBuilder::new().kv("general.alignment", Kv::Str("32".into())).build());
    assert!(matches!(text, Fault::WrongType { .. }));
}

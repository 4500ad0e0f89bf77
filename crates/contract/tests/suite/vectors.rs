//! The encoding of every type at its boundaries. Other languages are tested with the same vectors.

use serde_json::Value;
use taskyard_iproto::fields::{FieldError, FieldReader, FieldWriter};

/// One value and the payload of a task with this value alone.
pub struct Vector {
    pub kind: String,
    pub value: Value,
    pub bytes: Vec<u8>,
}

pub fn vectors() -> Vec<Vector> {
    let list: Vec<Value> = serde_json::from_str(include_str!("../vectors.json")).unwrap();
    let vector = |item: Value| Vector {
        kind: item["type"].as_str().unwrap().into(),
        value: item["value"].clone(),
        bytes: unhex(item["payload"].as_str().unwrap()),
    };
    list.into_iter().map(vector).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn ints(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|value| value.as_i64().unwrap()).collect()
}

fn write(vector: &Vector) -> Vec<u8> {
    let mut fields = FieldWriter::new(1);
    match &*vector.kind {
        "int" | "int64" => fields.int(vector.value.as_i64().unwrap()),
        "string" => fields.string(vector.value.as_str().unwrap()),
        "bool" => fields.bool(vector.value.as_bool().unwrap()),
        "[]byte" => fields.bytes(&unhex(vector.value.as_str().unwrap())),
        _ => fields.ints(&ints(&vector.value)),
    }
    fields.finish()
}

fn read(kind: &str, bytes: &[u8]) -> Result<Value, FieldError> {
    let mut fields = FieldReader::new(bytes)?;
    let value = match kind {
        "int" | "int64" => fields.int("x")?.into(),
        "string" => fields.string("x")?.into(),
        "bool" => fields.bool("x")?.into(),
        "[]byte" => {
            let bytes = fields.bytes("x")?;
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
        }
        _ => fields.ints("x")?.into(),
    };
    fields.finish()?;
    Ok(value)
}

#[test]
fn values_are_encoded_and_decoded_as_in_the_vectors() {
    for vector in vectors() {
        let Vector { kind, value, bytes } = &vector;
        assert_eq!(write(&vector), *bytes, "{kind} {value}");
        assert_eq!(read(kind, bytes).as_ref(), Ok(value), "{kind} {value}");
    }
}

#[test]
fn every_type_has_a_vector() {
    for kind in taskyard_contract::FieldType::ALL {
        assert!(vectors().iter().any(|vector| vector.kind == kind.name()), "{}", kind.name());
    }
}

#[test]
fn every_form_of_an_integer_is_decoded() {
    for bytes in [
        &[0x91, 0xcc, 5][..],
        &[0x91, 0xcd, 0, 5],
        &[0x91, 0xce, 0, 0, 0, 5],
        &[0x91, 0xcf, 0, 0, 0, 0, 0, 0, 0, 5],
        &[0x91, 0xd0, 5],
        &[0x91, 0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
        &[0xdc, 0, 1, 5],
        &[0xdd, 0, 0, 0, 1, 5],
    ] {
        assert_eq!(read("int", bytes), Ok(5.into()), "{bytes:x?}");
    }
    let large = [0x91, 0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0];
    assert!(read("int", &large).unwrap_err().to_string().starts_with("x: larger"));
}

#[test]
fn payloads_of_older_and_newer_producers_are_decoded() {
    for kind in ["int", "string", "bool", "[]byte", "[]int"] {
        let zero = read(kind, &[0x90]).unwrap();
        assert_eq!(read(kind, &[0x91, 0xc0]), Ok(zero.clone()), "nil is the zero value of {kind}");
    }
    // A map, a float, an extension and a list that the decoder has no field for.
    let newer =
        [0x95, 7, 0x81, 0xa1, b'a', 0xc0, 0xca, 0, 0, 0, 0, 0xd4, 1, 2, 0x92, 0x90, 0xc4, 1, 9];
    assert_eq!(read("int", &newer), Ok(7.into()));
    assert_eq!(read("string", &[0x91, 0xc4, 1, b'a']), Ok("a".into()), "bin as a text");
    assert_eq!(read("[]byte", &[0x91, 0xa1, b'a']), Ok("61".into()), "a text as bytes");
}

#[test]
fn invalid_payloads_are_refused() {
    for (kind, bytes, why) in [
        ("int", &[][..], "ends too early"),
        ("int", &[0x81, 1, 1], "not a list"),
        ("int", &[0x91], "ends too early"),
        ("int", &[0x91, 1, 1], "bytes after"),
        ("int", &[0x91, 0xa1, b'1'], "not a whole number"),
        ("int", &[0x92, 1, 0xc1], "not MessagePack"),
        ("bool", &[0x91, 1], "neither true nor false"),
        ("string", &[0x91, 0xa2, 0xff, 0xfe], "not UTF-8"),
        ("string", &[0x91, 0xdb, 0xff, 0xff, 0xff, 0xff, b'a'], "ends too early"),
        ("[]byte", &[0x91, 0xc6, 0x7f, 0xff, 0xff, 0xff], "ends too early"),
        ("[]int", &[0x91, 0xdd, 0xff, 0xff, 0xff, 0xff, 1], "shorter than announced"),
        ("[]int", &[0x91, 0x91, 0xc3], "not a whole number"),
    ] {
        let error = read(kind, bytes).unwrap_err().to_string();
        assert!(error.contains(why), "{kind} {bytes:x?}: {error}");
    }
    let deep = [&[0x92, 1][..], &[0x91; 1000]].concat();
    assert!(read("int", &deep).unwrap_err().to_string().contains("too deeply"));
}

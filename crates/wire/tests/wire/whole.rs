//! Integers that are written with a point or an exponent.

use serde::de::DeserializeOwned;
use serde_json::Value;
use taskyard_core::Error;
use taskyard_wire::http::{
    self, AckRequest, AlterRequest, CreateRequest, DeleteRequest, FinishRequest, KickRequest,
    PeekRequest, PutRequest, ReleaseRequest, TakeRequest, TouchRequest,
};

/// Every integer field of a request reads `3.0` and `3e0` as `3`, and refuses what is no integer.
fn check<T: DeserializeOwned + PartialEq + std::fmt::Debug>(json: &str) {
    let read = |number: &str| http::parse::<T>(json.replace('#', number).as_bytes());
    let plain = read("3").unwrap();
    for number in ["3.0", "3e0", "30E-1"] {
        assert_eq!(read(number).as_ref(), Ok(&plain), "{json}");
    }
    for number in ["3.5", "-3", "-3.0", "1e20", "\"3\"", "true", "[3]"] {
        match read(number) {
            Err(Error::Invalid(message)) => {
                assert!(message.contains("a whole number from 0 to"), "{json}: {message}");
            }
            other => panic!("{json} with {number}: {other:?}"),
        }
    }
}

// A whole float is an integer in JSON Schema, and some languages write every number that way; they
// were refused although the schema allows it.
#[test]
fn every_integer_may_be_written_as_a_whole_float() {
    check::<PutRequest>(r#"{"data": 1, "pri": #}"#);
    check::<PutRequest>(r#"{"tasks": [{"data": 1, "pri": #}]}"#);
    check::<TakeRequest>(r#"{"count": #}"#);
    for field in ["id", "lease"] {
        check::<AckRequest>(&format!(r#"{{"{field}": #}}"#));
        check::<ReleaseRequest>(&format!(r#"{{"{field}": #}}"#));
        check::<TouchRequest>(&format!(r#"{{"seconds": 1, "{field}": #}}"#));
    }
    check::<AckRequest>(r#"{"tasks": [{"id": #}]}"#);
    check::<AckRequest>(r#"{"tasks": [{"id": 1, "lease": #}]}"#);
    check::<FinishRequest>(r#"{"tasks": [{"verb": "ack", "id": #}]}"#);
    check::<FinishRequest>(r#"{"tasks": [{"verb": "ack", "id": 1, "lease": #}]}"#);
    check::<KickRequest>(r#"{"count": #}"#);
    check::<DeleteRequest>(r#"{"ids": [1, #]}"#);
    check::<PeekRequest>(r#"{"ids": [1, #]}"#);
    for field in ["capacity", "pri", "attempts_max"] {
        check::<CreateRequest>(&format!(r#"{{"{field}": #}}"#));
        check::<AlterRequest>(&format!(r#"{{"{field}": #}}"#));
    }
}

#[test]
fn null_is_still_null() {
    let alter: AlterRequest = http::parse(br#"{"capacity": null}"#).unwrap();
    assert_eq!((alter.capacity, alter.attempts_max), (Some(None), None));
    let put: PutRequest = http::parse(br#"{"data": 1, "pri": null}"#).unwrap();
    assert_eq!(put.task.pri, None);
}

#[test]
fn a_payload_keeps_its_floats() {
    let put: PutRequest = http::parse(br#"{"data": 3.0}"#).unwrap();
    let data: Value = serde_json::to_value(put.task.data).unwrap();
    assert!(data.is_f64());
}

#[test]
fn texts_are_parsed_the_same_way() {
    for text in ["3", "3.0", "3e0"] {
        assert_eq!(http::parse_whole(text), Ok(3));
    }
    for text in ["", "+3", "-3", "3.5", "three", "1e20"] {
        assert!(http::parse_whole(text).is_err(), "{text}");
    }
}

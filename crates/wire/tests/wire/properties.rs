//! Random values and random damage. The seed is fixed, so that a failure is the same everywhere;
//! the fuzz targets test further inputs.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use serde_json::Value;
use taskyard_core::Body;
use taskyard_iproto::{MsgpackError, check_msgpack};
use taskyard_wire::http::{self, FinishRequest, PutRequest, TasksAnswer, TasksQuery};
use taskyard_wire::{Payload, PayloadError, json_to_msgpack, msgpack_to_json};

use crate::answers::taken_task;

fn config() -> Config {
    Config {
        cases: 400,
        rng_seed: RngSeed::Fixed(7070),
        failure_persistence: None,
        ..Config::default()
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-40i64..300).prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        prop::num::f64::SUBNORMAL.prop_map(Value::from),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        ".{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
            prop::collection::hash_map(".{0,8}", inner, 0..20)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_json_value_survives(value in json_value()) {
        let text = value.to_string();
        let packed = json_to_msgpack(&text).unwrap();
        prop_assert_eq!(check_msgpack(&packed), Ok(()));
        prop_assert_eq!(&msgpack_to_json(&packed).unwrap(), &text);

        let spaced = serde_json::to_string_pretty(&value).unwrap();
        let payload: Payload = serde_json::from_str(&spaced).unwrap();
        prop_assert_eq!(payload.as_msgpack(), &packed[..]);
        prop_assert_eq!(serde_json::to_string(&payload).unwrap(), text);
    }

    #[test]
    fn no_search_loses_a_payload(
        value in searched_value(),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        begin in any::<prop::sample::Index>(),
        length in 1usize..12,
    ) {
        let mut packed = json_to_msgpack(&value.to_string()).unwrap();
        if let Some((at, byte)) = damage {
            let at = at.index(packed.len());
            packed[at] = byte;
        }
        let json = msgpack_to_json(&packed).unwrap_or_default();
        let raw = String::from_utf8_lossy(&packed);
        for rendered in [&*json, &*raw] {
            let chars: Vec<char> = rendered.chars().collect();
            if chars.is_empty() {
                continue;
            }
            let begin = begin.index(chars.len());
            let text: String = chars[begin..].iter().take(length).collect();
            check_search(&packed, &text)?;
        }
    }

    #[test]
    fn any_bytes_are_checked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        check(&bytes)?;
    }

    #[test]
    fn damaged_messagepack_is_checked(
        value in json_value(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packed = json_to_msgpack(&value.to_string()).unwrap();
        for (at, byte) in damage {
            let at = at.index(packed.len());
            packed[at] = byte;
        }
        check(&packed)?;
        packed.truncate(cut.index(packed.len()));
        check(&packed)?;
    }

    #[test]
    fn any_text_is_checked_without_a_panic(text in r#"[\[\]{}",:0-9eE.+\-\\untrfalse ]{0,40}"#) {
        let serde: Result<Value, _> = serde_json::from_str(&text);
        match json_to_msgpack(&text) {
            Ok(packed) => prop_assert!(serde.is_ok() && check_msgpack(&packed).is_ok()),
            Err(PayloadError::IntegerTooLarge(_) | PayloadError::Msgpack(MsgpackError::TooDeep)) => {}
            Err(_) => prop_assert!(serde.is_err()),
        }
    }

    #[test]
    fn any_request_is_parsed_without_a_panic(
        fields in prop::collection::vec((field(), json_value()), 0..4),
    ) {
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let body = format!("{{{}}}", fields.join(","));
        let tube = taskyard_core::TubeName::new("t").unwrap();
        if let Ok(request) = http::parse::<PutRequest>(body.as_bytes()) {
            let _ = request.into_command(tube.clone());
        }
        if let Ok(request) = http::parse::<FinishRequest>(body.as_bytes()) {
            let _ = request.into_command(tube);
        }
        if let Ok(answer) = http::parse_answer::<TasksAnswer>(body.as_bytes()) {
            let _ = answer.into_tasks();
        }
    }
}

/// Values whose JSON has many escapes, numbers and words, and whose strings look like them.
fn searched_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        4 => r#"[untrfals0-9e.\-\\"/\x00-\x1f b-f]{0,12}"#,
        1 => ".{0,12}",
    ];
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => prop::num::f64::NORMAL.prop_map(Value::from),
        6 => text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map(text.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A payload that contains the text has the bytes that the text requires.
fn check_search(packed: &[u8], text: &str) -> Result<(), TestCaseError> {
    let query = TasksQuery { text: Some(text.to_owned()), ..TasksQuery::default() };
    let filter = query.filter().unwrap();
    let task = taken_task(Body::new(packed));
    if let (true, Some(run)) = (filter.matches(&task), filter.required_run()) {
        let has_run = packed.windows(run.len()).any(|bytes| bytes == run);
        prop_assert!(has_run, "{:?} requires {:?} in {:?}", text, run, packed);
    }
    Ok(())
}

fn field() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["data", "data_base64", "tasks", "meta", "ttl", "at", "pri", "show"])
}

/// Both checks agree, and a value that JSON can represent survives the conversion.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let checked = check_msgpack(bytes);
    match msgpack_to_json(bytes) {
        Ok(json) => {
            prop_assert_eq!(checked, Ok(()));
            let again = json_to_msgpack(&json).unwrap();
            prop_assert_eq!(msgpack_to_json(&again).unwrap(), json);
        }
        Err(PayloadError::NotRepresentable(_)) => prop_assert_eq!(checked, Ok(())),
        Err(why) => prop_assert_eq!(checked.map_err(PayloadError::from), Err(why)),
    }
    Ok(())
}

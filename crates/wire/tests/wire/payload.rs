//! Examples of JSON text and MessagePack bytes.

use taskyard_core::limits::NESTING_MAX;
use taskyard_iproto::{MsgpackError, check_msgpack};
use taskyard_wire::{PayloadError, json_to_msgpack, msgpack_to_json};

#[test]
fn json_becomes_the_shortest_messagepack() {
    let cases: [(&str, &[u8]); 16] = [
        ("null", b"\xc0"),
        ("true", b"\xc3"),
        (" false ", b"\xc2"),
        ("0", b"\x00"),
        ("127", b"\x7f"),
        ("128", b"\xcc\x80"),
        ("-1", b"\xff"),
        ("-33", b"\xd0\xdf"),
        ("18446744073709551615", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("-9223372036854775808", b"\xd3\x80\0\0\0\0\0\0\0"),
        ("1.5", b"\xcb\x3f\xf8\0\0\0\0\0\0"),
        ("1.0", b"\xcb\x3f\xf0\0\0\0\0\0\0"),
        (r#""h\u00e9\n""#, b"\xa4h\xc3\xa9\n"),
        ("[]", b"\x90"),
        (r#"{"a":[1,{}]}"#, b"\x81\xa1a\x92\x01\x80"),
        (r#"{"a":1,"a":2}"#, b"\x82\xa1a\x01\xa1a\x02"),
    ];
    for (json, msgpack) in cases {
        assert_eq!(json_to_msgpack(json).as_deref(), Ok(msgpack), "{json}");
        assert_eq!(check_msgpack(msgpack), Ok(()), "{json}");
    }
}

#[test]
fn messagepack_becomes_json() {
    let cases: [(&[u8], &str); 10] = [
        (b"\xc0", "null"),
        (b"\xcd\x00\x01", "1"),
        (b"\xd2\x00\x00\x00\x01", "1"),
        (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"),
        (b"\xca\x3f\xc0\0\0", "1.5"),
        (b"\xcb\x3f\xf0\0\0\0\0\0\0", "1.0"),
        (b"\xa3\"\\\x01", r#""\"\\\u0001""#),
        (b"\xdc\x00\x02\x01\xc3", "[1,true]"),
        (b"\x82\xa1a\x01\xa1a\x02", r#"{"a":1,"a":2}"#),
        (b"\xd9\x02hi", r#""hi""#),
    ];
    for (msgpack, json) in cases {
        assert_eq!(msgpack_to_json(msgpack).as_deref(), Ok(json));
    }
}

#[test]
fn long_lists_and_maps_get_wide_headers() {
    for count in [15, 16, 17, 65_535, 65_536] {
        let list = format!("[{}7]", "7,".repeat(count - 1));
        let packed = json_to_msgpack(&list).unwrap();
        let header = match count {
            0..=15 => vec![0x90 | count as u8],
            16..=65_535 => vec![0xdc, (count >> 8) as u8, count as u8],
            _ => vec![0xdd, 0, 1, 0, 0],
        };
        assert_eq!(packed[..header.len()], header, "{count}");
        assert_eq!(packed.len(), header.len() + count);
        assert_eq!(msgpack_to_json(&packed).unwrap(), list);
    }
    let pairs: Vec<String> = (0..40).map(|key| format!(r#""{key}":[{key}]"#)).collect();
    let map = format!(r#"{{{},"last":{{}}}}"#, pairs.join(","));
    assert_eq!(msgpack_to_json(&json_to_msgpack(&map).unwrap()).unwrap(), map);
}

#[test]
fn values_that_json_cannot_represent_are_an_error() {
    let cases: [(&[u8], &str); 8] = [
        (b"\xc4\x01x", "binary data"),
        (b"\x91\xd4\x01x", "a MessagePack extension"),
        (b"\xa1\xff", "text that is not UTF-8"),
        (b"\xcb\x7f\xf8\0\0\0\0\0\0", "NaN or infinity"),
        (b"\xca\x7f\x80\0\0", "NaN or infinity"),
        (b"\x81\x01\x02", "a key that is not text"),
        (b"\x81\x90\x02", "a key that is not text"),
        (b"\x81\xa1a\x81\xc0\xc0", "a key that is not text"),
    ];
    for (msgpack, what) in cases {
        assert_eq!(check_msgpack(msgpack), Ok(()));
        assert_eq!(msgpack_to_json(msgpack), Err(PayloadError::NotRepresentable(what)));
    }
}

#[test]
fn bytes_that_are_not_one_value_are_refused() {
    let cases: [(&[u8], MsgpackError); 9] = [
        (b"", MsgpackError::CutShort),
        (b"\xc1", MsgpackError::Reserved),
        (b"\xc0\xc0", MsgpackError::Trailing(1)),
        (b"\x92\x01", MsgpackError::CutShort),
        (b"\x81\xa1a", MsgpackError::CutShort),
        (b"\xa5hi", MsgpackError::CutShort),
        (b"\xdb\xff\xff\xff\xff", MsgpackError::CutShort),
        (b"\xdd\xff\xff\xff\xff\x01", MsgpackError::CutShort),
        (b"\xc9\xff\xff\xff\xff\x01", MsgpackError::CutShort),
    ];
    for (msgpack, why) in cases {
        assert_eq!(check_msgpack(msgpack), Err(why.clone()), "{msgpack:x?}");
        assert_eq!(msgpack_to_json(msgpack), Err(why.into()), "{msgpack:x?}");
    }
}

#[test]
fn nesting_is_limited_in_both_directions() {
    let json = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let maps = |depth| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let packed = |depth| [vec![0x91; depth - 1], vec![0x90]].concat();

    assert_eq!(json_to_msgpack(&json(NESTING_MAX)), Ok(packed(NESTING_MAX)));
    assert_eq!(msgpack_to_json(&packed(NESTING_MAX)), Ok(json(NESTING_MAX)));
    let deep_maps = json_to_msgpack(&maps(NESTING_MAX)).unwrap();
    assert_eq!(msgpack_to_json(&deep_maps), Ok(maps(NESTING_MAX)));

    for depth in [NESTING_MAX + 1, 127, 128, 129, 1_000_000] {
        let too_deep = PayloadError::Msgpack(MsgpackError::TooDeep);
        assert_eq!(json_to_msgpack(&json(depth)).as_ref(), Err(&too_deep), "{depth}");
        assert_eq!(json_to_msgpack(&maps(depth)).as_ref(), Err(&too_deep), "{depth}");
        assert_eq!(check_msgpack(&packed(depth)), Err(MsgpackError::TooDeep), "{depth}");
        assert_eq!(msgpack_to_json(&packed(depth)), Err(too_deep), "{depth}");
    }
}

#[test]
fn an_integer_beyond_64_bits_is_an_error_and_never_rounded() {
    for huge in [
        "18446744073709551616",
        "-9223372036854775809",
        "[1e300, 18446744073709551616]",
        r#"{"a\"1": {"b": [1, 123456789012345678901234567890]}}"#,
    ] {
        let error = json_to_msgpack(huge).unwrap_err();
        assert!(matches!(error, PayloadError::IntegerTooLarge(_)), "{huge}: {error}");
    }
    for fine in [
        r#"["18446744073709551616", 1e300]"#,
        r#"{"18446744073709551616\\": 18446744073709551616.0}"#,
        "[18446744073709551615, 9223372036854775808, 1e19, -1e19]",
    ] {
        json_to_msgpack(fine).unwrap_or_else(|error| panic!("{fine}: {error}"));
    }
    let long = "9".repeat(1000);
    let message = json_to_msgpack(&format!("[{long}]")).unwrap_err().to_string();
    assert!(message.len() < 200, "{message}");
}

#[test]
fn text_that_is_not_json_is_refused() {
    for text in [
        "",
        " ",
        "{",
        "[1,]",
        "nul",
        "NaN",
        "1e999",
        "'a'",
        "1 2",
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        "\"\u{1}\"",
        r#"{1:2}"#,
        "01",
        "+1",
        ".5",
    ] {
        let error = json_to_msgpack(text).unwrap_err();
        assert!(matches!(error, PayloadError::Json(_)), "{text}: {error}");
    }
    assert_eq!(json_to_msgpack(r#""\ud83d\ude00""#).unwrap(), b"\xa4\xf0\x9f\x98\x80");
}

#[test]
fn floats_survive_exactly() {
    for value in [0.1, -0.0, 1e-320, 5e-324, f64::MAX, f64::MIN_POSITIVE, 0.1 + 0.2, 1e19, 2.5e-8] {
        let mut packed = vec![0xcb];
        packed.extend_from_slice(&value.to_be_bytes());
        let json = msgpack_to_json(&packed).unwrap();
        assert_eq!(json_to_msgpack(&json).unwrap(), packed, "{json}");
    }
}

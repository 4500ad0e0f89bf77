//! Requests of clients, with captured bytes.

use taskyard_iproto::{
    BadRequest, Fault, Operation, Request, Shape, encode_request, next_frame, parse_request,
};

use crate::hex::hex;

/// Parses the one request in these bytes.
fn request(bytes: &[u8]) -> Result<Request<'_>, BadRequest> {
    let frame = next_frame(bytes, 10_000).unwrap().expect("a whole frame");
    assert_eq!(frame.consumed, bytes.len());
    parse_request(frame.body)
}

/// Header and body after a length.
fn framed(text: &str) -> Vec<u8> {
    let body = hex(text);
    let mut bytes = vec![0xce];
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn operation(text: &str) -> String {
    let bytes = framed(text);
    format!("{:?}", request(&bytes).map(|request| request.operation))
}

fn refused(text: &str) -> (u64, u32, String) {
    let bytes = framed(text);
    let BadRequest { sync, fault: Fault { code, text }, .. } = request(&bytes).unwrap_err();
    (sync, code, text.into_owned())
}

#[test]
fn a_take_captured_from_tarantool_python() {
    let bytes = hex(r#"26 | 83 00 0a 01 00 05 00 | 82 22 b9"queue.tube.q_fifottl:take" 21 91 00"#);
    assert_eq!(bytes.len(), 39);
    let name = "queue.tube.q_fifottl:take";
    let call = Operation::Call { name, args: &[0x91, 0x00], shape: Shape::Call };
    assert_eq!(request(&bytes), Ok(Request { sync: 0, operation: call }));
}

#[test]
fn an_id_as_go_sends_it() {
    let bytes = framed("82 00 49 01 02 | 82 54 06 55 91 02");
    let id = Operation::Id { version: 6, features: vec![2] };
    assert_eq!(request(&bytes), Ok(Request { sync: 2, operation: id }));
}

#[test]
fn a_proof_may_be_binary_or_text() {
    let proof = r#""0123456789abcdefghij""#;
    for head in [format!("c414 {proof}"), format!("b4 {proof}"), format!("d914 {proof}")] {
        let bytes = framed(&format!(r#"82 00 07 01 05 82 23 a1"u" 21 92 a9"chap-sha1" {head}"#));
        let auth = Operation::Auth { user: "u", scramble: Some(*b"0123456789abcdefghij") };
        assert_eq!(request(&bytes), Ok(Request { sync: 5, operation: auth }), "{head}");
    }
    // Go writes the keys with four bytes.
    let bytes = framed(&format!(
        r#"82 00 07 01 05 82 ce00000023 a1"u" ce00000021 92 a9"chap-sha1" b4 {proof}"#
    ));
    assert!(matches!(request(&bytes).unwrap().operation, Operation::Auth { user: "u", .. }));
    for none in [r#"82 23 a5"guest" 21 90"#, r#"81 23 a5"guest""#] {
        let bytes = framed(&format!("82 00 07 01 05 {none}"));
        let auth = Operation::Auth { user: "guest", scramble: None };
        assert_eq!(request(&bytes).unwrap().operation, auth);
    }
}

#[test]
fn a_wrong_proof_is_refused() {
    let auth = |tuple: &str| refused(&format!(r#"82 00 07 01 05 82 23 a1"u" 21 {tuple}"#));
    assert_eq!(auth(r#"92 a9"chap-sha1" a3"abc""#).1, 20);
    assert_eq!(auth(r#"92 a9"chap-sha1" 05"#).1, 20);
    assert_eq!(auth(r#"91 a9"chap-sha1""#).1, 20);
    let (sync, code, text) = auth(r#"92 aa"pap-sha256" a3"abc""#);
    assert_eq!((sync, code), (5, 32));
    assert!(text.contains("pap-sha256") && text.contains("chap-sha1"), "{text}");
    assert_eq!(refused("82 00 07 01 05 80").1, 69);
}

#[test]
fn keys_may_have_any_order_and_width() {
    let plain = r#"82 00 0a 01 07 82 22 a1"f" 21 91 05"#;
    let expected = operation(plain);
    for same in [
        r#"82 01 07 00 0a 82 21 91 05 22 a1"f""#,
        r#"82 cc00 cc0a cd0001 cd0007 82 ce00000022 a1"f" cf0000000000000021 91 05"#,
        r#"82 d000 d00a d10001 d10007 82 d022 a1"f" d100 21 91 05"#,
        r#"84 00 0a 01 07 05 00 0a ce00000009 83 22 a1"f" 21 91 05 29 81 a1"x" c0"#,
        r#"82 00 0a 01 07 82 22 c401"f" 21 91 05"#,
    ] {
        assert_eq!(operation(same), expected, "{same}");
    }
    // Tarantool-rs writes the type with a byte of its own.
    assert_eq!(operation("82 00 cc40 01 00"), "Ok(Ping)");
}

#[test]
fn a_body_may_be_missing() {
    assert_eq!(operation("82 00 40 01 00"), "Ok(Ping)");
    assert_eq!(operation("82 00 40 01 00 80"), "Ok(Ping)");
    assert_eq!(operation("82 00 49 01 00"), "Ok(Id { version: 0, features: [] })");
    assert_eq!(refused("82 00 0a 01 09"), (9, 69, missing("function name")));
    assert_eq!(refused("82 00 08 01 09 80"), (9, 69, missing("expression")));
    assert_eq!(refused("82 00 4a 01 09"), (9, 69, missing("event key")));
}

fn missing(field: &str) -> String {
    format!("Missing mandatory field '{field}' in request")
}

#[test]
fn a_call_without_arguments_has_none() {
    let bytes = framed(r#"82 00 06 01 03 81 22 ab"queue.state""#);
    let call = Operation::Call { name: "queue.state", args: &[0x90], shape: Shape::Call16 };
    assert_eq!(request(&bytes).unwrap().operation, call);
}

#[test]
fn a_schema_select_needs_no_index() {
    let bytes = framed("82 00 01 01 03 | 85 10 cd0119 12 cfffffffffffffffff 13 00 14 02 20 90");
    let select = Operation::Select {
        space: 281,
        index: 0,
        limit: u64::MAX,
        offset: 0,
        iterator: 2,
        key: &[0x90],
    };
    assert_eq!(request(&bytes).unwrap().operation, select);
}

#[test]
fn unknown_types_are_named() {
    assert_eq!(operation("82 00 02 01 00"), "Ok(Other(2))");
    assert_eq!(operation("82 00 cdffff 01 00 80"), "Ok(Other(65535))");
    assert_eq!(operation(r#"82 00 4b 01 00 81 57 a1"k""#), r#"Ok(Unwatch { key: "k" })"#);
}

// The body was parsed before the type, so a type that is not served was refused as noise if its
// body had other fields than ours.
#[test]
fn the_body_of_an_unknown_type_is_not_parsed() {
    assert_eq!(operation("82 00 05 01 00 81 21 05"), "Ok(Other(5))");
    assert_eq!(operation(r#"82 00 05 01 00 81 10 a1"x""#), "Ok(Other(5))");
}

// A name that is not UTF-8, arguments that are no list and a key that is none closed the connection
// like bytes that are no request at all. Tarantool answers and keeps the connection.
#[test]
fn only_a_header_that_cannot_be_read_is_broken() {
    let broken = |text: &str| request(&framed(text)).unwrap_err().broken;
    assert!(broken("90") && broken("81 00 a1") && broken("47"));
    for body in ["81 22", "82 22 a1 41 21 05", "81 21 80", "90", "c1", "81 22 05", "80 80"] {
        assert!(!broken(&format!("82 00 0a 01 07 {body}")), "{body}");
    }
    assert!(!broken("82 00 01 01 07 82 10 cd0119 20 05"));
    assert!(!broken("82 00 0a 01 07 81 22 a1 ff"));
    assert!(!broken("82 00 0a 01 07"));
    assert!(!broken(r#"82 00 07 01 07 82 23 a1"u" 21 92 a9"chap-sha1" a1"x""#));
}

#[test]
fn broken_requests_are_refused_with_their_number() {
    let header = "Invalid MsgPack - packet header".to_string();
    let body = "Invalid MsgPack - packet body".to_string();
    for broken in ["", "90", "c1", "81", "81 00", "81 00 a1", "82 00 0a 01 a178", "81 a100 0a"] {
        assert_eq!(refused(broken), (0, 20, header.clone()), "{broken}");
    }
    assert_eq!(operation("81 01 07"), "Ok(Other(0))", "no type");
    for broken in [
        "90",
        "c1",
        "81",
        "81 22",
        "81 22 a2 41",
        "82 22 a1 41 21 05",
        "82 22 a1 41 21 dd ffffffff",
        "82 22 a1 41 21 df ffffffff",
        "81 22 05",
        "80 80",
        "df ffffffff 22 a1 41",
    ] {
        assert_eq!(refused(&format!("82 00 0a 01 07 {broken}")), (7, 20, body.clone()), "{broken}");
    }
    let (sync, code, text) = refused("82 00 0a 01 07 81 22 a1 ff");
    assert_eq!((sync, code), (7, 20));
    assert!(text.contains("not UTF-8"), "{text}");
}

#[test]
fn deep_and_endless_values_cost_nothing() {
    // Skipped without recursion: a million nested lists.
    let mut bytes = hex("82 00 40 01 00 81 7f");
    bytes.extend(std::iter::repeat_n(0x91, 1_000_000));
    bytes.push(0x00);
    assert_eq!(parse_request(&bytes).map(|request| request.operation), Ok(Operation::Ping));
    bytes.pop();
    assert!(parse_request(&bytes).is_err());
    // Claims to be endless.
    let bytes = hex("82 00 40 01 00 81 7f dd ffffffff dd ffffffff df ffffffff 01");
    assert!(parse_request(&bytes).is_err());
}

#[test]
fn encoded_requests_are_parsed_the_same() {
    let list = hex(r#"92 a1"x" cb3fe0000000000000"#);
    let operations = [
        Operation::Ping,
        Operation::Id { version: 4, features: vec![0, 3, 500] },
        Operation::Auth { user: "u", scramble: None },
        Operation::Auth { user: "пользователь", scramble: Some([7; 20]) },
        Operation::Select { space: 512, index: 1, limit: 9, offset: 8, iterator: 2, key: &list },
        Operation::Call { name: "queue.state", args: &[0x90], shape: Shape::Call },
        Operation::Call { name: "f", args: &list, shape: Shape::Call16 },
        Operation::Eval { expression: "return queue.state()", args: &list },
        Operation::Watch { key: "box.shutdown" },
        Operation::Unwatch { key: "box.shutdown" },
        Operation::Other(1000),
    ];
    let mut all = Vec::new();
    for (operation, sync) in operations.iter().zip([0, 1, 127, 128, 70_000, u64::MAX].repeat(2)) {
        encode_request(&mut all, sync, operation);
    }
    let mut rest = &all[..];
    for (operation, sync) in operations.iter().zip([0, 1, 127, 128, 70_000, u64::MAX].repeat(2)) {
        let frame = next_frame(rest, 10_000).unwrap().unwrap();
        let expected = Request { sync, operation: operation.clone() };
        assert_eq!(parse_request(frame.body), Ok(expected));
        for end in 0..frame.body.len() {
            // A cut message is refused or has another meaning; it never panics.
            let _ = parse_request(&frame.body[..end]);
        }
        rest = &rest[frame.consumed..];
    }
    assert!(rest.is_empty());
}

//! Replies of servers, with captured bytes.

use taskyard_core::{State, TaskId};
use taskyard_iproto::{
    Answer, Fault, IprotoError, ReplyFrame, Shape, next_frame, parse_reply, write_answer,
    write_empty, write_fault, write_id, write_ok,
};

use crate::hex::hex;

fn reply(bytes: &[u8]) -> ReplyFrame<'_> {
    let frame = next_frame(bytes, 10_000).unwrap().unwrap();
    assert_eq!(frame.consumed, bytes.len());
    parse_reply(frame.body).unwrap()
}

#[test]
fn a_delete_captured_from_tarantool() {
    // The original has schema version 0x87, ours is always 1.
    let captured = "ce 00000028 | 83 00 ce00000000 01 cf0000000000000000 05 ce00000001
        | 81 30 dd00000001 93 00 a12d a568656c6c6f";
    let mut out = Vec::new();
    let task = Answer::Task { id: TaskId(0), state: State::Done, data: b"\xa5hello" };
    write_answer(&mut out, 0, Shape::Call, &task);
    assert_eq!(out, hex(captured));
    assert_eq!(out.len(), 45);
}

#[test]
fn an_empty_reply_is_an_empty_map() {
    let mut out = vec![0xff];
    write_empty(&mut out, 0x0102_0304_0506_0708);
    let expected =
        hex("ff ce 00000018 | 83 00 ce00000000 01 cf0102030405060708 05 ce00000001 | 80");
    assert_eq!(out, expected, "it is added to what is there");
    let read = reply(&out[1..]);
    assert_eq!((read.sync, read.is_error(), read.data), (0x0102_0304_0506_0708, false, None));
}

#[test]
fn an_id_claims_no_features() {
    let mut out = Vec::new();
    write_id(&mut out, 2);
    let body = hex(r#"83 54 04 55 90 5b a9"chap-sha1""#);
    assert!(out.ends_with(&body));
    assert_eq!(out.len(), 28 + body.len());
}

#[test]
fn errors_have_both_forms() {
    let mut out = Vec::new();
    write_fault(&mut out, 3, &Fault::new(33, "Procedure 'x' is not defined"));
    let expected = hex(r#"ce 00000076 | 83 00 ce00008021 01 cf0000000000000003 05 ce00000001
        | 82 31 bc"Procedure 'x' is not defined"
        52 81 00 91 86 00 ab"ClientError" 01 a8"taskyard" 02 00 03 bc"Procedure 'x' is not defined" 04 00 05 21"#);
    assert_eq!(out, expected);
    let read = reply(&out);
    assert!(read.is_error());
    assert_eq!((read.sync, read.code), (3, 0x8021));
    assert_eq!(read.fault(), Some(Fault::new(33, "Procedure 'x' is not defined")));
    let mut out = Vec::new();
    write_fault(&mut out, 3, &Fault::new(32, "Task was not taken"));
    assert!(out.windows(11).any(|part| part == b"LuajitError"));
}

#[test]
fn a_short_header_of_another_server_is_read() {
    let bytes = hex("82 01 09 00 00 | 81 30 91 05");
    let read = parse_reply(&bytes).unwrap();
    assert_eq!((read.sync, read.code, read.data), (9, 0, Some(&[0x91, 0x05][..])));
    assert_eq!(read.fault(), None);
    // A body is optional too.
    assert_eq!(parse_reply(&hex("82 00 00 01 01")).unwrap().sync, 1);
}

#[test]
fn broken_replies_are_refused() {
    for broken in ["", "90", "82 00 00", "81 00 cf0000000100000000", "81 a1 41 00"] {
        assert_eq!(parse_reply(&hex(broken)), Err(IprotoError::Malformed("header")), "{broken}");
    }
    for broken in ["90", "81", "81 30", "81 31 05", "81 31 a1 ff", "80 00", "81 30 dd ffffffff"] {
        let bytes = hex(&format!("82 00 00 01 01 {broken}"));
        assert_eq!(parse_reply(&bytes), Err(IprotoError::Malformed("body")), "{broken}");
    }
}

#[test]
fn a_reply_that_is_cut_is_refused_or_shorter() {
    let mut out = Vec::new();
    write_ok(&mut out, 7, |out| out.extend_from_slice(&hex(r#"92 05 a1"x""#)));
    let whole = reply(&out);
    for end in 0..out.len() {
        assert_eq!(next_frame(&out[..end], 10_000), Ok(None));
        if end > 5 {
            // Without a body the header alone is a reply too.
            let cut = parse_reply(&out[5..end]);
            assert!(cut.is_err() || cut.unwrap().data.is_none());
        }
    }
    assert_eq!(whole.data, Some(&hex(r#"92 05 a1"x""#)[..]));
}

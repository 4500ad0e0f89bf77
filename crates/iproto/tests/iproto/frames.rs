//! Splitting of bytes into frames.

use taskyard_iproto::{BadFrame, Frame, next_frame};

use crate::hex::hex;

const LIMIT: usize = 1_000;

/// The encodings of a length of 5.
const WIDTHS: &[&str] = &[
    "05",
    "cc05",
    "cd0005",
    "ce00000005",
    "cf0000000000000005",
    "d005",
    "d10005",
    "d200000005",
    "d30000000000000005",
];

#[test]
fn the_length_may_have_any_width() {
    for width in WIDTHS {
        let head = hex(width);
        let bytes = [&head[..], b"hellorest"].concat();
        let frame = Frame { body: b"hello", consumed: head.len() + 5 };
        assert_eq!(next_frame(&bytes, LIMIT), Ok(Some(frame)), "{width}");
    }
}

#[test]
fn a_frame_that_is_cut_waits_for_more_bytes() {
    for width in WIDTHS {
        let bytes = [&hex(width)[..], b"hello"].concat();
        for end in 0..bytes.len() {
            assert_eq!(next_frame(&bytes[..end], LIMIT), Ok(None), "{width} cut at {end}");
        }
    }
}

#[test]
fn many_messages_in_one_read() {
    let mut bytes = hex(r#"01 "a" cc00 ce00000003 "bcd" 02 "ef" 05 "g""#);
    let mut found = Vec::new();
    while let Some(frame) = next_frame(&bytes, LIMIT).unwrap() {
        found.push(frame.body.to_vec());
        let consumed = frame.consumed;
        bytes.drain(..consumed);
    }
    assert_eq!(found, [&b"a"[..], b"", b"bcd", b"ef"]);
    assert_eq!(bytes, hex(r#"05 "g""#));
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_bytes_arrive() {
    for (head, bytes) in [
        ("cd03e9", 1_001),
        ("ceffffffff", u64::from(u32::MAX)),
        ("cfffffffffffffffff", u64::MAX),
        ("d37fffffffffffffff", i64::MAX as u64),
    ] {
        let wrong = BadFrame::TooLarge { bytes, limit: LIMIT };
        assert_eq!(next_frame(&hex(head), LIMIT), Err(wrong));
        assert_eq!(wrong.fault().code, 20);
        assert!(wrong.fault().text.starts_with("Invalid MsgPack - packet length"));
    }
    assert_eq!(next_frame(&hex("cd03e8"), LIMIT), Ok(None), "the limit itself is fine");
}

#[test]
fn an_invalid_length_is_refused_at_once() {
    for first in 0x80..=0xff_u8 {
        if matches!(first, 0xcc..=0xd3) {
            continue;
        }
        assert_eq!(next_frame(&[first], LIMIT), Err(BadFrame::Length), "{first:02x}");
    }
    // A negative length.
    for negative in ["d0ff", "d1ffff", "d2ffffffff", "d3ffffffffffffffff"] {
        assert_eq!(next_frame(&hex(negative), LIMIT), Err(BadFrame::Length), "{negative}");
    }
    let fault = BadFrame::Length.fault();
    assert_eq!((fault.code, &*fault.text), (20, "Invalid MsgPack - packet length"));
}

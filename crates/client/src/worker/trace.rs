//! The trace that a task belongs to, from its put to its end: the `traceparent` of W3C Trace Context, in the small map
//! that travels beside the payload.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use serde::Deserialize;

/// A place in a trace. As text it is a `traceparent`, which other tools understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The trace; never 0.
    pub trace_id: u128,
    /// Where in it; never 0.
    pub span_id: u64,
    /// Whether somebody keeps it.
    pub sampled: bool,
}

/// The key in the map.
const KEY: &[u8] = b"traceparent";
/// How long a `traceparent` of this version is.
const TEXT_BYTES: u8 = 55;

#[derive(Deserialize)]
struct Meta {
    traceparent: Option<String>,
}

impl Trace {
    /// A trace that begins here.
    pub fn begin() -> Self {
        let trace_id = u128::from(random()) << 64 | u128::from(random());
        Trace { trace_id, span_id: random(), sampled: true }
    }

    /// Another place in the same trace, for a task that is put because of this one.
    pub fn child(self) -> Self {
        Trace { span_id: random(), ..self }
    }

    /// Reads a `traceparent` such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace_id) = (hex(parts.next()?, 2)?, hex(parts.next()?, 32)?);
        let (span_id, flags) = (hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        // A later version may have more parts; the number 255 is none.
        let more = parts.next().is_some();
        if version == 0xff || (version == 0 && more) || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(Trace { trace_id, span_id: u64::try_from(span_id).ok()?, sampled: flags & 1 == 1 })
    }

    /// The map that says so, as MessagePack.
    pub(super) fn to_meta(self) -> Vec<u8> {
        let mut meta = vec![0x81, 0xa0 | KEY.len() as u8];
        meta.extend_from_slice(KEY);
        meta.extend_from_slice(&[0xd9, TEXT_BYTES]);
        meta.extend_from_slice(self.to_string().as_bytes());
        meta
    }

    /// What the map says; nothing when it is about other things, or about nothing.
    pub(super) fn from_meta(meta: &[u8]) -> Option<Self> {
        let meta: Meta = rmp_serde::from_slice(meta).ok()?;
        Trace::parse(&meta.traceparent?)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// So many small hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let small = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let good = text.len() == digits && text.bytes().all(small);
    good.then(|| u128::from_str_radix(text, 16).ok())?
}

/// Any number but 0. Nobody is kept out by it, so the seeds of hash tables are random enough.
fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let trace = Trace::parse(TEXT).unwrap();
        assert_eq!(trace.to_string(), TEXT);
        assert_eq!(trace.span_id, 0x00f0_67aa_0ba9_02b7);
        assert!(trace.sampled);
        assert_eq!(Trace::from_meta(&trace.to_meta()), Some(trace));
        let child = trace.child();
        assert_eq!(child.trace_id, trace.trace_id);
        assert_ne!(child.span_id, trace.span_id);
        let begun = Trace::begin();
        assert_eq!(Trace::parse(&begun.to_string()), Some(begun));
        assert_eq!(begun.to_string().len(), usize::from(TEXT_BYTES));
    }

    #[test]
    fn what_is_none_is_passed_over() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(Trace::parse(bad), None, "{bad}");
        }
        let later = format!("{}-more", TEXT.replacen("00", "01", 1));
        assert!(Trace::parse(&later).is_some(), "a later version may say more");
        for meta in [&b""[..], b"\x80", b"\xc1", b"\x81\xa1k\xc0", b"\x81\x01\x02", b"\x90"] {
            assert_eq!(Trace::from_meta(meta), None);
        }
        let mut both = vec![0x82, 0xa1, b'k', 0x91, 0x07];
        both.extend_from_slice(&Trace::parse(TEXT).unwrap().to_meta()[1..]);
        assert_eq!(
            Trace::from_meta(&both),
            Trace::parse(TEXT),
            "others may say other things there"
        );
    }
}

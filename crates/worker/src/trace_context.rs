//! The W3C trace context of a task, stored as `traceparent` in the metadata map beside the payload.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use serde::Deserialize;

/// A position in a trace. Its text form is a W3C `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The id of the trace; never 0.
    pub trace_id: u128,
    /// The id of the span; never 0.
    pub span_id: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

/// The key in the metadata map.
const KEY: &[u8] = b"traceparent";
/// The length of a `traceparent` of version 0.
const TEXT_BYTES: u8 = 55;

#[derive(Deserialize)]
struct Meta {
    traceparent: Option<String>,
}

impl TraceContext {
    /// Starts a new trace.
    pub fn new_root() -> Self {
        let trace_id = u128::from(random()) << 64 | u128::from(random());
        TraceContext { trace_id, span_id: random(), sampled: true }
    }

    /// A new span in the same trace, for a task that is put because of this one.
    pub fn child(self) -> Self {
        TraceContext { span_id: random(), ..self }
    }

    /// Parses a `traceparent` such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace_id) = (hex(parts.next()?, 2)?, hex(parts.next()?, 32)?);
        let (span_id, flags) = (hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        // A later version may have more parts; 255 is not a version.
        let more = parts.next().is_some();
        if version == 0xff || (version == 0 && more) || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(TraceContext {
            trace_id,
            span_id: u64::try_from(span_id).ok()?,
            sampled: flags & 1 == 1,
        })
    }

    /// Encodes the metadata map as MessagePack.
    pub(crate) fn to_meta(self) -> Vec<u8> {
        let mut meta = vec![0x81, 0xa0 | KEY.len() as u8];
        meta.extend_from_slice(KEY);
        meta.extend_from_slice(&[0xd9, TEXT_BYTES]);
        meta.extend_from_slice(self.to_string().as_bytes());
        meta
    }

    /// Decodes a metadata map; `None` when it has no valid `traceparent`.
    pub(crate) fn from_meta(meta: &[u8]) -> Option<Self> {
        let meta: Meta = rmp_serde::from_slice(meta).ok()?;
        TraceContext::parse(&meta.traceparent?)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// Parses exactly this many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let valid = text.len() == digits && text.bytes().all(is_digit);
    valid.then(|| u128::from_str_radix(text, 16).ok())?
}

/// A random number other than 0. It protects nothing, so the seeds of hash tables are random enough.
fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_parsed_and_formatted() {
        let trace = TraceContext::parse(TEXT).unwrap();
        assert_eq!(trace.to_string(), TEXT);
        assert_eq!(trace.span_id, 0x00f0_67aa_0ba9_02b7);
        assert!(trace.sampled);
        assert_eq!(TraceContext::from_meta(&trace.to_meta()), Some(trace));
        let child = trace.child();
        assert_eq!(child.trace_id, trace.trace_id);
        assert_ne!(child.span_id, trace.span_id);
        let root = TraceContext::new_root();
        assert_eq!(TraceContext::parse(&root.to_string()), Some(root));
        assert_eq!(root.to_string().len(), usize::from(TEXT_BYTES));
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
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
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        let later = format!("{}-more", TEXT.replacen("00", "01", 1));
        assert!(TraceContext::parse(&later).is_some(), "a later version may have more parts");
        for meta in [&b""[..], b"\x80", b"\xc1", b"\x81\xa1k\xc0", b"\x81\x01\x02", b"\x90"] {
            assert_eq!(TraceContext::from_meta(meta), None);
        }
        let mut both = vec![0x82, 0xa1, b'k', 0x91, 0x07];
        both.extend_from_slice(&TraceContext::parse(TEXT).unwrap().to_meta()[1..]);
        assert_eq!(
            TraceContext::from_meta(&both),
            TraceContext::parse(TEXT),
            "other keys are ignored"
        );
    }
}

//! The arguments and the result of `identify`, for clients.

use taskyard_core::SessionId;

use super::IprotoError;
use super::pack;
use super::reader::ValueReader;

/// The arguments of `identify`: none to ask for the session of the connection, or the one to join.
pub fn identify_args(session: Option<SessionId>) -> Vec<u8> {
    let mut out = Vec::new();
    pack::array(&mut out, usize::from(session.is_some()));
    if let Some(session) = session {
        pack::str_bytes(&mut out, &session.0);
    }
    out
}

/// The arguments of `worker` that set the version of the client and no name.
pub fn version_args(version: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pack::array(&mut out, 2);
    pack::nil(&mut out);
    pack::map(&mut out, 1);
    pack::str(&mut out, "version");
    pack::str(&mut out, version);
    out
}

/// The session in the results of `identify`.
pub fn reply_session(results: &[u8]) -> Result<SessionId, IprotoError> {
    let mut reader = ValueReader::new(results);
    let session = match reader.array() {
        Ok(1) => reader.bytes().ok().and_then(|bytes| bytes.try_into().ok()),
        _ => None,
    };
    session.map(SessionId).ok_or(IprotoError::Malformed("not a session"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_written_as_it_is_read() {
        let session = SessionId([0xc1; 16]);
        assert_eq!(reply_session(&identify_args(Some(session))), Ok(session));
        assert_eq!(identify_args(None), [0x90]);
        for bad in [&[0x90][..], &[0x91, 0xa1, b'x'], &[0x91, 0x07], &[]] {
            assert!(reply_session(bad).is_err(), "{bad:?}");
        }
    }
}

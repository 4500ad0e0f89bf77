//! Sessions: the holders of deliveries.

use std::fmt;

use crate::time::Timestamp;

/// The identity of a session: 16 bytes, random, known to its connections only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    /// As Tarantool prints a uuid of these bytes: the first three groups are little-endian.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        for (place, byte) in ORDER.into_iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{:02x}", self.0[byte])?;
        }
        Ok(())
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The machine's state of a session. Its deliveries are in the index of all tubes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    /// Open connections that share it.
    pub connections: u32,
    /// When it ends, unless a connection joins again.
    pub ends: Option<Timestamp>,
}

impl Session {
    pub fn is_alive(&self, now: Timestamp) -> bool {
        self.ends.is_none_or(|ends| ends > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_as_tarantool_prints_it() {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&[0xba, 0x99, 0x88, 0xc5, 0x88, 0x48, 0xc6, 0x4b]);
        assert!(SessionId(bytes).to_string().starts_with("c58899ba-4888-4bc6-"));
    }
}

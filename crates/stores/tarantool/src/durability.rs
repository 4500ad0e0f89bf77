//! Reads how durable the writes of Tarantool are from its settings.

/// When acknowledged writes are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// In occasional snapshots.
    Memory,
    /// When the operating system writes them.
    System,
    /// Before they are acknowledged.
    Always,
}

impl Durability {
    /// The meaning of `wal_mode`.
    pub fn read(wal_mode: &str) -> Self {
        match wal_mode {
            "fsync" => Durability::Always,
            "write" => Durability::System,
            _ => Durability::Memory,
        }
    }

    /// The description for users.
    pub fn text(self) -> &'static str {
        match self {
            Durability::Always => "acknowledged writes are on disk (wal_mode fsync)",
            Durability::System => {
                "a power failure may lose what the operating system has not written yet (wal_mode write)"
            }
            Durability::Memory => {
                "a crash of Tarantool loses everything since its last snapshot (wal_mode none)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!(Durability::read("fsync"), Durability::Always);
        assert_eq!(Durability::read("write"), Durability::System);
        assert_eq!(Durability::read("none"), Durability::Memory);
    }
}

//! What Tarantool does to keep what it was told, as its own settings say.

/// When what was acknowledged is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// In a snapshot now and then.
    Memory,
    /// Whenever the system likes.
    System,
    /// Before it is answered.
    Always,
}

impl Durability {
    /// What `wal_mode` means.
    pub fn read(wal_mode: &str) -> Self {
        match wal_mode {
            "fsync" => Durability::Always,
            "write" => Durability::System,
            _ => Durability::Memory,
        }
    }

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Durability::Always => "what is acknowledged is on disk (wal_mode fsync)",
            Durability::System => {
                "a loss of power may lose what the system has not written yet (wal_mode write)"
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

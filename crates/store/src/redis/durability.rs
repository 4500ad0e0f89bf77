//! What Redis does to keep what it was told, as its own settings say.

use taskyard_redis::{Failure, Link, Value};

/// When what was acknowledged is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Durability {
    /// Never, or in a snapshot now and then.
    Memory,
    /// Whenever the system likes.
    System,
    /// Within a second.
    Second,
    /// Before it is answered.
    Always,
}

impl Durability {
    /// Asks all masters. The weakest counts.
    pub async fn ask(link: &mut Link) -> Result<Option<Self>, Failure> {
        match link.ask_masters(&["CONFIG", "GET", "append*"]).await {
            Ok(answers) => Ok(answers.into_iter().map(Self::read).min().flatten()),
            // Who only rents Redis is often not told.
            Err(Failure::Refused(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn read(answer: Value) -> Option<Self> {
        let words = answer.list()?;
        let find = |name: &str| {
            let place = words.iter().position(|word| *word == Value::Text(name.into()))?;
            words.get(place + 1)?.clone().text()
        };
        Some(match (find("appendonly")?.as_slice(), find("appendfsync")?.as_slice()) {
            (b"yes", b"always") => Durability::Always,
            (b"yes", b"everysec") => Durability::Second,
            (b"yes", _) => Durability::System,
            _ => Durability::Memory,
        })
    }

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Durability::Always => "what is acknowledged is on disk (appendfsync always)",
            Durability::Second => {
                "a crash of Redis may lose the last second (appendfsync everysec)"
            }
            Durability::System => {
                "a loss of power may lose what the system has not written yet (appendfsync no)"
            }
            Durability::Memory => {
                "a crash of Redis loses everything since its last snapshot (appendonly no)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weaker_is_less() {
        assert!(Durability::Memory < Durability::System);
        assert!(Durability::Second < Durability::Always);
    }

    #[test]
    fn settings_are_read() {
        let said = |only: &str, sync: &str| {
            let words = ["appendfsync", sync, "appenddirname", "x", "appendonly", only];
            Durability::read(Value::List(words.map(|word| Value::Text(word.into())).to_vec()))
        };
        assert_eq!(said("yes", "always"), Some(Durability::Always));
        assert_eq!(said("yes", "everysec"), Some(Durability::Second));
        assert_eq!(said("yes", "no"), Some(Durability::System));
        assert_eq!(said("no", "always"), Some(Durability::Memory));
        assert_eq!(Durability::read(Value::List(Vec::new())), None);
    }
}

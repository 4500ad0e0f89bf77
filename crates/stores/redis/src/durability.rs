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
        match link.ask_masters(&["CONFIG", "GET", "*append*"]).await {
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
        let (only, sync) = (find("appendonly")?, find("appendfsync")?);
        // While a child of it writes it may leave it to the system, whatever else is set.
        if only == b"yes" && find("no-appendfsync-on-rewrite").as_deref() == Some(b"yes") {
            return Some(Durability::System);
        }
        Some(match (only.as_slice(), sync.as_slice()) {
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
                "a loss of power may lose what the system has not written yet (appendfsync no, or \
                 no-appendfsync-on-rewrite yes)"
            }
            Durability::Memory => {
                "a crash of Redis loses everything since its last snapshot (appendonly no)"
            }
        }
    }
}

/// Sees to it that no master throws tasks away when its memory is full, unless that is accepted. Answers by which policy one does.
pub(super) async fn ask_eviction(
    link: &mut Link,
    accepted: bool,
) -> Result<Option<String>, Failure> {
    let answers = match link.ask_masters(&["INFO", "memory"]).await {
        Ok(answers) => answers,
        Err(Failure::Refused(_)) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let Some(policy) = answers.into_iter().find_map(evicting_policy) else { return Ok(None) };
    if !accepted {
        return Err(Failure::Refused(format!(
            "its maxmemory-policy is {policy}: when its memory is full it throws tasks away; set it to noeviction \
             (CONFIG SET maxmemory-policy noeviction, and in its configuration), or add eviction=accept to the URL \
             if tasks may be lost"
        )));
    }
    tracing::warn!(policy, "Redis throws tasks away when its memory is full");
    Ok(Some(policy))
}

/// The policy by which keys are thrown away that nobody gave a time to live. Ours have none.
fn evicting_policy(answer: Value) -> Option<String> {
    let text = String::from_utf8(answer.text()?).ok()?;
    let policy = text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?.trim_end();
    policy.starts_with("allkeys-").then(|| policy.to_owned())
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

    // It said that what is acknowledged is on disk, though nothing was synced while a child saved.
    #[test]
    fn what_is_not_synced_now_and_then_is_not_always_synced() {
        let words =
            ["appendonly", "yes", "appendfsync", "always", "no-appendfsync-on-rewrite", "yes"];
        let said = Value::List(words.map(|word| Value::Text(word.into())).to_vec());
        assert_eq!(Durability::read(said), Some(Durability::System));
    }

    #[test]
    fn only_what_throws_any_key_away_counts() {
        let policy = |name: &str| {
            let text = format!("# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:{name}\r\nx:1\r\n");
            evicting_policy(Value::Text(text.into_bytes()))
        };
        assert_eq!(policy("allkeys-lru").as_deref(), Some("allkeys-lru"));
        assert_eq!(policy("noeviction"), None);
        assert_eq!(policy("volatile-lru"), None, "ours have no time to live");
    }
}

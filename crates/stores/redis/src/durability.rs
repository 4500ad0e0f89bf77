//! Reads how durable the writes of Redis are from its settings.

use taskyard_redis::{Failure, Link, Value};

/// When acknowledged writes are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Durability {
    /// Never, or in occasional snapshots.
    Memory,
    /// When the operating system writes them.
    System,
    /// Within a second.
    Second,
    /// Before they are acknowledged.
    Always,
}

impl Durability {
    /// Asks all masters and answers the weakest.
    pub async fn ask(link: &mut Link) -> Result<Option<Self>, Failure> {
        match link.ask_masters(&["CONFIG", "GET", "*append*"]).await {
            Ok(answers) => Ok(answers.into_iter().map(Self::read).min().flatten()),
            // Managed Redis often forbids CONFIG.
            Err(Failure::Refused(why)) if !is_login(&why) => Ok(None),
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
        // With this setting nothing is synced while a child process writes.
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

    /// The description for users.
    pub fn text(self) -> &'static str {
        match self {
            Durability::Always => "acknowledged writes are on disk (appendfsync always)",
            Durability::Second => {
                "a crash of Redis may lose the last second (appendfsync everysec)"
            }
            Durability::System => {
                "a power failure may lose what the operating system has not written yet (appendfsync no, or \
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
        Err(Failure::Refused(why)) if !is_login(&why) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let Some(policy) = answers.into_iter().find_map(evicting_policy) else { return Ok(None) };
    if !accepted {
        return Err(Failure::Refused(format!(
            "its maxmemory-policy is {policy}: it evicts tasks when its memory is full; set it to noeviction \
             (CONFIG SET maxmemory-policy noeviction, and in its configuration), or add eviction=accept to the URL \
             if tasks may be lost"
        )));
    }
    tracing::warn!(policy, "Redis evicts tasks when its memory is full");
    Ok(Some(policy))
}

/// Whether Redis refused the user or the password, and not one command.
fn is_login(why: &str) -> bool {
    ["WRONGPASS", "NOAUTH"].iter().any(|word| why.contains(word))
}

/// The policy, if it evicts keys without a time to live. Ours have none.
fn evicting_policy(answer: Value) -> Option<String> {
    let text = String::from_utf8(answer.text()?).ok()?;
    let policy = text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?.trim_end();
    policy.starts_with("allkeys-").then(|| policy.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durabilities_are_ordered() {
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

    // It reported that acknowledged writes are on disk, although nothing was synced while a child process saved.
    #[test]
    fn no_sync_during_a_rewrite_is_not_always_synced() {
        let words =
            ["appendonly", "yes", "appendfsync", "always", "no-appendfsync-on-rewrite", "yes"];
        let said = Value::List(words.map(|word| Value::Text(word.into())).to_vec());
        assert_eq!(Durability::read(said), Some(Durability::System));
    }

    #[test]
    fn only_allkeys_policies_evict_tasks() {
        let policy = |name: &str| {
            let text = format!("# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:{name}\r\nx:1\r\n");
            evicting_policy(Value::Text(text.into_bytes()))
        };
        assert_eq!(policy("allkeys-lru").as_deref(), Some("allkeys-lru"));
        assert_eq!(policy("noeviction"), None);
        assert_eq!(policy("volatile-lru"), None, "tasks have no time to live");
    }
}

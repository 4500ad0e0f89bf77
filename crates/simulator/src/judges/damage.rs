//! Judges that no store reports damage: the simulated disks lose and refuse writes, and never change what they have.

use taskyard_core::Error;

use crate::evidence::Evidence;
use crate::history::CallReply;

/// What stores and SQLite say about damage.
const WORDS: [&str; 4] = ["damaged", "malformed", "corrupt", "checksum"];

/// Finds a reply that reports damage.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    evidence.history.calls.iter().find_map(|call| {
        let CallReply::Refused(Error::Store(text) | Error::StoreUnavailable(text)) = &call.reply
        else {
            return None;
        };
        WORDS
            .iter()
            .any(|word| text.contains(word))
            .then(|| format!("server {} refused a {}: {text}", call.server, call.command.verb()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judges::script::Script;

    #[test]
    fn a_disk_may_fail_and_not_be_damaged() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.refuse(Error::Store("the disk is full".into()));
        assert_eq!(script.judge(judge), None);
        script.refuse(Error::Store("the database is damaged: task 0".into()));
        assert!(script.judge(judge).unwrap().contains("refused a put"));
    }
}

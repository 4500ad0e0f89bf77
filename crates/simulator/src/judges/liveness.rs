//! Judges that after the faults everything happens in time.

use crate::evidence::Evidence;

/// What did not happen in time.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    evidence.facts.late.clone()
}

#[cfg(test)]
mod tests {
    use crate::judges::script::Script;

    #[test]
    fn a_late_event_is_reported() {
        let mut script = Script::new();
        assert_eq!(script.judge(super::judge), None);
        script.facts.late = Some("a take got nothing".into());
        assert!(script.judge(super::judge).is_some());
    }
}

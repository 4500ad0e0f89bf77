//! An entry whose outcome is not known yet.

use std::net::IpAddr;
use std::sync::Arc;

use taskyard_core::access::{AccessTarget, audited_action, changed_tasks};
use taskyard_core::{Command, Error, Reply};
use taskyard_wire::http::{AuditEntry, AuditOutcome};

use super::detail::detail_of;
use super::file::PendingLine;
use super::{Audit, bounded};

/// The error of an entry without a known outcome.
const CLOSED: &str = "the client closed the connection before the outcome was known";

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester<'a> {
    /// The name of the user.
    pub user: &'a str,
    /// The address of the client, if it is known.
    pub peer: Option<IpAddr>,
    /// `http` or `iproto`.
    pub protocol: &'static str,
}

/// An entry whose outcome is not known yet. If it is dropped, because the client is gone, the outcome
/// is recorded as unknown: a client must not avoid its entry by closing the connection.
#[derive(Debug)]
pub(crate) struct AuditDraft {
    audit: Arc<Audit>,
    /// `None` once it is recorded.
    entry: Option<Box<AuditEntry>>,
}

impl AuditDraft {
    /// A draft for this action.
    pub fn new(
        audit: &Arc<Audit>,
        requester: Requester<'_>,
        action: &str,
        target: AccessTarget<'_>,
    ) -> Self {
        let (kind, name) = match target {
            AccessTarget::Tube(name) => ("tube", Some(name)),
            AccessTarget::Semaphore(name) => ("semaphore", Some(name)),
            AccessTarget::Schedule(name) => ("schedule", Some(name)),
            AccessTarget::Any | AccessTarget::All => ("server", None),
        };
        let entry = AuditEntry {
            user: Some(bounded(requester.user)),
            address: requester.peer.map(|peer| peer.to_canonical().to_string()),
            protocol: requester.protocol.into(),
            action: action.into(),
            target_kind: kind.into(),
            target: name.map(bounded),
            ..AuditEntry::default()
        };
        AuditDraft { audit: audit.clone(), entry: Some(Box::new(entry)) }
    }

    /// The draft for a command, if it gets an entry. For the commands of producers and consumers this
    /// costs no memory.
    #[inline]
    pub fn of_command<'a>(
        audit: &Arc<Audit>,
        command: &Command,
        requester: impl FnOnce() -> Requester<'a>,
    ) -> Option<Self> {
        let action = audited_action(command)?;
        let draft = AuditDraft::new(audit, requester(), action.name, action.target);
        Some(draft.with_ids(action.ids).with_detail(detail_of(command)))
    }

    /// Sets how many tasks the request names.
    pub fn with_ids(self, ids: Option<usize>) -> Self {
        self.changed(|entry| entry.ids = ids.map(|ids| ids as u64))
    }

    /// Sets the filter that chooses the tasks.
    pub fn with_filter(self, filter: Option<String>) -> Self {
        self.changed(|entry| entry.filter = filter.as_deref().map(bounded))
    }

    /// Sets more about the request.
    pub fn with_detail(self, detail: Option<String>) -> Self {
        self.changed(|entry| entry.detail = detail.as_deref().map(bounded))
    }

    fn changed(mut self, change: impl FnOnce(&mut AuditEntry)) -> Self {
        if let Some(entry) = &mut self.entry {
            change(entry);
        }
        self
    }

    /// Adds tasks that a part of the action has changed.
    pub fn add_tasks(&mut self, count: u64) {
        if let Some(entry) = &mut self.entry {
            entry.tasks = Some(entry.tasks.unwrap_or(0) + count);
        }
    }

    /// Records the outcome of a command that changes as many tasks as there were before it.
    pub fn finish_counted(
        mut self,
        result: Result<&Reply, &Error>,
        before: Option<u64>,
    ) -> PendingLine {
        if let (Ok(_), Some(tasks)) = (result, before) {
            self.add_tasks(tasks);
        }
        self.finish(result)
    }

    /// Records the outcome of a command.
    pub fn finish(mut self, result: Result<&Reply, &Error>) -> PendingLine {
        match result {
            // The tube existed, so nothing has changed.
            Ok(Reply::Created(false)) => self.cancel(),
            Ok(reply) => {
                if let Some(tasks) = changed_tasks(reply) {
                    self.add_tasks(tasks);
                }
                self.done()
            }
            Err(error @ Error::OutcomeUnknown(_)) => {
                self.record(AuditOutcome::Unknown, Some(&error.to_string()))
            }
            Err(error) => self.failed(&error.to_string()),
        }
    }

    /// Records that the action is done.
    pub fn done(self) -> PendingLine {
        self.record(AuditOutcome::Done, None)
    }

    /// Records that the action failed.
    pub fn failed(self, error: &str) -> PendingLine {
        self.record(AuditOutcome::Failed, Some(error))
    }

    /// Records that the user may not do this.
    pub fn refused(self, error: &str) -> PendingLine {
        self.record(AuditOutcome::Refused, Some(error))
    }

    /// Records an outcome.
    pub fn record(mut self, outcome: AuditOutcome, error: Option<&str>) -> PendingLine {
        let Some(entry) = self.entry.take() else { return PendingLine::default() };
        self.audit.record(AuditEntry { outcome, error: error.map(bounded), ..*entry })
    }

    /// Records nothing: nothing has changed.
    pub fn cancel(mut self) -> PendingLine {
        self.entry = None;
        PendingLine::default()
    }
}

impl Drop for AuditDraft {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let (outcome, error) = (AuditOutcome::Unknown, Some(CLOSED.into()));
            drop(self.audit.record(AuditEntry { outcome, error, ..*entry }));
        }
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Span, TaskId, TubeName};

    use super::*;

    fn draft(audit: &Arc<Audit>, command: &Command) -> Option<AuditDraft> {
        let peer = Some([10, 0, 0, 7].into());
        AuditDraft::of_command(audit, command, || Requester { user: "ann", peer, protocol: "http" })
    }

    fn delete() -> Command {
        let tube = TubeName::new("mail").unwrap();
        Command::Delete { tube, ids: vec![TaskId(1), TaskId(2)], show: false }
    }

    // A client that closed its connection right after the request had no entry.
    #[test]
    fn a_client_that_is_gone_has_an_entry() {
        let audit = Arc::new(Audit::default());
        let mut unfinished = draft(&audit, &delete()).unwrap();
        unfinished.add_tasks(1);
        drop(unfinished);
        let entry = audit.recent(1).pop().unwrap();
        assert_eq!((entry.outcome, entry.tasks), (AuditOutcome::Unknown, Some(1)));
        assert_eq!((entry.action.as_str(), entry.ids), ("delete", Some(2)));
        assert_eq!(entry.address.as_deref(), Some("10.0.0.7"));
        assert_eq!(entry.target.as_deref(), Some("mail"));
    }

    #[test]
    fn an_outcome_is_recorded_once() {
        let audit = Arc::new(Audit::default());
        let unknown = Error::OutcomeUnknown("the store is gone".into());
        for (result, outcome) in [
            (Ok(&Reply::Nothing), Some(AuditOutcome::Done)),
            (Ok(&Reply::Created(true)), Some(AuditOutcome::Done)),
            (Ok(&Reply::Created(false)), None),
            (Err(&Error::ShuttingDown), Some(AuditOutcome::Failed)),
            (Err(&unknown), Some(AuditOutcome::Unknown)),
        ] {
            let before = audit.recorded();
            drop(draft(&audit, &delete()).unwrap().finish(result));
            assert_eq!(audit.recorded() - before, u64::from(outcome.is_some()));
            if let Some(outcome) = outcome {
                assert_eq!(audit.recent(1)[0].outcome, outcome);
            }
        }
    }

    #[test]
    fn commands_of_producers_have_no_draft() {
        let tube = TubeName::new("mail").unwrap();
        let put = Command::Put { tube, tasks: Vec::new(), wait: Span::ZERO };
        assert!(draft(&Arc::new(Audit::default()), &put).is_none());
    }
}

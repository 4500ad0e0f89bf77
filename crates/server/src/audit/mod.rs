//! Records what operators and administrators do: to the audit file, to the log, and in memory for
//! the page.
//!
//! [`audited_action`](taskyard_core::access::audited_action) decides which commands have an entry. A
//! request begins a draft (`draft`) before its command runs; the entry is recorded when the outcome is
//! known, before the client gets its answer, and also if the client is gone by then. `file` writes the
//! lines in a thread of its own, so that a slow disk delays audited requests only.

mod detail;
mod draft;
mod file;
mod refusals;
mod tasks_before;
mod text;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use taskyard_core::limits::AUDIT_ENTRIES_MAX;
use taskyard_wire::http::{AuditEntry, AuditOutcome};

pub(crate) use draft::{AuditDraft, Requester};
pub use file::{AuditFile, AuditFileError};
pub(crate) use tasks_before::TaskCounts;
pub(crate) use text::bounded;

use crate::users::UsersChange;
use file::PendingLine;
use refusals::RefusalLimit;

/// The audit of one server.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// The latest entries, the oldest first.
    recent: Mutex<VecDeque<AuditEntry>>,
    refusals: Mutex<RefusalLimit>,
    file: Option<AuditFile>,
    recorded: AtomicU64,
    omitted: AtomicU64,
}

/// The audit of a running server, for what its operator does outside of requests.
#[derive(Clone, Debug, Default)]
pub struct AuditHandle(pub(crate) Arc<Audit>);

impl Audit {
    /// An audit that also writes to this file.
    pub fn new(file: Option<AuditFile>) -> Self {
        Audit { file, ..Audit::default() }
    }

    /// Records an entry. What is returned is ready when its line is written.
    pub fn record(&self, mut entry: AuditEntry) -> PendingLine {
        if !has_effect(&entry) {
            let user = entry.user.as_deref().unwrap_or_default();
            match lock(&self.refusals).admit(user, Instant::now()) {
                Some(omitted) => entry.omitted = omitted,
                None => {
                    self.omitted.fetch_add(1, Ordering::Relaxed);
                    return PendingLine::default();
                }
            }
        }
        self.recorded.fetch_add(1, Ordering::Relaxed);
        // The file has the same order.
        let mut recent = lock(&self.recent);
        entry.time = time_now();
        log(&entry);
        let line = self.file.as_ref().map(|file| file.write(&entry)).unwrap_or_default();
        if recent.len() >= AUDIT_ENTRIES_MAX {
            recent.pop_front();
        }
        recent.push_back(entry);
        line
    }

    /// The latest entries, the newest first.
    pub fn recent(&self, limit: usize) -> Vec<AuditEntry> {
        lock(&self.recent).iter().rev().take(limit).cloned().collect()
    }

    /// How many entries were recorded.
    pub fn recorded(&self) -> u64 {
        self.recorded.load(Ordering::Relaxed)
    }

    /// How many attempts without effect have no entry.
    pub fn omitted(&self) -> u64 {
        self.omitted.load(Ordering::Relaxed)
    }

    /// How many entries could not be written to the file.
    pub fn errors(&self) -> u64 {
        self.file.as_ref().map_or(0, AuditFile::errors)
    }
}

impl AuditHandle {
    /// Records that the file of users was read again and has changed them.
    pub fn users_changed(&self, change: &UsersChange) {
        if !change.is_empty() {
            let detail = Some(bounded(&change.to_string()));
            self.record_users(AuditEntry { detail, outcome: AuditOutcome::Done, ..users_entry() });
        }
    }

    /// Records that the file of users has changed and cannot be used.
    pub fn users_not_changed(&self, error: &str) {
        let error = Some(bounded(error));
        self.record_users(AuditEntry { error, outcome: AuditOutcome::Failed, ..users_entry() });
    }

    fn record_users(&self, entry: AuditEntry) {
        // No answer waits for the line.
        drop(self.0.record(entry));
    }
}

/// Whether something was changed, or may have been. A user with few rights can send what is refused,
/// fails or changes nothing as often as it likes, so the number of such entries is limited.
fn has_effect(entry: &AuditEntry) -> bool {
    match entry.outcome {
        AuditOutcome::Unknown => true,
        AuditOutcome::Done => entry.tasks != Some(0),
        AuditOutcome::Refused | AuditOutcome::Failed => entry.tasks.is_some_and(|tasks| tasks > 0),
    }
}

fn users_entry() -> AuditEntry {
    AuditEntry {
        protocol: "file".into(),
        action: "reload_users".into(),
        target_kind: "server".into(),
        ..AuditEntry::default()
    }
}

/// The time in UTC with milliseconds.
fn time_now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    format!("{:.3}", jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX))
}

/// Texts are logged with escapes, so that an entry is always one line.
fn log(entry: &AuditEntry) {
    tracing::info!(
        target: "audit",
        user = entry.user,
        address = entry.address,
        protocol = entry.protocol,
        action = entry.action,
        kind = entry.target_kind,
        name = entry.target,
        tasks = entry.tasks,
        ids = entry.ids,
        filter = entry.filter,
        detail = entry.detail,
        error = entry.error,
        "{} {}",
        entry.action,
        entry.outcome
    );
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: &str, outcome: AuditOutcome) -> AuditEntry {
        AuditEntry { action: action.into(), outcome, ..AuditEntry::default() }
    }

    #[test]
    fn the_oldest_entry_makes_room() {
        let audit = Audit::default();
        for number in 0..=AUDIT_ENTRIES_MAX {
            drop(audit.record(entry(&number.to_string(), AuditOutcome::Done)));
        }
        let recent = audit.recent(usize::MAX);
        assert_eq!(recent.len(), AUDIT_ENTRIES_MAX);
        assert_eq!(recent[0].action, AUDIT_ENTRIES_MAX.to_string(), "the newest comes first");
        assert_eq!(recent[AUDIT_ENTRIES_MAX - 1].action, "1");
        assert_eq!(audit.recorded(), AUDIT_ENTRIES_MAX as u64 + 1);
        assert_eq!(audit.recent(2).len(), 2);
    }

    #[test]
    fn a_time_has_milliseconds_and_a_zone() {
        let time = time_now();
        assert_eq!(time.len(), "2026-11-17T19:04:46.123Z".len(), "{time}");
        assert!(time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    }

    // A client that repeats a refused request could fill the disk and hide the other entries.
    #[test]
    fn refused_attempts_are_limited_and_others_are_not() {
        use taskyard_core::limits::AUDIT_REFUSED_PER_MINUTE_MAX as MOST;
        let audit = Audit::default();
        for _ in 0..MOST + 5 {
            drop(audit.record(entry("kick", AuditOutcome::Refused)));
        }
        assert_eq!((audit.recorded(), audit.omitted()), (MOST, 5));
        drop(audit.record(entry("kick", AuditOutcome::Done)));
        assert_eq!((audit.recorded(), audit.omitted()), (MOST + 1, 5));
        // They failed or changed nothing without a limit, and so could push all other entries out.
        let nothing = AuditEntry { tasks: Some(0), ..entry("bury", AuditOutcome::Done) };
        for attempt in [entry("run_schedule", AuditOutcome::Failed), nothing] {
            drop(audit.record(attempt));
        }
        assert_eq!((audit.recorded(), audit.omitted()), (MOST + 1, 7));
        let part = AuditEntry { tasks: Some(3), ..entry("delete", AuditOutcome::Refused) };
        drop(audit.record(part));
        assert_eq!((audit.recorded(), audit.omitted()), (MOST + 2, 7));
    }
}

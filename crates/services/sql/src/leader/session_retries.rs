//! Tracks sessions that could not be opened: when to try again, and when to report it as a problem.

use std::time::Duration;

use tokio::time::Instant;

/// How long no session is opened after the server had no room for one.
const SERVER_FULL: Duration = Duration::from_millis(250);
/// The longest wait for a remote that has no room for a session.
const REMOTE_FULL_MAX: Duration = Duration::from_secs(5);
/// How often in a row a session may fail to open before that is reported.
const FAILURES_REPORTED: u32 = 3;

/// Sessions that could not be opened.
#[derive(Default)]
pub(super) struct SessionRetries {
    /// Until when no session is opened in the scheduler's own database.
    pub server_full_until: Option<Instant>,
    /// Sessions on remotes without room, and when they are opened again.
    remote: Vec<(Instant, u64)>,
    /// How often in a row a session could not be opened for another reason than a full server.
    failures: u32,
    last_failure: String,
}

impl SessionRetries {
    /// Forgets that the server was full when enough time has passed.
    pub fn expire(&mut self, now: Instant) {
        self.server_full_until = self.server_full_until.filter(|until| *until > now);
    }

    /// The server did not accept a session; nothing is opened for a short time.
    pub fn server_refused(&mut self) {
        self.server_full_until = Some(Instant::now() + SERVER_FULL);
    }

    /// A session failed to open for a reason that an administrator has to remove.
    pub fn failed(&mut self, why: String) {
        (self.failures, self.last_failure) = (self.failures.saturating_add(1), why);
    }

    /// A session was opened, or none is needed.
    pub fn succeeded(&mut self) {
        (self.failures, self.last_failure) = (0, String::new());
    }

    /// Opens a session on a remote without room again, after the given number of attempts. Returns `false` if the deadline
    /// of its task is earlier.
    pub fn retry_remote(&mut self, number: u64, attempts: u32, deadline: Option<Instant>) -> bool {
        let wait = SERVER_FULL.saturating_mul(1 << attempts.min(8)).min(REMOTE_FULL_MAX);
        let again = Instant::now() + wait;
        let in_time = deadline.is_none_or(|deadline| again < deadline);
        if in_time {
            self.remote.push((again, number));
        }
        in_time
    }

    /// Removes and returns the sessions on remotes that are opened again now.
    pub fn take_due(&mut self, now: Instant) -> Vec<u64> {
        self.remote.extract_if(.., |(at, _)| *at <= now).map(|(_, number)| number).collect()
    }

    /// When sessions on remotes are opened again.
    pub fn times(&self) -> impl Iterator<Item = Instant> {
        self.remote.iter().map(|(at, _)| *at)
    }

    /// Why no session can be opened, if that has failed several times in a row.
    pub fn problem(&self) -> Option<String> {
        let reported = self.failures >= FAILURES_REPORTED;
        reported.then(|| format!("cannot open a session for a task: {}", self.last_failure))
    }
}

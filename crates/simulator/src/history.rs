//! Records the calls of all clients, their replies and the faults, with virtual times.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::{Command, Error, Reply, SessionId, Timestamp, TubeName};
use tokio::time::Instant;

use crate::describe;
use crate::workers::{FIRST_CONSUMER, FIRST_MANAGER, FIRST_WORKER};

/// A moment of a run: moments at the same virtual time are ordered by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// The number of the moment in the run.
    pub number: u64,
    /// Its virtual time.
    pub at: Timestamp,
}

/// The number of an operation: the client, and the index of the operation within that client.
pub type OperationNumber = (u32, u32);

/// The client number of the one that prepares a run, drains the tubes and probes the servers.
pub const ADMIN: u32 = u32::MAX;

/// What a client knows about the outcome of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallReply {
    /// The call was executed.
    Replied(Reply),
    /// The call was refused and changed nothing.
    Refused(Error),
    /// The call was executed or not.
    Unknown,
}

impl CallReply {
    /// What a client knows that got this result.
    pub fn from_result(result: Result<Reply, Error>) -> Self {
        match result {
            Ok(reply) => CallReply::Replied(reply),
            Err(Error::OutcomeUnknown(_)) => CallReply::Unknown,
            Err(error) => CallReply::Refused(error),
        }
    }
}

/// One call of a client.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// The operation that made the call.
    pub operation: OperationNumber,
    /// The server that the client called.
    pub server: usize,
    /// When it was sent.
    pub begin: Moment,
    /// When the client learned its outcome; `None` until then.
    pub end: Option<Moment>,
    /// The command.
    pub command: Command,
    /// Its outcome.
    pub reply: CallReply,
    /// Whether the client did not wait for the reply.
    pub is_given_up: bool,
    /// How far times in the reply are ahead of virtual time, in microseconds; `None` if the wall clock was set meanwhile.
    pub ahead: Option<i64>,
}

/// A time in which a server may be declared dead, so that its sessions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultWindow {
    /// The server; `None` is all.
    pub server: Option<usize>,
    /// When it begins.
    pub begin: Timestamp,
    /// When its consequences are over.
    pub end: Timestamp,
}

/// The record of a run.
#[derive(Debug)]
pub struct History {
    started: Instant,
    start: Timestamp,
    next: u64,
    /// All calls, by their begin.
    pub calls: Vec<RecordedCall>,
    /// The faults that may end sessions.
    pub windows: Vec<FaultWindow>,
    /// When processes of servers ended.
    pub process_ends: Vec<(usize, Moment)>,
    /// When a shared store ended sessions.
    pub session_ends: Vec<(SessionId, Moment)>,
    /// What happened besides calls, for the reader of a failure.
    pub notes: Vec<(Moment, String)>,
}

/// A history in which clients, workers and faults record.
#[derive(Clone, Debug)]
pub struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    /// An empty history of a run that starts now, with this virtual time.
    pub fn new(start: Timestamp) -> Self {
        SharedHistory(Arc::new(Mutex::new(History::new(start))))
    }

    /// Provides room for so many calls.
    pub fn reserve(&self, calls: u32) {
        self.borrow_mut().calls.reserve(calls as usize);
    }

    /// The history, to read.
    pub fn borrow(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history, to record something.
    pub fn borrow_mut(&self) -> MutexGuard<'_, History> {
        self.borrow()
    }

    /// Replaces the history, and returns what it was.
    pub fn replace(&self, history: History) -> History {
        std::mem::replace(&mut *self.borrow_mut(), history)
    }
}

impl History {
    /// An empty history of a run that starts now, with this virtual time.
    pub fn new(start: Timestamp) -> Self {
        let started = Instant::now();
        History {
            started,
            start,
            next: 0,
            calls: Vec::new(),
            windows: Vec::new(),
            process_ends: Vec::new(),
            session_ends: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The current moment.
    pub fn moment(&mut self) -> Moment {
        self.next += 1;
        Moment {
            number: self.next,
            at: self.start.moved(self.started.elapsed().as_micros() as i64),
        }
    }

    /// Records that a call is sent. Returns its index.
    pub fn begin(&mut self, operation: OperationNumber, server: usize, command: Command) -> usize {
        let begin = self.moment();
        self.calls.push(RecordedCall {
            operation,
            server,
            begin,
            end: None,
            command,
            reply: CallReply::Unknown,
            is_given_up: false,
            ahead: None,
        });
        self.calls.len() - 1
    }

    /// Records the outcome of a call.
    pub fn end(&mut self, index: usize, reply: CallReply, ahead: Option<i64>) {
        let end = self.moment();
        let call = &mut self.calls[index];
        (call.end, call.reply, call.ahead) = (Some(end), reply, ahead);
    }

    /// Records that the client of a call does not wait for its reply any longer.
    pub fn give_up(&mut self, index: usize) {
        self.calls[index].is_given_up = true;
    }

    /// Records that a process of a server has ended.
    pub fn end_process(&mut self, server: usize) {
        let moment = self.moment();
        self.process_ends.push((server, moment));
    }

    /// Records that the store ended a session.
    pub fn end_session(&mut self, session: SessionId) {
        let moment = self.moment();
        self.session_ends.push((session, moment));
    }

    /// Records something else.
    pub fn note(&mut self, text: String) {
        let moment = self.moment();
        self.notes.push((moment, text));
    }

    /// The virtual time since the start.
    pub fn elapsed(&self) -> std::time::Duration {
        self.started.elapsed()
    }

    /// A hash of everything that is recorded, the same in every build: FNV-1a with 64 bits.
    pub fn hash(&self) -> u64 {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        // A hash accepts everything.
        let ends = (&self.process_ends, &self.session_ends);
        let _ = write!(hash, "{:?}{:?}{:?}{ends:?}", self.calls, self.windows, self.notes);
        hash.0
    }

    /// The calls and notes as text, one line each, without routine. Of more than so many, those in the middle are left out.
    pub fn lines(&self, most: usize) -> Vec<String> {
        let time = |moment: Moment| moment.at.since(self.start).as_secs_f64();
        let mut lines: Vec<(u64, String)> = Vec::new();
        for (moment, text) in &self.notes {
            lines.push((moment.number, format!("{:>12.3} s           {text}", time(*moment))));
        }
        let busy = self.calls.iter().filter(|call| !call.is_about_session());
        let busy: BTreeSet<u32> = busy.map(|call| call.operation.0).collect();
        let is_idle = |call: &RecordedCall| !busy.contains(&call.operation.0);
        for call in self.calls.iter().filter(|call| !call.is_routine() && !is_idle(call)) {
            let ended = call.end.map_or(f64::NAN, time);
            let client = match call.operation {
                (ADMIN, index) => format!("admin {index}"),
                (FIRST_CONSUMER.., index) => format!("consumers {index}"),
                (number @ FIRST_MANAGER.., index) => {
                    format!("manager {}.{index}", number - FIRST_MANAGER)
                }
                (number @ FIRST_WORKER.., index) => {
                    format!("worker {}.{index}", number - FIRST_WORKER)
                }
                (client, index) => format!("client {client}.{index}"),
            };
            let (command, reply) = (describe::command(&call.command), describe::reply(&call.reply));
            let (begun, server) = (time(call.begin), call.server);
            let text = format!(
                "{begun:>12.3} s {client} at server {server}: {command} => {reply} at {ended:.3} s"
            );
            lines.push((call.begin.number, text));
        }
        lines.sort();
        leave_out(lines.into_iter().map(|line| line.1).collect(), most)
    }
}

/// Shows the first lines, and most of those at the end, where a promise is broken.
fn leave_out(mut lines: Vec<String>, most: usize) -> Vec<String> {
    let count = lines.len().saturating_sub(most);
    if count > 0 {
        let begin = most / 5;
        lines.splice(begin..begin + count, [format!("... {count} lines are left out ...")]);
    }
    lines
}

/// FNV-1a with 64 bits.
struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl RecordedCall {
    /// Whether the call was executed or may have been.
    pub fn may_have_run(&self) -> bool {
        !matches!(self.reply, CallReply::Refused(_))
    }

    /// The tube of a command about one tube.
    pub fn tube(&self) -> Option<&TubeName> {
        match &self.command {
            Command::CreateTube { tube, .. }
            | Command::AlterTube { tube, .. }
            | Command::DropTube { tube }
            | Command::Put { tube, .. }
            | Command::Tubes { tube: Some(tube) } => Some(tube),
            Command::Take(take) => Some(&take.tube),
            _ => None,
        }
    }

    /// Whether it is one of the calls that prepare or end every run.
    fn is_routine(&self) -> bool {
        let is_ack = matches!(self.command, Command::Finish { .. } | Command::Kick { .. });
        let shows = matches!(
            self.command,
            Command::CreateTube { .. } | Command::Tubes { .. } | Command::Semaphore(_)
        );
        // Workers ask often, and report to managers.
        let is_empty = match &self.reply {
            CallReply::Replied(Reply::Taken(tasks) | Reply::Tasks(tasks)) => tasks.is_empty(),
            _ => false,
        };
        let reports = matches!(self.command, Command::Deliveries { .. } | Command::Peek { .. })
            || self.tube().is_some_and(TubeName::is_internal);
        match self.operation.0 {
            ADMIN => is_ack || shows,
            _ if is_empty && self.is_about_session() => true,
            FIRST_MANAGER..FIRST_CONSUMER => true,
            FIRST_WORKER.. => shows || is_empty || reports,
            _ => false,
        }
    }

    /// Whether it is a call that every client with a session makes.
    fn is_about_session(&self) -> bool {
        matches!(
            self.command,
            Command::JoinSession { .. } | Command::LeaveSession { .. } | Command::Deliveries { .. }
        )
    }

    /// Whether the call may have been executed after this moment.
    pub fn may_run_after(&self, moment: Moment) -> bool {
        self.reply == CallReply::Unknown || self.end.is_none_or(|end| end > moment)
    }

    /// The reply, if the client has it.
    pub fn replied(&self) -> Option<(&Reply, Moment)> {
        match (&self.reply, self.end) {
            (CallReply::Replied(reply), Some(end)) => Some((reply, end)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_history_is_shown() {
        let lines = |count: u32| leave_out((0..count).map(|line| line.to_string()).collect(), 10);
        assert_eq!(lines(10).len(), 10);
        let shown = ["0", "1", "... 15 lines are left out ...", "17", "18"];
        assert_eq!(lines(25)[..5], shown);
        assert_eq!(lines(25).last().map(String::as_str), Some("24"));
    }

    /// The values of the definition of FNV-1a.
    #[test]
    fn the_hash_is_the_same_in_every_build() {
        let hash = |text| {
            let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
            hash.write_str(text).expect("a hash accepts everything");
            hash.0
        };
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
    }
}

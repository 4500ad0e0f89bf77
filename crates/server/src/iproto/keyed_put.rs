//! Answers a put with unique keys: a task that held a key is shown as it is, with its own data.
//!
//! The reply to the put names the holders; their data is read with further commands, in portions.

use std::collections::{HashMap, VecDeque};

use taskyard_core::{
    Body, Command, Error, NewTask, Placed, Reply, Result as CoreResult, State, Task, TaskId,
    TubeName,
};
use taskyard_iproto::{Answer, Fault};

use super::batch::FollowUp;
use super::protocol_session::{ProtocolSession, ReplyTo};
use super::replies::unexpected_reply;

/// How many holders are read with one command: their payloads are in memory at the same time.
const PEEKED_MAX: usize = 100;
/// When the data of the holders has this many bytes, the others are sent without data.
const HOLDER_BYTES_MAX: usize = 8 << 20;

/// A put whose answer is being collected.
#[derive(Debug)]
pub(super) struct KeyedPut {
    tube: TubeName,
    /// The payloads of the put, until its reply has arrived.
    bodies: Vec<Body>,
    /// Whether the answer is one task, not a list.
    is_single: bool,
    /// Whether the caller may see the data of other tasks.
    reads: bool,
    /// The tasks of the answer, once the put is done; holders that are not read yet have no data.
    rows: Option<Vec<(TaskId, State, Option<Body>)>>,
    /// The rows of each holder.
    holders: HashMap<TaskId, Vec<usize>>,
    /// The holders that are not read yet.
    unread: VecDeque<TaskId>,
    /// How many holders the next command reads.
    together: usize,
    bytes: usize,
}

impl KeyedPut {
    /// The answer to a put of these tasks.
    pub fn new(tube: &TubeName, tasks: &[NewTask], is_single: bool, reads: bool) -> Self {
        KeyedPut {
            tube: tube.clone(),
            bodies: tasks.iter().map(|task| task.body.clone()).collect(),
            is_single,
            reads,
            rows: None,
            holders: HashMap::new(),
            unread: VecDeque::new(),
            together: PEEKED_MAX,
            bytes: 0,
        }
    }

    /// Whether the put itself is done.
    pub fn is_placed(&self) -> bool {
        self.rows.is_some()
    }

    fn set_placed(&mut self, placed: &[Placed]) {
        for (row, holder) in placed.iter().enumerate().filter(|(_, placed)| placed.existing) {
            let rows = self.holders.entry(holder.id).or_default();
            if rows.is_empty() && self.reads {
                self.unread.push_back(holder.id);
            }
            rows.push(row);
        }
        let bodies = std::mem::take(&mut self.bodies).into_iter();
        let row = |(placed, body): (&Placed, Body)| {
            (placed.id, placed.state, Some(body).filter(|_| !placed.existing))
        };
        self.rows = Some(placed.iter().zip(bodies).map(row).collect());
    }

    /// The command that reads the next holders; `None` if the answer is complete.
    fn next(&self) -> Option<Command> {
        if self.unread.is_empty() || self.bytes >= HOLDER_BYTES_MAX {
            return None;
        }
        let ids = self.unread.iter().take(self.together).copied().collect();
        Some(Command::Peek { tube: self.tube.clone(), ids })
    }

    /// Adds holders that were read. Those that do not exist any more are done.
    fn add(&mut self, tasks: Vec<Task>) {
        let read = self.together.min(self.unread.len());
        let mut found: HashMap<TaskId, Task> =
            tasks.into_iter().map(|task| (task.id, task)).collect();
        for id in self.unread.drain(..read) {
            let (state, body) =
                found.remove(&id).map_or((State::Done, None), |task| (task.state, task.body));
            self.bytes += body.as_ref().map_or(0, |body| body.payload().len());
            let Some(rows) = &mut self.rows else { continue };
            for place in self.holders.remove(&id).unwrap_or_default() {
                rows[place] = (id, state, body.clone());
            }
        }
    }

    /// Reads fewer holders at once after a reply that would have been too large; false if it cannot.
    fn shrink(&mut self) -> bool {
        self.together = self.together.min(self.unread.len()) / 2;
        self.together > 0
    }
}

impl ProtocolSession {
    /// Continues a put with the reply to its latest command.
    pub(super) fn continue_put(
        &mut self,
        reply_to: ReplyTo,
        mut put: Box<KeyedPut>,
        reply: CoreResult<Reply>,
    ) -> Result<(), Fault> {
        match reply {
            Ok(Reply::Put(placed)) if placed.len() == put.bodies.len() => put.set_placed(&placed),
            Ok(Reply::Tasks(tasks)) => put.add(tasks),
            Err(Error::TooLarge { .. }) if put.is_placed() && put.shrink() => {}
            // The put is done: an error would say that it is not.
            Err(_) if put.is_placed() => put.unread.clear(),
            Ok(_) => return Err(self.fault(reply_to, &unexpected_reply())),
            Err(error) => return Err(self.fault(reply_to, &error)),
        }
        if let Some(peek) = put.next() {
            self.add(reply_to, peek, FollowUp::SendKeyedPut(put));
            self.submit();
            return Ok(());
        }
        let rows = put.rows.unwrap_or_default();
        match rows.as_slice() {
            [(id, state, body)] if put.is_single => {
                let data = body.as_ref().map_or(&[][..], Body::payload);
                self.send_answer(reply_to, &Answer::Task { id: *id, state: *state, data });
            }
            _ => self.send_answer(reply_to, &Answer::Tasks(rows)),
        }
        Ok(())
    }
}

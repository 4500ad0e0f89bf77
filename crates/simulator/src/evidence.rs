//! Derives from a history what judges need: which put made each task, and how long each delivery surely lasted.

use taskyard_core::{
    Command, Finish, Holder, Lease, NewTask, Outcome, Placed, Reply, SessionId, TaskId, Timestamp,
    TubeName,
};

use crate::fast_map::FastMap;
use crate::final_phase::Facts;
use crate::history::{CallReply, History, Moment, RecordedCall};
use crate::operations::read_payload;
use crate::plan::Plan;

/// A task of a tube.
pub type TaskKey<'a> = (&'a TubeName, TaskId);

/// What a run leaves for its judges.
pub struct Evidence<'a> {
    /// What the run did.
    pub plan: &'a Plan,
    /// What clients saw.
    pub history: &'a History,
    /// What the final phase found.
    pub facts: &'a Facts,
    /// All deliveries that a client received, by the moment of their reply.
    pub deliveries: Vec<Delivery<'a>>,
    /// The puts by payload.
    pub puts: FastMap<u64, PutTask<'a>>,
    /// Calls that may have changed the state of single tasks, in the order of their begin.
    pub changes: FastMap<TaskKey<'a>, Vec<TaskChange<'a>>>,
    /// Calls that may have changed all tasks of a tube: truncate, kick and release of all.
    pub tube_changes: FastMap<&'a TubeName, Vec<&'a RecordedCall>>,
    /// The numbers of the first calls that left sessions.
    pub left: FastMap<SessionId, u64>,
    /// When the store ended each session.
    pub session_ends: FastMap<SessionId, Vec<Moment>>,
    /// Kicks of single tasks.
    pub kicked: FastMap<TaskKey<'a>, Vec<(&'a RecordedCall, Option<&'a Outcome>)>>,
}

/// A task of a put.
#[derive(Clone, Copy)]
pub struct PutTask<'a> {
    /// The put.
    pub call: &'a RecordedCall,
    /// Its tube.
    pub tube: &'a TubeName,
    /// The task.
    pub task: &'a NewTask,
    /// The reply about this task, if the client has it.
    pub placed: Option<Placed>,
}

/// A finish or delete of one task.
#[derive(Clone, Copy)]
pub struct TaskChange<'a> {
    /// The call.
    pub call: &'a RecordedCall,
    /// The claimed delivery; `None` for a delete and for a finish by any holder.
    pub lease: Option<Lease>,
    /// How the delivery ends; `None` for a delete.
    pub finish: Option<&'a Finish>,
    /// The outcome, if the client has it.
    pub outcome: Option<&'a Outcome>,
}

/// A delivery that a client received.
pub struct Delivery<'a> {
    /// The take.
    pub call: &'a RecordedCall,
    /// The tube.
    pub tube: &'a TubeName,
    /// The task.
    pub id: TaskId,
    /// Its number.
    pub lease: Lease,
    /// The session that took it.
    pub session: Option<SessionId>,
    /// The number in its payload.
    pub payload: Option<u64>,
    /// Earlier attempts.
    pub attempts: u32,
    /// When the client received it.
    pub from: Moment,
    /// When it began, in virtual time, if that is known.
    pub start: Option<Timestamp>,
    /// It surely did not end by time before this moment.
    pub until: Timestamp,
    /// The number of the moment of the first call that may have ended it.
    pub ended_by: u64,
    /// The same of the second call.
    pub ended_by_second: u64,
}

impl Delivery<'_> {
    /// Notes a call that may have ended it, by the number of its begin.
    fn note_end(&mut self, number: u64) {
        if number < self.ended_by {
            self.ended_by_second = std::mem::replace(&mut self.ended_by, number);
        } else {
            self.ended_by_second = self.ended_by_second.min(number);
        }
    }

    /// Whether no other call than this one may have ended it before the end of this one.
    pub fn is_ended_by_no_other(&self, call: &RecordedCall, end: Moment) -> bool {
        let is_own = self.ended_by == call.begin.number;
        let other = if is_own { self.ended_by_second } else { self.ended_by };
        other > end.number
    }

    /// Whether the client surely held it at this moment.
    pub fn is_held_at(&self, moment: Moment) -> bool {
        self.from.number < moment.number && moment.number < self.ended_by && moment.at < self.until
    }
}

impl TaskChange<'_> {
    /// Whether it removed the task or may have done so.
    pub fn may_remove(&self) -> bool {
        let removes = matches!(self.finish, None | Some(Finish::Ack | Finish::AckWithResult(_)));
        removes && self.may_have_run()
    }

    /// Whether it was executed or may have been.
    pub fn may_have_run(&self) -> bool {
        match self.outcome {
            Some(outcome) => matches!(outcome, Outcome::Done(_)),
            None => self.call.may_have_run(),
        }
    }

    /// Whether it was executed.
    pub fn is_done(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Done(_)))
    }
}

impl<'a> Evidence<'a> {
    /// Reads a history.
    pub fn new(plan: &'a Plan, history: &'a History, facts: &'a Facts) -> Self {
        let mut evidence = Evidence {
            plan,
            history,
            facts,
            deliveries: Vec::new(),
            puts: FastMap::default(),
            changes: FastMap::default(),
            tube_changes: FastMap::default(),
            left: FastMap::default(),
            session_ends: FastMap::default(),
            kicked: FastMap::default(),
        };
        for (session, end) in &history.session_ends {
            evidence.session_ends.entry(*session).or_default().push(*end);
        }
        history.calls.iter().for_each(|call| evidence.read(call));
        let mut deliveries = std::mem::take(&mut evidence.deliveries);
        for delivery in &mut deliveries {
            evidence.limit(delivery);
        }
        deliveries.sort_by_key(|delivery| delivery.from.number);
        evidence.deliveries = deliveries;
        evidence
    }

    fn read(&mut self, call: &'a RecordedCall) {
        let replied = match &call.reply {
            CallReply::Replied(reply) => Some(reply),
            _ => None,
        };
        match &call.command {
            Command::Put { tube, tasks, .. } => {
                for (index, task) in tasks.iter().enumerate() {
                    let Some(payload) = read_payload(&task.body) else { continue };
                    let placed = match replied {
                        Some(Reply::Put(placed)) => placed.get(index).copied(),
                        _ => None,
                    };
                    self.puts.insert(payload, PutTask { call, tube, task, placed });
                }
            }
            Command::Take(take) => {
                if let (Some(Reply::Taken(tasks)), Some(end)) = (replied, call.end) {
                    let read = |task| read_delivery(call, &take.tube, task, end);
                    self.deliveries.extend(tasks.iter().filter_map(read));
                }
            }
            Command::Finish { tube, items, .. } => {
                for (index, item) in items.iter().enumerate() {
                    let lease = match item.holder {
                        Holder::Lease(lease) => Some(lease),
                        _ => None,
                    };
                    let (finish, outcome) = (Some(&item.finish), outcome_of(replied, index));
                    let change = TaskChange { call, lease, finish, outcome };
                    self.changes.entry((tube, item.id)).or_default().push(change);
                }
            }
            Command::Delete { tube, ids, .. } => {
                for (index, id) in ids.iter().enumerate() {
                    let outcome = outcome_of(replied, index);
                    let change = TaskChange { call, lease: None, finish: None, outcome };
                    self.changes.entry((tube, *id)).or_default().push(change);
                }
            }
            Command::Truncate { tube }
            | Command::ReleaseAll { tube }
            | Command::Kick { tube, .. }
                if call.may_have_run() =>
            {
                self.tube_changes.entry(tube).or_default().push(call);
            }
            Command::KickTasks { tube, ids, .. } if call.may_have_run() => {
                self.tube_changes.entry(tube).or_default().push(call);
                for (index, id) in ids.iter().enumerate() {
                    let kick = (call, outcome_of(replied, index));
                    self.kicked.entry((tube, *id)).or_default().push(kick);
                }
            }
            Command::LeaveSession { session } => {
                let first = self.left.entry(*session).or_insert(call.begin.number);
                *first = (*first).min(call.begin.number);
            }
            _ => {}
        }
    }

    /// Computes until when a delivery surely lasted.
    fn limit(&self, delivery: &mut Delivery<'a>) {
        let changes = self.changes.get(&(delivery.tube, delivery.id)).into_iter().flatten();
        for change in changes.filter(|change| change.call.may_run_after(delivery.call.begin)) {
            let is_own = change.lease.is_none_or(|lease| lease == delivery.lease);
            match (change.finish, change.outcome) {
                (Some(Finish::Touch(_)), Some(Outcome::Done(Some(task)))) if is_own => {
                    if let (Some(until), Some(ahead)) = (task.lease_until, change.call.ahead) {
                        delivery.until = delivery.until.max(until.moved(-ahead));
                    }
                }
                (Some(Finish::Touch(_)), _) => {}
                _ if is_own => {
                    delivery.note_end(change.call.begin.number.max(delivery.from.number));
                }
                _ => {}
            }
        }
        for call in self.tube_changes.get(delivery.tube).into_iter().flatten() {
            if matches!(call.command, Command::Truncate { .. } | Command::ReleaseAll { .. })
                && call.may_run_after(delivery.call.begin)
            {
                delivery.note_end(call.begin.number.max(delivery.from.number));
            }
        }
        if let Some(number) = delivery.session.and_then(|session| self.left.get(&session)) {
            delivery.note_end(*number);
        }
        if let Some(end) = self.end_by_store(delivery) {
            let is_earlier = end < delivery.from;
            let (at, number) = if is_earlier {
                (delivery.from.at, delivery.from.number)
            } else {
                (end.at, end.number)
            };
            delivery.until = delivery.until.min(at);
            delivery.note_end(number);
        }
    }

    /// When the store ended a delivery with its session, or with the process of its server.
    fn end_by_store(&self, delivery: &Delivery<'_>) -> Option<Moment> {
        if self.plan.scenario.is_embedded() {
            // The end of a process ends every delivery of the embedded store.
            let ends = self.history.process_ends.iter().map(|(_, end)| *end);
            return ends.filter(|end| *end > delivery.call.begin).min();
        }
        let session = delivery.session?;
        let ends = self.session_ends.get(&session).into_iter().flatten().copied();
        ends.filter(|end| *end > delivery.call.begin).min()
    }

    /// The put that made the task of a delivery.
    pub fn put_of(&self, delivery: &Delivery<'_>) -> Option<&PutTask<'a>> {
        self.puts.get(&delivery.payload?)
    }

    /// The kicks of a tube that may have been executed.
    pub fn kicks(&self, tube: &TubeName) -> impl Iterator<Item = &'a RecordedCall> {
        let calls = self.tube_changes.get(tube).into_iter().flatten().copied();
        let is_kick =
            |call: &Command| matches!(call, Command::Kick { .. } | Command::KickTasks { .. });
        calls.filter(move |call| is_kick(&call.command))
    }

    /// Whether a truncate may have been executed between two attempts of a put.
    pub fn may_be_truncated_during(&self, put: &PutTask<'_>) -> bool {
        let calls = self.tube_changes.get(put.tube).into_iter().flatten();
        let mut truncates = calls.filter(|call| matches!(call.command, Command::Truncate { .. }));
        let is_during = |call: &RecordedCall| {
            call.may_run_after(put.call.begin) && put.call.end.is_none_or(|end| call.begin < end)
        };
        self.plan.scenario.has_network() && truncates.any(|call| is_during(call))
    }

    /// Whether a truncate of the tube, sent after this moment or answered after it, may have removed its tasks.
    pub fn may_be_truncated(&self, tube: &TubeName, after: Moment) -> bool {
        let calls = self.tube_changes.get(tube).into_iter().flatten();
        let mut truncates = calls.filter(|call| matches!(call.command, Command::Truncate { .. }));
        truncates.any(|call| call.may_run_after(after))
    }
}

fn outcome_of(reply: Option<&Reply>, index: usize) -> Option<&Outcome> {
    match reply {
        Some(Reply::Finished(outcomes)) => outcomes.get(index),
        _ => None,
    }
}

fn read_delivery<'a>(
    call: &'a RecordedCall,
    tube: &'a TubeName,
    task: &taskyard_core::Task,
    end: Moment,
) -> Option<Delivery<'a>> {
    let (start, until) = (task.start?, task.lease_until?);
    // The begin of the call is earlier than that of the delivery.
    let until = match call.ahead {
        Some(ahead) => until.moved(-ahead),
        None => call.begin.at + until.since(start),
    };
    Some(Delivery {
        call,
        tube,
        id: task.id,
        lease: task.lease?,
        session: task.session,
        payload: task.body.as_ref().and_then(read_payload),
        attempts: task.attempts,
        from: end,
        start: call.ahead.map(|ahead| start.moved(-ahead)),
        until,
        ended_by: u64::MAX,
        ended_by_second: u64::MAX,
    })
}

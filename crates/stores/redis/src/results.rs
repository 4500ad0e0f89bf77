//! Collects the replies and effects of a batch.

use std::collections::BTreeMap;

use taskyard_core::{Command, Effects, Error, NewEvents, Reply, TubeName};
use taskyard_redis::{Answer, Failure};

use super::Redis;
use super::answers::{AnswerParts, OtherState, SemaphoreHead, TubeHead};
use super::codec::Unreadable;
use super::execute::{TubeGroup, is_read_only};
use super::failure::error;
use super::replicas;
use taskyard_store::Executed;

/// The replies and effects of a batch so far.
pub(super) struct Results<'a> {
    pub shared: &'a Redis,
    pub replies: Vec<Option<Result<Reply, Error>>>,
    ready: BTreeMap<TubeName, u64>,
    room: BTreeMap<TubeName, u64>,
    failed: BTreeMap<TubeName, u64>,
    /// The semaphores that may have new events.
    pub events: NewEvents,
    keys_freed_early: u64,
    /// Whether the connection is lost: later commands are not sent.
    pub lost: bool,
    /// Why the change of a command that was sent alone may be undone by a failover.
    pub short: Option<String>,
}

/// The result of a call to a tube.
pub(super) enum CallResult {
    /// The replies are recorded.
    SemaphoreAnswer,
    /// The tube does not exist.
    Absent(TubeHead),
    /// The call was not done.
    Failed(Failure),
}

/// The lease numbers of some calls, and which of them are used.
pub(super) struct Leases {
    /// The first number that none of them may use.
    pub end: u64,
    /// The first number that none of them has used, if known.
    pub unused: Option<u64>,
}

impl Leases {
    pub fn of(ranges: &[(u64, u64)]) -> Self {
        let end = ranges.last().map_or(0, |(_, end)| *end);
        Leases { end, unused: ranges.first().map(|(first, _)| *first) }
    }
}

impl<'a> Results<'a> {
    /// Results for this number of commands, none of which has a reply yet.
    pub fn new(shared: &'a Redis, count: usize) -> Self {
        Results {
            shared,
            replies: vec![None; count],
            ready: BTreeMap::new(),
            room: BTreeMap::new(),
            failed: BTreeMap::new(),
            events: NewEvents::Nothing,
            keys_freed_early: 0,
            lost: false,
            short: None,
        }
    }
}

impl Results<'_> {
    pub fn end(self) -> Executed {
        let missing = || Err(Error::Store("the store did not answer".into()));
        let replies = self.replies.into_iter().map(|reply| reply.unwrap_or_else(missing)).collect();
        let (next_wakeup, next_schedule) = {
            let cache = self.shared.cache();
            (cache.next_wakeup(), cache.next_schedule())
        };
        let effects = Effects {
            ready: self.ready.into_iter().collect(),
            room: self.room.into_iter().collect(),
            failed: self.failed.into_iter().collect(),
            events: self.events,
            next_wakeup,
            next_schedule,
            keys_freed_early: self.keys_freed_early,
        };
        Executed { replies, effects, unloaded: Vec::new() }
    }

    pub fn answer(&mut self, place: usize, reply: Result<Reply, Error>) {
        self.replies[place] = Some(reply);
    }

    /// Answers all commands that have no reply yet.
    pub fn answer_rest(&mut self, error: &Error) {
        for reply in self.replies.iter_mut().filter(|reply| reply.is_none()) {
            *reply = Some(Err(error.clone()));
        }
    }

    /// Records a failure: Redis is corrected if the call may have been done.
    pub fn note(&mut self, failure: &Failure) {
        if failure.may_be_done() {
            self.shared.cache().request_resync();
        }
        self.lost |= matches!(failure, Failure::Lost(_));
    }

    /// Records the answer of a tube to a call that may use these lease numbers.
    pub fn apply_answer(
        &mut self,
        group: &TubeGroup,
        answer: Answer,
        range: (u64, u64),
        leases: &mut Leases,
    ) -> CallResult {
        let (answer, short) = replicas::split(answer);
        match answer.map(AnswerParts::new) {
            Ok(Ok((head, _))) if !head.present => return CallResult::Absent(head),
            Ok(Ok((head, parts))) => {
                self.read(group, &head, parts);
                leases.unused = leases.unused.map(|unused| unused.max(self.unused(group)));
                if let Some(why) = short {
                    // The whole range is undone.
                    leases.unused = None;
                    self.replace_unreplicated(group, &why, range);
                }
            }
            Ok(Err(why)) => {
                leases.unused = None;
                self.unacknowledged(group, range);
                group.indexes().for_each(|place| self.answer(place, misread(&why)));
            }
            Err(failure) if failure.may_be_done() => {
                leases.unused = None;
                self.unacknowledged(group, range);
                self.fail(group, &failure);
            }
            Err(failure) => return CallResult::Failed(failure),
        }
        CallResult::SemaphoreAnswer
    }

    /// Reads the answer of a tube.
    fn read(&mut self, group: &TubeGroup, head: &TubeHead, mut parts: AnswerParts) {
        let mut changed = false;
        for run in group.runs() {
            let replies = parts.replies(&group.tube, run);
            let replies = replies.unwrap_or_else(|why| vec![misread(&why); run.len()]);
            for ((place, command), reply) in run.iter().zip(replies) {
                changed |= has_changed(command, &reply);
                self.answer(*place, reply);
            }
        }
        self.learn(&group.tube, head, changed);
        if head.gated {
            self.learn_others(&mut parts);
        }
    }

    /// The first lease number after all that these takes got; all count as used if a reply could not be read.
    fn unused(&self, group: &TubeGroup) -> u64 {
        let each = group.commands.iter().map(|(place, command)| match &self.replies[*place] {
            Some(Ok(Reply::Taken(tasks))) => {
                let given = tasks.iter().filter_map(|task| task.lease);
                given.map(|lease| lease.0 + 1).max().unwrap_or(0)
            }
            Some(Err(Error::Store(_))) if matches!(command, Command::Take(_)) => u64::MAX,
            _ => 0,
        });
        each.max().unwrap_or(0)
    }

    /// Answers that the tube does not exist.
    pub fn answer_missing(&mut self, group: &TubeGroup, head: &TubeHead) {
        let missing = Error::TubeNotFound(group.tube.clone());
        group.indexes().for_each(|place| self.answer(place, Err(missing.clone())));
        self.learn(&group.tube, head, false);
    }

    /// Records the state of a tube that was called without its name, and changed.
    pub fn learn_unnamed(&mut self, head: &TubeHead) {
        if let Some(name) = head.name.clone() {
            self.learn(&name, head, true);
        }
    }

    /// Records the state of a tube after a call.
    pub fn learn(&mut self, tube: &TubeName, head: &TubeHead, changed: bool) {
        self.shared.cache().learn(tube, head);
        self.keys_freed_early += head.keys_freed_early;
        if !changed {
            return;
        }
        self.room.remove(tube);
        self.set_ready(tube, head.takeable);
        let room = if head.unlimited { Some(u64::MAX) } else { head.room };
        if let Some(room) = room.filter(|room| *room > 0) {
            self.room.insert(tube.clone(), room);
        }
    }

    /// Sets how many tasks of a tube can be taken.
    pub fn set_ready(&mut self, tube: &TubeName, takeable: u64) {
        self.ready.remove(tube);
        if takeable > 0 {
            self.ready.insert(tube.clone(), takeable);
        }
    }

    /// Notes that deliveries of a tube failed without a command for them.
    pub fn note_failed(&mut self, tube: Option<&TubeName>, count: u64) {
        if let Some(tube) = tube.filter(|_| count > 0) {
            *self.failed.entry(tube.clone()).or_default() += count;
        }
    }

    /// Records the state of a semaphore.
    pub fn learn_semaphore(&mut self, head: &SemaphoreHead) {
        if head.has_new_events {
            self.events.add_key(&head.key);
        }
        self.shared.cache().semaphores.learn(head);
    }

    /// Records the states of other tubes and semaphores that a call changed.
    pub fn learn_others(&mut self, parts: &mut AnswerParts) {
        let others = parts.others().unwrap_or_else(|why| {
            tracing::error!(%why, "cannot read an answer of Redis");
            Vec::new()
        });
        for other in others {
            match other {
                OtherState::Tube { name, takeable, next } => {
                    self.shared.cache().deadlines.set(&name, next);
                    self.set_ready(&name, takeable);
                }
                OtherState::Semaphore(head) => self.learn_semaphore(&head),
            }
        }
    }

    /// Refuses puts because Redis is full. Answers the group without them, to be sent again.
    pub fn without_puts(&mut self, mut group: TubeGroup) -> Option<TubeGroup> {
        group.commands.retain(|(place, command)| {
            let is_put = matches!(command, Command::Put { .. });
            if is_put {
                self.replies[*place] = Some(Err(error(&Failure::Full)));
            }
            !is_put
        });
        (!group.commands.is_empty()).then_some(group)
    }

    pub fn fail(&mut self, group: &TubeGroup, failure: &Failure) {
        self.note(failure);
        for place in group.indexes() {
            self.answer(place, Err(error(failure)));
        }
    }
}

/// Whether waiting callers may find something now.
pub(super) fn has_changed(command: &Command, reply: &Result<Reply, Error>) -> bool {
    match reply {
        Err(_) => false,
        Ok(Reply::Taken(tasks)) => !tasks.is_empty(),
        Ok(_) => !is_read_only(command),
    }
}

pub(super) fn misread(why: &Unreadable) -> Result<Reply, Error> {
    tracing::error!(%why, "cannot read an answer of Redis");
    let what = "the call was done, but the answer of Redis cannot be read; see the log";
    Err(Error::Store(what.into()))
}

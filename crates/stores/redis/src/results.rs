//! What came of a batch so far.

use std::collections::BTreeMap;

use taskyard_core::{Command, Effects, Error, News, Reply, TubeName};
use taskyard_redis::{Answer, Failure};

use super::Redis;
use super::answers::{Head, Other, Parts, SemaphoreHead};
use super::codec::Unreadable;
use super::execute::{Group, only_looks};
use super::failure::error;
use super::replicas;
use taskyard_store::Executed;

/// What came of a batch so far.
pub(super) struct Results<'a> {
    pub shared: &'a Redis,
    pub replies: Vec<Option<Result<Reply, Error>>>,
    ready: BTreeMap<TubeName, u64>,
    room: BTreeMap<TubeName, u64>,
    /// Of which semaphores there may be new events.
    pub events: News,
    /// Redis was lost: what comes after is not asked.
    pub lost: bool,
    /// Why what a command changed that was asked alone may be undone.
    pub short: Option<String>,
}

/// What became of the answer of a tube.
pub(super) enum Taken {
    /// Whoever asked is answered.
    In,
    /// There is no such tube.
    Absent(Head),
    /// It was not done.
    Not(Failure),
}

/// The lease numbers of some calls, and which of them are used.
pub(super) struct Leases {
    /// The first that none of them may use.
    pub end: u64,
    /// The first that none of them has used, as far as that is known.
    pub unused: Option<u64>,
}

impl Leases {
    pub fn of(ranges: &[(u64, u64)]) -> Self {
        let end = ranges.last().map_or(0, |(_, end)| *end);
        Leases { end, unused: ranges.first().map(|(first, _)| *first) }
    }
}

impl<'a> Results<'a> {
    /// Of so many commands, none of which is answered.
    pub fn new(shared: &'a Redis, count: usize) -> Self {
        let (ready, room) = (BTreeMap::new(), BTreeMap::new());
        let (events, lost, short) = (News::Nothing, false, None);
        Results { shared, replies: vec![None; count], ready, room, events, lost, short }
    }
}

impl Results<'_> {
    pub fn end(self) -> Executed {
        let missing = || Err(Error::Store("the store did not answer".into()));
        let replies = self.replies.into_iter().map(|reply| reply.unwrap_or_else(missing)).collect();
        let effects = Effects {
            ready: self.ready.into_iter().collect(),
            room: self.room.into_iter().collect(),
            events: self.events,
            next_wakeup: self.shared.known().next_wakeup(),
        };
        Executed { replies, effects, unloaded: Vec::new() }
    }

    pub fn answer(&mut self, place: usize, reply: Result<Reply, Error>) {
        self.replies[place] = Some(reply);
    }

    /// Answers all that have no answer yet.
    pub fn answer_rest(&mut self, error: &Error) {
        for reply in self.replies.iter_mut().filter(|reply| reply.is_none()) {
            *reply = Some(Err(error.clone()));
        }
    }

    /// Keeps in mind that something was lost.
    pub fn note(&mut self, failure: &Failure) {
        if failure.may_be_done() {
            self.shared.known().doubt();
        }
        self.lost |= matches!(failure, Failure::Lost(_));
    }

    /// Takes in what a tube answered to calls that may use these lease numbers.
    pub fn take_in(
        &mut self,
        group: &Group,
        answer: Answer,
        range: (u64, u64),
        leases: &mut Leases,
    ) -> Taken {
        let (answer, short) = replicas::split(answer);
        match answer.map(Parts::new) {
            Ok(Ok((head, _))) if !head.present => return Taken::Absent(head),
            Ok(Ok((head, parts))) => {
                self.read(group, &head, parts);
                leases.unused = leases.unused.map(|unused| unused.max(self.unused(group)));
                if let Some(why) = short {
                    // The whole range is given back with what was taken.
                    leases.unused = None;
                    self.doubt_replies(group, &why, range);
                }
            }
            Ok(Err(why)) => {
                leases.unused = None;
                self.unheard(group, range);
                group.places().for_each(|place| self.answer(place, misread(&why)));
            }
            Err(failure) if failure.may_be_done() => {
                leases.unused = None;
                self.unheard(group, range);
                self.fail(group, &failure);
            }
            Err(failure) => return Taken::Not(failure),
        }
        Taken::In
    }

    /// Reads what a tube answered.
    fn read(&mut self, group: &Group, head: &Head, mut parts: Parts) {
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

    /// The first lease number that is greater than all that these were given; all count as given where one reply could not be read.
    fn unused(&self, group: &Group) -> u64 {
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

    /// There is no such tube.
    pub fn miss(&mut self, group: &Group, head: &Head) {
        let missing = Error::TubeNotFound(group.tube.clone());
        group.places().for_each(|place| self.answer(place, Err(missing.clone())));
        self.learn(&group.tube, head, false);
    }

    /// Takes in how a tube stands that was asked without its name, and changed.
    pub fn learn_unnamed(&mut self, head: &Head) {
        if let Some(name) = head.name.clone() {
            self.learn(&name, head, true);
        }
    }

    /// Takes in how a tube stands after a call that changed something, or did not.
    pub fn learn(&mut self, tube: &TubeName, head: &Head, changed: bool) {
        self.shared.known().learn(tube, head);
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

    /// Says how many tasks of a tube can be taken.
    pub fn set_ready(&mut self, tube: &TubeName, takeable: u64) {
        self.ready.remove(tube);
        if takeable > 0 {
            self.ready.insert(tube.clone(), takeable);
        }
    }

    /// Takes in how a semaphore stands.
    pub fn learn_semaphore(&mut self, head: &SemaphoreHead) {
        if head.news {
            self.events.add_key(&head.key);
        }
        self.shared.known().semaphores.learn(head);
    }

    /// Takes in what a call did to others than it was for.
    pub fn learn_others(&mut self, parts: &mut Parts) {
        let others = parts.others().unwrap_or_else(|why| {
            tracing::error!(%why, "an answer of Redis could not be read");
            Vec::new()
        });
        for other in others {
            match other {
                Other::Tube { name, takeable, next } => {
                    self.shared.known().moments.set(&name, next);
                    self.set_ready(&name, takeable);
                }
                Other::Semaphore(head) => self.learn_semaphore(&head),
            }
        }
    }

    /// Redis has no room: puts are refused, and the rest is asked again without them.
    pub fn without_puts(&mut self, mut group: Group) -> Option<Group> {
        group.commands.retain(|(place, command)| {
            let is_put = matches!(command, Command::Put { .. });
            if is_put {
                self.replies[*place] = Some(Err(error(&Failure::Full)));
            }
            !is_put
        });
        (!group.commands.is_empty()).then_some(group)
    }

    pub fn fail(&mut self, group: &Group, failure: &Failure) {
        self.note(failure);
        for place in group.places() {
            self.answer(place, Err(error(failure)));
        }
    }
}

/// Whether those who wait may find something now.
pub(super) fn has_changed(command: &Command, reply: &Result<Reply, Error>) -> bool {
    match reply {
        Err(_) => false,
        Ok(Reply::Taken(tasks)) => !tasks.is_empty(),
        Ok(_) => !only_looks(command),
    }
}

pub(super) fn misread(why: &Unreadable) -> Result<Reply, Error> {
    tracing::error!(%why, "an answer of Redis could not be read");
    let what = "it was done, but the answer of Redis could not be read; see the log";
    Err(Error::Store(what.into()))
}

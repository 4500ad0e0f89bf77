//! Jobs under way: which of their commands are answered, and which are not.

use std::collections::HashMap;

use taskyard_core::{Reply, Result, TubeName};
use taskyard_store::Unloaded;
use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::inbox::JobId;
use crate::waiters::WaiterId;

/// Where a reply belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which job under way.
    pub slot: usize,
    /// Which of its commands.
    pub index: usize,
}

/// All jobs under way.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    slots: Vec<Option<Open>>,
    free: Vec<usize>,
    /// Jobs of which something is parked, so that a caller who leaves is found.
    parked: HashMap<JobId, usize>,
    finished: Vec<usize>,
}

/// A job that is not answered yet.
#[derive(Debug)]
struct Open {
    id: JobId,
    reply: Option<oneshot::Sender<Answer>>,
    answer: Answer,
    unanswered: usize,
    waiters: Vec<WaiterId>,
}

impl Jobs {
    /// Opens a job of `count` commands.
    pub fn open(
        &mut self,
        id: JobId,
        count: usize,
        takes: Vec<(usize, TubeName)>,
        reply: Option<oneshot::Sender<Answer>>,
    ) -> usize {
        let replies = Vec::with_capacity(count);
        let answer = Answer { replies, takes, unloaded: Vec::new() };
        let open = Some(Open { id, reply, answer, unanswered: count, waiters: Vec::new() });
        if let Some(slot) = self.free.pop() {
            self.slots[slot] = open;
            return slot;
        }
        self.slots.push(open);
        self.slots.len() - 1
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self, slot: usize) -> bool {
        let open = self.slots[slot].as_ref();
        open.and_then(|open| open.reply.as_ref()).is_some_and(oneshot::Sender::is_closed)
    }

    /// Answers one command. Each command is answered once.
    pub fn answer(&mut self, place: Place, reply: Result<Reply>) {
        let Some(open) = &mut self.slots[place.slot] else { return };
        let replies = &mut open.answer.replies;
        if place.index < replies.len() {
            replies[place.index] = reply;
        } else {
            // Answers of commands that wait come later; until then something must stand there.
            replies.resize_with(place.index, || Ok(Reply::Nothing));
            replies.push(reply);
        }
        open.unanswered -= 1;
        if open.unanswered == 0 {
            self.finished.push(place.slot);
        }
    }

    /// Notes that a task in the reply at `place` lacks its body.
    pub fn lacks_body(&mut self, place: Place, unloaded: Unloaded) {
        if let Some(open) = &mut self.slots[place.slot] {
            open.answer.unloaded.push(Unloaded { reply: place.index, ..unloaded });
        }
    }

    /// Notes that a command of this job is parked.
    pub fn park(&mut self, slot: usize, waiter: WaiterId) {
        if let Some(open) = &mut self.slots[slot] {
            open.waiters.push(waiter);
            self.parked.insert(open.id, slot);
        }
    }

    /// What was parked for the job of this caller. Some of it may be answered by now.
    pub fn waiters_of(&self, id: JobId) -> Vec<WaiterId> {
        let open = self.parked.get(&id).and_then(|slot| self.slots[*slot].as_ref());
        open.map(|open| open.waiters.clone()).unwrap_or_default()
    }

    /// Sends the answer of every job that is complete, and hands out those that nobody received.
    pub fn send_finished(&mut self, mut undelivered: impl FnMut(Answer)) {
        for slot in self.finished.drain(..) {
            let Some(open) = self.slots[slot].take() else { continue };
            self.free.push(slot);
            if !open.waiters.is_empty() {
                self.parked.remove(&open.id);
            }
            if let Some(reply) = open.reply
                && let Err(answer) = reply.send(open.answer)
            {
                undelivered(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_leaves_when_its_last_reply_is_there_in_any_order() {
        let mut jobs = Jobs::default();
        let (reply, mut receiver) = oneshot::channel();
        let slot = jobs.open(7, 3, Vec::new(), Some(reply));
        for (index, kicked) in [(2, 30), (0, 10)] {
            jobs.answer(Place { slot, index }, Ok(Reply::Kicked(kicked)));
            jobs.send_finished(|_| panic!("nothing is complete"));
            assert!(receiver.try_recv().is_err());
        }
        jobs.answer(Place { slot, index: 1 }, Ok(Reply::Kicked(20)));
        jobs.send_finished(|_| panic!("somebody listens"));
        let expected: Vec<_> = [10, 20, 30].map(|kicked| Ok(Reply::Kicked(kicked))).into();
        assert_eq!(receiver.try_recv().unwrap().replies, expected);
        assert_eq!(jobs.open(8, 1, Vec::new(), None), slot, "the slot is used again");
    }

    #[test]
    fn what_nobody_receives_is_handed_out() {
        let mut jobs = Jobs::default();
        let (reply, receiver) = oneshot::channel();
        let slot = jobs.open(7, 1, Vec::new(), Some(reply));
        drop(receiver);
        assert!(jobs.is_abandoned(slot));
        jobs.answer(Place { slot, index: 0 }, Ok(Reply::Kicked(1)));
        let mut undelivered = 0;
        jobs.send_finished(|_| undelivered += 1);
        assert_eq!(undelivered, 1);
    }
}

//! The jobs in progress: which of their commands are answered.

use std::collections::HashMap;

use taskyard_core::{Reply, Result, TubeName};
use taskyard_store::Unloaded;
use tokio::sync::oneshot;

use crate::reply::JobReply;
use crate::request::{JobId, OneOrMany};
use crate::waiters::WaiterId;

/// The place of one reply: a job and the index of a command in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplySlot {
    /// The slot of the job in [`Jobs`].
    pub job: usize,
    /// The index of the command in the job.
    pub index: usize,
}

/// All jobs in progress.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    slots: Vec<Option<OpenJob>>,
    free: Vec<usize>,
    /// Jobs with parked commands, to find them when their caller is gone.
    parked: HashMap<JobId, usize>,
    finished: Vec<usize>,
    /// How many of these did not wait.
    finished_at_once: usize,
}

/// A job that is not fully answered.
#[derive(Debug)]
struct OpenJob {
    id: JobId,
    reply: Option<oneshot::Sender<JobReply>>,
    answer: JobReply,
    unanswered: usize,
    may_wait: bool,
    waiters: Vec<WaiterId>,
}

impl Jobs {
    /// Opens a job of `count` commands, which may have to wait.
    pub fn open(
        &mut self,
        id: JobId,
        count: usize,
        takes: OneOrMany<(usize, TubeName)>,
        may_wait: bool,
        reply: Option<oneshot::Sender<JobReply>>,
    ) -> usize {
        // A single reply needs no list.
        let capacity = if count > 1 { count } else { 0 };
        let replies = OneOrMany::Many(Vec::with_capacity(capacity));
        let answer = JobReply { replies, takes, unloaded: Vec::new() };
        let waiters = Vec::new();
        let open = Some(OpenJob { id, reply, answer, unanswered: count, may_wait, waiters });
        if let Some(slot) = self.free.pop() {
            self.slots[slot] = open;
            return slot;
        }
        self.slots.push(open);
        self.slots.len() - 1
    }

    /// Whether the caller of this job is gone.
    pub fn is_abandoned(&self, slot: usize) -> bool {
        let open = self.slots[slot].as_ref();
        open.and_then(|open| open.reply.as_ref()).is_some_and(oneshot::Sender::is_closed)
    }

    /// Answers one command. Each command is answered once.
    pub fn answer(&mut self, slot: ReplySlot, reply: Result<Reply>) {
        let Some(open) = &mut self.slots[slot.job] else { return };
        match &mut open.answer.replies {
            OneOrMany::Many(replies) if slot.index < replies.len() => replies[slot.index] = reply,
            // Of several commands an earlier one would have its reply.
            OneOrMany::Many(replies) if replies.is_empty() && open.unanswered == 1 => {
                open.answer.replies = OneOrMany::One(reply);
            }
            OneOrMany::Many(replies) => {
                // Replies of waiting commands come later; until then a placeholder fills the gap.
                replies.resize_with(slot.index, || Ok(Reply::Nothing));
                replies.push(reply);
            }
            OneOrMany::One(single) => *single = reply,
        }
        open.unanswered -= 1;
        if open.unanswered == 0 {
            self.finished_at_once += usize::from(!open.may_wait && open.reply.is_some());
            self.finished.push(slot.job);
        }
    }

    /// Records that the body of a task in this reply must be loaded.
    pub fn note_missing_body(&mut self, slot: ReplySlot, unloaded: Unloaded) {
        if let Some(open) = &mut self.slots[slot.job] {
            open.answer.unloaded.push(Unloaded { reply: slot.index, ..unloaded });
        }
    }

    /// Records that a command of this job is parked.
    pub fn note_parked(&mut self, slot: usize, waiter: WaiterId) {
        if let Some(open) = &mut self.slots[slot] {
            open.waiters.push(waiter);
            self.parked.insert(open.id, slot);
        }
    }

    /// The parked commands of this job. Some may be answered by now.
    pub fn waiters_of(&self, id: JobId) -> Vec<WaiterId> {
        let open = self.parked.get(&id).and_then(|slot| self.slots[*slot].as_ref());
        open.map(|open| open.waiters.clone()).unwrap_or_default()
    }

    /// How many callers receive their reply next, of those whose commands did not wait.
    pub fn take_finished_at_once(&mut self) -> usize {
        std::mem::take(&mut self.finished_at_once)
    }

    /// Sends the reply of every finished job, and passes on those that no caller received.
    pub fn send_finished(&mut self, mut undelivered: impl FnMut(JobReply)) {
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
    fn a_job_is_answered_when_its_last_reply_is_there_in_any_order() {
        let mut jobs = Jobs::default();
        let (reply, mut receiver) = oneshot::channel();
        let slot = jobs.open(7, 3, OneOrMany::none(), false, Some(reply));
        for (index, kicked) in [(2, 30), (0, 10)] {
            jobs.answer(ReplySlot { job: slot, index }, Ok(Reply::Kicked(kicked)));
            jobs.send_finished(|_| panic!("no job is complete"));
            assert!(receiver.try_recv().is_err());
        }
        jobs.answer(ReplySlot { job: slot, index: 1 }, Ok(Reply::Kicked(20)));
        jobs.send_finished(|_| panic!("the caller is there"));
        let expected: Vec<_> = [10, 20, 30].map(|kicked| Ok(Reply::Kicked(kicked))).into();
        assert_eq!(receiver.try_recv().unwrap().replies, OneOrMany::Many(expected));
        assert_eq!(jobs.open(8, 1, OneOrMany::none(), false, None), slot, "the slot is reused");
    }

    #[test]
    fn a_single_reply_needs_no_list_and_its_caller_is_counted_unless_it_may_wait() {
        let mut jobs = Jobs::default();
        for (may_wait, counted) in [(false, 1), (true, 0)] {
            let (reply, mut receiver) = oneshot::channel();
            let slot = jobs.open(7, 1, OneOrMany::none(), may_wait, Some(reply));
            jobs.answer(ReplySlot { job: slot, index: 0 }, Ok(Reply::Kicked(1)));
            assert_eq!((jobs.take_finished_at_once(), jobs.take_finished_at_once()), (counted, 0));
            jobs.send_finished(|_| panic!("the caller is there"));
            let replies = receiver.try_recv().unwrap().replies;
            assert_eq!(replies, OneOrMany::One(Ok(Reply::Kicked(1))));
        }
        let slot = jobs.open(8, 1, OneOrMany::none(), false, None);
        jobs.answer(ReplySlot { job: slot, index: 0 }, Ok(Reply::Nothing));
        assert_eq!(jobs.take_finished_at_once(), 0, "no caller waits");
    }

    #[test]
    fn a_reply_without_receiver_is_passed_on() {
        let mut jobs = Jobs::default();
        let (reply, receiver) = oneshot::channel();
        let slot = jobs.open(7, 1, OneOrMany::none(), false, Some(reply));
        drop(receiver);
        assert!(jobs.is_abandoned(slot));
        jobs.answer(ReplySlot { job: slot, index: 0 }, Ok(Reply::Kicked(1)));
        let mut undelivered = 0;
        jobs.send_finished(|_| undelivered += 1);
        assert_eq!(undelivered, 1);
    }
}

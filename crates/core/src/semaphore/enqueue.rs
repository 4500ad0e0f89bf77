//! Enqueues tasks, and shows them.

use std::cmp::Reverse;

use crate::error::Result;
use crate::task::TaskId;
use crate::time::Timestamp;

use super::command::{EnqueueItem, Member, MemberGroup, MemberInfo, MembersPage, SemaphoreReply};
use super::entry::{EntryState, QueueEntry};
use super::key::{MemberCursor, Priority, SemaphoreKey};
use super::semaphores::Semaphores;

impl Semaphores {
    pub(super) fn enqueue(
        &mut self,
        now: Timestamp,
        key: &SemaphoreKey,
        entries: &[EnqueueItem],
    ) -> Result<SemaphoreReply> {
        let number = self.number(key)?;
        let priorities: Result<Vec<_>> =
            entries.iter().map(|wish| Priority::new(wish.priority)).collect();
        for (wish, priority) in entries.iter().zip(priorities?) {
            self.enqueue_one(now, number, wish.task, priority);
        }
        self.admit_waiters(now, number);
        let tasks = entries.iter().map(|wish| wish.task);
        Ok(SemaphoreReply::MemberInfos(self.infos(number, tasks)))
    }

    /// Adds a task, or changes its priority: its sequence number stays.
    pub(super) fn enqueue_one(
        &mut self,
        now: Timestamp,
        number: u32,
        task: TaskId,
        priority: Priority,
    ) {
        match self.queue(number).get(task) {
            Some(entry) if entry.priority == priority => {}
            Some(_) => self.change_entry(number, task, |entry| entry.priority = priority),
            None => {
                let seq = self.next_seq;
                self.next_seq += 1;
                let entry = QueueEntry { priority, seq, enqueued: now, state: EntryState::Wait };
                self.set_entry(number, task, Some(entry));
            }
        }
    }

    pub(super) fn peek(&self, key: &SemaphoreKey, tasks: &[TaskId]) -> Result<SemaphoreReply> {
        let number = self.number(key)?;
        Ok(SemaphoreReply::MemberInfos(self.infos(number, tasks.iter().copied())))
    }

    pub(super) fn members(
        &self,
        key: &SemaphoreKey,
        part: MemberGroup,
        after: Option<MemberCursor>,
        count: usize,
    ) -> Result<SemaphoreReply> {
        let queue = self.queue(self.number(key)?);
        let after = after.map(|after| (Reverse(after.priority), after.seq));
        let found = queue.members(part, after, count);
        let entries = || found.iter().filter_map(|task| Some((*task, queue.get(*task)?)));
        let last = entries().next_back().filter(|_| found.len() == count);
        let next = last.map(|(_, entry)| MemberCursor { priority: entry.priority, seq: entry.seq });
        let member =
            |(task, entry): (TaskId, &QueueEntry)| Member { tube: None, info: info(task, entry) };
        let members = entries().map(member).collect();
        Ok(SemaphoreReply::Members(MembersPage { members, next }))
    }

    fn infos(&self, number: u32, tasks: impl Iterator<Item = TaskId>) -> Vec<MemberInfo> {
        let queue = self.queue(number);
        tasks.filter_map(|task| Some(info(task, queue.get(task)?))).collect()
    }
}

fn info(task: TaskId, entry: &QueueEntry) -> MemberInfo {
    let hold = entry.hold();
    MemberInfo {
        task,
        status: entry.status(),
        priority: entry.priority,
        enqueued: entry.enqueued,
        not_before: match entry.state {
            EntryState::Delayed(until) => Some(until),
            EntryState::Wait | EntryState::Held(_) => None,
        },
        grant: hold.map(|hold| hold.grant),
        granted: hold.map(|hold| hold.granted),
        lease_until: hold.map(|hold| hold.lease_until).filter(|until| *until != Timestamp::NEVER),
        pinned: hold.is_some_and(|hold| hold.pinned),
    }
}

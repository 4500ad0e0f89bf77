//! Standing in line, and seeing who does.

use std::cmp::Reverse;

use crate::error::Result;
use crate::task::TaskId;
use crate::time::Timestamp;

use super::book::Semaphores;
use super::command::{LinePart, Member, MembersPage, SemaphoreReply, Standing, Wish};
use super::key::{LineCursor, Priority, SemaphoreKey};
use super::place::{Place, Stand};

impl Semaphores {
    pub(super) fn enqueue(
        &mut self,
        now: Timestamp,
        key: &SemaphoreKey,
        wishes: &[Wish],
    ) -> Result<SemaphoreReply> {
        let number = self.number(key)?;
        let priorities: Result<Vec<_>> =
            wishes.iter().map(|wish| Priority::new(wish.priority)).collect();
        for (wish, priority) in wishes.iter().zip(priorities?) {
            self.stand_in_line(now, number, wish.task, priority);
        }
        self.settle(now, number);
        let tasks = wishes.iter().map(|wish| wish.task);
        Ok(SemaphoreReply::Standings(self.standings(number, tasks)))
    }

    /// Adds a task, or changes its priority: its seniority stays.
    pub(super) fn stand_in_line(
        &mut self,
        now: Timestamp,
        number: u32,
        task: TaskId,
        priority: Priority,
    ) {
        match self.line(number).get(task) {
            Some(place) if place.priority == priority => {}
            Some(_) => self.replace(number, task, |place| place.priority = priority),
            None => {
                let seq = self.next_seq;
                self.next_seq += 1;
                let place = Place { priority, seq, enqueued: now, stand: Stand::Wait };
                self.place(number, task, Some(place));
            }
        }
    }

    pub(super) fn look(&self, key: &SemaphoreKey, tasks: &[TaskId]) -> Result<SemaphoreReply> {
        let number = self.number(key)?;
        Ok(SemaphoreReply::Standings(self.standings(number, tasks.iter().copied())))
    }

    pub(super) fn members(
        &self,
        key: &SemaphoreKey,
        part: LinePart,
        after: Option<LineCursor>,
        count: usize,
    ) -> Result<SemaphoreReply> {
        let line = self.line(self.number(key)?);
        let after = after.map(|after| (Reverse(after.priority), after.seq));
        let found = line.members(part, after, count);
        let places = || found.iter().filter_map(|task| Some((*task, line.get(*task)?)));
        let last = places().next_back().filter(|_| found.len() == count);
        let next = last.map(|(_, place)| LineCursor { priority: place.priority, seq: place.seq });
        let member = |(task, place): (TaskId, &Place)| Member {
            tube: None,
            standing: standing(task, place),
        };
        let members = places().map(member).collect();
        Ok(SemaphoreReply::Members(MembersPage { members, next }))
    }

    fn standings(&self, number: u32, tasks: impl Iterator<Item = TaskId>) -> Vec<Standing> {
        let line = self.line(number);
        tasks.filter_map(|task| Some(standing(task, line.get(task)?))).collect()
    }
}

fn standing(task: TaskId, place: &Place) -> Standing {
    let hold = place.hold();
    Standing {
        task,
        status: place.status(),
        priority: place.priority,
        enqueued: place.enqueued,
        not_before: match place.stand {
            Stand::Delayed(until) => Some(until),
            Stand::Wait | Stand::Held(_) => None,
        },
        grant: hold.map(|hold| hold.grant),
        granted: hold.map(|hold| hold.granted),
        lease_until: hold.map(|hold| hold.lease_until).filter(|until| *until != Timestamp::NEVER),
        pinned: hold.is_some_and(|hold| hold.pinned),
    }
}

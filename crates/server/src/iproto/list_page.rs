//! Serves `list`: a page of ids, then the tasks of these ids in portions.

use std::collections::VecDeque;

use taskyard_core::{
    Body, Command, Error, List, ListOrder, ListedTask, Reply, Result as CoreResult, State,
    StateSet, TaskId, TubeName,
};
use taskyard_iproto::{Answer, Fault};

use super::batch::FollowUp;
use super::protocol_session::{ProtocolSession, ReplyTo};
use super::replies::unexpected_reply;

/// How many tasks are read with one command: their payloads are in memory at the same time.
const PEEKED_MAX: usize = 100;
/// A page ends when its payloads have this many bytes.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// A page of tasks that is being read.
#[derive(Debug)]
pub(super) struct ListPage {
    tube: TubeName,
    states: StateSet,
    limit: usize,
    /// Listed and not read yet.
    listed: VecDeque<TaskId>,
    /// Whether tasks may follow those that are listed.
    more: bool,
    /// How many tasks the next command reads.
    together: usize,
    tasks: Vec<(TaskId, State, Option<Body>)>,
    /// The last task that was read, whether or not it still existed.
    last: Option<TaskId>,
    bytes: usize,
}

impl ListPage {
    /// The page of this list.
    pub fn new(list: &List) -> Self {
        let states = match list.order {
            ListOrder::Id { states, .. } => states,
            ListOrder::Queue { .. } => StateSet::EMPTY.with(State::Ready),
        };
        ListPage {
            tube: list.tube.clone(),
            states,
            limit: list.limit,
            listed: VecDeque::new(),
            more: false,
            together: PEEKED_MAX,
            tasks: Vec::new(),
            last: None,
            bytes: 0,
        }
    }

    fn set_listed(&mut self, listed: &[ListedTask]) {
        self.more = listed.len() >= self.limit;
        self.listed = listed.iter().map(|task| task.id).collect();
    }

    /// The command that reads the next portion; `None` if the page is complete.
    fn next(&self) -> Option<Command> {
        if self.listed.is_empty() || self.bytes >= PAGE_BYTES_MAX {
            return None;
        }
        let ids = self.listed.iter().take(self.together).copied().collect();
        Some(Command::Peek { tube: self.tube.clone(), ids })
    }

    /// Adds the tasks of a portion; those that left the states of the list meanwhile are left out.
    fn add(&mut self, tasks: Vec<taskyard_core::Task>) {
        let read = self.together.min(self.listed.len());
        self.last = self.listed.drain(..read).next_back().or(self.last);
        for task in tasks {
            if self.states.contains(task.state) {
                self.bytes += task.body.as_ref().map_or(0, |body| body.payload().len());
                self.tasks.push((task.id, task.state, task.body));
            }
        }
    }

    /// Reads fewer tasks at once after a reply that would have been too large; false if it cannot.
    fn shrink(&mut self) -> bool {
        let read = self.together.min(self.listed.len());
        self.together = read / 2;
        self.together > 0
    }

    /// The tasks, and where the next page begins.
    fn into_answer(self) -> Answer<'static> {
        let more = self.more || !self.listed.is_empty();
        Answer::TaskPage { tasks: self.tasks, next: self.last.filter(|_| more) }
    }
}

impl ProtocolSession {
    /// Continues a page with the reply to its latest command.
    pub(super) fn continue_page(
        &mut self,
        reply_to: ReplyTo,
        mut page: Box<ListPage>,
        reply: CoreResult<Reply>,
    ) -> Result<(), Fault> {
        match reply {
            Ok(Reply::Listed(listed)) => page.set_listed(&listed),
            Ok(Reply::Tasks(tasks)) => page.add(tasks),
            Err(Error::TooLarge { .. }) if page.shrink() => {}
            Ok(_) => return Err(self.fault(reply_to, &unexpected_reply())),
            Err(error) => return Err(self.fault(reply_to, &error)),
        }
        match page.next() {
            Some(peek) => {
                self.push(reply_to, peek, FollowUp::ContinuePage(page));
                self.submit();
            }
            None => self.send_answer(reply_to, &page.into_answer()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(limit: usize, listed: u64) -> ListPage {
        let order = ListOrder::Id { states: StateSet::ALL, after: None };
        let mut page =
            ListPage::new(&List { tube: TubeName::new("mail").unwrap(), order, limit, key: None });
        let listed: Vec<_> = (0..listed).map(|id| ListedTask { id: TaskId(id), pri: 0 }).collect();
        page.set_listed(&listed);
        page
    }

    fn next_of(page: ListPage) -> Option<TaskId> {
        match page.into_answer() {
            Answer::TaskPage { next, .. } => next,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_is_read_in_portions() {
        let mut portions = Vec::new();
        let mut reading = page(250, 250);
        while let Some(Command::Peek { ids, .. }) = reading.next() {
            portions.push(ids.len());
            reading.add(Vec::new());
        }
        assert_eq!(portions, [100, 100, 50]);
        assert_eq!(next_of(reading), Some(TaskId(249)));
        let mut last = page(250, 2);
        last.add(Vec::new());
        assert_eq!(next_of(last), None, "no task follows");
        assert_eq!(next_of(page(250, 0)), None);
    }

    #[test]
    fn a_page_with_large_payloads_ends_early() {
        let mut large = page(250, 150);
        large.add(Vec::new());
        large.bytes = PAGE_BYTES_MAX;
        assert_eq!(large.next(), None);
        assert_eq!(next_of(large), Some(TaskId(99)));
    }

    #[test]
    fn fewer_tasks_are_read_after_a_reply_that_is_too_large() {
        let mut reading = page(250, 3);
        assert!(reading.shrink());
        assert!(matches!(reading.next(), Some(Command::Peek { ids, .. }) if ids.len() == 1));
        assert!(!reading.shrink(), "one task is the least");
    }
}

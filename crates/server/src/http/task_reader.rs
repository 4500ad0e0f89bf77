//! Reads the tasks of a list part by part, as a peek shows them.
//!
//! Stores list ids by state, and a peek shows the tasks of these ids. In a search most ids of a tube have a task in one of the
//! states, so the ids that follow are peeked at without a list of them, until too few of them have one. A search of payloads names
//! bytes that they must have, so that a store need not send the others.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use taskyard_core::limits::{LIST_TASKS_MAX, TASK_ID_MAX};
use taskyard_core::search::count_with_run;
use taskyard_core::{
    Command, Error, Found, List, ListOrder, ListedTask, Reason, Reply, Search, Span, State, Task,
    TaskId, TubeName,
};

use super::part_size::{MeasuredPart, PART_BYTES, PartSize, within_bytes};
use super::{Refusal, RequestApp, RunError};
use crate::app::unexpected_reply;

/// At least one of this many consecutive ids has a task of the list, or the ids are listed first.
const DENSE_SHARE: u64 = 4;

/// A store compares payloads if at most one of this many is expected to have the bytes of a search.
const SENT_SHARE: u64 = 4;

/// A search ends when its commands took so long; it goes on with the next request.
const SEARCH_TIME: Span = Span::from_secs(2);

/// Tasks that follow each other in a list.
pub(super) struct Part {
    /// The tasks, in the order of the list. If the store compared payloads, only those that may be found.
    pub tasks: Vec<Task>,
    /// For each of them, how many tasks of the list were read up to it, with itself.
    pub ranks: Vec<u64>,
    /// How many tasks of the list were read.
    pub read: u64,
    /// The list after them.
    pub end: ListOrder,
    /// Whether no task follows.
    pub is_last: bool,
}

impl Part {
    /// Whether there is memory for the next part beside this one.
    pub fn is_small(&self) -> bool {
        payload_bytes(&self.tasks) <= PART_BYTES
    }
}

/// Reads a list. It knows nothing of what its tasks are compared with.
pub(super) struct TaskReader {
    /// The list after the tasks that were read.
    list: List,
    /// How many more tasks may be read.
    left: usize,
    /// The size of the next part.
    size: PartSize,
    /// Whether ids may be peeked at that were not listed.
    is_search: bool,
    /// Bytes that the payloads of all tasks have that the search may find.
    run: Option<Arc<[u8]>>,
    /// Whether few of the tasks that follow are expected to have these bytes. Otherwise the store need not compare payloads, because it
    /// sends most of them.
    is_selective: bool,
    /// Whether most of the ids that follow are expected to have a task of the list.
    is_dense: bool,
    /// Listed and not read yet.
    listed: VecDeque<ListedTask>,
    /// Whether no task follows those that are listed.
    is_last: bool,
}

impl TaskReader {
    /// Reads the tasks of a list, as many as it may have.
    pub fn of_page(list: List) -> Self {
        TaskReader {
            left: list.limit,
            list,
            size: PartSize::first(),
            is_search: false,
            run: None,
            is_selective: true,
            is_dense: false,
            listed: VecDeque::new(),
            is_last: false,
        }
    }

    /// Reads the tasks of a list for a search among them, at most this many. With `run` those may be left out whose payloads do not
    /// have these bytes.
    pub fn of_search(list: List, tasks_max: usize, run: Option<&[u8]>) -> Self {
        let is_search = list.key.is_none();
        // Tasks follow where an earlier search stopped. Before the first task there may be many ids of finished ones.
        let is_dense = is_search && matches!(list.order, ListOrder::Id { after: Some(_), .. });
        let run = run.map(Arc::from);
        TaskReader { left: tasks_max, is_search, run, is_dense, ..TaskReader::of_page(list) }
    }

    /// The next part; `None` if as many tasks were read as may be.
    pub async fn next(&mut self, app: &RequestApp) -> Result<Option<Part>, Refusal> {
        if self.left == 0 {
            return Ok(None);
        }
        if let Some(ids) = self.following_ids() {
            let part = self.read_following(app, ids).await?;
            if part.read > 0 {
                return Ok(Some(part));
            }
        }
        if self.listed.is_empty() && !self.is_last {
            self.list_more(app).await?;
        }
        self.read_listed(app).await.map(Some)
    }

    /// The ids of the next part, if they are expected to have tasks of the list.
    fn following_ids(&self) -> Option<Range<u64>> {
        let ListOrder::Id { after: Some(after), .. } = self.list.order else { return None };
        if !self.is_dense || self.is_last || !self.listed.is_empty() {
            return None;
        }
        let first = after.0.checked_add(1).filter(|first| *first <= TASK_ID_MAX)?;
        let end = first.checked_add(self.size.tasks().min(self.left) as u64)?;
        Some(first..end)
    }

    /// The tasks of the list among these ids. The list goes on after the last of them: ids without a task may not have been given
    /// to one yet.
    async fn read_following(&mut self, app: &RequestApp, ids: Range<u64>) -> Result<Part, Refusal> {
        let run = self.run.clone().filter(|_| self.is_selective);
        let (found, with_run, read) = match (self.list.order, run) {
            (ListOrder::Id { states, .. }, Some(run)) => {
                let (tube, first) = (self.list.tube.clone(), TaskId(ids.start));
                let count = (ids.end - ids.start) as usize;
                let search = Search { tube, first, count, states, run };
                let (found, read) = self::search(app, search, &mut self.size).await?;
                let sent = found.tasks.len();
                (found, sent, read)
            }
            _ => {
                let ids: Vec<TaskId> = ids.map(TaskId).collect();
                let (tasks, read) = peek(app, &self.list.tube, &ids, &mut self.size).await?;
                let tasks = self.of_list(tasks);
                let with_run = self.run.as_ref().map_or(0, |run| count_with_run(&tasks, run));
                (all_of(tasks), with_run, read)
            }
        };
        self.is_selective = with_run as u64 * SENT_SHARE <= found.compared;
        self.is_dense = found.compared * DENSE_SHARE >= read as u64;
        if let Some(last) = found.last {
            self.list.order = after(self.list.order, 0, last);
        }
        Ok(self.part(found))
    }

    /// The tasks that are listed, as far as they still belong to the list.
    async fn read_listed(&mut self, app: &RequestApp) -> Result<Part, Refusal> {
        let size = self.size.tasks().min(self.left).min(self.listed.len());
        let ids: Vec<TaskId> = self.listed.iter().take(size).map(|place| place.id).collect();
        if ids.is_empty() {
            return Ok(self.part(Found::default()));
        }
        let (tasks, read) = peek(app, &self.list.tube, &ids, &mut self.size).await?;
        if let Some(last) = self.listed.drain(..read).next_back() {
            self.list.order = after(self.list.order, last.pri, last.id);
        }
        let tasks = self.of_list(tasks);
        Ok(self.part(all_of(tasks)))
    }

    async fn list_more(&mut self, app: &RequestApp) -> Result<(), Refusal> {
        let limit = self.left.min(LIST_TASKS_MAX);
        let list = List { limit, ..self.list.clone() };
        let Reply::Listed(listed) = app.run(Command::List(list)).await? else {
            return Err(unexpected_reply());
        };
        self.is_last = listed.len() < limit;
        self.is_dense = self.is_search && is_dense(&listed);
        self.listed = listed.into();
        Ok(())
    }

    /// Those of these tasks that belong to the list: a task may have changed since its id was listed.
    fn of_list(&self, mut tasks: Vec<Task>) -> Vec<Task> {
        tasks.retain(|task| {
            task.reason != Reason::Expired
                && match self.list.order {
                    ListOrder::Id { states, .. } => states.contains(task.state),
                    ListOrder::Queue { .. } => task.state == State::Ready,
                }
        });
        tasks
    }

    fn part(&mut self, found: Found) -> Part {
        let Found { tasks, ranks, compared: read, .. } = found;
        // A part without tasks does not end it: the next request would begin at the same place.
        let is_over = self.is_search && read > 0 && self.size.spent() >= SEARCH_TIME;
        let read_now = usize::try_from(read).unwrap_or(usize::MAX);
        self.left = if is_over { 0 } else { self.left.saturating_sub(read_now) };
        let is_last = self.is_last && self.listed.is_empty();
        Part { tasks, ranks, read, end: self.list.order, is_last }
    }
}

/// The same order after this task.
pub(super) fn after(order: ListOrder, pri: u64, id: TaskId) -> ListOrder {
    match order {
        ListOrder::Id { states, .. } => ListOrder::Id { states, after: Some(id) },
        ListOrder::Queue { .. } => ListOrder::Queue { after: Some((pri, id)) },
    }
}

/// The tasks with these ids that still exist, in this order, and how many of the ids were looked up: fewer if the tasks of all
/// are too large for one reply. Sets the size of the next part.
async fn peek(
    app: &RequestApp,
    tube: &TubeName,
    ids: &[TaskId],
    next: &mut PartSize,
) -> Result<(Vec<Task>, usize), Refusal> {
    let mut count = ids.len();
    loop {
        let ids = ids[..count].to_vec();
        let begun = app.engine.now();
        match app.run(Command::Peek { tube: tube.clone(), ids }).await {
            Ok(Reply::Tasks(tasks)) => {
                let (bytes, took) = (payload_bytes(&tasks), app.engine.now().since(begun));
                next.record(MeasuredPart { ids: count, tasks: tasks.len(), bytes, took });
                return Ok((tasks, count));
            }
            Err(RunError::Failed(Error::TooLarge { size, .. })) if count > 1 => {
                count = within_bytes(count, size).min(count / 2);
            }
            Ok(_) => return Err(unexpected_reply()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The tasks that a search of payloads may find, and how many of its ids were looked up: fewer if the payloads are too large for
/// one command. Sets the size of the next part.
async fn search(
    app: &RequestApp,
    mut search: Search,
    next: &mut PartSize,
) -> Result<(Found, usize), Refusal> {
    loop {
        let (count, begun) = (search.count, app.engine.now());
        match app.run(Command::Search(search.clone())).await {
            Ok(Reply::Found(found)) => {
                let bytes = usize::try_from(found.bytes).unwrap_or(usize::MAX);
                let (tasks, took) = (found.tasks.len(), app.engine.now().since(begun));
                next.record(MeasuredPart { ids: count, tasks, bytes, took });
                return Ok((found, count));
            }
            Err(RunError::Failed(Error::TooLarge { size, .. })) if count > 1 => {
                search.count = within_bytes(count, size).min(count / 2);
            }
            Ok(_) => return Err(unexpected_reply()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tasks that are all to be compared here.
fn all_of(tasks: Vec<Task>) -> Found {
    let (compared, last) = (tasks.len() as u64, tasks.last().map(|task| task.id));
    Found { ranks: (1..=compared).collect(), tasks, compared, last, bytes: 0 }
}

/// How many of these ids exist.
pub(super) async fn count_existing(
    app: &RequestApp,
    tube: &TubeName,
    mut ids: &[TaskId],
) -> Result<u64, Refusal> {
    let (mut count, mut size) = (0, PartSize::first());
    while !ids.is_empty() {
        let part = &ids[..ids.len().min(size.tasks())];
        let (tasks, read) = peek(app, tube, part, &mut size).await?;
        count += tasks.len() as u64;
        ids = &ids[read..];
    }
    Ok(count)
}

/// Whether so many of the ids between the first and the last of these belong to them that those that follow are expected to have tasks
/// as well.
fn is_dense(listed: &[ListedTask]) -> bool {
    let (Some(first), Some(last)) = (listed.first(), listed.last()) else { return false };
    last.id.0.saturating_sub(first.id.0) < listed.len() as u64 * DENSE_SHARE
}

fn payload_bytes(tasks: &[Task]) -> usize {
    tasks.iter().filter_map(|task| Some(task.body.as_ref()?.bytes() as usize)).sum()
}

//! Finds the tasks that meet a filter, and reads them page by page.
//!
//! Stores list ids by state; what else a query asks for is compared here, with the tasks as a peek shows them. So a search is a
//! sequence of short commands, between which others run.

use std::collections::VecDeque;

use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{
    Command, Error, List, ListOrder, ListedTask, Reply, State, Task, TaskId, TubeName,
};
use taskyard_wire::http::{TaskFilter, TaskPageAnswer, cursor};

use super::Refusal;
use crate::app::{App, unexpected_reply};

/// Maximum number of tasks that one request compares with a filter.
const SCANNED_MAX: u64 = 5_000;
/// How many tasks are read with the first command: their payloads are in memory at the same time.
const PEEKED_FIRST: usize = 100;
/// Twice as many tasks are read with the next command while their payloads have at most this many bytes.
const PEEKED_BYTES: usize = 64 << 10;

/// Reads a page.
pub(super) async fn read(
    app: &App,
    list: List,
    filter: TaskFilter,
) -> Result<TaskPageAnswer, Refusal> {
    let mut scan = Scan::new(list, filter);
    let mut tasks = Vec::new();
    while let Some(found) = scan.next(app).await? {
        tasks.extend(found.iter().map(TaskPageAnswer::task));
    }
    Ok(TaskPageAnswer { tasks, next: scan.cursor, scanned: scan.scanned })
}

/// A search for the tasks of a list that meet a filter. It ends when it has found as many as the list may have, when no task
/// follows, or when it has compared enough tasks.
pub(super) struct Scan {
    list: List,
    filter: TaskFilter,
    /// How many more tasks may be found.
    left: usize,
    /// Listed and not compared yet.
    listed: VecDeque<ListedTask>,
    /// Whether no task follows those that are listed.
    is_last: bool,
    /// How many tasks are read with the next command.
    together: usize,
    /// Where the next search begins; `None` if no task follows.
    pub cursor: Option<String>,
    /// How many tasks were compared.
    pub scanned: u64,
}

impl Scan {
    pub fn new(list: List, filter: TaskFilter) -> Self {
        let (left, listed) = (list.limit, VecDeque::new());
        let (is_last, together) = (false, PEEKED_FIRST);
        Scan { list, filter, left, listed, is_last, together, cursor: None, scanned: 0 }
    }

    /// The tasks that the next part of the list has, perhaps none; `None` at the end of the search.
    pub async fn next(&mut self, app: &App) -> Result<Option<Vec<Task>>, Refusal> {
        if self.listed.is_empty() {
            if self.is_last {
                return Ok(None);
            }
            if self.left == 0 || self.scanned >= SCANNED_MAX {
                self.cursor = cursor(&self.list.order);
                return Ok(None);
            }
            self.list_more(app).await?;
        }
        let part = self.listed.len().min(self.together);
        let ids: Vec<TaskId> = self.listed.iter().take(part).map(|place| place.id).collect();
        let tasks = peek(app, &self.list.tube, &ids).await?;
        let sizes = tasks.iter().filter_map(|task| Some(task.body.as_ref()?.bytes() as usize));
        if sizes.sum::<usize>() <= PEEKED_BYTES {
            self.together = (2 * self.together).min(LIST_TASKS_MAX);
        } else {
            self.together = PEEKED_FIRST;
        }
        let mut tasks = tasks.into_iter().peekable();
        let mut found = Vec::new();
        for _ in 0..part {
            if self.left == 0 {
                break;
            }
            let Some(place) = self.listed.pop_front() else { break };
            self.list.order = after(self.list.order, &place);
            self.scanned += 1;
            let task = tasks.next_if(|task| task.id == place.id);
            let task = task.filter(|task| is_listed(&self.list, task) && self.filter.matches(task));
            if let Some(task) = task {
                self.left -= 1;
                found.push(task);
            }
        }
        if self.left == 0 && !self.listed.is_empty() {
            // The rest belongs to the next search.
            self.listed.clear();
            self.is_last = false;
        }
        Ok(Some(found))
    }

    async fn list_more(&mut self, app: &App) -> Result<(), Refusal> {
        let limit = if self.filter.is_empty() { self.left } else { LIST_TASKS_MAX };
        let list = List { limit, ..self.list.clone() };
        let Reply::Listed(listed) = app.run(Command::List(list)).await? else {
            return Err(unexpected_reply());
        };
        self.is_last = listed.len() < limit;
        self.listed = listed.into();
        Ok(())
    }
}

/// The tasks with these ids that still exist, in this order. If they are too large for one reply, fewer at a time.
async fn peek(app: &App, tube: &TubeName, ids: &[TaskId]) -> Result<Vec<Task>, Refusal> {
    let mut tasks = Vec::with_capacity(ids.len());
    let (mut rest, mut together) = (ids, ids.len());
    while !rest.is_empty() {
        let (some, others) = rest.split_at(together.min(rest.len()));
        match app.run(Command::Peek { tube: tube.clone(), ids: some.to_vec() }).await {
            Ok(Reply::Tasks(some)) => {
                tasks.extend(some);
                rest = others;
            }
            Err(Error::TooLarge { .. }) if together > 1 => together /= 2,
            Ok(_) => return Err(unexpected_reply()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(tasks)
}

/// How many of these ids exist.
pub(super) async fn count_existing(
    app: &App,
    tube: &TubeName,
    ids: &[TaskId],
) -> Result<u64, Refusal> {
    let mut count = 0;
    for part in ids.chunks(PEEKED_FIRST) {
        count += peek(app, tube, part).await?.len() as u64;
    }
    Ok(count)
}

/// Whether a task is still in a state of the list: it may have changed since its id was listed.
fn is_listed(list: &List, task: &Task) -> bool {
    match list.order {
        ListOrder::Id { states, .. } => states.contains(task.state),
        ListOrder::Queue { .. } => task.state == State::Ready,
    }
}

/// The same order after this task.
fn after(order: ListOrder, place: &ListedTask) -> ListOrder {
    match order {
        ListOrder::Id { states, .. } => ListOrder::Id { states, after: Some(place.id) },
        ListOrder::Queue { .. } => ListOrder::Queue { after: Some((place.pri, place.id)) },
    }
}

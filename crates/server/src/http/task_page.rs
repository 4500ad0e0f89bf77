//! Finds the tasks that meet a filter, and reads them page by page.
//!
//! What a query asks for beyond states and key is compared here, so a store needs no code for it; it may leave out tasks that cannot
//! match. A search is a sequence of short commands, between which others run.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use taskyard_core::{List, ListOrder, Task};
use taskyard_wire::http::{TaskFilter, TaskPageAnswer, cursor};

use super::task_reader::{Part, TaskReader, after};
use super::{Refusal, RequestApp};

/// Maximum number of tasks that one request compares with a filter.
const SCANNED_MAX: usize = 20_000;

/// Reads a page. The next part of the list is read while the tasks of a small one are compared.
pub(super) async fn read(
    app: &RequestApp,
    list: List,
    filter: TaskFilter,
) -> Result<TaskPageAnswer, Refusal> {
    let Scan { mut reader, mut matches } = Scan::new(list, filter);
    let mut tasks = Vec::new();
    let mut part = reader.next(app).await?;
    while let Some(current) = part {
        let mut reading = pin!(reader.next(app));
        let mut read = Poll::Pending;
        if current.is_small() && !current.is_last {
            // The command is sent when it is polled for the first time.
            read = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        }
        tasks.extend(matches.among(current).iter().map(TaskPageAnswer::task));
        if matches.are_complete() {
            break;
        }
        part = match read {
            Poll::Ready(part) => part?,
            Poll::Pending => reading.await?,
        };
    }
    Ok(TaskPageAnswer { tasks, next: matches.cursor(), scanned: matches.scanned })
}

/// A search for the tasks of a list that meet a filter. It ends when it has found as many as the list may have, when no task
/// follows, or when it has compared enough tasks.
pub(super) struct Scan {
    reader: TaskReader,
    pub matches: Matches,
}

impl Scan {
    pub fn new(list: List, filter: TaskFilter) -> Self {
        let (left, order) = (list.limit, list.order);
        let reader = match filter.is_empty() {
            true => TaskReader::of_page(list),
            false => TaskReader::of_search(list, SCANNED_MAX, filter.required_run()),
        };
        let matches = Matches { filter, left, order, is_last: false, scanned: 0 };
        Scan { reader, matches }
    }

    /// The tasks that the next part of the list has, perhaps none; `None` at the end of the search.
    pub async fn next(&mut self, app: &RequestApp) -> Result<Option<Vec<Task>>, Refusal> {
        if self.matches.are_complete() {
            return Ok(None);
        }
        let part = self.reader.next(app).await?;
        Ok(part.map(|part| self.matches.among(part)))
    }
}

/// Compares tasks with a filter.
pub(super) struct Matches {
    filter: TaskFilter,
    /// How many more tasks may be found.
    left: usize,
    /// The list after the tasks that were compared.
    order: ListOrder,
    /// Whether no task follows them.
    is_last: bool,
    /// How many tasks were compared.
    pub scanned: u64,
}

impl Matches {
    /// The tasks of a part that meet the filter.
    fn among(&mut self, part: Part) -> Vec<Task> {
        let (mut found, before) = (Vec::new(), self.scanned);
        for (task, rank) in part.tasks.into_iter().zip(part.ranks) {
            if self.left == 0 {
                // The rest belongs to the next search.
                return found;
            }
            if self.filter.matches(&task) {
                self.order = after(self.order, task.pri, task.id);
                self.scanned = before + rank;
                self.left -= 1;
                found.push(task);
            }
        }
        self.scanned = before + part.read;
        self.order = part.end;
        self.is_last = part.is_last;
        found
    }

    fn are_complete(&self) -> bool {
        self.left == 0 || self.is_last
    }

    /// Where the next search begins; `None` if no task follows.
    pub fn cursor(&self) -> Option<String> {
        if self.is_last { None } else { cursor(&self.order) }
    }
}

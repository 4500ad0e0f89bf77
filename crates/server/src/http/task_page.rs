//! Reads a page of tasks that meet a filter.
//!
//! Stores list ids by state; what else a query asks for is compared here, with the tasks as a peek shows them. So a search is a
//! sequence of short commands, between which others run.

use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{Command, Error, List, ListOrder, ListedTask, Reply, Task, TaskId, TubeName};
use taskyard_wire::http::{TaskFilter, TaskPageAnswer, cursor};

use super::Refusal;
use crate::app::{App, unexpected_reply};

/// Maximum number of tasks that one request compares with a filter.
const SCANNED_MAX: usize = 5_000;
/// Maximum number of tasks that are read with one command: their payloads are in memory at the same time.
const PEEKED_MAX: usize = 100;

/// A step of a scan.
#[derive(Default)]
pub(super) struct ScanStep {
    /// Where the next step begins; `None` if no task follows.
    pub next: Option<String>,
    /// How many tasks were compared.
    pub scanned: u64,
}

/// Reads a page.
pub(super) async fn read(
    app: &App,
    list: List,
    filter: &TaskFilter,
) -> Result<TaskPageAnswer, Refusal> {
    let mut tasks = Vec::new();
    let ScanStep { next, scanned } =
        scan(app, list, filter, |task| tasks.push(TaskPageAnswer::task(task))).await?;
    Ok(TaskPageAnswer { tasks, next, scanned })
}

/// Passes tasks that meet the filter to `found`, until there are as many as the list may have, no task follows, or enough tasks
/// were compared.
pub(super) async fn scan(
    app: &App,
    mut list: List,
    filter: &TaskFilter,
    mut found: impl FnMut(&Task) + Send,
) -> Result<ScanStep, Refusal> {
    let (limit, mut count) = (list.limit, 0);
    let mut step = ScanStep::default();
    loop {
        list.limit = if filter.is_empty() { limit - count } else { LIST_TASKS_MAX };
        let Reply::Listed(listed) = app.run(Command::List(list.clone())).await? else {
            return Err(unexpected_reply());
        };
        let is_last = listed.len() < list.limit;
        for part in listed.chunks(PEEKED_MAX) {
            let ids: Vec<TaskId> = part.iter().map(|place| place.id).collect();
            let mut tasks = peek(app, &list.tube, &ids).await?.into_iter().peekable();
            for place in part {
                list.order = after(list.order, place);
                step.scanned += 1;
                let task = tasks.next_if(|task| task.id == place.id);
                if let Some(task) =
                    task.filter(|task| is_listed(&list, task) && filter.matches(task))
                {
                    found(&task);
                    count += 1;
                }
                if count == limit {
                    step.next = cursor(&list.order);
                    return Ok(step);
                }
            }
        }
        if is_last {
            return Ok(step);
        }
        if step.scanned >= SCANNED_MAX as u64 {
            step.next = cursor(&list.order);
            return Ok(step);
        }
    }
}

/// The tasks with these ids that still exist, in this order. If they are too large for one reply, fewer at a time.
pub(super) async fn peek(app: &App, tube: &TubeName, ids: &[TaskId]) -> Result<Vec<Task>, Refusal> {
    let mut tasks = Vec::with_capacity(ids.len().min(PEEKED_MAX));
    let (mut rest, mut together) = (ids, PEEKED_MAX);
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

/// Whether a task is still in a state of the list: it may have changed since its id was listed.
fn is_listed(list: &List, task: &Task) -> bool {
    match list.order {
        ListOrder::Id { states, .. } => states.contains(task.state),
        ListOrder::Queue { .. } => task.state == taskyard_core::State::Ready,
    }
}

/// The same order after this task.
fn after(order: ListOrder, place: &ListedTask) -> ListOrder {
    match order {
        ListOrder::Id { states, .. } => ListOrder::Id { states, after: Some(place.id) },
        ListOrder::Queue { .. } => ListOrder::Queue { after: Some((place.pri, place.id)) },
    }
}

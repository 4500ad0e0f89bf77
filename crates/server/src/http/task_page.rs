//! Reads a page of tasks that meet a filter.
//!
//! Stores list ids by state; what else a query asks for is compared here, with the tasks as a peek shows them. So a search is a
//! sequence of short commands, between which others run.

use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{Command, Error, List, ListOrder, ListedTask, Reply, Task, TaskId};
use taskyard_wire::http::{TaskFilter, TaskPageAnswer, cursor};

use super::Refusal;
use crate::app::{App, unexpected_reply};

/// Maximum number of tasks that one request compares with a filter.
const SCANNED_MAX: usize = 5_000;
/// Maximum number of tasks that are read with one command: their payloads are in memory at the same time.
const PEEKED_MAX: usize = 100;

/// Reads tasks until the page is full, no task follows, or enough tasks were compared.
pub(super) async fn read(
    app: &App,
    mut list: List,
    filter: &TaskFilter,
) -> Result<TaskPageAnswer, Refusal> {
    let limit = list.limit;
    let mut page = TaskPageAnswer { tasks: Vec::new(), next: None, scanned: 0 };
    loop {
        list.limit = if filter.is_empty() { limit - page.tasks.len() } else { LIST_TASKS_MAX };
        let Reply::Listed(listed) = app.run(Command::List(list.clone())).await? else {
            return Err(unexpected_reply());
        };
        let is_last = listed.len() < list.limit;
        for part in listed.chunks(PEEKED_MAX) {
            let mut tasks = peek(app, &list, part).await?.into_iter().peekable();
            for place in part {
                list.order = after(list.order, place);
                page.scanned += 1;
                let task = tasks.next_if(|task| task.id == place.id);
                if let Some(task) =
                    task.filter(|task| is_listed(&list, task) && filter.matches(task))
                {
                    page.tasks.push(TaskPageAnswer::task(&task));
                }
                if page.tasks.len() == limit {
                    page.next = cursor(&list.order);
                    return Ok(page);
                }
            }
        }
        if is_last {
            return Ok(page);
        }
        if page.scanned >= SCANNED_MAX as u64 {
            page.next = cursor(&list.order);
            return Ok(page);
        }
    }
}

/// The tasks at these places that still exist, in this order. If they are too large for one reply, fewer at a time.
async fn peek(app: &App, list: &List, places: &[ListedTask]) -> Result<Vec<Task>, Refusal> {
    let mut tasks = Vec::with_capacity(places.len());
    let ids: Vec<TaskId> = places.iter().map(|place| place.id).collect();
    let (mut rest, mut together) = (&ids[..], ids.len());
    while !rest.is_empty() {
        let (some, others) = rest.split_at(together.min(rest.len()));
        match app.run(Command::Peek { tube: list.tube.clone(), ids: some.to_vec() }).await {
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

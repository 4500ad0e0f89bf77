//! Reads where the waiting tasks of an answer are in the queue, and when they will start.

use std::collections::HashMap;

use taskyard_core::limits::POSITIONS_MAX;
use taskyard_core::{Command, Error, Execute, Reply, Result, State, TaskId, TubeName};
use taskyard_wire::http::QueueAnswer;

use super::route::QueryField;
use crate::app::{App, unanswered};

/// The positions of waiting tasks, with estimates.
#[derive(Debug, Default)]
pub(super) struct QueuePositions(HashMap<TaskId, QueueAnswer>);

impl QueuePositions {
    /// Reads the positions of those of these tasks that wait. The rights for the request were checked.
    pub async fn read(
        app: &App,
        tube: &TubeName,
        tasks: impl Iterator<Item = (TaskId, State)>,
    ) -> Result<Self> {
        let waits = |state| matches!(state, State::Ready | State::Delayed);
        let ids: Vec<TaskId> = tasks.filter(|task| waits(task.1)).map(|task| task.0).collect();
        let command = |ids: &[TaskId]| {
            let (tube, ids) = (tube.clone(), ids.to_vec());
            Command::Positions { tube, ids }
        };
        let commands = ids.chunks(POSITIONS_MAX).map(command).collect();
        let mut positions = HashMap::with_capacity(ids.len());
        for reply in app.engine.execute(commands).await {
            let Reply::Positions(found) = reply? else { return Err(unanswered()) };
            positions.extend(found.iter().map(|one| (one.id, QueueAnswer::new(one))));
        }
        Ok(QueuePositions(positions))
    }

    /// The fields that the answer adds to those of a task.
    pub fn of(&self, id: TaskId) -> Option<Box<QueueAnswer>> {
        self.0.get(&id).cloned().map(Box::new)
    }
}

/// The query parameter that asks for estimates.
pub(super) fn estimate(about: &'static str) -> QueryField {
    QueryField::flag("estimate", about)
}

/// Refuses estimates for more tasks than one request may ask for.
pub(super) fn check_count(tasks: usize) -> Result<()> {
    if tasks <= POSITIONS_MAX {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: "the number of tasks with an estimate",
        size: tasks,
        limit: POSITIONS_MAX,
        advice: "send several requests, or leave out 'estimate'",
    })
}

//! Calls that end or extend deliveries: ack, release, bury, touch, delete.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use taskyard_core::{
    Command, Error as Refusal, Finish, FinishItem, Outcome, Reply, Span, TaskId, TubeName,
};
use taskyard_wire::fail_by_policy;

use crate::client::{Client, unexpected};
use crate::error::{Error, Result};
use crate::task::Task;

impl Client {
    /// Acks the task, which removes it. Refused with [`Error::Stale`] when the lease has ended.
    pub async fn ack(&self, task: &Task) -> Result<()> {
        self.finish_one(task, Finish::Ack, false).await.map(drop)
    }

    /// Acks the task with a result, which is kept with it if its tube keeps done tasks (`keep_done`).
    pub async fn ack_with<T: Serialize>(&self, task: &Task, result: &T) -> Result<()> {
        let result = rmp_serde::to_vec_named(result)?;
        self.finish_one(task, Finish::ack_with(&result), false).await.map(drop)
    }

    /// Releases the task, ready at once. The delivery counts as an attempt.
    pub async fn release(&self, task: &Task) -> Result<()> {
        self.release_later(task, Duration::ZERO).await
    }

    /// Releases the task, ready after `delay`.
    pub async fn release_later(&self, task: &Task, delay: Duration) -> Result<()> {
        let release = Finish::Release { delay: delay.into(), counted: true };
        self.finish_one(task, release, false).await.map(drop)
    }

    /// Releases the task as if it had never been taken: for a worker that stops.
    pub async fn release_uncounted(&self, task: &Task) -> Result<()> {
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        self.finish_one(task, release, false).await.map(drop)
    }

    /// Reports that the task failed: the error is kept with it, and it is ready again as the retry policy of its tube says,
    /// or at once if the tube has none. It is buried if its attempts are used up.
    pub async fn fail(&self, task: &Task, error: &str) -> Result<()> {
        self.finish_one(task, fail_by_policy(error, Span::ZERO), false).await.map(drop)
    }

    /// The same, ready after `delay`, whatever the policy.
    pub async fn fail_later(&self, task: &Task, error: &str, delay: Duration) -> Result<()> {
        self.finish_one(task, Finish::fail(error, Some(delay.into())), false).await.map(drop)
    }

    /// Buries the task with an error that is kept with it.
    pub async fn bury_with(&self, task: &Task, error: &str) -> Result<()> {
        self.finish_one(task, Finish::fail(error, None), false).await.map(drop)
    }

    /// Buries the task until it is kicked.
    pub async fn bury(&self, task: &Task) -> Result<()> {
        self.finish_one(task, Finish::Bury, false).await.map(drop)
    }

    /// Extends the lease and returns the task with its new end.
    pub async fn touch(&self, task: &Task, more: Duration) -> Result<Task> {
        let after = self.finish_one(task, Finish::Touch(more.into()), true).await?;
        let after = after.ok_or_else(|| unexpected("touch"))?;
        Ok(Task { tube: task.tube.clone(), task: after })
    }

    /// Acks several tasks, those of one tube in one step; one outcome for each, in order.
    pub async fn ack_many(&self, tasks: &[Task]) -> Result<Vec<Outcome>> {
        let mut by_tube: BTreeMap<&TubeName, Vec<usize>> = BTreeMap::new();
        for (index, task) in tasks.iter().enumerate() {
            by_tube.entry(&task.tube).or_default().push(index);
        }
        let mut outcomes = vec![Outcome::Missing; tasks.len()];
        for (tube, indexes) in by_tube {
            let items = indexes.iter().map(|index| tasks[*index].item(Finish::Ack)).collect();
            let done = self.finish_and_show(tube.clone(), items, false).await?;
            for (index, outcome) in indexes.into_iter().zip(done) {
                outcomes[index] = outcome;
            }
        }
        Ok(outcomes)
    }

    /// Ends or extends deliveries of a tube in one step; one outcome for each, in order.
    pub async fn finish(&self, tube: &str, items: Vec<FinishItem>) -> Result<Vec<Outcome>> {
        self.finish_and_show(TubeName::new(tube)?, items, false).await
    }

    fn finish_and_show(
        &self,
        tube: TubeName,
        items: Vec<FinishItem>,
        show: bool,
    ) -> impl Future<Output = Result<Vec<Outcome>>> + Send {
        let count = items.len();
        self.outcomes(count, Command::Finish { tube, items, show })
    }

    /// Removes a task, also if it is taken; returns whether it existed.
    pub async fn delete(&self, tube: &str, id: TaskId) -> Result<bool> {
        let outcomes = self.delete_many(tube, &[id]).await?;
        Ok(matches!(outcomes.first(), Some(Outcome::Done(_))))
    }

    /// Removes tasks, also if they are taken; one outcome for each, in order.
    pub async fn delete_many(&self, tube: &str, ids: &[TaskId]) -> Result<Vec<Outcome>> {
        let delete = Command::Delete { tube: TubeName::new(tube)?, ids: ids.to_vec(), show: false };
        self.outcomes(ids.len(), delete).await
    }

    /// Finishes one delivery; returns the task after it, if `show` is set.
    async fn finish_one(
        &self,
        task: &Task,
        finish: Finish,
        show: bool,
    ) -> Result<Option<taskyard_core::Task>> {
        let (tube, id) = (task.tube.clone(), task.id());
        let items = vec![task.item(finish)];
        match self.finish_and_show(tube.clone(), items, show).await?.pop() {
            Some(Outcome::Done(after)) => Ok(after.map(|after| *after)),
            Some(Outcome::Stale) => Err(Error::Stale { tube, id }),
            _ => Err(Refusal::TaskNotFound(tube, id).into()),
        }
    }

    fn outcomes(
        &self,
        count: usize,
        command: Command,
    ) -> impl Future<Output = Result<Vec<Outcome>>> + Send {
        let verb = command.verb();
        let finished = self.execute_one(command);
        async move {
            match finished.await? {
                Reply::Finished(outcomes) if outcomes.len() == count => Ok(outcomes),
                _ => Err(unexpected(verb).into()),
            }
        }
    }
}

//! Puts, and how they are repeated after a lost answer.
//!
//! A put whose answer was lost may have been executed. Each of its tasks without a key therefore got a random one, which
//! stays held for [`UNIQUE_FOR`] after the task has ended, and the same put is sent again: what it has added before, it
//! does not add again. That the store has keys is assumed until it refuses them, which costs one more request, once.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{
    Command, Error as Refusal, HeldKey, Key, KeyRequest, NewTask, OnConflict, Placed, Reply, Span,
    TaskId, TubeName, refuse_subqueues,
};
use tokio::time::{Instant, sleep};

use crate::client::{Client, unexpected};
use crate::error::{Error, Result};
use crate::random_key::RandomKeys;
use crate::task::{bytes_task, in_subqueue, new_task};

/// For how long a random key stays held after the end of its task.
const UNIQUE_FOR: Span = Span::from_secs(600);
/// For how long a put is repeated after its answer was lost.
const REPEAT_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest time from the execution of a put to its last repetition, without the wait for capacity: a lost connection is
/// noticed within 90 s.
const LAST_REPEAT_AFTER_MAX: Duration = Duration::from_secs(120);
/// The pause before the second repetition; each further one is twice as long. The first is sent at once.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Client {
    /// Adds a task with `data`. When this returns, the task is as durable as the store.
    pub async fn put<T: Serialize + ?Sized>(&self, tube: &str, data: &T) -> Result<TaskId> {
        self.put_task(tube, new_task(data)?).await
    }

    /// Adds a task to a sub-queue: of the tasks in one sub-queue only one runs at a time. Refused if the tube has no
    /// sub-queues.
    pub async fn put_in<T: Serialize + ?Sized>(
        &self,
        tube: &str,
        subqueue: &str,
        data: &T,
    ) -> Result<TaskId> {
        self.put_task(tube, in_subqueue(new_task(data)?, subqueue)).await
    }

    /// Adds a task with a unique key: while a task of the tube has the key, another put with it adds nothing and returns
    /// that task, as `existing`. [`NewTask::key`] has the other options of keys.
    pub async fn put_keyed<T: Serialize + ?Sized>(
        &self,
        tube: &str,
        key: &str,
        data: &T,
    ) -> Result<Placed> {
        let key = Some(Box::new(KeyRequest::new(Key::new(key)?)));
        let task = NewTask { key, ..new_task(data)? };
        let placed = self.put_tasks(tube, vec![task], Duration::ZERO).await?;
        Ok(*placed.first().ok_or_else(|| unexpected("put"))?)
    }

    /// Adds a task with these bytes.
    pub async fn put_bytes(&self, tube: &str, bytes: &[u8]) -> Result<TaskId> {
        self.put_task(tube, bytes_task(bytes)?).await
    }

    /// Adds a task with priority, delay and other options. If a task of the tube holds its key, nothing is added and the id
    /// is that of the holder; [`Client::put_tasks`] tells which.
    pub async fn put_task(&self, tube: &str, task: NewTask) -> Result<TaskId> {
        let placed = self.put_tasks(tube, vec![task], Duration::ZERO).await?;
        Ok(placed.first().ok_or_else(|| unexpected("put"))?.id)
    }

    /// Adds a task for each value: all or none.
    pub async fn put_many<T: Serialize>(&self, tube: &str, data: &[T]) -> Result<Vec<TaskId>> {
        let tasks = data.iter().map(new_task).collect::<Result<_>>()?;
        let placed = self.put_tasks(tube, tasks, Duration::ZERO).await?;
        Ok(placed.into_iter().map(|placed| placed.id).collect())
    }

    /// Adds tasks, all or none, and waits this long while the tube is full.
    pub async fn put_tasks(
        &self,
        tube: &str,
        tasks: Vec<NewTask>,
        wait: Duration,
    ) -> Result<Vec<Placed>> {
        let tube = TubeName::new(tube)?;
        if tasks.iter().any(|task| task.subqueue.is_some()) {
            Box::pin(self.check_subqueues(&tube)).await?;
        }
        if self.gives_keys() {
            return Box::pin(self.put_with_keys(tube, tasks, wait)).await;
        }
        self.put_once(Command::Put { tube, tasks, wait: wait.into() }).await
    }

    /// Whether tasks without a key get a random one.
    fn gives_keys(&self) -> bool {
        self.idempotent
            && self.queue.replies_can_be_lost()
            && !self.known.keys_missing.load(Ordering::Relaxed)
    }

    async fn put_with_keys(
        &self,
        tube: TubeName,
        mut tasks: Vec<NewTask>,
        wait: Duration,
    ) -> Result<Vec<Placed>> {
        let has_key = |task: &NewTask| task.key.is_some();
        let given: Vec<bool> = match tasks.iter().any(has_key) {
            true => tasks.iter().map(has_key).collect(),
            false => Vec::new(),
        };
        add_keys(&mut tasks);
        let repeats = tasks.iter().all(|task| stays_held(task, wait));
        let mut put = Command::Put { tube, tasks, wait: wait.into() };
        let placed = match repeats {
            true => self.put_repeatedly(&put).await,
            false => self.put_once(put.clone()).await,
        };
        match placed {
            Ok(mut placed) => {
                // A random key that is held was held by an earlier attempt of this put.
                for (index, placed) in placed.iter_mut().enumerate() {
                    placed.existing &= given.get(index).copied().unwrap_or(false);
                }
                Ok(placed)
            }
            Err(Error::Refused(Refusal::MissingFeature { .. })) if given.is_empty() => {
                remove_keys(&mut put);
                let placed = self.put_once(put).await?;
                // Not earlier: if another feature is missing, the put without keys is refused too.
                self.known.keys_missing.store(true, Ordering::Relaxed);
                Ok(placed)
            }
            Err(error) => Err(error),
        }
    }

    /// Puts, and puts again while the answer is lost.
    async fn put_repeatedly(&self, put: &Command) -> Result<Vec<Placed>> {
        let mut repeats = Repeats::default();
        loop {
            match self.put_once(put.clone()).await {
                Err(Error::Refused(error)) => repeats.pause_after(error).await?,
                done => return done,
            }
        }
    }

    fn put_once(&self, put: Command) -> impl Future<Output = Result<Vec<Placed>>> + Send {
        let placed = self.execute_one(put);
        async move {
            match placed.await? {
                Reply::Put(placed) => Ok(placed),
                _ => Err(unexpected("put").into()),
            }
        }
    }

    /// Refuses sub-queues for a tube without them, or one that a put would create without them: the store would ignore
    /// them.
    async fn check_subqueues(&self, tube: &TubeName) -> Result<()> {
        if self.known_subqueues().contains(tube) {
            return Ok(());
        }
        match self.tube(tube.as_str()).await {
            Ok(found) => refuse_subqueues(found.options.kind)?,
            Err(Error::Refused(Refusal::TubeNotFound(tube))) => {
                return Err(Refusal::TubeNotFound(tube).into());
            }
            // A user who may only put cannot read the tube; other errors are those of the put itself.
            Err(_) => return Ok(()),
        }
        let mut known = self.known_subqueues();
        if known.len() >= TUBES_MAX {
            known.clear();
        }
        known.insert(tube.clone());
        Ok(())
    }

    pub(crate) fn known_subqueues(&self) -> MutexGuard<'_, HashSet<TubeName>> {
        self.known.subqueue_tubes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The repetitions of one put.
#[derive(Default)]
struct Repeats {
    /// The first lost answer, and until when the put is repeated.
    lost: Option<(Refusal, Instant)>,
    pause: Duration,
}

impl Repeats {
    /// Waits before the next repetition; returns the error if there is none.
    async fn pause_after(&mut self, error: Refusal) -> Result<(), Refusal> {
        let is_lost = matches!(error, Refusal::OutcomeUnknown(_));
        let (lost, until) = match self.lost.take() {
            Some(first) if error.is_temporary() => first,
            None if is_lost => (error, Instant::now() + REPEAT_TIME_MAX),
            _ => return Err(error),
        };
        if Instant::now() + self.pause >= until {
            return Err(lost);
        }
        self.lost = Some((lost, until));
        if !self.pause.is_zero() {
            sleep(self.pause).await;
        }
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        Ok(())
    }
}

/// Gives tasks without a key a random one.
fn add_keys(tasks: &mut [NewTask]) {
    let Some(mut keys) = RandomKeys::new() else { return };
    for task in tasks.iter_mut().filter(|task| task.key.is_none()) {
        task.key = keys.next().map(|key| {
            let held = HeldKey { key, unique_for: UNIQUE_FOR };
            Box::new(KeyRequest { held, on_conflict: OnConflict::Keep })
        });
    }
}

fn remove_keys(put: &mut Command) {
    if let Command::Put { tasks, .. } = put {
        tasks.iter_mut().for_each(|task| task.key = None);
    }
}

/// Whether the key of the task is held at the last repetition of its put, even if the task ends at once.
fn stays_held(task: &NewTask, wait: Duration) -> bool {
    let needed = Span::from(LAST_REPEAT_AFTER_MAX.saturating_add(wait));
    task.key.as_ref().is_some_and(|request| request.held.unique_for > needed)
}

//! The client: typed calls for every command of a queue.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{
    Command, Error as Refusal, Execute, Key, KeyRequest, NewTask, Outcome, Placed, Reply, Span,
    Take, TaskId, TubeChange, TubeName, TubeOptions, TubeStats, refuse_subqueues,
};

use crate::error::{Error, HttpError, IprotoError, Result};
use crate::http::Http;
use crate::iproto::Iproto;
use crate::task::{Task, bytes_task, in_subqueue, new_task};
use crate::worker_name::worker_name;

/// The lease of a delivery unless [`Client::with_lease`] sets another.
const LEASE_DEFAULT: Span = Span::from_secs(60);

/// A client of a queue in this process or on a server. Cheap to clone if `E` is.
///
/// The first put into a tube that does not exist creates it as `fifottl`, unless the server or the embedded queue is
/// strict about tubes; every other call on it is refused.
#[derive(Clone, Debug)]
pub struct Client<E> {
    pub(crate) queue: E,
    lease: Span,
    /// Tubes that have sub-queues, as far as known.
    subqueue_tubes: Arc<Mutex<HashSet<TubeName>>>,
}

impl Client<Http> {
    /// A client of the server at this URL, such as `http://127.0.0.1:7070`. Does not connect yet.
    pub fn connect(url: &str) -> Result<Self, HttpError> {
        Ok(Client::new(Http::new(url)?))
    }

    /// A client of the server at this URL with an access token.
    pub fn connect_with_token(url: &str, token: &str) -> Result<Self, HttpError> {
        Ok(Client::new(Http::new(url)?.with_token(token)?))
    }
}

impl Client<Iproto> {
    /// A client of the server at this address over iproto, such as `127.0.0.1:3301` or
    /// `iproto://user:password@host:3301`. Does not connect yet.
    pub fn connect_iproto(address: &str) -> Result<Self, IprotoError> {
        Ok(Client::new(Iproto::new(address)?))
    }
}

impl<E: Execute> Client<E> {
    /// A client of anything that executes commands.
    pub fn new(queue: E) -> Self {
        Client { queue, lease: LEASE_DEFAULT, subqueue_tubes: Arc::default() }
    }

    /// Sets the lease of deliveries. A task that is not finished in that time is delivered again;
    /// [`Client::touch`] extends the lease.
    pub fn with_lease(self, lease: Duration) -> Self {
        Client { lease: lease.into(), ..self }
    }

    /// What executes the commands.
    pub fn queue(&self) -> &E {
        &self.queue
    }

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
            self.check_subqueues(&tube).await?;
        }
        let put = Command::Put { tube, tasks, wait: wait.into() };
        match self.execute_one(put).await? {
            Reply::Put(placed) => Ok(placed),
            _ => Err(unexpected("put").into()),
        }
    }

    /// Takes the next task, waiting up to `wait` for one.
    pub async fn take(&self, tube: &str, wait: Duration) -> Result<Option<Task>> {
        Ok(self.take_many(tube, 1, wait).await?.pop())
    }

    /// Takes up to `count` tasks, waiting up to `wait` for the first.
    pub async fn take_many(&self, tube: &str, count: usize, wait: Duration) -> Result<Vec<Task>> {
        self.take_with(Take {
            tube: TubeName::new(tube)?,
            count,
            session: None,
            lease: Some(self.lease),
            worker: Some(worker_name()),
            wait: wait.into(),
        })
        .await
    }

    /// Takes tasks with all options of a take.
    pub async fn take_with(&self, take: Take) -> Result<Vec<Task>> {
        let tube = take.tube.clone();
        match self.execute_one(Command::Take(take)).await? {
            Reply::Taken(tasks) => Ok(of_tube(&tube, tasks)),
            _ => Err(unexpected("take").into()),
        }
    }

    /// Kicks up to `count` buried tasks; returns how many were kicked.
    pub async fn kick(&self, tube: &str, count: u64) -> Result<u64> {
        match self.execute_one(Command::Kick { tube: TubeName::new(tube)?, count }).await? {
            Reply::Kicked(kicked) => Ok(kicked),
            _ => Err(unexpected("kick").into()),
        }
    }

    /// Makes these buried tasks ready again, with their attempts counted from zero if `reset_attempts` is set; one outcome for
    /// each, in order.
    pub async fn kick_tasks(
        &self,
        tube: &str,
        ids: &[TaskId],
        reset_attempts: bool,
    ) -> Result<Vec<Outcome>> {
        let (tube, ids) = (TubeName::new(tube)?, ids.to_vec());
        match self.execute_one(Command::KickTasks { tube, ids, reset_attempts }).await? {
            Reply::Finished(outcomes) => Ok(outcomes),
            _ => Err(unexpected("kick").into()),
        }
    }

    /// Shows a task without taking it; `None` if it does not exist.
    pub async fn peek(&self, tube: &str, id: TaskId) -> Result<Option<Task>> {
        Ok(self.peek_many(tube, &[id]).await?.pop())
    }

    /// Shows tasks without taking them; those that do not exist are left out.
    pub async fn peek_many(&self, tube: &str, ids: &[TaskId]) -> Result<Vec<Task>> {
        let tube = TubeName::new(tube)?;
        let peek = Command::Peek { tube: tube.clone(), ids: ids.to_vec() };
        self.tasks(tube, peek).await
    }

    /// Shows the deliveries of a tube, by task id, without payloads.
    pub async fn deliveries(&self, tube: &str, count: usize) -> Result<Vec<Task>> {
        let tube = TubeName::new(tube)?;
        self.tasks(tube.clone(), Command::Deliveries { tube, count }).await
    }

    /// The number of tasks and calls of a tube.
    pub async fn stats(&self, tube: &str) -> Result<TubeStats> {
        Ok(self.tube(tube).await?.stats)
    }

    /// Shows one tube.
    pub async fn tube(&self, tube: &str) -> Result<TubeInfo> {
        self.one_tube(Command::Tubes { tube: Some(TubeName::new(tube)?) }).await
    }

    /// Shows all tubes, by name.
    pub async fn tubes(&self) -> Result<Vec<TubeInfo>> {
        match self.execute_one(Command::Tubes { tube: None }).await? {
            Reply::Tubes(tubes) => Ok(tubes),
            _ => Err(unexpected("tubes").into()),
        }
    }

    /// Creates a tube; refused if a tube with that name exists.
    pub async fn create(&self, tube: &str, options: TubeOptions) -> Result<()> {
        self.create_tube(tube, options, false).await.map(drop)
    }

    /// Creates a tube unless one with that name exists; returns whether it is new.
    pub async fn create_if_missing(&self, tube: &str, options: TubeOptions) -> Result<bool> {
        self.create_tube(tube, options, true).await
    }

    /// Changes a tube.
    pub async fn alter(&self, tube: &str, change: TubeChange) -> Result<TubeInfo> {
        self.one_tube(Command::AlterTube { tube: TubeName::new(tube)?, change }).await
    }

    /// Pauses the deliveries of a tube; everything else continues.
    pub async fn pause(&self, tube: &str) -> Result<TubeInfo> {
        self.alter(tube, TubeChange { paused: Some(true), ..TubeChange::default() }).await
    }

    /// Resumes the deliveries of a tube.
    pub async fn resume(&self, tube: &str) -> Result<TubeInfo> {
        self.alter(tube, TubeChange { paused: Some(false), ..TubeChange::default() }).await
    }

    /// Removes a tube with its tasks; refused while tasks are taken or consumers wait.
    pub async fn drop_tube(&self, tube: &str) -> Result<()> {
        let tube = TubeName::new(tube)?;
        self.known_subqueues().remove(&tube);
        self.execute_without_reply(Command::DropTube { tube }).await
    }

    /// Removes all tasks of a tube, taken ones too.
    pub async fn truncate(&self, tube: &str) -> Result<()> {
        self.execute_without_reply(Command::Truncate { tube: TubeName::new(tube)? }).await
    }

    /// Releases every taken task of a tube.
    pub async fn release_all(&self, tube: &str) -> Result<()> {
        self.execute_without_reply(Command::ReleaseAll { tube: TubeName::new(tube)? }).await
    }

    /// Executes one command and returns its reply.
    pub(crate) async fn execute_one(&self, command: Command) -> Result<Reply> {
        let verb = command.verb();
        let reply = self.queue.execute(vec![command]).await.pop();
        Ok(reply.unwrap_or_else(|| Err(unexpected(verb)))?)
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

    fn known_subqueues(&self) -> MutexGuard<'_, HashSet<TubeName>> {
        self.subqueue_tubes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn create_tube(
        &self,
        tube: &str,
        options: TubeOptions,
        if_not_exists: bool,
    ) -> Result<bool> {
        let tube = TubeName::new(tube)?;
        match self.execute_one(Command::CreateTube { tube, options, if_not_exists }).await? {
            Reply::Created(created) => Ok(created),
            _ => Err(unexpected("create").into()),
        }
    }

    async fn one_tube(&self, command: Command) -> Result<TubeInfo> {
        match self.execute_one(command).await? {
            Reply::Tubes(mut tubes) if tubes.len() == 1 => Ok(tubes.remove(0)),
            _ => Err(unexpected("tubes").into()),
        }
    }

    async fn tasks(&self, tube: TubeName, command: Command) -> Result<Vec<Task>> {
        let verb = command.verb();
        match self.execute_one(command).await? {
            Reply::Tasks(tasks) => Ok(of_tube(&tube, tasks)),
            _ => Err(unexpected(verb).into()),
        }
    }

    async fn execute_without_reply(&self, command: Command) -> Result<()> {
        self.execute_one(command).await.map(drop)
    }
}

/// The error for a reply of another kind than the command expects.
pub(crate) fn unexpected(verb: &str) -> Refusal {
    Refusal::Store(format!("unexpected reply to {verb}"))
}

fn of_tube(tube: &TubeName, tasks: Vec<taskyard_core::Task>) -> Vec<Task> {
    tasks.into_iter().map(|task| Task { tube: tube.clone(), task }).collect()
}

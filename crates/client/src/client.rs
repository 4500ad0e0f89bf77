//! What users call.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{
    Command, Error as Refusal, Execute, NewTask, Placed, Reply, Span, Take, TaskId, TubeChange,
    TubeName, TubeOptions, TubeStats, refuse_subqueues,
};

use crate::error::{Error, HttpError, IprotoError, Result};
use crate::http::Http;
use crate::iproto::Iproto;
use crate::task::{Task, bytes_task, in_subqueue, new_task};

/// How long a delivery lasts unless [`Client::with_lease`] says otherwise.
const LEASE_DEFAULT: Span = Span::from_secs(60);

/// A queue, wherever it runs. Cheap to clone if `E` is.
///
/// A tube that does not exist is made as `fifottl` by the first put, unless the server or the
/// embedded queue is strict about tubes; every other call on it is refused.
#[derive(Clone, Debug)]
pub struct Client<E> {
    pub(crate) queue: E,
    lease: Span,
    /// Tubes that are known to have sub-queues.
    subqueue_tubes: Arc<Mutex<HashSet<TubeName>>>,
}

impl Client<Http> {
    /// A client of the server at this address, such as `http://127.0.0.1:7070`. Nothing is sent yet.
    pub fn connect(url: &str) -> Result<Self, HttpError> {
        Ok(Client::new(Http::new(url)?))
    }

    /// The same with the token that the server asks for.
    pub fn connect_with_token(url: &str, token: &str) -> Result<Self, HttpError> {
        Ok(Client::new(Http::new(url)?.with_token(token)?))
    }
}

impl Client<Iproto> {
    /// A client of the server at this address over iproto, such as `127.0.0.1:3301` or
    /// `iproto://user:password@host:3301`. Nothing is sent yet.
    pub fn connect_iproto(address: &str) -> Result<Self, IprotoError> {
        Ok(Client::new(Iproto::new(address)?))
    }
}

impl<E: Execute> Client<E> {
    /// A client of whatever runs commands.
    pub fn new(queue: E) -> Self {
        Client { queue, lease: LEASE_DEFAULT, subqueue_tubes: Arc::default() }
    }

    /// The same client whose deliveries last this long. A task that is not finished in that time is
    /// given to somebody else; [`Client::touch`] asks for more.
    pub fn with_lease(self, lease: Duration) -> Self {
        Client { lease: lease.into(), ..self }
    }

    /// What runs the commands.
    pub fn queue(&self) -> &E {
        &self.queue
    }

    /// Adds a task that carries `data`. When this answers, the task is as durable as the store.
    pub async fn put<T: Serialize + ?Sized>(&self, tube: &str, data: &T) -> Result<TaskId> {
        self.put_task(tube, new_task(data)?).await
    }

    /// Adds a task to a sub-queue: of those in one sub-queue only one runs at a time. Refused where the tube has none.
    pub async fn put_in<T: Serialize + ?Sized>(
        &self,
        tube: &str,
        subqueue: &str,
        data: &T,
    ) -> Result<TaskId> {
        self.put_task(tube, in_subqueue(new_task(data)?, subqueue)).await
    }

    /// Adds a task that carries these bytes as they are.
    pub async fn put_bytes(&self, tube: &str, bytes: &[u8]) -> Result<TaskId> {
        self.put_task(tube, bytes_task(bytes)?).await
    }

    /// Adds a task with priority, times and more.
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

    /// Adds tasks, all or none, and waits this long for room when the tube is full.
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
        match self.ask(put).await? {
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
        self.take_by(Take {
            tube: TubeName::new(tube)?,
            count,
            session: None,
            lease: Some(self.lease),
            wait: wait.into(),
        })
        .await
    }

    /// Takes tasks exactly as asked.
    pub async fn take_by(&self, take: Take) -> Result<Vec<Task>> {
        let tube = take.tube.clone();
        match self.ask(Command::Take(take)).await? {
            Reply::Taken(tasks) => Ok(of_tube(&tube, tasks)),
            _ => Err(unexpected("take").into()),
        }
    }

    /// Brings up to `count` buried tasks back and says how many came.
    pub async fn kick(&self, tube: &str, count: u64) -> Result<u64> {
        match self.ask(Command::Kick { tube: TubeName::new(tube)?, count }).await? {
            Reply::Kicked(kicked) => Ok(kicked),
            _ => Err(unexpected("kick").into()),
        }
    }

    /// Shows a task without taking it; `None` if there is none of this id.
    pub async fn peek(&self, tube: &str, id: TaskId) -> Result<Option<Task>> {
        Ok(self.peek_many(tube, &[id]).await?.pop())
    }

    /// Shows tasks without taking them; those that are not there are left out.
    pub async fn peek_many(&self, tube: &str, ids: &[TaskId]) -> Result<Vec<Task>> {
        let tube = TubeName::new(tube)?;
        let peek = Command::Peek { tube: tube.clone(), ids: ids.to_vec() };
        self.tasks(tube, peek).await
    }

    /// Shows who holds what, by id, without what the tasks carry.
    pub async fn deliveries(&self, tube: &str, count: usize) -> Result<Vec<Task>> {
        let tube = TubeName::new(tube)?;
        self.tasks(tube.clone(), Command::Deliveries { tube, count }).await
    }

    /// What a tube has and what was done to it.
    pub async fn stats(&self, tube: &str) -> Result<TubeStats> {
        Ok(self.tube(tube).await?.stats)
    }

    /// Shows one tube.
    pub async fn tube(&self, tube: &str) -> Result<TubeInfo> {
        self.one_tube(Command::Tubes { tube: Some(TubeName::new(tube)?) }).await
    }

    /// Shows all tubes, by name.
    pub async fn tubes(&self) -> Result<Vec<TubeInfo>> {
        match self.ask(Command::Tubes { tube: None }).await? {
            Reply::Tubes(tubes) => Ok(tubes),
            _ => Err(unexpected("tubes").into()),
        }
    }

    /// Makes a tube; refused if there is one of that name.
    pub async fn create(&self, tube: &str, options: TubeOptions) -> Result<()> {
        self.make(tube, options, false).await.map(drop)
    }

    /// Makes a tube unless there is one of that name, and says whether it is new.
    pub async fn create_if_missing(&self, tube: &str, options: TubeOptions) -> Result<bool> {
        self.make(tube, options, true).await
    }

    /// Changes a tube.
    pub async fn alter(&self, tube: &str, change: TubeChange) -> Result<TubeInfo> {
        self.one_tube(Command::AlterTube { tube: TubeName::new(tube)?, change }).await
    }

    /// Stops deliveries from a tube; everything else goes on.
    pub async fn pause(&self, tube: &str) -> Result<TubeInfo> {
        self.alter(tube, TubeChange { paused: Some(true), ..TubeChange::default() }).await
    }

    /// Lets deliveries go on.
    pub async fn resume(&self, tube: &str) -> Result<TubeInfo> {
        self.alter(tube, TubeChange { paused: Some(false), ..TubeChange::default() }).await
    }

    /// Removes a tube with its tasks; refused while tasks are taken or consumers wait.
    pub async fn drop_tube(&self, tube: &str) -> Result<()> {
        let tube = TubeName::new(tube)?;
        self.known_subqueues().remove(&tube);
        self.silent(Command::DropTube { tube }).await
    }

    /// Removes all tasks of a tube, taken ones too.
    pub async fn truncate(&self, tube: &str) -> Result<()> {
        self.silent(Command::Truncate { tube: TubeName::new(tube)? }).await
    }

    /// Gives back every taken task of a tube.
    pub async fn release_all(&self, tube: &str) -> Result<()> {
        self.silent(Command::ReleaseAll { tube: TubeName::new(tube)? }).await
    }

    /// One command, its answer.
    pub(crate) async fn ask(&self, command: Command) -> Result<Reply> {
        let verb = command.verb();
        let reply = self.queue.execute(vec![command]).await.pop();
        Ok(reply.unwrap_or_else(|| Err(unexpected(verb)))?)
    }

    /// Refuses sub-queues for a tube that has none, or that a put would make without them: the store would ignore them.
    async fn check_subqueues(&self, tube: &TubeName) -> Result<()> {
        if self.known_subqueues().contains(tube) {
            return Ok(());
        }
        match self.tube(tube.as_str()).await {
            Ok(found) => refuse_subqueues(found.options.kind)?,
            Err(Error::Refused(Refusal::TubeNotFound(tube))) => {
                return Err(Refusal::TubeNotFound(tube).into());
            }
            // A user that may only put is not told what a tube is; what else is wrong the put itself says.
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

    async fn make(&self, tube: &str, options: TubeOptions, if_not_exists: bool) -> Result<bool> {
        let tube = TubeName::new(tube)?;
        match self.ask(Command::CreateTube { tube, options, if_not_exists }).await? {
            Reply::Created(created) => Ok(created),
            _ => Err(unexpected("create").into()),
        }
    }

    async fn one_tube(&self, command: Command) -> Result<TubeInfo> {
        match self.ask(command).await? {
            Reply::Tubes(mut tubes) if tubes.len() == 1 => Ok(tubes.remove(0)),
            _ => Err(unexpected("tubes").into()),
        }
    }

    async fn tasks(&self, tube: TubeName, command: Command) -> Result<Vec<Task>> {
        let verb = command.verb();
        match self.ask(command).await? {
            Reply::Tasks(tasks) => Ok(of_tube(&tube, tasks)),
            _ => Err(unexpected(verb).into()),
        }
    }

    async fn silent(&self, command: Command) -> Result<()> {
        self.ask(command).await.map(drop)
    }
}

/// What is said of an answer that does not fit the command.
pub(crate) fn unexpected(verb: &str) -> Refusal {
    Refusal::Store(format!("{verb} was answered with something else"))
}

fn of_tube(tube: &TubeName, tasks: Vec<taskyard_core::Task>) -> Vec<Task> {
    tasks.into_iter().map(|task| Task { tube: tube.clone(), task }).collect()
}

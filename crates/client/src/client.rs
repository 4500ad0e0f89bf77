//! The client: typed calls for every command of a queue.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Command, DynExecute, Error as Refusal, Execute, Outcome, Position, Reply, Span, Take, TaskId,
    TubeChange, TubeName, TubeOptions, TubeStats,
};
use taskyard_worker::{FunctionWorker, worker_name};

use crate::error::Result;
use crate::http::Http;
use crate::iproto::Iproto;
use crate::task::Task;

/// The lease of a delivery unless [`Client::with_lease`] sets another.
const LEASE_DEFAULT: Span = Span::from_secs(60);

/// A client of a queue in this process or on a server, whichever [`Client::open`] was given. Cheap to clone: clones share
/// the queue or the connections.
///
/// The first put into a tube that does not exist creates it as `fifottl`, unless the server or the client is strict about
/// tubes; every other call on it is refused.
#[derive(Clone)]
pub struct Client {
    pub(crate) queue: Arc<dyn DynExecute>,
    lease: Span,
    pub(crate) idempotent: bool,
    /// Whether the store of the queue refused unique keys. Clones share it.
    pub(crate) keys_missing: Arc<AtomicBool>,
    /// Tubes that have sub-queues, as far as known.
    pub(crate) subqueue_tubes: Arc<Mutex<HashSet<TubeName>>>,
}

impl Client {
    /// A client of anything that executes commands: an engine of this process, an [`Http`] or [`Iproto`] with its own
    /// settings, or a queue of your own. [`Client::open`] is the usual way.
    pub fn new<E: Execute + 'static>(queue: E) -> Self {
        Client {
            queue: Arc::new(queue),
            lease: LEASE_DEFAULT,
            idempotent: true,
            keys_missing: Arc::default(),
            subqueue_tubes: Arc::default(),
        }
    }

    /// Sets the access token of the server; refused unless the client uses HTTP.
    pub fn with_token(self, token: &str) -> Result<Self> {
        let Some(http) = self.transport::<Http>() else {
            let message = "only a server over HTTP has an access token; over iproto write user and password into the URL";
            return Err(Refusal::Invalid(message.into()).into());
        };
        let queue = Arc::new(http.clone().with_token(token)?);
        Ok(Client { queue, ..self })
    }

    /// Refuses a put into a tube that does not exist, instead of creating the tube. Over HTTP the server decides.
    pub fn strict_tubes(self) -> Self {
        #[cfg(feature = "embedded")]
        if let Some(embedded) = self.transport::<crate::embedded::Embedded>() {
            let queue = Arc::new(embedded.clone().strict_tubes());
            return Client { queue, ..self };
        }
        if let Some(iproto) = self.transport::<Iproto>() {
            let queue = Arc::new(iproto.clone().strict_tubes());
            return Client { queue, ..self };
        }
        self
    }

    /// Sets the lease of deliveries. A task that is not finished in that time is delivered again;
    /// [`Client::touch`] extends the lease. It is also the lease of [`Client::worker`].
    pub fn with_lease(self, lease: Duration) -> Self {
        Client { lease: lease.into(), ..self }
    }

    /// Sets whether a put whose answer is lost is repeated, which is so by default: each task without a key gets a random
    /// one that stays held for ten minutes after the task has ended, so that a repeated put adds nothing twice. The keys
    /// cost the server time and memory; the example `put_cost` measures both. A queue in this process and a store without
    /// unique keys get no keys, and their puts are not repeated.
    pub fn idempotent(self, idempotent: bool) -> Self {
        Client { idempotent, ..self }
    }

    /// A worker that calls a function for each task of a tube:
    ///
    /// ```no_run
    /// # use serde::Deserialize;
    /// #[derive(Deserialize)]
    /// struct Mail {
    ///     to: String,
    /// }
    ///
    /// # async fn send(_: &Mail) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = taskyard::Client::open("http://127.0.0.1:7070").await?;
    /// let worker = client.worker("mail").concurrency(10);
    /// worker.run(async |mail: Mail, _task| send(&mail).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn worker(&self, tube: &str) -> FunctionWorker {
        FunctionWorker::new(self.clone(), tube).lease(self.lease.into())
    }

    /// What executes the commands, if it is a `T`: [`Http`], [`Iproto`], `Embedded` or what [`Client::new`] was given. For
    /// calls that only one of them has.
    pub fn transport<T: 'static>(&self) -> Option<&T> {
        let queue: &dyn Any = &*self.queue;
        queue.downcast_ref()
    }

    /// Ends the use of the queue: an embedded one finishes its pending commands and closes its store, and taken tasks are
    /// ready for the next process. All clones end with it. A client of a server has nothing to end.
    pub async fn close(&self) -> Result<()> {
        #[cfg(feature = "embedded")]
        if let Some(embedded) = self.transport::<crate::embedded::Embedded>() {
            embedded.engine().stop().await?;
        }
        Ok(())
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

    /// Shows where these tasks are in the queue and when they will start, at most 100; those that do not wait are left out.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// let id = client.put("mail", "hello").await?;
    /// for position in client.positions("mail", &[id]).await? {
    ///     match position.estimate {
    ///         Some(Ok(estimate)) => println!("starts in {} s", estimate.p50.as_secs_f64()),
    ///         Some(Err(reason)) => println!("{reason}"),
    ///         None => println!("{} tasks are ahead", position.ahead),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn positions(&self, tube: &str, ids: &[TaskId]) -> Result<Vec<Position>> {
        let (tube, ids) = (TubeName::new(tube)?, ids.to_vec());
        match self.execute_one(Command::Positions { tube, ids }).await? {
            Reply::Positions(positions) => Ok(positions),
            _ => Err(unexpected("positions").into()),
        }
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
        let reply = self.queue.execute_boxed(vec![command]).await.pop();
        Ok(reply.unwrap_or_else(|| Err(unexpected(verb)))?)
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

impl Execute for Client {
    fn execute(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Vec<Result<Reply, Refusal>>> + Send {
        self.queue.execute_boxed(commands)
    }

    fn may_lose_replies(&self) -> bool {
        self.queue.replies_can_be_lost()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// The error for a reply of another kind than the command expects.
pub(crate) fn unexpected(verb: &str) -> Refusal {
    Refusal::Store(format!("unexpected reply to {verb}"))
}

fn of_tube(tube: &TubeName, tasks: Vec<taskyard_core::Task>) -> Vec<Task> {
    tasks.into_iter().map(|task| Task { tube: tube.clone(), task }).collect()
}

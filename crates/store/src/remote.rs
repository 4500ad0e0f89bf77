//! Opens, runs and closes a store in a database on a runtime of its own.
//!
//! A database implements [`Backend`]; [`RemoteStore`] makes a [`Store`] of it. All work for one store runs on
//! one thread of its own, so that a batch costs two thread switches and not two for each of its replies, and
//! starts whether or not the caller already polls its future.

mod heartbeat;

use std::collections::hash_map::RandomState;
use std::fmt::Display;
use std::future::{Future, ready};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{Body, Command, Effects, Error, Span, Timestamp};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::{
    BodyKey, Capabilities, Executed, Export, Exported, Import, OpenError, OpenOptions, Pending,
    Store, StoreHealth, Watcher,
};

pub use heartbeat::{HEARTBEAT, HEARTBEAT_TIMEOUT, LastHeartbeat, declared_other_dead};

/// Changes of other servers may be missed when a notification is lost: every shared store is polled this
/// often.
pub const POLL: Span = Span::from_secs(1);

/// A database is checked by writing at most this often, and a write that takes longer is a failure.
const HEALTH_CHECK_MIN: Duration = Duration::from_secs(1);
const HEALTH_CHECK_MAX: Duration = Duration::from_secs(5);

/// The clock that decides what is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The clock of the database, so that servers whose clocks differ agree.
    #[default]
    Database,
    /// The `now` of each call, for tests.
    Caller,
}

/// How to open a database.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The clock that decides what is due.
    pub clock: Clock,
    /// How long to wait for a database that is not available yet.
    pub wait: Duration,
    /// Whether this process becomes one of the servers of the database. Without it only [`Store::export`] may be called.
    pub serves: bool,
}

/// A database that stores tasks. Calls run on the thread of the [`RemoteStore`] around it.
pub trait Backend: Sized + Send + Sync + 'static {
    /// The name of the database in messages. URLs are not shown, because they may contain a password.
    const NAME: &'static str;
    /// The name of the thread.
    const THREAD: &'static str;

    /// Reads the URL at once; then connects, brings the database to the current format and registers this server.
    fn open(
        url: &str,
        access: Access,
    ) -> Result<impl Future<Output = Result<Self, OpenError>> + Send + 'static, OpenError>;

    /// Starts the background work of a server.
    fn start(self: &Arc<Self>, runtime: &Handle);

    /// See [`Store::execute`]. The part before the future runs at once, in the order of the calls.
    fn execute(
        self: Arc<Self>,
        now: Timestamp,
        commands: Vec<Command>,
    ) -> impl Future<Output = Executed> + Send + 'static;

    /// See [`Store::export`].
    fn export(&self, request: Export) -> impl Future<Output = Result<Exported, Error>> + Send;

    /// See [`Store::import`].
    fn import(
        &self,
        now: Timestamp,
        part: Import,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes something, to check that the database accepts writes. May run beside a batch.
    fn check_write(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// See [`Store::close`].
    fn close(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// See [`Store::watch`].
    fn watch(&self, watcher: Watcher);

    /// See [`Store::capabilities`].
    fn capabilities(&self) -> Capabilities;

    /// See [`Store::batches_max`].
    fn batches_max(&self) -> usize {
        1
    }

    /// See [`Store::poll_every`].
    fn poll_every(&self) -> Span {
        POLL
    }

    /// See [`Store::durability`].
    fn durability(&self) -> Option<String> {
        None
    }

    /// See [`Store::unsupported`].
    fn unsupported(&self) -> &'static [&'static str] {
        &[]
    }

    /// The error of a database that cannot be used.
    fn unavailable(why: &(impl ToString + ?Sized)) -> OpenError {
        OpenError::Unavailable { folder: Self::NAME.into(), what: why.to_string() }
    }

    /// The error of a database that a newer version has written.
    fn too_new(found: i64, known: i64) -> OpenError {
        OpenError::TooNew { folder: Self::NAME.into(), found, known }
    }
}

/// The latest health check.
struct HealthCheck {
    at: Instant,
    result: Result<StoreHealth, Error>,
}

/// A store in a database.
pub struct RemoteStore<B> {
    backend: Arc<B>,
    /// Taken out when the store is dropped: a runtime must not be dropped where blocking is forbidden.
    runtime: Option<Runtime>,
    health: Arc<Mutex<Option<HealthCheck>>>,
}

impl<B: Backend> RemoteStore<B> {
    /// Opens the database of this URL.
    pub fn open(url: &str, clock: Clock) -> Result<Self, OpenError> {
        Self::open_within(url, clock, Duration::ZERO)
    }

    /// Opens a database, waiting up to this long until it is available.
    pub fn open_within(url: &str, clock: Clock, wait: Duration) -> Result<Self, OpenError> {
        Self::open_with(url, Access { clock, wait, serves: true })
    }

    /// Opens a database without becoming one of its servers, which would release taken tasks where there is no other server.
    /// Only [`Store::export`] may be called.
    pub fn open_read_only(url: &str, clock: Clock, wait: Duration) -> Result<Self, OpenError> {
        Self::open_with(url, Access { clock, wait, serves: false })
    }

    /// Opens the database as these options say. Each store calls it in its own crate, so that the crates above do not compile
    /// the store again.
    pub fn open_boxed(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
        Ok(Box::new(match options.read_only {
            true => Self::open_read_only(url, Clock::Database, options.wait)?,
            false => Self::open_within(url, Clock::Database, options.wait)?,
        }))
    }

    fn open_with(url: &str, access: Access) -> Result<Self, OpenError> {
        let open = B::open(url, access)?;
        let (runtime, backend) = on_own_thread(B::THREAD, |why| B::unavailable(&why), open)?;
        let backend = Arc::new(backend);
        if access.serves {
            backend.start(runtime.handle());
        }
        Ok(RemoteStore { backend, runtime: Some(runtime), health: Arc::default() })
    }

    /// Starts a call on the store's own thread at once.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        failed: impl FnOnce(String) -> T + Send + 'static,
    ) -> Pending<'_, T> {
        let Some(runtime) = &self.runtime else {
            return Box::pin(ready(failed("the store is closed".into())));
        };
        let task = runtime.spawn(work);
        Box::pin(async move { task.await.unwrap_or_else(|error| failed(error.to_string())) })
    }

    /// Refuses the commands that need a feature that the database does not have, and executes the others.
    fn execute_allowed(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let capabilities = self.capabilities();
        let checked: Vec<_> = commands.iter().map(|command| capabilities.check(command)).collect();
        let allowed = commands.into_iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
        let executing = Store::execute(self, now, allowed.map(|(command, _)| command).collect());
        Box::pin(async move {
            let mut executed = executing.await;
            let places: Vec<_> =
                (0..checked.len()).filter(|place| checked[*place].is_ok()).collect();
            executed.unloaded.iter_mut().for_each(|one| one.reply = places[one.reply]);
            let mut replies = std::mem::take(&mut executed.replies).into_iter();
            let reply = |checked: Result<(), Error>| match checked {
                Ok(()) => replies.next(),
                Err(error) => Some(Err(error)),
            };
            executed.replies = checked.into_iter().filter_map(reply).collect();
            executed
        })
    }

    fn spawn_call<T, F>(&self, call: impl FnOnce(Arc<B>) -> F) -> Pending<'_, Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.spawn(call(Arc::clone(&self.backend)), |why| Err(Error::Store(why)))
    }
}

impl<B: Backend> Store for RemoteStore<B> {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let capabilities = self.capabilities();
        if commands.iter().any(|command| capabilities.check(command).is_err()) {
            return self.execute_allowed(now, commands);
        }
        let count = commands.len();
        let work = Arc::clone(&self.backend).execute(now, commands);
        self.spawn(work, move |why| {
            let replies = vec![Err(Error::Store(why)); count];
            Executed { replies, effects: Effects::default(), unloaded: Vec::new() }
        })
    }

    fn batches_max(&self) -> usize {
        self.backend.batches_max()
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        // Replies of a database already contain the bodies.
        Box::pin(ready(vec![Ok(None); keys.len()]))
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn durability(&self) -> Option<String> {
        self.backend.durability()
    }

    fn unsupported(&self) -> &'static [&'static str] {
        self.backend.unsupported()
    }

    fn watch(&self, watcher: Watcher) {
        self.backend.watch(watcher);
    }

    fn poll_every(&self) -> Option<Span> {
        Some(self.backend.poll_every())
    }

    fn export(&self, request: Export) -> Pending<'_, Result<Exported, Error>> {
        if matches!(request, Export::EndedKeys { .. }) && !self.capabilities().keys {
            return Box::pin(ready(Ok(Exported::EndedKeys(Vec::new()))));
        }
        self.spawn_call(|backend| async move { backend.export(request).await })
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        if let Err(error) = self.backend.capabilities().check_import(&part) {
            return Box::pin(ready(Err(error)));
        }
        self.spawn_call(|backend| async move { backend.import(now, part).await })
    }

    fn health(&self, _: Timestamp) -> Pending<'_, Result<StoreHealth, Error>> {
        let health = Arc::clone(&self.health);
        self.spawn_call(|backend| async move {
            // Concurrent callers wait for one check.
            let mut latest = health.lock().await;
            if let Some(HealthCheck { at, result }) = &*latest
                && at.elapsed() < HEALTH_CHECK_MIN
            {
                return result.clone();
            }
            let checked = timeout(HEALTH_CHECK_MAX, backend.check_write()).await;
            let slow = |_| {
                let seconds = HEALTH_CHECK_MAX.as_secs();
                let why = format!("{} has not confirmed a write within {seconds} s", B::NAME);
                Err(Error::StoreUnavailable(why))
            };
            let result = checked.unwrap_or_else(slow).map(|()| StoreHealth::default());
            *latest = Some(HealthCheck { at: Instant::now(), result: result.clone() });
            result
        })
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.spawn_call(|backend| async move { backend.close().await })
    }
}

impl<B> Drop for RemoteStore<B> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sixteen bytes that identify this server in a database and that no other server has.
pub fn server_identity() -> Vec<u8> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = (std::process::id(), now.map_or(0, |since| since.as_nanos()));
    // Each has random keys.
    let parts = [RandomState::new().hash_one(seed), RandomState::new().hash_one(seed)];
    parts.into_iter().flat_map(u64::to_be_bytes).collect()
}

/// Opens a backend on a new runtime with one thread of this name. The caller may be on a runtime of its own, where it must not
/// block on another one, nor drop one that could not be used.
fn on_own_thread<T: Send + 'static>(
    name: &str,
    unavailable: impl Fn(&dyn Display) -> OpenError,
    open: impl Future<Output = Result<T, OpenError>> + Send + 'static,
) -> Result<(Runtime, T), OpenError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| unavailable(&error))?;
    let (done, opened) = std::sync::mpsc::channel();
    runtime.spawn(async move { done.send(open.await) });
    match opened.recv().map_err(|error| unavailable(&error)).and_then(|opened| opened) {
        Ok(store) => Ok((runtime, store)),
        Err(error) => {
            runtime.shutdown_background();
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use taskyard_conformance::block_on;
    use taskyard_core::{
        Key, KeyRequest, Kind, List, ListOrder, NewTask, Reply, StateSet, Take, TaskId, TubeName,
        TubeOptions,
    };

    use super::*;
    use crate::copy::{copy, plan};
    use crate::{MemoryStore, Unloaded};

    /// A database without unique keys, which does not notice them. Its takes return bodies late.
    struct WithoutKeys(MemoryStore);

    impl Backend for WithoutKeys {
        const NAME: &'static str = "plain";
        const THREAD: &'static str = "plain";

        fn open(
            _: &str,
            _: Access,
        ) -> Result<impl Future<Output = Result<Self, OpenError>> + Send + 'static, OpenError>
        {
            Ok(ready(Ok(WithoutKeys(MemoryStore::default()))))
        }

        fn start(self: &Arc<Self>, _: &Handle) {}

        async fn execute(self: Arc<Self>, now: Timestamp, commands: Vec<Command>) -> Executed {
            let mut executed = self.0.execute(now, commands).await;
            for (reply, answer) in executed.replies.iter().enumerate() {
                if matches!(answer, Ok(Reply::Taken(_))) {
                    let key = BodyKey { tube: 0, id: TaskId(0) };
                    executed.unloaded.push(Unloaded { reply, item: 0, key });
                }
            }
            executed
        }

        async fn export(&self, request: Export) -> Result<Exported, Error> {
            self.0.export(request).await
        }

        async fn import(&self, now: Timestamp, part: Import) -> Result<(), Error> {
            self.0.import(now, part).await
        }

        async fn check_write(&self) -> Result<(), Error> {
            Ok(())
        }

        async fn close(&self) -> Result<(), Error> {
            Ok(())
        }

        fn watch(&self, _: Watcher) {}

        fn capabilities(&self) -> Capabilities {
            Capabilities { imports: true, exports: true, ..Capabilities::plain("plain") }
        }
    }

    fn tube() -> TubeName {
        TubeName::new("jobs").expect("a good name")
    }

    fn create() -> Command {
        let options = TubeOptions::new(Kind::Fifo);
        Command::CreateTube { tube: tube(), options, if_not_exists: false }
    }

    fn put(key: Option<&str>) -> Command {
        let request = |key| Box::new(KeyRequest::new(Key::new(key).expect("a good key")));
        let task = NewTask { key: key.map(request), ..NewTask::new(Body::new(b"x")) };
        Command::Put { tube: tube(), tasks: vec![task], wait: Span::ZERO }
    }

    #[test]
    fn commands_with_keys_are_refused_and_the_others_executed() {
        let store =
            RemoteStore::<WithoutKeys>::open("plain:", Clock::Caller).expect("the store opens");
        let order = ListOrder::Id { states: StateSet::ALL, after: None };
        let key = Key::new("k").ok();
        let take = Take {
            tube: tube(),
            count: 9,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let batch = vec![
            create(),
            put(Some("k")),
            put(None),
            Command::List(List { tube: tube(), order, limit: 9, key }),
            Command::Take(take),
            put(Some("k")),
        ];
        let executed = block_on(Store::execute(&store, Timestamp::EPOCH, batch));
        let refused =
            |index: usize| matches!(executed.replies[index], Err(Error::MissingFeature { .. }));
        assert_eq!([0, 1, 2, 3, 4, 5].map(refused), [false, true, false, true, false, true]);
        assert_eq!(executed.replies[0], Ok(Reply::Created(true)));
        let Ok(Reply::Taken(taken)) = &executed.replies[4] else { panic!("a take") };
        assert_eq!(taken.len(), 1, "only the task without a key was put");
        assert_eq!(executed.unloaded.iter().map(|one| one.reply).collect::<Vec<_>>(), [4]);
        let only = block_on(Store::execute(&store, Timestamp::EPOCH, vec![put(Some("k"))]));
        assert!(matches!(only.replies[..], [Err(Error::MissingFeature { .. })]));
    }

    /// Nothing arrives without its key.
    #[test]
    fn a_copy_with_keys_is_refused() {
        for is_ended in [false, true] {
            let store =
                RemoteStore::<WithoutKeys>::open("plain:", Clock::Caller).expect("the store opens");
            let from = MemoryStore::default();
            let Command::Put { mut tasks, .. } = put(Some("k")) else { panic!("a put") };
            tasks[0].key.as_mut().expect("a key").held.unique_for = Span::from_secs(60);
            let put = Command::Put { tube: tube(), tasks, wait: Span::ZERO };
            block_on(from.execute(Timestamp::EPOCH, vec![create(), put]));
            if is_ended {
                let delete = Command::Delete { tube: tube(), ids: vec![TaskId(0)], show: false };
                block_on(from.execute(Timestamp::EPOCH, vec![delete]));
            }
            let copied = block_on(async {
                let plan = plan(&from, &store, &[]).await?;
                copy(&from, &store, Timestamp::EPOCH, &plan, |_| ()).await
            });
            let refusal = copied.expect_err("the target has no keys").to_string();
            assert!(refusal.contains("the plain store has no unique keys"), "{refusal}");
            let asked = vec![Command::Tubes { tube: Some(tube()) }];
            let seen = block_on(Store::execute(&store, Timestamp::EPOCH, asked)).replies.remove(0);
            assert_eq!(seen, Err(Error::TubeNotFound(tube())), "nothing is visible");
        }
    }
}

//! Calls for priority semaphores, which limit how many tasks hold a grant at a time.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use taskyard_core::{
    Command, EnqueueItem, EventId, Grant, GrantFinish, GrantItem, GrantOutcome, MemberCursor,
    MemberGroup, MemberInfo, MembersPage, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreEvent,
    SemaphoreInfo, SemaphoreKey, SemaphoreReply, TaskId,
};

use crate::client::{Client, unexpected};
use crate::error::{Error, Result};

/// How many events are fetched at a time.
const EVENTS_MAX: usize = 100;
/// How long one request for events waits; then it is repeated.
const EVENTS_WAIT: Duration = Duration::from_secs(60);

/// Creates and changes semaphores of a queue.
///
/// ```
/// # async fn example() -> Result<(), taskyard::Error> {
/// use taskyard::{Client, EventKind, TaskId};
///
/// let client = Client::open("memory:").await?;
/// let manager = client.semaphores();
/// manager.update("yang", 1, 1).await?;
/// let yang = manager.get_or_create("yang").await?;
/// yang.enqueue(TaskId(7), 2.5).await?;
/// let event = yang.events().next().await?;
/// assert_eq!((event.task, event.kind), (TaskId(7), EventKind::Acquired));
/// yang.acknowledge(&[event.id]).await?;
/// yang.release(event.task, Some(event.grant)).await?;
/// # client.close().await
/// # }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(example()).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SemaphoreManager<'a> {
    client: &'a Client,
}

/// One semaphore of a queue.
#[derive(Clone, Debug)]
pub struct Semaphore<'a> {
    client: &'a Client,
    key: SemaphoreKey,
}

impl Client {
    /// The semaphores of this queue.
    pub fn semaphores(&self) -> SemaphoreManager<'_> {
        SemaphoreManager { client: self }
    }

    async fn semaphore(&self, command: SemaphoreCommand) -> Result<SemaphoreReply> {
        let verb = command.verb();
        match self.execute_one(Command::Semaphore(command)).await? {
            Reply::Semaphore(reply) => Ok(reply),
            _ => Err(unexpected(verb).into()),
        }
    }

    async fn acknowledge(&self, events: &[EventId]) -> Result<u64> {
        let acknowledge = SemaphoreCommand::Acknowledge { events: events.to_vec() };
        match self.semaphore(acknowledge).await? {
            SemaphoreReply::Acknowledged(count) => Ok(count),
            _ => Err(unexpected("acknowledge").into()),
        }
    }
}

impl<'a> SemaphoreManager<'a> {
    /// The semaphore with this key, created with the defaults if it does not exist: 1000 grants, of which the 900 with the
    /// lowest priority may be asked to release.
    pub async fn get_or_create(&self, key: &str) -> Result<Semaphore<'a>> {
        let semaphore = self.named(key)?;
        // Most semaphores exist. Creating one returns the number of waiting tasks, which some stores have to count; an empty
        // peek does not.
        match semaphore.peek(&[]).await {
            Err(Error::Refused(taskyard_core::Error::SemaphoreNotFound(_))) => {}
            found => return found.map(|_| semaphore),
        }
        self.infos(configure(semaphore.key.clone(), SemaphoreChange::default(), true)).await?;
        Ok(semaphore)
    }

    /// Sets how many tasks may hold a grant, and how many of them may be asked to release; creates the semaphore if it does
    /// not exist.
    pub async fn update(&self, key: &str, active: i64, try_release: i64) -> Result<SemaphoreInfo> {
        self.set(key, SemaphoreChange::limits(active, try_release)).await
    }

    /// Creates a semaphore. An existing one is not changed; refused if a given option differs from it.
    pub async fn create(&self, key: &str, change: SemaphoreChange) -> Result<SemaphoreInfo> {
        let infos = self.infos(configure(SemaphoreKey::new(key)?, change, true)).await?;
        Ok(infos.into_iter().next().ok_or_else(|| unexpected("semaphore"))?)
    }

    /// Removes a semaphore with its events. Refused while a tube uses it and, unless forced, while tasks hold or wait for its
    /// grants.
    pub async fn drop(&self, key: &str, force: bool) -> Result<()> {
        let drop = SemaphoreCommand::Drop { key: SemaphoreKey::new(key)?, force };
        match self.client.semaphore(drop).await? {
            SemaphoreReply::Dropped => Ok(()),
            _ => Err(unexpected("drop").into()),
        }
    }

    /// Changes any option of a semaphore; creates it if it does not exist.
    pub async fn set(&self, key: &str, change: SemaphoreChange) -> Result<SemaphoreInfo> {
        let infos = self.infos(configure(SemaphoreKey::new(key)?, change, false)).await?;
        Ok(infos.into_iter().next().ok_or_else(|| unexpected("semaphore"))?)
    }

    /// All semaphores, by key.
    pub async fn list(&self) -> Result<Vec<SemaphoreInfo>> {
        self.infos(SemaphoreCommand::List { key: None }).await
    }

    /// The semaphore with this key, without checking that it exists.
    pub fn named(&self, key: &str) -> Result<Semaphore<'a>> {
        Ok(Semaphore { client: self.client, key: SemaphoreKey::new(key)? })
    }

    /// The events of all semaphores.
    pub fn events(&self) -> Events<'a> {
        Events { client: self.client, key: None, fetched: VecDeque::new() }
    }

    /// Acknowledges events; returns how many of them existed.
    pub async fn acknowledge(&self, events: &[EventId]) -> Result<u64> {
        self.client.acknowledge(events).await
    }

    async fn infos(&self, command: SemaphoreCommand) -> Result<Vec<SemaphoreInfo>> {
        match self.client.semaphore(command).await? {
            SemaphoreReply::Semaphores(infos) => Ok(infos),
            _ => Err(unexpected("semaphores").into()),
        }
    }
}

fn configure(key: SemaphoreKey, change: SemaphoreChange, only_new: bool) -> SemaphoreCommand {
    SemaphoreCommand::Configure { key, change: Box::new(change), only_new }
}

impl<'a> Semaphore<'a> {
    /// Its key.
    pub fn key(&self) -> &SemaphoreKey {
        &self.key
    }

    /// Its options and state.
    pub async fn info(&self) -> Result<SemaphoreInfo> {
        let list = SemaphoreCommand::List { key: Some(self.key.clone()) };
        match self.client.semaphore(list).await? {
            SemaphoreReply::Semaphores(mut infos) if infos.len() == 1 => Ok(infos.remove(0)),
            _ => Err(unexpected("semaphore").into()),
        }
    }

    /// Enqueues a task, or changes its priority; larger priorities come first.
    pub async fn enqueue(&self, task: TaskId, priority: f64) -> Result<MemberInfo> {
        let mut infos = self.enqueue_many(&[EnqueueItem { task, priority }]).await?;
        Ok(infos.pop().ok_or_else(|| unexpected("enqueue"))?)
    }

    /// Enqueues many tasks in one step.
    pub async fn enqueue_many(&self, entries: &[EnqueueItem]) -> Result<Vec<MemberInfo>> {
        let (key, entries) = (self.key.clone(), entries.to_vec());
        self.member_infos(SemaphoreCommand::Enqueue { key, entries }).await
    }

    /// Shows tasks; those that are not enqueued are omitted.
    pub async fn peek(&self, tasks: &[TaskId]) -> Result<Vec<MemberInfo>> {
        let (key, tasks) = (self.key.clone(), tasks.to_vec());
        self.member_infos(SemaphoreCommand::Peek { key, tasks }).await
    }

    /// The tasks that hold a grant or wait for one, highest priority first, at most `count`; `after` is the `next` of the
    /// previous page.
    pub async fn members(
        &self,
        part: MemberGroup,
        after: Option<MemberCursor>,
        count: usize,
    ) -> Result<MembersPage> {
        let key = self.key.clone();
        match self.client.semaphore(SemaphoreCommand::Members { key, part, after, count }).await? {
            SemaphoreReply::Members(page) => Ok(page),
            _ => Err(unexpected("members").into()),
        }
    }

    /// Releases a grant to the next task, or leaves the queue. Without `grant` the current one is meant.
    pub async fn release(&self, task: TaskId, grant: Option<Grant>) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Release).await
    }

    /// Yields a grant: the task waits again, with its old priority and age.
    pub async fn yield_(&self, task: TaskId, grant: Option<Grant>) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Yield).await
    }

    /// Declines a request to release: the task keeps its grant and is not asked again as long as the request is valid.
    pub async fn decline(&self, task: TaskId, grant: Option<Grant>) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Decline).await
    }

    /// Extends the grant to this time from now.
    pub async fn extend(
        &self,
        task: TaskId,
        grant: Option<Grant>,
        time: Duration,
    ) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Extend(time.into())).await
    }

    /// Finishes several grants in one step: one outcome for each.
    pub async fn finish_many(&self, items: &[GrantItem]) -> Result<Vec<GrantOutcome>> {
        let (key, items) = (self.key.clone(), items.to_vec());
        match self.client.semaphore(SemaphoreCommand::Finish { key, items }).await? {
            SemaphoreReply::Finished(outcomes) => Ok(outcomes),
            _ => Err(unexpected("finish").into()),
        }
    }

    /// The events of this semaphore.
    pub fn events(&self) -> Events<'a> {
        Events { client: self.client, key: Some(self.key.clone()), fetched: VecDeque::new() }
    }

    /// Acknowledges events; returns how many of them existed.
    pub async fn acknowledge(&self, events: &[EventId]) -> Result<u64> {
        self.client.acknowledge(events).await
    }

    async fn finish(
        &self,
        task: TaskId,
        grant: Option<Grant>,
        finish: GrantFinish,
    ) -> Result<GrantOutcome> {
        let outcomes = self.finish_many(&[GrantItem { task, grant, finish }]).await?;
        Ok(outcomes.first().copied().ok_or_else(|| unexpected("finish"))?)
    }

    async fn member_infos(&self, command: SemaphoreCommand) -> Result<Vec<MemberInfo>> {
        match self.client.semaphore(command).await? {
            SemaphoreReply::MemberInfos(infos) => Ok(infos),
            _ => Err(unexpected("peek").into()),
        }
    }
}

/// The events of semaphores. Each must be acknowledged, or it is delivered again after half a minute; (semaphore, task,
/// grant, kind) identifies an event, so that a consumer can ignore repetitions.
#[derive(Debug)]
pub struct Events<'a> {
    client: &'a Client,
    key: Option<SemaphoreKey>,
    fetched: VecDeque<SemaphoreEvent>,
}

/// [`Events`] as a [`Stream`]. It never ends; after an error it continues with the next request.
pub struct EventStream<'a> {
    state: Option<StreamState<'a>>,
}

enum StreamState<'a> {
    Idle(Events<'a>),
    Fetching(Pin<Box<dyn Future<Output = Fetched<'a>> + Send + 'a>>),
}

type Fetched<'a> = (Events<'a>, Result<SemaphoreEvent>);

impl fmt::Debug for EventStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

impl Stream for EventStream<'_> {
    type Item = Result<SemaphoreEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut fetching = match self.state.take() {
            None => return Poll::Ready(None),
            Some(StreamState::Fetching(fetching)) => fetching,
            Some(StreamState::Idle(mut events)) => Box::pin(async move {
                let event = events.next().await;
                (events, event)
            }),
        };
        match fetching.as_mut().poll(context) {
            Poll::Ready((events, event)) => {
                self.state = Some(StreamState::Idle(events));
                Poll::Ready(Some(event))
            }
            Poll::Pending => {
                self.state = Some(StreamState::Fetching(fetching));
                Poll::Pending
            }
        }
    }
}

impl<'a> Events<'a> {
    /// The events as a stream. Events that it has fetched and not returned when it is dropped are delivered again.
    pub fn into_stream(self) -> EventStream<'a> {
        EventStream { state: Some(StreamState::Idle(self)) }
    }

    /// Waits for the next event.
    pub async fn next(&mut self) -> Result<SemaphoreEvent> {
        loop {
            if let Some(event) = self.fetched.pop_front() {
                return Ok(event);
            }
            self.fetch(EVENTS_WAIT).await?;
        }
    }

    /// Waits this long for the next event.
    pub async fn next_within(&mut self, wait: Duration) -> Result<Option<SemaphoreEvent>> {
        if self.fetched.is_empty() {
            self.fetch(wait).await?;
        }
        Ok(self.fetched.pop_front())
    }

    async fn fetch(&mut self, wait: Duration) -> Result<()> {
        let key = self.key.clone();
        let fetch = SemaphoreCommand::Events { key, count: EVENTS_MAX, wait: wait.into() };
        match self.client.semaphore(fetch).await? {
            SemaphoreReply::Events(events) => self.fetched.extend(events),
            _ => return Err(unexpected("events").into()),
        }
        Ok(())
    }
}

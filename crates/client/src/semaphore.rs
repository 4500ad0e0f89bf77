//! Priority semaphores: only the best so many at a time.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use taskyard_core::{
    Command, EventId, Execute, Grant, GrantFinish, GrantItem, GrantOutcome, LineCursor, LinePart,
    MembersPage, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo,
    SemaphoreKey, SemaphoreReply, Standing, TaskId, Wish,
};

use crate::client::{Client, unexpected};
use crate::error::{Error, Result};

/// How many events are fetched at a time.
const EVENTS: usize = 100;
/// How long one question for events waits; then it is asked again.
const LISTEN: Duration = Duration::from_secs(60);

/// Makes and changes semaphores of a queue.
///
/// ```
/// # async fn example() -> Result<(), taskyard::Error> {
/// use taskyard::{Client, EventKind, TaskId};
///
/// let client = Client::open("memory:")?;
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
pub struct SemaphoreManager<'a, E> {
    client: &'a Client<E>,
}

/// One semaphore of a queue.
#[derive(Clone, Debug)]
pub struct Semaphore<'a, E> {
    client: &'a Client<E>,
    key: SemaphoreKey,
}

impl<E: Execute> Client<E> {
    /// The semaphores of this queue.
    pub fn semaphores(&self) -> SemaphoreManager<'_, E> {
        SemaphoreManager { client: self }
    }

    async fn semaphore(&self, command: SemaphoreCommand) -> Result<SemaphoreReply> {
        let verb = command.verb();
        match self.ask(Command::Semaphore(command)).await? {
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

impl<'a, E: Execute> SemaphoreManager<'a, E> {
    /// The semaphore of this key, made with the defaults if it is not there: 1000 at a time, of which the worst
    /// 900 may be asked to release.
    pub async fn get_or_create(&self, key: &str) -> Result<Semaphore<'a, E>> {
        let semaphore = self.named(key)?;
        // Most are there. To make one shows how many wait, which some stores have to count; to look for nobody does not.
        match semaphore.look(&[]).await {
            Err(Error::Refused(taskyard_core::Error::SemaphoreNotFound(_))) => {}
            found => return found.map(|_| semaphore),
        }
        self.infos(configure(semaphore.key.clone(), SemaphoreChange::default(), true)).await?;
        Ok(semaphore)
    }

    /// Sets how many may hold a grant, and how many of them may be asked to release; makes the semaphore if it is
    /// not there.
    pub async fn update(&self, key: &str, active: i64, try_release: i64) -> Result<SemaphoreInfo> {
        self.set(key, SemaphoreChange::limits(active, try_release)).await
    }

    /// Makes a semaphore. One that is there is left as it is; refused where an option that is named differs from it.
    pub async fn create(&self, key: &str, change: SemaphoreChange) -> Result<SemaphoreInfo> {
        let infos = self.infos(configure(SemaphoreKey::new(key)?, change, true)).await?;
        Ok(infos.into_iter().next().ok_or_else(|| unexpected("semaphore"))?)
    }

    /// Removes a semaphore with its events. Refused while it is before a tube and, unless forced, while tasks hold its grants
    /// or wait for them.
    pub async fn drop(&self, key: &str, force: bool) -> Result<()> {
        let drop = SemaphoreCommand::Drop { key: SemaphoreKey::new(key)?, force };
        match self.client.semaphore(drop).await? {
            SemaphoreReply::Dropped => Ok(()),
            _ => Err(unexpected("drop").into()),
        }
    }

    /// Changes anything about a semaphore; makes it if it is not there.
    pub async fn set(&self, key: &str, change: SemaphoreChange) -> Result<SemaphoreInfo> {
        let infos = self.infos(configure(SemaphoreKey::new(key)?, change, false)).await?;
        Ok(infos.into_iter().next().ok_or_else(|| unexpected("semaphore"))?)
    }

    /// All semaphores, by key.
    pub async fn list(&self) -> Result<Vec<SemaphoreInfo>> {
        self.infos(SemaphoreCommand::List { key: None }).await
    }

    /// The semaphore of this key, without asking whether it is there.
    pub fn named(&self, key: &str) -> Result<Semaphore<'a, E>> {
        Ok(Semaphore { client: self.client, key: SemaphoreKey::new(key)? })
    }

    /// The events of all semaphores.
    pub fn events(&self) -> Events<'a, E> {
        Events { client: self.client, key: None, fetched: VecDeque::new() }
    }

    /// Says that events have arrived; how many of them were there.
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

impl<'a, E: Execute> Semaphore<'a, E> {
    /// Its key.
    pub fn key(&self) -> &SemaphoreKey {
        &self.key
    }

    /// What it does and has.
    pub async fn info(&self) -> Result<SemaphoreInfo> {
        let list = SemaphoreCommand::List { key: Some(self.key.clone()) };
        match self.client.semaphore(list).await? {
            SemaphoreReply::Semaphores(mut infos) if infos.len() == 1 => Ok(infos.remove(0)),
            _ => Err(unexpected("semaphore").into()),
        }
    }

    /// Stands in line; larger goes first. May be called again to change the priority.
    pub async fn enqueue(&self, task: TaskId, priority: f64) -> Result<Standing> {
        let mut standings = self.enqueue_many(&[Wish { task, priority }]).await?;
        Ok(standings.pop().ok_or_else(|| unexpected("enqueue"))?)
    }

    /// The same for many, in one step.
    pub async fn enqueue_many(&self, wishes: &[Wish]) -> Result<Vec<Standing>> {
        let (key, wishes) = (self.key.clone(), wishes.to_vec());
        self.standings(SemaphoreCommand::Enqueue { key, wishes }).await
    }

    /// Where tasks stand; those that are not there are left out.
    pub async fn look(&self, tasks: &[TaskId]) -> Result<Vec<Standing>> {
        let (key, tasks) = (self.key.clone(), tasks.to_vec());
        self.standings(SemaphoreCommand::Look { key, tasks }).await
    }

    /// The tasks that hold a grant or wait for one, the best first, at most `count`; `after` is the `next` of the page before.
    pub async fn members(
        &self,
        part: LinePart,
        after: Option<LineCursor>,
        count: usize,
    ) -> Result<MembersPage> {
        let key = self.key.clone();
        match self.client.semaphore(SemaphoreCommand::Members { key, part, after, count }).await? {
            SemaphoreReply::Members(page) => Ok(page),
            _ => Err(unexpected("members").into()),
        }
    }

    /// Leaves: the place goes to the next. Without a number the current grant is meant, or the place in line.
    pub async fn release(&self, task: TaskId, grant: Option<Grant>) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Release).await
    }

    /// Lets others go first: back into the line, with the old priority and seniority.
    pub async fn yield_(&self, task: TaskId, grant: Option<Grant>) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Yield).await
    }

    /// Cannot release now: keeps the grant, and is not asked again as long as this request would stand.
    pub async fn decline(&self, task: TaskId, grant: Option<Grant>) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Decline).await
    }

    /// Lets the grant last this long from now.
    pub async fn extend(
        &self,
        task: TaskId,
        grant: Option<Grant>,
        time: Duration,
    ) -> Result<GrantOutcome> {
        self.finish(task, grant, GrantFinish::Extend(time.into())).await
    }

    /// Does several of these in one step: an outcome for each.
    pub async fn finish_many(&self, items: &[GrantItem]) -> Result<Vec<GrantOutcome>> {
        let (key, items) = (self.key.clone(), items.to_vec());
        match self.client.semaphore(SemaphoreCommand::Finish { key, items }).await? {
            SemaphoreReply::Finished(outcomes) => Ok(outcomes),
            _ => Err(unexpected("finish").into()),
        }
    }

    /// The events of this semaphore.
    pub fn events(&self) -> Events<'a, E> {
        Events { client: self.client, key: Some(self.key.clone()), fetched: VecDeque::new() }
    }

    /// Says that events have arrived; how many of them were there.
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

    async fn standings(&self, command: SemaphoreCommand) -> Result<Vec<Standing>> {
        match self.client.semaphore(command).await? {
            SemaphoreReply::Standings(standings) => Ok(standings),
            _ => Err(unexpected("standings").into()),
        }
    }
}

/// Events as they come. Each is to be acknowledged, or it comes again after half a minute; whoever counts
/// (semaphore, task, grant, kind) hears of none twice.
#[derive(Debug)]
pub struct Events<'a, E> {
    client: &'a Client<E>,
    key: Option<SemaphoreKey>,
    fetched: VecDeque<SemaphoreEvent>,
}

/// The same as a [`Stream`], for those who work with several at once. It never ends; after an error it goes on with the
/// next question.
pub struct EventStream<'a, E> {
    state: Option<StreamState<'a, E>>,
}

enum StreamState<'a, E> {
    Idle(Events<'a, E>),
    Asking(Pin<Box<dyn Future<Output = Asked<'a, E>> + Send + 'a>>),
}

type Asked<'a, E> = (Events<'a, E>, Result<SemaphoreEvent>);

impl<E> fmt::Debug for EventStream<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

impl<E: Execute> Stream for EventStream<'_, E> {
    type Item = Result<SemaphoreEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut asking = match self.state.take() {
            None => return Poll::Ready(None),
            Some(StreamState::Asking(asking)) => asking,
            Some(StreamState::Idle(mut events)) => Box::pin(async move {
                let event = events.next().await;
                (events, event)
            }),
        };
        match asking.as_mut().poll(context) {
            Poll::Ready((events, event)) => {
                self.state = Some(StreamState::Idle(events));
                Poll::Ready(Some(event))
            }
            Poll::Pending => {
                self.state = Some(StreamState::Asking(asking));
                Poll::Pending
            }
        }
    }
}

impl<'a, E: Execute> Events<'a, E> {
    /// The events as a stream. What it has fetched and not handed out when it is dropped comes again.
    pub fn into_stream(self) -> EventStream<'a, E> {
        EventStream { state: Some(StreamState::Idle(self)) }
    }

    /// The next event, whenever it comes.
    pub async fn next(&mut self) -> Result<SemaphoreEvent> {
        loop {
            if let Some(event) = self.fetched.pop_front() {
                return Ok(event);
            }
            self.fetch(LISTEN).await?;
        }
    }

    /// The next event, if it comes in this time.
    pub async fn next_within(&mut self, wait: Duration) -> Result<Option<SemaphoreEvent>> {
        if self.fetched.is_empty() {
            self.fetch(wait).await?;
        }
        Ok(self.fetched.pop_front())
    }

    async fn fetch(&mut self, wait: Duration) -> Result<()> {
        let key = self.key.clone();
        let fetch = SemaphoreCommand::Events { key, count: EVENTS, wait: wait.into() };
        match self.client.semaphore(fetch).await? {
            SemaphoreReply::Events(events) => self.fetched.extend(events),
            _ => return Err(unexpected("events").into()),
        }
        Ok(())
    }
}

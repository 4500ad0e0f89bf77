//! Short forms of semaphore commands for the cases.

use taskyard_core::{
    Command, EnqueueItem, Error, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome,
    MemberCursor, MemberGroup, MemberInfo, MembersPage, Reply, SemaphoreChange, SemaphoreCommand,
    SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreReply, Span, Status, TaskId,
};

use super::super::Harness;

/// The key of this text.
pub(super) fn key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("a good key")
}

/// The semaphore of most cases.
pub(super) const YANG: &str = "yang";

/// Runs semaphore commands on a queue and expects a reply of the right kind. Methods without a key use the semaphore
/// `yang`.
#[expect(
    async_fn_in_trait,
    reason = "only the suite uses it, and it needs no bound on the futures"
)]
pub trait SemaphoreCommands: Harness {
    /// Runs a command.
    async fn semaphore(&self, command: SemaphoreCommand) -> Result<SemaphoreReply, Error> {
        match self.execute(vec![Command::Semaphore(command)]).await.remove(0) {
            Ok(Reply::Semaphore(reply)) => Ok(reply),
            Ok(other) => panic!("unexpected reply: {other:?}"),
            Err(error) => Err(error),
        }
    }

    /// Creates or changes a semaphore.
    async fn configure(&self, text: &str, change: SemaphoreChange) -> SemaphoreInfo {
        let (key, change) = (key(text), Box::new(change));
        let configure = SemaphoreCommand::Configure { key, change, only_new: false };
        one(infos(self.semaphore(configure).await))
    }

    /// Creates `yang` with these limits.
    async fn limits(&self, active: i64, try_release: i64) {
        self.configure(YANG, SemaphoreChange::limits(active, try_release)).await;
    }

    /// Changes `yang`.
    async fn change(&self, change: SemaphoreChange) {
        self.configure(YANG, change).await;
    }

    /// Shows `yang`.
    async fn info(&self) -> SemaphoreInfo {
        one(infos(self.semaphore(SemaphoreCommand::List { key: Some(key(YANG)) }).await))
    }

    /// Enqueues one task.
    async fn enqueue(&self, task: u64, priority: f64) -> MemberInfo {
        one(self.enqueue_many(&[(task, priority)]).await)
    }

    /// Enqueues tasks.
    async fn enqueue_many(&self, entries: &[(u64, f64)]) -> Vec<MemberInfo> {
        let wish = |(task, priority): &(u64, f64)| EnqueueItem {
            task: TaskId(*task),
            priority: *priority,
        };
        let entries = entries.iter().map(wish).collect();
        members(self.semaphore(SemaphoreCommand::Enqueue { key: key(YANG), entries }).await)
    }

    /// Admits tasks with priority 1 and delivers their events.
    async fn admit(&self, count: u64) {
        let entries: Vec<_> = (0..count).map(|task| (task, 1.0)).collect();
        self.enqueue_many(&entries).await;
        self.drain_events().await;
    }

    /// Finishes or extends a grant, the current one if none is named.
    async fn finish_grant(
        &self,
        task: u64,
        grant: Option<Grant>,
        how: GrantFinish,
    ) -> GrantOutcome {
        let items = vec![GrantItem { task: TaskId(task), grant, finish: how }];
        match self.semaphore(SemaphoreCommand::Finish { key: key(YANG), items }).await {
            Ok(SemaphoreReply::Finished(outcomes)) => one(outcomes),
            other => panic!("unexpected reply: {other:?}"),
        }
    }

    /// Releases.
    async fn release_task(&self, task: u64) -> GrantOutcome {
        self.finish_grant(task, None, GrantFinish::Release).await
    }

    /// Releases tasks in one call; all must exist.
    async fn release_tasks(&self, tasks: impl Iterator<Item = u64>) {
        let finish = GrantFinish::Release;
        let items = tasks.map(|task| GrantItem { task: TaskId(task), grant: None, finish });
        let items: Vec<_> = items.collect();
        let done = vec![GrantOutcome::Done; items.len()];
        let reply = self.semaphore(SemaphoreCommand::Finish { key: key(YANG), items }).await;
        assert_eq!(reply, Ok(SemaphoreReply::Finished(done)));
    }

    /// Shows a task.
    async fn member(&self, task: u64) -> Option<MemberInfo> {
        let look = SemaphoreCommand::Peek { key: key(YANG), tasks: vec![TaskId(task)] };
        members(self.semaphore(look).await).pop()
    }

    /// The status of a task, if it exists.
    async fn status(&self, task: u64) -> Option<Status> {
        self.member(task).await.map(|member| member.status)
    }

    /// One page of the holders or of the waiting tasks.
    async fn members(
        &self,
        part: MemberGroup,
        after: Option<MemberCursor>,
        count: usize,
    ) -> MembersPage {
        let members = SemaphoreCommand::Members { key: key(YANG), part, after, count };
        match self.semaphore(members).await {
            Ok(SemaphoreReply::Members(page)) => page,
            other => panic!("unexpected reply: {other:?}"),
        }
    }

    /// Fetches events that are due.
    async fn fetch(&self, of: Option<&str>) -> Vec<SemaphoreEvent> {
        let key = of.map(key);
        let fetch = SemaphoreCommand::Events { key, count: 1000, wait: Span::ZERO };
        match self.semaphore(fetch).await {
            Ok(SemaphoreReply::Events(events)) => events,
            other => panic!("unexpected reply: {other:?}"),
        }
    }

    /// Acknowledges events and returns how many existed.
    async fn acknowledge(&self, events: &[SemaphoreEvent]) -> u64 {
        let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
        match self.semaphore(SemaphoreCommand::Acknowledge { events }).await {
            Ok(SemaphoreReply::Acknowledged(count)) => count,
            other => panic!("unexpected reply: {other:?}"),
        }
    }

    /// Fetches and acknowledges all events and returns them, in order.
    async fn drain_events(&self) -> Vec<(u64, EventKind)> {
        let mut drained = Vec::new();
        loop {
            let events = self.fetch(None).await;
            if events.is_empty() {
                return drained;
            }
            self.acknowledge(&events).await;
            drained.extend(events.iter().map(|event| (event.task.0, event.kind)));
        }
    }
}

impl<H: Harness> SemaphoreCommands for H {}

fn one<T>(mut items: Vec<T>) -> T {
    assert_eq!(items.len(), 1, "one reply is expected");
    items.remove(0)
}

pub(super) fn infos(reply: Result<SemaphoreReply, Error>) -> Vec<SemaphoreInfo> {
    match reply {
        Ok(SemaphoreReply::Semaphores(infos)) => infos,
        other => panic!("unexpected reply: {other:?}"),
    }
}

fn members(reply: Result<SemaphoreReply, Error>) -> Vec<MemberInfo> {
    match reply {
        Ok(SemaphoreReply::MemberInfos(members)) => members,
        other => panic!("unexpected reply: {other:?}"),
    }
}

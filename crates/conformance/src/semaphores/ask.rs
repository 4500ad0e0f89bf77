//! What the cases ask, without the ceremony.

use taskyard_core::{
    Command, EnqueueItem, Error, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome,
    MemberCursor, MemberGroup, MembersPage, Reply, SemaphoreChange, SemaphoreCommand,
    SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreReply, Span, Standing, Status, TaskId,
};

use super::super::Harness;

/// The key of this text.
pub(super) fn key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("a good key")
}

/// The semaphore of most cases.
pub(super) const YANG: &str = "yang";

/// Asks semaphores of a queue, and expects an answer of the right kind. Methods without a key mean the semaphore
/// `yang`.
#[expect(
    async_fn_in_trait,
    reason = "only the suite uses it, and it asks for nothing of the future"
)]
pub trait SemaphoreAsk: Harness {
    /// Asks.
    async fn semaphore(&self, command: SemaphoreCommand) -> Result<SemaphoreReply, Error> {
        match self.execute(vec![Command::Semaphore(command)]).await.remove(0) {
            Ok(Reply::Semaphore(reply)) => Ok(reply),
            Ok(other) => panic!("a semaphore answered {other:?}"),
            Err(error) => Err(error),
        }
    }

    /// Makes or changes a semaphore.
    async fn configure(&self, text: &str, change: SemaphoreChange) -> SemaphoreInfo {
        let (key, change) = (key(text), Box::new(change));
        let configure = SemaphoreCommand::Configure { key, change, only_new: false };
        one(infos(self.semaphore(configure).await))
    }

    /// Makes `yang` with these limits.
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
    async fn enqueue(&self, task: u64, priority: f64) -> Standing {
        one(self.enqueue_many(&[(task, priority)]).await)
    }

    /// Enqueues tasks.
    async fn enqueue_many(&self, entries: &[(u64, f64)]) -> Vec<Standing> {
        let wish = |(task, priority): &(u64, f64)| EnqueueItem {
            task: TaskId(*task),
            priority: *priority,
        };
        let entries = entries.iter().map(wish).collect();
        standings(self.semaphore(SemaphoreCommand::Enqueue { key: key(YANG), entries }).await)
    }

    /// Admits tasks with priority 1 and lets them know.
    async fn admit(&self, count: u64) {
        let entries: Vec<_> = (0..count).map(|task| (task, 1.0)).collect();
        self.enqueue_many(&entries).await;
        self.hear().await;
    }

    /// Does something with a grant, the current one if none is named.
    async fn finish_grant(
        &self,
        task: u64,
        grant: Option<Grant>,
        how: GrantFinish,
    ) -> GrantOutcome {
        let items = vec![GrantItem { task: TaskId(task), grant, finish: how }];
        match self.semaphore(SemaphoreCommand::Finish { key: key(YANG), items }).await {
            Ok(SemaphoreReply::Finished(outcomes)) => one(outcomes),
            other => panic!("a finish answered {other:?}"),
        }
    }

    /// Releases.
    async fn release_task(&self, task: u64) -> GrantOutcome {
        self.finish_grant(task, None, GrantFinish::Release).await
    }

    /// Releases in one call; all must be there.
    async fn release_tasks(&self, tasks: impl Iterator<Item = u64>) {
        let finish = GrantFinish::Release;
        let items = tasks.map(|task| GrantItem { task: TaskId(task), grant: None, finish });
        let items: Vec<_> = items.collect();
        let done = vec![GrantOutcome::Done; items.len()];
        let reply = self.semaphore(SemaphoreCommand::Finish { key: key(YANG), items }).await;
        assert_eq!(reply, Ok(SemaphoreReply::Finished(done)));
    }

    /// Where a task stands.
    async fn standing(&self, task: u64) -> Option<Standing> {
        let look = SemaphoreCommand::Look { key: key(YANG), tasks: vec![TaskId(task)] };
        standings(self.semaphore(look).await).pop()
    }

    /// Whether it stands there, as what.
    async fn status(&self, task: u64) -> Option<Status> {
        self.standing(task).await.map(|standing| standing.status)
    }

    /// One page of a part of the line.
    async fn members(
        &self,
        part: MemberGroup,
        after: Option<MemberCursor>,
        count: usize,
    ) -> MembersPage {
        let members = SemaphoreCommand::Members { key: key(YANG), part, after, count };
        match self.semaphore(members).await {
            Ok(SemaphoreReply::Members(page)) => page,
            other => panic!("members answered {other:?}"),
        }
    }

    /// Fetches events that are due.
    async fn fetch(&self, of: Option<&str>) -> Vec<SemaphoreEvent> {
        let key = of.map(key);
        let fetch = SemaphoreCommand::Events { key, count: 1000, wait: Span::ZERO };
        match self.semaphore(fetch).await {
            Ok(SemaphoreReply::Events(events)) => events,
            other => panic!("events answered {other:?}"),
        }
    }

    /// Acknowledges events; how many were there.
    async fn acknowledge(&self, events: &[SemaphoreEvent]) -> u64 {
        let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
        match self.semaphore(SemaphoreCommand::Acknowledge { events }).await {
            Ok(SemaphoreReply::Acknowledged(count)) => count,
            other => panic!("an acknowledgement answered {other:?}"),
        }
    }

    /// Fetches and acknowledges everything; what it was, in order.
    async fn hear(&self) -> Vec<(u64, EventKind)> {
        let mut heard = Vec::new();
        loop {
            let events = self.fetch(None).await;
            if events.is_empty() {
                return heard;
            }
            self.acknowledge(&events).await;
            heard.extend(events.iter().map(|event| (event.task.0, event.kind)));
        }
    }
}

impl<H: Harness> SemaphoreAsk for H {}

fn one<T>(mut items: Vec<T>) -> T {
    assert_eq!(items.len(), 1, "one answer is wanted");
    items.remove(0)
}

pub(super) fn infos(reply: Result<SemaphoreReply, Error>) -> Vec<SemaphoreInfo> {
    match reply {
        Ok(SemaphoreReply::Semaphores(infos)) => infos,
        other => panic!("semaphores were wanted, not {other:?}"),
    }
}

fn standings(reply: Result<SemaphoreReply, Error>) -> Vec<Standing> {
    match reply {
        Ok(SemaphoreReply::Standings(standings)) => standings,
        other => panic!("standings were wanted, not {other:?}"),
    }
}

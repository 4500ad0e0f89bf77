//! A semaphore with a manual clock.

use crate::error::Error;
use crate::semaphore::{
    EnqueueItem, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome, MemberInfo,
    SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreReply,
    Semaphores, Status,
};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// One semaphore, and a manual clock.
pub(super) struct Fixture {
    pub all: Semaphores,
    pub now: Timestamp,
    pub key: SemaphoreKey,
}

impl Fixture {
    pub fn new(change: SemaphoreChange) -> Fixture {
        let key = SemaphoreKey::new("yang").expect("a good key");
        let mut fixture = Fixture { all: Semaphores::default(), now: Timestamp::EPOCH, key };
        fixture.configure(change);
        fixture
    }

    pub fn with_limits(active: i64, try_release: i64) -> Fixture {
        Fixture::new(SemaphoreChange::limits(active, try_release))
    }

    pub fn ask(&mut self, command: SemaphoreCommand) -> Result<SemaphoreReply, Error> {
        self.all.apply(self.now, command)
    }

    pub fn configure(&mut self, change: SemaphoreChange) -> SemaphoreInfo {
        let change = Box::new(change);
        let key = self.key.clone();
        match self.ask(SemaphoreCommand::Configure { key, change, only_new: false }) {
            Ok(SemaphoreReply::Semaphores(mut infos)) => infos.pop().expect("one"),
            other => panic!("{other:?}"),
        }
    }

    pub fn info(&mut self) -> SemaphoreInfo {
        match self.ask(SemaphoreCommand::List { key: Some(self.key.clone()) }) {
            Ok(SemaphoreReply::Semaphores(mut infos)) => infos.pop().expect("one"),
            other => panic!("{other:?}"),
        }
    }

    pub fn enqueue(&mut self, task: u64, priority: f64) -> MemberInfo {
        let entries = vec![EnqueueItem { task: TaskId(task), priority }];
        match self.ask(SemaphoreCommand::Enqueue { key: self.key.clone(), entries }) {
            Ok(SemaphoreReply::MemberInfos(mut members)) => members.pop().expect("one"),
            other => panic!("{other:?}"),
        }
    }

    pub fn finish(&mut self, task: u64, grant: Option<Grant>, how: GrantFinish) -> GrantOutcome {
        let items = vec![GrantItem { task: TaskId(task), grant, finish: how }];
        match self.ask(SemaphoreCommand::Finish { key: self.key.clone(), items }) {
            Ok(SemaphoreReply::Finished(mut outcomes)) => outcomes.pop().expect("one"),
            other => panic!("{other:?}"),
        }
    }

    pub fn release(&mut self, task: u64) -> GrantOutcome {
        self.finish(task, None, GrantFinish::Release)
    }

    pub fn member(&mut self, task: u64) -> Option<MemberInfo> {
        let tasks = vec![TaskId(task)];
        match self.ask(SemaphoreCommand::Peek { key: self.key.clone(), tasks }) {
            Ok(SemaphoreReply::MemberInfos(mut members)) => members.pop(),
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self, task: u64) -> Option<Status> {
        self.member(task).map(|member| member.status)
    }

    pub fn fetch(&mut self) -> Vec<SemaphoreEvent> {
        let all = SemaphoreCommand::Events { key: None, count: 10_000, wait: Span::ZERO };
        match self.ask(all) {
            Ok(SemaphoreReply::Events(events)) => events,
            other => panic!("{other:?}"),
        }
    }

    pub fn acknowledge(&mut self, events: Vec<EventId>) {
        self.ask(SemaphoreCommand::Acknowledge { events }).expect("always works");
    }

    /// Fetches and acknowledges all events; returns them.
    pub fn drain_events(&mut self) -> Vec<(u64, EventKind)> {
        let mut heard = Vec::new();
        loop {
            let events = self.fetch();
            if events.is_empty() {
                return heard;
            }
            heard.extend(events.iter().map(|event| (event.task.0, event.kind)));
            self.acknowledge(events.iter().map(|event| event.id).collect());
        }
    }

    /// Advances time and processes what is due.
    pub fn advance(&mut self, seconds: u64) {
        self.now = self.now + Span::from_secs(seconds);
        while self.all.tick(self.now, 7) > 0 {}
    }
}

//! Waiting for events of semaphores.

use taskyard_core::{
    Command, EnqueueItem, EventKind, Execute, GrantFinish, GrantItem, Kind, Reply, Result,
    SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreKey, SemaphoreReply, Span, TaskId,
    TubeOptions,
};

use crate::fixture::{Fixture, MINUTE, put, take, tube};

fn key() -> SemaphoreKey {
    SemaphoreKey::new("yang").unwrap()
}

fn events(count: usize, wait: Span) -> Command {
    Command::Semaphore(SemaphoreCommand::Events { key: None, count, wait })
}

fn enqueue(task: u64) -> Command {
    enqueue_with(task, 1.0)
}

fn enqueue_with(task: u64, priority: f64) -> Command {
    let entries = vec![EnqueueItem { task: TaskId(task), priority }];
    Command::Semaphore(SemaphoreCommand::Enqueue { key: key(), entries })
}

fn release(task: u64) -> Command {
    finish(task, GrantFinish::Release)
}

fn finish(task: u64, finish: GrantFinish) -> Command {
    let items = vec![GrantItem { task: TaskId(task), grant: None, finish }];
    Command::Semaphore(SemaphoreCommand::Finish { key: key(), items })
}

fn events_of(reply: Result<Reply>) -> Vec<SemaphoreEvent> {
    match reply {
        Ok(Reply::Semaphore(SemaphoreReply::Events(events))) => events,
        other => panic!("not an answer to events: {other:?}"),
    }
}

async fn fixture_with_semaphore() -> Fixture {
    let fixture = Fixture::new().await;
    let change = Box::new(SemaphoreChange::limits(1, 1));
    let configure = SemaphoreCommand::Configure { key: key(), change, only_new: false };
    fixture.run(Command::Semaphore(configure)).await.unwrap();
    fixture
}

#[tokio::test]
async fn the_call_that_makes_a_grant_possible_serves_waiting_listeners() {
    let fixture = fixture_with_semaphore().await;
    let mut waiting = fixture.submit(vec![events(10, MINUTE)]);
    fixture.idle().await;
    assert!(waiting.is_pending());
    fixture.run(enqueue(1)).await.unwrap();
    let first = events_of(waiting.reply().await);
    assert_eq!((first[0].task, first[0].kind), (TaskId(1), EventKind::Acquired));
    fixture.run(enqueue(2)).await.unwrap();
    let mut waiting = fixture.submit(vec![events(10, MINUTE)]);
    fixture.idle().await;
    assert!(waiting.is_pending());
    fixture.run(release(1)).await.unwrap();
    assert_eq!(events_of(waiting.reply().await)[0].task, TaskId(2));
}

#[tokio::test]
async fn a_wait_without_events_ends_in_time() {
    let fixture = fixture_with_semaphore().await;
    let mut waiting = fixture.submit(vec![events(10, MINUTE)]);
    fixture.idle().await;
    fixture.clock.advance(Span::from_secs(59));
    fixture.idle().await;
    assert!(waiting.is_pending());
    fixture.clock.advance(Span::from_secs(1));
    assert_eq!(events_of(waiting.reply().await), []);
}

#[tokio::test]
async fn an_event_that_was_not_acknowledged_is_sent_again() {
    let fixture = fixture_with_semaphore().await;
    fixture.run(enqueue(1)).await.unwrap();
    assert_eq!(events_of(fixture.run(events(10, MINUTE)).await).len(), 1);
    let mut waiting = fixture.submit(vec![events(10, MINUTE)]);
    fixture.idle().await;
    fixture.clock.advance(Span::from_secs(29));
    fixture.idle().await;
    assert!(waiting.is_pending());
    fixture.clock.advance(Span::from_secs(1));
    assert_eq!(events_of(waiting.reply().await)[0].attempt, 2);
}

// The request was queued behind the event of the grant. When the holder extended the grant without
// an acknowledgement, the request was free to be sent, but no listener was woken: with force the
// holder lost a grant that it was never asked to release.
#[tokio::test]
async fn a_request_that_an_extend_unblocks_is_sent_at_once() {
    let fixture = fixture_with_semaphore().await;
    fixture.run(enqueue(1)).await.unwrap();
    assert_eq!(events_of(fixture.run(events(10, MINUTE)).await).len(), 1);
    fixture.run(enqueue_with(2, 2.0)).await.unwrap();
    let mut waiting = fixture.submit(vec![events(10, Span::FOREVER)]);
    fixture.idle().await;
    assert!(waiting.is_pending());
    fixture.run(finish(1, GrantFinish::Extend(MINUTE))).await.unwrap();
    assert_eq!(events_of(waiting.reply().await)[0].kind, EventKind::TryRelease);
}

#[tokio::test]
async fn nothing_is_fetched_for_a_caller_that_left() {
    let fixture = fixture_with_semaphore().await;
    let waiting = fixture.submit(vec![events(10, MINUTE)]);
    fixture.idle().await;
    drop(waiting);
    fixture.run(enqueue(1)).await.unwrap();
    assert_eq!(events_of(fixture.run(events(10, Span::ZERO)).await)[0].attempt, 1);
}

#[tokio::test]
async fn an_engine_that_stops_answers_all_listeners() {
    let fixture = fixture_with_semaphore().await;
    let waiting = fixture.submit(vec![events(10, Span::FOREVER)]);
    fixture.idle().await;
    fixture.engine.stop().await.unwrap();
    assert_eq!(events_of(waiting.reply().await), []);
}

// Semaphore commands were assumed not to make tasks ready: a take after a release in the same batch
// overtook one that had come first.
#[tokio::test]
async fn a_release_serves_the_take_that_came_first() {
    let fixture = fixture_with_semaphore().await;
    fixture.run(enqueue(1)).await.unwrap();
    let options = TubeOptions { semaphore: Some(key()), ..TubeOptions::new(Kind::FifoTtl) };
    let create = Command::CreateTube { tube: tube("gated"), options, if_not_exists: false };
    fixture.run(create).await.unwrap();
    fixture.run(put("gated", b"1", Span::ZERO)).await.unwrap();
    let batch = vec![take("gated", 1, MINUTE), release(1), take("gated", 1, Span::ZERO)];
    let replies = fixture.engine.execute(batch).await;
    let counts: Vec<usize> = [&replies[0], &replies[2]]
        .map(|reply| match reply {
            Ok(Reply::Taken(tasks)) => tasks.len(),
            other => panic!("not an answer to a take: {other:?}"),
        })
        .into();
    assert_eq!(counts, [1, 0]);
}

// Every event woke all listeners: with two hundred listeners of one semaphore each, each grant cost
// two hundred queries.
#[tokio::test]
async fn events_of_one_semaphore_wake_only_its_listeners() {
    let fixture = fixture_with_semaphore().await;
    let listen = |text: &str| {
        let key = SemaphoreKey::new(text).unwrap();
        Command::Semaphore(SemaphoreCommand::Events { key: Some(key), count: 10, wait: MINUTE })
    };
    let mut others = Vec::new();
    for other in ["a", "b", "c"] {
        let change = Box::new(SemaphoreChange::limits(1, 1));
        let key = SemaphoreKey::new(other).unwrap();
        let make = SemaphoreCommand::Configure { key, change, only_new: false };
        fixture.run(Command::Semaphore(make)).await.unwrap();
        others.push(fixture.submit(vec![listen(other)]));
    }
    let waiting = fixture.submit(vec![listen("yang")]);
    fixture.idle().await;
    fixture.control.forget_batches();
    fixture.run(enqueue(1)).await.unwrap();
    assert_eq!(events_of(waiting.reply().await).len(), 1);
    let asked = fixture.control.verbs().concat();
    let fetch = events(1, Span::ZERO).verb();
    assert_eq!(asked.iter().filter(|verb| **verb == fetch).count(), 1, "{asked:?}");
    assert!(others.iter_mut().all(|other| other.is_pending()));
}

//! Waiting for events of semaphores.

use taskyard_core::{
    Command, EventKind, Execute, GrantFinish, GrantItem, Kind, Reply, Result, SemaphoreChange,
    SemaphoreCommand, SemaphoreEvent, SemaphoreKey, SemaphoreReply, Span, TaskId, TubeOptions,
    Wish,
};

use crate::rig::{MINUTE, Rig, put, take, tube};

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
    let wishes = vec![Wish { task: TaskId(task), priority }];
    Command::Semaphore(SemaphoreCommand::Enqueue { key: key(), wishes })
}

fn release(task: u64) -> Command {
    finish(task, GrantFinish::Release)
}

fn finish(task: u64, finish: GrantFinish) -> Command {
    let items = vec![GrantItem { task: TaskId(task), grant: None, finish }];
    Command::Semaphore(SemaphoreCommand::Finish { key: key(), items })
}

fn told(reply: Result<Reply>) -> Vec<SemaphoreEvent> {
    match reply {
        Ok(Reply::Semaphore(SemaphoreReply::Events(events))) => events,
        other => panic!("not an answer to events: {other:?}"),
    }
}

async fn rig_with_semaphore() -> Rig {
    let rig = Rig::new().await;
    let change = Box::new(SemaphoreChange::limits(1, 1));
    let configure = SemaphoreCommand::Configure { key: key(), change, only_new: false };
    rig.run(Command::Semaphore(configure)).await.unwrap();
    rig
}

#[tokio::test]
async fn the_call_that_makes_a_grant_possible_serves_whoever_waits() {
    let rig = rig_with_semaphore().await;
    let mut waiting = rig.ask(vec![events(10, MINUTE)]);
    rig.settled().await;
    assert!(waiting.is_pending());
    rig.run(enqueue(1)).await.unwrap();
    let first = told(waiting.reply().await);
    assert_eq!((first[0].task, first[0].kind), (TaskId(1), EventKind::Acquired));
    rig.run(enqueue(2)).await.unwrap();
    let mut waiting = rig.ask(vec![events(10, MINUTE)]);
    rig.settled().await;
    assert!(waiting.is_pending());
    rig.run(release(1)).await.unwrap();
    assert_eq!(told(waiting.reply().await)[0].task, TaskId(2));
}

#[tokio::test]
async fn who_waits_in_vain_is_answered_in_time() {
    let rig = rig_with_semaphore().await;
    let mut waiting = rig.ask(vec![events(10, MINUTE)]);
    rig.settled().await;
    rig.clock.advance(Span::from_secs(59));
    rig.settled().await;
    assert!(waiting.is_pending());
    rig.clock.advance(Span::from_secs(1));
    assert_eq!(told(waiting.reply().await), []);
}

#[tokio::test]
async fn an_event_that_was_not_acknowledged_comes_again_without_a_question() {
    let rig = rig_with_semaphore().await;
    rig.run(enqueue(1)).await.unwrap();
    assert_eq!(told(rig.run(events(10, MINUTE)).await).len(), 1);
    let mut waiting = rig.ask(vec![events(10, MINUTE)]);
    rig.settled().await;
    rig.clock.advance(Span::from_secs(29));
    rig.settled().await;
    assert!(waiting.is_pending());
    rig.clock.advance(Span::from_secs(1));
    assert_eq!(told(waiting.reply().await)[0].attempt, 2);
}

// The request stood behind the event of the grant. When the holder prolonged the grant without an acknowledgement, the
// request was free to go, but nobody was woken: with force the holder lost a grant it was never asked for.
#[tokio::test]
async fn a_request_that_an_extend_sets_free_is_heard_at_once() {
    let rig = rig_with_semaphore().await;
    rig.run(enqueue(1)).await.unwrap();
    assert_eq!(told(rig.run(events(10, MINUTE)).await).len(), 1);
    rig.run(enqueue_with(2, 2.0)).await.unwrap();
    let mut waiting = rig.ask(vec![events(10, Span::FOREVER)]);
    rig.settled().await;
    assert!(waiting.is_pending());
    rig.run(finish(1, GrantFinish::Extend(MINUTE))).await.unwrap();
    assert_eq!(told(waiting.reply().await)[0].kind, EventKind::TryRelease);
}

#[tokio::test]
async fn nothing_is_fetched_for_who_left() {
    let rig = rig_with_semaphore().await;
    let waiting = rig.ask(vec![events(10, MINUTE)]);
    rig.settled().await;
    drop(waiting);
    rig.run(enqueue(1)).await.unwrap();
    assert_eq!(told(rig.run(events(10, Span::ZERO)).await)[0].attempt, 1);
}

#[tokio::test]
async fn an_engine_that_stops_lets_everybody_go() {
    let rig = rig_with_semaphore().await;
    let waiting = rig.ask(vec![events(10, Span::FOREVER)]);
    rig.settled().await;
    rig.engine.stop().await.unwrap();
    assert_eq!(told(waiting.reply().await), []);
}

// What is asked of a semaphore was believed to make nothing takeable: a take after a release in the same batch went
// past one that had come first.
#[tokio::test]
async fn a_release_serves_the_take_that_came_first() {
    let rig = rig_with_semaphore().await;
    rig.run(enqueue(1)).await.unwrap();
    let options = TubeOptions { semaphore: Some(key()), ..TubeOptions::new(Kind::FifoTtl) };
    let create = Command::CreateTube { tube: tube("gated"), options, if_not_exists: false };
    rig.run(create).await.unwrap();
    rig.run(put("gated", b"1", Span::ZERO)).await.unwrap();
    let batch = vec![take("gated", 1, MINUTE), release(1), take("gated", 1, Span::ZERO)];
    let replies = rig.engine.execute(batch).await;
    let counts: Vec<usize> = [&replies[0], &replies[2]]
        .map(|reply| match reply {
            Ok(Reply::Taken(tasks)) => tasks.len(),
            other => panic!("not an answer to a take: {other:?}"),
        })
        .into();
    assert_eq!(counts, [1, 0]);
}

// Every event woke whoever waited for any: with two hundred who listened for a semaphore each, each grant cost two
// hundred questions.
#[tokio::test]
async fn news_of_one_semaphore_wake_only_who_waits_for_it() {
    let rig = rig_with_semaphore().await;
    let listen = |text: &str| {
        let key = SemaphoreKey::new(text).unwrap();
        Command::Semaphore(SemaphoreCommand::Events { key: Some(key), count: 10, wait: MINUTE })
    };
    let mut others = Vec::new();
    for other in ["a", "b", "c"] {
        let change = Box::new(SemaphoreChange::limits(1, 1));
        let key = SemaphoreKey::new(other).unwrap();
        let make = SemaphoreCommand::Configure { key, change, only_new: false };
        rig.run(Command::Semaphore(make)).await.unwrap();
        others.push(rig.ask(vec![listen(other)]));
    }
    let waiting = rig.ask(vec![listen("yang")]);
    rig.settled().await;
    rig.control.forget_batches();
    rig.run(enqueue(1)).await.unwrap();
    assert_eq!(told(waiting.reply().await).len(), 1);
    let asked = rig.control.verbs().concat();
    let fetch = events(1, Span::ZERO).verb();
    assert_eq!(asked.iter().filter(|verb| **verb == fetch).count(), 1, "{asked:?}");
    assert!(others.iter_mut().all(|other| other.is_pending()));
}

//! The list of workers.

use std::collections::HashSet;
use std::sync::Arc;

use taskyard_core::{Command, Execute, Finish, Reply, Span, Take, Task};
use taskyard_engine::WorkerInfo;
use tokio::task::yield_now;

use crate::fixture::{Fixture, finish, tube};

const SECOND: Span = Span::from_secs(1);

fn take_by(worker: &str, name: &str, count: usize, wait: Span) -> Command {
    let worker = Some(worker.into());
    Command::Take(Take { tube: tube(name), count, session: None, lease: None, worker, wait })
}

async fn taken(fixture: &Fixture, worker: &str, count: usize) -> Vec<Task> {
    match fixture.run(take_by(worker, "mail", count, Span::ZERO)).await {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("{other:?}"),
    }
}

async fn workers(fixture: &Fixture) -> Vec<WorkerInfo> {
    fixture.engine.workers(Some(HashSet::new())).await
}

#[tokio::test]
async fn done_and_failed_deliveries_count_for_the_worker_that_took_them() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2, 3, 4, 5]).await;
    let (first, second) = (taken(&fixture, "a", 3).await, taken(&fixture, "b", 2).await);
    fixture.clock.advance(SECOND);
    fixture.run(finish("mail", &first[..2], Finish::Ack)).await.unwrap();
    fixture.run(finish("mail", &first[..1], Finish::Ack)).await.unwrap();
    fixture.run(finish("mail", &second[..1], Finish::fail("no route", None))).await.unwrap();
    fixture.run(finish("mail", &second[1..], Finish::Bury)).await.unwrap();
    let seen = workers(&fixture).await;
    let counts: Vec<_> = seen.iter().map(|one| (&*one.name, one.done, one.failed)).collect();
    assert_eq!(counts, [("a", 2, 0), ("b", 0, 1)]);
    assert_eq!((seen[0].done_last_minute, seen[1].failed_last_minute), (2, 1));
    assert_eq!(seen[0].tubes, [tube("mail")]);
    let before = seen[0].last_seen;
    // A touch shows that the worker lives; the counts of a minute end, the others do not.
    fixture.clock.advance(Span::from_secs(65));
    fixture.run(finish("mail", &first[2..], Finish::Touch(SECOND))).await.unwrap();
    let seen = workers(&fixture).await;
    assert_eq!((seen[0].done, seen[0].done_last_minute), (2, 0));
    assert_eq!(seen[0].last_seen.since(before), Span::from_secs(65));
    assert_eq!(seen[1].last_seen, before);
}

#[tokio::test]
async fn a_refused_take_shows_no_worker() {
    let fixture = Fixture::new().await;
    fixture.run(take_by("a", "nowhere", 1, Span::ZERO)).await.unwrap_err();
    assert_eq!(workers(&fixture).await, []);
    assert_eq!(taken(&fixture, "a", 1).await, []);
    assert_eq!(workers(&fixture).await.len(), 1, "a take that finds nothing shows its worker");
}

#[tokio::test]
async fn workers_that_wait_are_seen_now_and_stay() {
    let fixture = Fixture::new().await;
    let wait = |name: &'static str| {
        let engine = fixture.engine.clone();
        let take = take_by(name, "mail", 1, Span::FOREVER);
        tokio::spawn(async move { engine.execute(vec![take]).await })
    };
    let waiting = [wait("a"), wait("b")];
    while fixture.engine.waiting().await.len() < 2 {
        yield_now().await;
    }
    fixture.clock.advance(Span::from_secs(7_200));
    let seen = workers(&fixture).await;
    let names: Vec<_> = seen.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["a", "b"]);
    waiting.iter().for_each(|one| one.abort());
    while !fixture.engine.waiting().await.is_empty() {
        yield_now().await;
    }
    fixture.clock.advance(Span::from_secs(3_600));
    assert_eq!(fixture.engine.workers(None).await.len(), 2, "none is removed");
    let holding: HashSet<Arc<str>> = HashSet::from(["b".into()]);
    assert_eq!(fixture.engine.workers(Some(holding)).await.len(), 1, "one holds a task");
    assert_eq!(workers(&fixture).await, []);
}

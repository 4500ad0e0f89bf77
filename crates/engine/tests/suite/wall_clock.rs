//! A wall clock that is set while the engine runs.
//!
//! A step forward ended every lease and every wait; after a step back the engine stayed ahead until
//! it was restarted. Durations keep their length, and only tasks with a start time follow the wall
//! clock.

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use taskyard_core::{
    Body, Command, Finish, NewTask, Outcome, Reply, Span, State, Take, Task, TaskId, Timestamp,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::fixture::{Fixture, MINUTE, finish, put, take, taken, tube};

/// The start time of the manual clock.
const START: Timestamp = Timestamp::from_micros(1_000_000_000);
const HOUR: Span = Span::from_secs(3600);

async fn put_task(fixture: &Fixture, change: impl FnOnce(&mut NewTask)) {
    let mut task = NewTask::new(Body::new(&[1]));
    change(&mut task);
    let put = Command::Put { tube: tube("mail"), tasks: vec![task], wait: Span::ZERO };
    fixture.run(put).await.unwrap();
}

async fn peek(fixture: &Fixture, id: u64) -> Option<Task> {
    match fixture.run(Command::Peek { tube: tube("mail"), ids: vec![TaskId(id)] }).await {
        Ok(Reply::Tasks(mut tasks)) => tasks.pop(),
        other => panic!("{other:?}"),
    }
}

async fn state(fixture: &Fixture, id: u64) -> State {
    peek(fixture, id).await.expect("the task is there").state
}

/// Returns when the step was applied and what it made due is done.
async fn set_wall(fixture: &Fixture, span: Span, forward: bool) {
    fixture.clock.set_wall(span, forward);
    fixture.idle().await;
    fixture.idle().await;
}

#[tokio::test]
async fn leases_waits_and_delays_keep_their_length() {
    for forward in [true, false] {
        let fixture = Fixture::new().await;
        put_task(&fixture, |_| {}).await;
        let lease = Some(MINUTE);
        let held = Take {
            tube: tube("mail"),
            count: 1,
            session: None,
            lease,
            worker: None,
            wait: Span::ZERO,
        };
        let held = taken(fixture.run(Command::Take(held)).await);
        put_task(&fixture, |task| task.delay = Some(MINUTE)).await;
        put_task(&fixture, |task| (task.ttl, task.delay) = (Some(MINUTE), Some(MINUTE))).await;
        let mut waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
        assert_eq!(fixture.idle().await, 1);
        set_wall(&fixture, HOUR, forward).await;
        fixture.clock.advance(Span::from_secs(59));
        fixture.idle().await;
        assert!(waiting.is_pending(), "a wait of a minute is over");
        assert_eq!(state(&fixture, 0).await, State::Taken, "a lease of a minute is over");
        assert_eq!(state(&fixture, 1).await, State::Delayed, "a delay of a minute is over");
        let done = fixture.run(finish("mail", &held, Finish::Touch(MINUTE))).await;
        assert!(matches!(&done, Ok(Reply::Finished(all)) if matches!(all[..], [Outcome::Done(_)])));
        fixture.clock.advance(Span::from_secs(1));
        // Wait and delay end together: whichever is first, nothing is late.
        _ = waiting.reply().await;
        fixture.idle().await;
        assert_ne!(state(&fixture, 1).await, State::Delayed);
        fixture.clock.advance(MINUTE);
        fixture.idle().await;
        assert_eq!(peek(&fixture, 2).await, None, "it lived a minute after its delay");
        assert_eq!(state(&fixture, 0).await, State::Ready);
    }
}

#[tokio::test]
async fn a_start_time_follows_the_wall_clock() {
    let fixture = Fixture::new().await;
    let at = START + HOUR + MINUTE;
    put_task(&fixture, |task| (task.at, task.ttl) = (Some(at), Some(HOUR))).await;
    set_wall(&fixture, HOUR, true).await;
    let task = peek(&fixture, 0).await.expect("it waits");
    assert_eq!((task.state, task.due), (State::Delayed, Some(at)));
    assert_eq!((task.created, task.expires), (START + HOUR, at + HOUR), "wall time is shown");
    // Put when the wall clock is already ahead.
    put_task(&fixture, |task| task.at = Some(at)).await;
    set_wall(&fixture, HOUR, false).await;
    fixture.clock.advance(MINUTE);
    fixture.idle().await;
    assert_eq!(state(&fixture, 0).await, State::Delayed, "it is an hour early");
    set_wall(&fixture, HOUR, true).await;
    for id in [0, 1] {
        assert_eq!(state(&fixture, id).await, State::Ready);
    }
}

#[tokio::test]
async fn waiting_takes_are_served_when_a_step_reaches_a_start_time() {
    let fixture = Fixture::new().await;
    put_task(&fixture, |task| task.at = Some(START + HOUR)).await;
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    fixture.clock.set_wall(HOUR, true);
    let task = taken(waiting.reply().await).remove(0);
    assert_eq!((task.start, task.lease_until), (Some(START + HOUR), Some(Timestamp::NEVER)));
}

#[tokio::test]
async fn waiting_commands_are_listed_in_wall_time() {
    let fixture = Fixture::new().await;
    let _waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    fixture.idle().await;
    set_wall(&fixture, HOUR, false).await;
    let shown = fixture.engine.waiting().await;
    let since = START.moved(-HOUR.as_micros());
    assert_eq!((shown[0].since, shown[0].until), (since, since + MINUTE));
}

/// A wall clock before 1970 must neither panic nor stop anything; what is shown begins at 1970.
#[tokio::test]
async fn a_wall_clock_before_1970() {
    let fixture = Fixture::new().await;
    set_wall(&fixture, Span::from_secs(1_000_000), false).await;
    put_task(&fixture, |task| task.delay = Some(MINUTE)).await;
    put_task(&fixture, |task| task.at = Some(START)).await;
    assert_eq!(peek(&fixture, 0).await.expect("it waits").created, Timestamp::EPOCH);
    fixture.clock.advance(MINUTE);
    fixture.idle().await;
    assert_eq!(state(&fixture, 0).await, State::Ready);
    assert_eq!(state(&fixture, 1).await, State::Delayed);
    set_wall(&fixture, Span::from_secs(1_000_000), true).await;
    assert_eq!(state(&fixture, 1).await, State::Ready);
}

/// A step that could not be stored is tried again.
#[tokio::test]
async fn a_step_that_cannot_be_stored_is_retried() {
    let fixture = Fixture::new().await;
    put_task(&fixture, |task| task.at = Some(START + HOUR)).await;
    fixture.control.failing.store(true, Ordering::SeqCst);
    set_wall(&fixture, HOUR, true).await;
    fixture.control.failing.store(false, Ordering::SeqCst);
    assert_eq!(state(&fixture, 0).await, State::Delayed);
    fixture.clock.advance(Span::from_secs(1));
    fixture.idle().await;
    fixture.idle().await;
    assert_eq!(state(&fixture, 0).await, State::Ready);
    assert!(fixture.run(put("mail", &[1], Span::ZERO)).await.is_ok());
}

/// Records the log of the engine, whose loop runs on a thread of its own.
#[derive(Clone, Default)]
struct LogRecorder(Arc<Mutex<Vec<String>>>);

impl Visit for LogRecorder {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for LogRecorder {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && about.target().starts_with("taskyard_engine")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A step was not logged. Its length is one that no other test of this program uses.
#[tokio::test]
async fn a_step_is_logged() {
    let log = LogRecorder::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let fixture = Fixture::new().await;
    set_wall(&fixture, Span::from_secs(604_811), true).await;
    set_wall(&fixture, Span::from_secs(604_807), false).await;
    let lines = log.0.lock().unwrap().clone();
    for step in ["forward by 604811 s", "back by 604807 s"] {
        let text = format!("the wall clock was set {step}; leases, waits and delays keep");
        assert!(lines.iter().any(|line| line.contains(&text)), "{step}: {lines:?}");
    }
}

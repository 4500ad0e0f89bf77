//! A wall clock that is set while the engine runs.
//!
//! A step forward ended every lease and every wait; after a step back the engine stayed ahead until it was restarted. What lasts
//! a given time lasts that long, and only tasks with a start time follow the wall clock.

use std::sync::atomic::Ordering;

use taskyard_core::{
    Body, Command, Finish, NewTask, Outcome, Reply, Span, State, Take, Task, TaskId, Timestamp,
};

use crate::rig::{MINUTE, Rig, finish, put, take, taken, tube};

/// Where the hand clock of a rig begins.
const START: Timestamp = Timestamp::from_micros(1_000_000_000);
const HOUR: Span = Span::from_secs(3600);

async fn put_task(rig: &Rig, change: impl FnOnce(&mut NewTask)) {
    let mut task = NewTask::new(Body::new(&[1]));
    change(&mut task);
    let put = Command::Put { tube: tube("mail"), tasks: vec![task], wait: Span::ZERO };
    rig.run(put).await.unwrap();
}

async fn peek(rig: &Rig, id: u64) -> Option<Task> {
    match rig.run(Command::Peek { tube: tube("mail"), ids: vec![TaskId(id)] }).await {
        Ok(Reply::Tasks(mut tasks)) => tasks.pop(),
        other => panic!("{other:?}"),
    }
}

async fn state(rig: &Rig, id: u64) -> State {
    peek(rig, id).await.expect("the task is there").state
}

/// Returns when the step was taken in and what it made due is done.
async fn set_wall(rig: &Rig, span: Span, forward: bool) {
    rig.clock.set_wall(span, forward);
    rig.settled().await;
    rig.settled().await;
}

#[tokio::test]
async fn leases_waits_and_delays_last_as_long_as_they_were_to_last() {
    for forward in [true, false] {
        let rig = Rig::new().await;
        put_task(&rig, |_| {}).await;
        let lease = Some(MINUTE);
        let held = Take { tube: tube("mail"), count: 1, session: None, lease, wait: Span::ZERO };
        let held = taken(rig.run(Command::Take(held)).await);
        put_task(&rig, |task| task.delay = Some(MINUTE)).await;
        put_task(&rig, |task| (task.ttl, task.delay) = (Some(MINUTE), Some(MINUTE))).await;
        let mut waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
        assert_eq!(rig.settled().await, 1);
        set_wall(&rig, HOUR, forward).await;
        rig.clock.advance(Span::from_secs(59));
        rig.settled().await;
        assert!(waiting.is_pending(), "a wait of a minute is over");
        assert_eq!(state(&rig, 0).await, State::Taken, "a lease of a minute is over");
        assert_eq!(state(&rig, 1).await, State::Delayed, "a delay of a minute is over");
        let done = rig.run(finish("mail", &held, Finish::Touch(MINUTE))).await;
        assert!(matches!(&done, Ok(Reply::Finished(all)) if matches!(all[..], [Outcome::Done(_)])));
        rig.clock.advance(Span::from_secs(1));
        // Wait and delay end together: whichever is first, nothing is late.
        _ = waiting.reply().await;
        rig.settled().await;
        assert_ne!(state(&rig, 1).await, State::Delayed);
        rig.clock.advance(MINUTE);
        rig.settled().await;
        assert_eq!(peek(&rig, 2).await, None, "it lived a minute after its delay");
        assert_eq!(state(&rig, 0).await, State::Ready);
    }
}

#[tokio::test]
async fn a_start_time_follows_the_wall_clock() {
    let rig = Rig::new().await;
    let at = START + HOUR + MINUTE;
    put_task(&rig, |task| (task.at, task.ttl) = (Some(at), Some(HOUR))).await;
    set_wall(&rig, HOUR, true).await;
    let task = peek(&rig, 0).await.expect("it waits");
    assert_eq!((task.state, task.due), (State::Delayed, Some(at)));
    assert_eq!((task.created, task.expires), (START + HOUR, at + HOUR), "wall time is shown");
    // Put when the wall clock is ahead already.
    put_task(&rig, |task| task.at = Some(at)).await;
    set_wall(&rig, HOUR, false).await;
    rig.clock.advance(MINUTE);
    rig.settled().await;
    assert_eq!(state(&rig, 0).await, State::Delayed, "it is an hour early");
    set_wall(&rig, HOUR, true).await;
    for id in [0, 1] {
        assert_eq!(state(&rig, id).await, State::Ready);
    }
}

#[tokio::test]
async fn those_who_wait_for_a_start_time_are_served_by_the_step() {
    let rig = Rig::new().await;
    put_task(&rig, |task| task.at = Some(START + HOUR)).await;
    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert_eq!(rig.settled().await, 1);
    rig.clock.set_wall(HOUR, true);
    let task = taken(waiting.reply().await).remove(0);
    assert_eq!((task.start, task.lease_until), (Some(START + HOUR), Some(Timestamp::NEVER)));
}

#[tokio::test]
async fn who_waits_is_shown_in_wall_time() {
    let rig = Rig::new().await;
    let _waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    rig.settled().await;
    set_wall(&rig, HOUR, false).await;
    let shown = rig.engine.waiting().await;
    let since = START.moved(-HOUR.as_micros());
    assert_eq!((shown[0].since, shown[0].until), (since, since + MINUTE));
}

/// A wall clock before 1970 must neither panic nor stop anything; what is shown begins at 1970.
#[tokio::test]
async fn a_wall_clock_before_1970() {
    let rig = Rig::new().await;
    set_wall(&rig, Span::from_secs(1_000_000), false).await;
    put_task(&rig, |task| task.delay = Some(MINUTE)).await;
    put_task(&rig, |task| task.at = Some(START)).await;
    assert_eq!(peek(&rig, 0).await.expect("it waits").created, Timestamp::EPOCH);
    rig.clock.advance(MINUTE);
    rig.settled().await;
    assert_eq!(state(&rig, 0).await, State::Ready);
    assert_eq!(state(&rig, 1).await, State::Delayed);
    set_wall(&rig, Span::from_secs(1_000_000), true).await;
    assert_eq!(state(&rig, 1).await, State::Ready);
}

/// What could not be written down is tried again.
#[tokio::test]
async fn a_step_that_the_store_cannot_write_down() {
    let rig = Rig::new().await;
    put_task(&rig, |task| task.at = Some(START + HOUR)).await;
    rig.control.failing.store(true, Ordering::SeqCst);
    set_wall(&rig, HOUR, true).await;
    rig.control.failing.store(false, Ordering::SeqCst);
    assert_eq!(state(&rig, 0).await, State::Delayed);
    rig.clock.advance(Span::from_secs(1));
    rig.settled().await;
    rig.settled().await;
    assert_eq!(state(&rig, 0).await, State::Ready);
    assert!(rig.run(put("mail", &[1], Span::ZERO)).await.is_ok());
}

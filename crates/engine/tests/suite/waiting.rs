//! Waiting takes: their order, their deadlines and callers that leave.

use taskyard_core::{Command, Error, Execute, Finish, Reply, SessionId, Span, Take, TubeChange};
use taskyard_engine::{Side, WaitingCount};

use crate::fixture::{Fixture, MINUTE, finish, put, take, taken, tube};

#[tokio::test]
async fn a_put_serves_the_oldest_waiting_take_first() {
    let fixture = Fixture::new().await;
    let first = fixture.submit(vec![take("mail", 1, MINUTE)]);
    let second = fixture.submit(vec![take("mail", 1, Span::FOREVER)]);
    let mut third = fixture.submit(vec![take("mail", 1, Span::from_secs(1))]);
    assert_eq!(fixture.idle().await, 3);
    fixture.put("mail", &[1, 2]).await;
    assert_eq!(first.payloads().await, [1]);
    assert_eq!(second.payloads().await, [2]);
    assert_eq!(fixture.idle().await, 1);
    assert!(third.is_pending());
    fixture.put("mail", &[3]).await;
    assert_eq!(third.payloads().await, [3]);
}

#[tokio::test]
async fn a_waiting_take_gets_up_to_its_count() {
    let fixture = Fixture::new().await;
    let first = fixture.submit(vec![take("mail", 2, MINUTE)]);
    let second = fixture.submit(vec![take("mail", 5, MINUTE)]);
    let mut third = fixture.submit(vec![take("mail", 1, MINUTE)]);
    fixture.put("mail", &[1, 2, 3]).await;
    assert_eq!(first.payloads().await, [1, 2]);
    assert_eq!(second.payloads().await, [3]);
    assert_eq!(fixture.idle().await, 1);
    assert!(third.is_pending());
}

#[tokio::test]
async fn no_take_overtakes_even_within_one_batch() {
    let fixture = Fixture::new().await;
    fixture.control.block();
    let mut blocker = fixture.submit(vec![Command::Tubes { tube: None }]);
    fixture.control.wait_blocked();
    // All of this arrives while the store is busy and becomes one batch.
    let patient = fixture.submit(vec![take("mail", 1, MINUTE)]);
    let put = fixture.submit(vec![put("mail", &[1], Span::ZERO)]);
    let hasty = fixture.submit(vec![take("mail", 1, Span::ZERO)]);
    let late = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert!(blocker.is_pending());
    fixture.control.unblock();
    assert_eq!(patient.payloads().await, [1]);
    assert_eq!(hasty.payloads().await, [0; 0]);
    assert!(matches!(put.reply().await, Ok(Reply::Put(_))));
    assert_eq!(fixture.idle().await, 1);
    fixture.put("mail", &[2]).await;
    assert_eq!(late.payloads().await, [2]);
}

#[tokio::test]
async fn takes_held_back_in_a_batch_still_get_ready_tasks() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2, 3]).await;
    fixture.control.block();
    let _blocker = fixture.submit(vec![Command::Tubes { tube: None }]);
    fixture.control.wait_blocked();
    let first = fixture.submit(vec![take("mail", 1, MINUTE)]);
    let put = fixture.submit(vec![put("mail", &[4], Span::ZERO)]);
    let second = fixture.submit(vec![take("mail", 1, MINUTE)]);
    let third = fixture.submit(vec![take("mail", 5, Span::ZERO)]);
    fixture.control.unblock();
    assert_eq!(first.payloads().await, [1]);
    assert_eq!(second.payloads().await, [2]);
    assert_eq!(third.payloads().await, [3, 4]);
    assert!(matches!(put.reply().await, Ok(Reply::Put(_))));
}

#[tokio::test]
async fn a_take_behind_others_is_answered_at_once_when_it_does_not_wait() {
    let fixture = Fixture::new().await;
    let first = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(fixture.take("mail", 1).await, []);
    assert_eq!(fixture.idle().await, 1);
    // Enough for both in one job: the older one is first, the other gets the rest.
    let replies =
        fixture.engine.execute(vec![put("mail", &[1, 2], Span::ZERO), take("mail", 1, Span::ZERO)]);
    let mut replies = replies.await;
    assert_eq!(crate::fixture::payloads(&taken(replies.remove(1))), [2]);
    assert_eq!(first.payloads().await, [1]);
}

#[tokio::test]
async fn a_wait_ends_in_time() {
    let fixture = Fixture::new().await;
    let short = fixture.submit(vec![take("mail", 1, Span::from_secs(5))]);
    let mut long = fixture.submit(vec![take("mail", 1, Span::from_secs(10))]);
    assert_eq!(fixture.idle().await, 2);
    fixture.clock.advance(Span::from_secs(5));
    assert_eq!(short.payloads().await, [0; 0]);
    assert_eq!(fixture.idle().await, 1);
    assert!(long.is_pending());
    fixture.clock.advance(Span::from_secs(5));
    assert_eq!(long.payloads().await, [0; 0]);
    fixture.put("mail", &[1]).await;
    assert_eq!(fixture.take("mail", 1).await.len(), 1, "takes whose wait ended took nothing");
}

#[tokio::test]
async fn a_caller_that_left_takes_nothing() {
    let fixture = Fixture::new().await;
    let gone = fixture.submit(vec![take("mail", 1, Span::FOREVER)]);
    let here = fixture.submit(vec![take("mail", 1, Span::FOREVER)]);
    assert_eq!(fixture.idle().await, 2);
    drop(gone);
    assert_eq!(fixture.idle().await, 1);
    fixture.control.forget_batches();
    fixture.put("mail", &[1]).await;
    assert_eq!(taken(here.reply().await)[0].attempts, 0);
    assert_eq!(fixture.control.verbs(), [["put"], ["take"]]);
}

#[tokio::test]
async fn an_undeliverable_task_is_returned_uncounted() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    fixture.control.block();
    let gone = fixture.submit(vec![take("mail", 1, Span::ZERO)]);
    fixture.control.wait_blocked();
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    // The take is in the store already; its caller leaves before the reply.
    drop(gone);
    fixture.control.unblock();
    let tasks = taken(waiting.reply().await);
    assert_eq!((tasks.len(), tasks[0].attempts), (1, 0));
}

#[tokio::test]
async fn a_reply_that_is_never_read_is_returned_uncounted() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    fixture.control.block();
    let gone = fixture.submit(vec![take("mail", 1, Span::ZERO)]);
    fixture.control.wait_blocked();
    fixture.control.unblock();
    fixture.idle().await;
    // The reply has arrived, but its caller never reads it.
    drop(gone);
    let tasks = fixture.take("mail", 1).await;
    assert_eq!((tasks.len(), tasks[0].attempts), (1, 0));
}

#[tokio::test]
async fn abandoning_a_job_returns_what_its_other_commands_took() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    let gone = fixture.submit(vec![take("mail", 1, Span::ZERO), take("small", 1, MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    drop(gone);
    assert_eq!(fixture.idle().await, 0);
    assert_eq!(fixture.take("mail", 1).await.len(), 1);
}

#[tokio::test]
async fn a_job_is_answered_when_all_its_commands_are() {
    let fixture = Fixture::new().await;
    let mut job = fixture.submit(vec![
        take("mail", 1, MINUTE),
        put("small", &[7], Span::ZERO),
        take("mail", 1, MINUTE),
        take("missing", 1, MINUTE),
    ]);
    assert_eq!(fixture.idle().await, 2);
    fixture.put("mail", &[1]).await;
    assert!(job.is_pending());
    fixture.put("mail", &[2]).await;
    let replies = job.replies().await;
    assert_eq!(crate::fixture::payloads(&taken(replies[0].clone())), [1]);
    assert!(matches!(&replies[1], Ok(Reply::Put(placed)) if placed.len() == 1));
    assert_eq!(crate::fixture::payloads(&taken(replies[2].clone())), [2]);
    assert_eq!(replies[3], Err(Error::TubeNotFound(tube("missing"))));
}

#[tokio::test]
async fn every_command_that_makes_a_task_ready_wakes_a_take() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    let held = fixture.take("mail", 1).await;

    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    fixture
        .run(finish("mail", &held, Finish::Release { delay: Span::ZERO, counted: true }))
        .await
        .unwrap();
    let held = taken(waiting.reply().await);

    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    fixture.run(finish("mail", &held, Finish::Bury)).await.unwrap();
    fixture.run(Command::Kick { tube: tube("mail"), count: 1 }).await.unwrap();
    let held = taken(waiting.reply().await);

    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    let pause = |paused| Command::AlterTube {
        tube: tube("mail"),
        change: TubeChange { paused: Some(paused), ..TubeChange::default() },
    };
    fixture.run(pause(true)).await.unwrap();
    fixture.run(Command::ReleaseAll { tube: tube("mail") }).await.unwrap();
    assert_eq!(fixture.idle().await, 1, "the tube is paused");
    fixture.run(pause(false)).await.unwrap();
    assert_eq!(taken(waiting.reply().await)[0].id, held[0].id);
}

#[tokio::test]
async fn the_end_of_a_session_wakes_another_one() {
    let fixture = Fixture::new().await;
    let session = SessionId([7; 16]);
    fixture.put("mail", &[1]).await;
    fixture.run(Command::JoinSession { session, create: true }).await.unwrap();
    let mut of_session = Take {
        tube: tube("mail"),
        count: 1,
        session: Some(session),
        lease: None,
        worker: None,
        wait: Span::ZERO,
    };
    assert_eq!(taken(fixture.run(Command::Take(of_session.clone())).await).len(), 1);
    of_session.wait = MINUTE;
    let orphan = fixture.submit(vec![Command::Take(of_session)]);
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(fixture.engine.waiting().await[0].session, Some(session));
    fixture.run(Command::LeaveSession { session }).await.unwrap();
    assert_eq!(orphan.reply().await, Err(Error::SessionUnknown(session)));
    assert_eq!(waiting.payloads().await, [1]);
}

#[tokio::test]
async fn a_tube_with_waiting_consumers_is_not_dropped() {
    let fixture = Fixture::new().await;
    let refused = Err(Error::TubeHasConsumers(tube("mail")));
    let drop_mail = || Command::DropTube { tube: tube("mail") };
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(fixture.run(drop_mail()).await, refused);
    drop(waiting);
    // In one batch with the take that will wait.
    let job = fixture.submit(vec![take("mail", 1, MINUTE), drop_mail()]);
    assert_eq!(fixture.idle().await, 1);
    fixture.put("mail", &[1]).await;
    let replies = job.replies().await;
    assert_eq!(taken(replies[0].clone()).len(), 1);
    assert_eq!(replies[1], refused);
    assert!(!fixture.control.verbs().iter().flatten().any(|verb| *verb == "drop"));
    fixture.run(Command::ReleaseAll { tube: tube("mail") }).await.unwrap();
    assert_eq!(fixture.run(drop_mail()).await, Ok(Reply::Nothing));
}

#[tokio::test]
async fn waiting_commands_are_listed() {
    let fixture = Fixture::new().await;
    let _one = fixture.submit(vec![take("mail", 1, Span::from_secs(5))]);
    let _two = fixture.submit(vec![take("mail", 1, Span::FOREVER)]);
    fixture.put("small", &[1, 2]).await;
    let _three = fixture.submit(vec![put("small", &[3], MINUTE)]);
    let waiting = fixture.engine.waiting().await;
    let seen: Vec<_> = waiting.iter().map(|one| (one.tube.as_str(), one.side)).collect();
    assert_eq!(seen, [("mail", Side::Take), ("mail", Side::Take), ("small", Side::Put)]);
    assert_eq!(waiting[0].until.since(waiting[0].since), Span::from_secs(5));
    let counts = fixture.engine.waiting_counts().await;
    assert_eq!(counts[&tube("mail")], WaitingCount { takes: 2, puts: 0 });
    assert_eq!(counts[&tube("small")], WaitingCount { takes: 0, puts: 1 });
}

#[tokio::test]
async fn a_take_of_none_never_waits() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.run(take("mail", 0, Span::FOREVER)).await, Ok(Reply::Taken(Vec::new())));
}

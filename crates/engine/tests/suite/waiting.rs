//! Consumers that wait: their order, their time and their leaving.

use taskyard_core::{Command, Error, Execute, Finish, Reply, SessionId, Span, Take, TubeChange};
use taskyard_engine::{Side, WaitingCount};

use crate::rig::{MINUTE, Rig, finish, put, take, taken, tube};

#[tokio::test]
async fn a_put_serves_the_oldest_who_waits_first() {
    let rig = Rig::new().await;
    let first = rig.ask(vec![take("mail", 1, MINUTE)]);
    let second = rig.ask(vec![take("mail", 1, Span::FOREVER)]);
    let mut third = rig.ask(vec![take("mail", 1, Span::from_secs(1))]);
    assert_eq!(rig.settled().await, 3);
    rig.put("mail", &[1, 2]).await;
    assert_eq!(first.payloads().await, [1]);
    assert_eq!(second.payloads().await, [2]);
    assert_eq!(rig.settled().await, 1);
    assert!(third.is_pending());
    rig.put("mail", &[3]).await;
    assert_eq!(third.payloads().await, [3]);
}

#[tokio::test]
async fn one_who_waits_gets_up_to_its_count() {
    let rig = Rig::new().await;
    let first = rig.ask(vec![take("mail", 2, MINUTE)]);
    let second = rig.ask(vec![take("mail", 5, MINUTE)]);
    let mut third = rig.ask(vec![take("mail", 1, MINUTE)]);
    rig.put("mail", &[1, 2, 3]).await;
    assert_eq!(first.payloads().await, [1, 2]);
    assert_eq!(second.payloads().await, [3]);
    assert_eq!(rig.settled().await, 1);
    assert!(third.is_pending());
}

#[tokio::test]
async fn nobody_overtakes_not_even_within_one_batch() {
    let rig = Rig::new().await;
    rig.control.hold();
    let mut blocker = rig.ask(vec![Command::Tubes { tube: None }]);
    rig.control.held();
    // All of this arrives while the store is busy, and becomes one batch.
    let patient = rig.ask(vec![take("mail", 1, MINUTE)]);
    let put = rig.ask(vec![put("mail", &[1], Span::ZERO)]);
    let hasty = rig.ask(vec![take("mail", 1, Span::ZERO)]);
    let late = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert!(blocker.is_pending());
    rig.control.let_go();
    assert_eq!(patient.payloads().await, [1]);
    assert_eq!(hasty.payloads().await, [0; 0]);
    assert!(matches!(put.reply().await, Ok(Reply::Put(_))));
    assert_eq!(rig.settled().await, 1);
    rig.put("mail", &[2]).await;
    assert_eq!(late.payloads().await, [2]);
}

#[tokio::test]
async fn takes_held_back_in_a_batch_still_get_what_is_there() {
    let rig = Rig::new().await;
    rig.put("mail", &[1, 2, 3]).await;
    rig.control.hold();
    let _blocker = rig.ask(vec![Command::Tubes { tube: None }]);
    rig.control.held();
    let first = rig.ask(vec![take("mail", 1, MINUTE)]);
    let put = rig.ask(vec![put("mail", &[4], Span::ZERO)]);
    let second = rig.ask(vec![take("mail", 1, MINUTE)]);
    let third = rig.ask(vec![take("mail", 5, Span::ZERO)]);
    rig.control.let_go();
    assert_eq!(first.payloads().await, [1]);
    assert_eq!(second.payloads().await, [2]);
    assert_eq!(third.payloads().await, [3, 4]);
    assert!(matches!(put.reply().await, Ok(Reply::Put(_))));
}

#[tokio::test]
async fn a_take_behind_others_is_answered_at_once_when_it_does_not_wait() {
    let rig = Rig::new().await;
    let first = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert_eq!(rig.take("mail", 1).await, []);
    assert_eq!(rig.settled().await, 1);
    // Enough for both in one job: the older one is first, the other gets the rest.
    let replies =
        rig.engine.execute(vec![put("mail", &[1, 2], Span::ZERO), take("mail", 1, Span::ZERO)]);
    let mut replies = replies.await;
    assert_eq!(crate::rig::payloads(&taken(replies.remove(1))), [2]);
    assert_eq!(first.payloads().await, [1]);
}

#[tokio::test]
async fn time_ends_waiting() {
    let rig = Rig::new().await;
    let short = rig.ask(vec![take("mail", 1, Span::from_secs(5))]);
    let mut long = rig.ask(vec![take("mail", 1, Span::from_secs(10))]);
    assert_eq!(rig.settled().await, 2);
    rig.clock.advance(Span::from_secs(5));
    assert_eq!(short.payloads().await, [0; 0]);
    assert_eq!(rig.settled().await, 1);
    assert!(long.is_pending());
    rig.clock.advance(Span::from_secs(5));
    assert_eq!(long.payloads().await, [0; 0]);
    rig.put("mail", &[1]).await;
    assert_eq!(rig.take("mail", 1).await.len(), 1, "those who gave up took nothing");
}

#[tokio::test]
async fn whoever_left_takes_nothing() {
    let rig = Rig::new().await;
    let gone = rig.ask(vec![take("mail", 1, Span::FOREVER)]);
    let here = rig.ask(vec![take("mail", 1, Span::FOREVER)]);
    assert_eq!(rig.settled().await, 2);
    drop(gone);
    assert_eq!(rig.settled().await, 1);
    rig.control.forget_batches();
    rig.put("mail", &[1]).await;
    assert_eq!(taken(here.reply().await)[0].attempts, 0);
    assert_eq!(rig.control.verbs(), [["put"], ["take"]]);
}

#[tokio::test]
async fn what_cannot_be_delivered_goes_back_uncounted() {
    let rig = Rig::new().await;
    rig.put("mail", &[1]).await;
    rig.control.hold();
    let gone = rig.ask(vec![take("mail", 1, Span::ZERO)]);
    rig.control.held();
    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    // The take is in the store already; its caller leaves before the answer.
    drop(gone);
    rig.control.let_go();
    let tasks = taken(waiting.reply().await);
    assert_eq!((tasks.len(), tasks[0].attempts), (1, 0));
}

#[tokio::test]
async fn an_answer_that_nobody_picks_up_goes_back_uncounted() {
    let rig = Rig::new().await;
    rig.put("mail", &[1]).await;
    rig.control.hold();
    let gone = rig.ask(vec![take("mail", 1, Span::ZERO)]);
    rig.control.held();
    rig.control.let_go();
    rig.settled().await;
    // The answer is here, but its caller never looks at it.
    drop(gone);
    let tasks = rig.take("mail", 1).await;
    assert_eq!((tasks.len(), tasks[0].attempts), (1, 0));
}

#[tokio::test]
async fn leaving_a_job_gives_back_what_its_other_commands_took() {
    let rig = Rig::new().await;
    rig.put("mail", &[1]).await;
    let gone = rig.ask(vec![take("mail", 1, Span::ZERO), take("small", 1, MINUTE)]);
    assert_eq!(rig.settled().await, 1);
    drop(gone);
    assert_eq!(rig.settled().await, 0);
    assert_eq!(rig.take("mail", 1).await.len(), 1);
}

#[tokio::test]
async fn a_job_is_answered_when_all_of_it_is() {
    let rig = Rig::new().await;
    let mut job = rig.ask(vec![
        take("mail", 1, MINUTE),
        put("small", &[7], Span::ZERO),
        take("mail", 1, MINUTE),
        take("missing", 1, MINUTE),
    ]);
    assert_eq!(rig.settled().await, 2);
    rig.put("mail", &[1]).await;
    assert!(job.is_pending());
    rig.put("mail", &[2]).await;
    let replies = job.replies().await;
    assert_eq!(crate::rig::payloads(&taken(replies[0].clone())), [1]);
    assert!(matches!(&replies[1], Ok(Reply::Put(placed)) if placed.len() == 1));
    assert_eq!(crate::rig::payloads(&taken(replies[2].clone())), [2]);
    assert_eq!(replies[3], Err(Error::TubeNotFound(tube("missing"))));
}

#[tokio::test]
async fn everything_that_makes_a_task_takeable_wakes() {
    let rig = Rig::new().await;
    rig.put("mail", &[1]).await;
    let held = rig.take("mail", 1).await;

    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    rig.run(finish("mail", &held, Finish::Release { delay: Span::ZERO, counted: true }))
        .await
        .unwrap();
    let held = taken(waiting.reply().await);

    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    rig.run(finish("mail", &held, Finish::Bury)).await.unwrap();
    rig.run(Command::Kick { tube: tube("mail"), count: 1 }).await.unwrap();
    let held = taken(waiting.reply().await);

    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    let pause = |paused| Command::AlterTube {
        tube: tube("mail"),
        change: TubeChange { paused: Some(paused), ..TubeChange::default() },
    };
    rig.run(pause(true)).await.unwrap();
    rig.run(Command::ReleaseAll { tube: tube("mail") }).await.unwrap();
    assert_eq!(rig.settled().await, 1, "the tube is paused");
    rig.run(pause(false)).await.unwrap();
    assert_eq!(taken(waiting.reply().await)[0].id, held[0].id);
}

#[tokio::test]
async fn the_end_of_a_session_wakes_another_one() {
    let rig = Rig::new().await;
    let session = SessionId([7; 16]);
    rig.put("mail", &[1]).await;
    rig.run(Command::JoinSession { session, create: true }).await.unwrap();
    let mut of_session = Take {
        tube: tube("mail"),
        count: 1,
        session: Some(session),
        lease: None,
        wait: Span::ZERO,
    };
    assert_eq!(taken(rig.run(Command::Take(of_session.clone())).await).len(), 1);
    of_session.wait = MINUTE;
    let orphan = rig.ask(vec![Command::Take(of_session)]);
    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert_eq!(rig.engine.waiting().await[0].session, Some(session));
    rig.run(Command::LeaveSession { session }).await.unwrap();
    assert_eq!(orphan.reply().await, Err(Error::SessionUnknown(session)));
    assert_eq!(waiting.payloads().await, [1]);
}

#[tokio::test]
async fn a_tube_with_waiting_consumers_is_not_dropped() {
    let rig = Rig::new().await;
    let refused = Err(Error::TubeHasConsumers(tube("mail")));
    let drop_mail = || Command::DropTube { tube: tube("mail") };
    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert_eq!(rig.run(drop_mail()).await, refused);
    drop(waiting);
    // In one batch with the take that will wait.
    let job = rig.ask(vec![take("mail", 1, MINUTE), drop_mail()]);
    assert_eq!(rig.settled().await, 1);
    rig.put("mail", &[1]).await;
    let replies = job.replies().await;
    assert_eq!(taken(replies[0].clone()).len(), 1);
    assert_eq!(replies[1], refused);
    assert!(!rig.control.verbs().iter().flatten().any(|verb| *verb == "drop"));
    rig.run(Command::ReleaseAll { tube: tube("mail") }).await.unwrap();
    assert_eq!(rig.run(drop_mail()).await, Ok(Reply::Nothing));
}

#[tokio::test]
async fn pages_see_who_waits() {
    let rig = Rig::new().await;
    let _one = rig.ask(vec![take("mail", 1, Span::from_secs(5))]);
    let _two = rig.ask(vec![take("mail", 1, Span::FOREVER)]);
    rig.put("small", &[1, 2]).await;
    let _three = rig.ask(vec![put("small", &[3], MINUTE)]);
    let waiting = rig.engine.waiting().await;
    let seen: Vec<_> = waiting.iter().map(|one| (one.tube.as_str(), one.side)).collect();
    assert_eq!(seen, [("mail", Side::Take), ("mail", Side::Take), ("small", Side::Put)]);
    assert_eq!(waiting[0].until.since(waiting[0].since), Span::from_secs(5));
    let counts = rig.engine.waiting_counts().await;
    assert_eq!(counts[&tube("mail")], WaitingCount { takes: 2, puts: 0 });
    assert_eq!(counts[&tube("small")], WaitingCount { takes: 0, puts: 1 });
}

#[tokio::test]
async fn a_take_of_none_never_waits() {
    let rig = Rig::new().await;
    assert_eq!(rig.run(take("mail", 0, Span::FOREVER)).await, Ok(Reply::Taken(Vec::new())));
}

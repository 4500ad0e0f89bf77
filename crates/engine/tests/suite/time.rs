//! Ticks, and a store that fails.

use std::sync::atomic::Ordering;

use taskyard_core::{Body, Command, Error, NewTask, RateLimit, Span, Take, TubeChange};

use crate::fixture::{Fixture, MINUTE, payloads, put, take, taken, tube};

fn put_delayed(count: usize, seconds: u64) -> Command {
    let mut task = NewTask::new(Body::new(&[1]));
    task.delay = Some(Span::from_secs(seconds));
    Command::Put { tube: tube("mail"), tasks: vec![task; count], wait: Span::ZERO }
}

fn ticks(fixture: &Fixture) -> usize {
    fixture.control.verbs().iter().flatten().filter(|verb| **verb == "tick").count()
}

#[tokio::test]
async fn the_end_of_a_delay_serves_a_waiting_take() {
    let fixture = Fixture::new().await;
    fixture.run(put_delayed(1, 5)).await.unwrap();
    let mut waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    fixture.idle().await;
    assert_eq!(ticks(&fixture), 0);
    fixture.clock.advance(Span::from_secs(4));
    fixture.idle().await;
    assert_eq!(ticks(&fixture), 0, "nothing is due");
    assert!(waiting.is_pending());
    fixture.clock.advance(Span::from_secs(1));
    assert_eq!(waiting.payloads().await, [1]);
    assert_eq!(ticks(&fixture), 1);
}

#[tokio::test]
async fn each_token_of_a_rate_limit_serves_a_waiting_take() {
    let fixture = Fixture::new().await;
    let rate = RateLimit { count: 1, per: Span::from_secs(5), burst: 1 };
    let change = TubeChange { rate: Some(Some(Box::new(rate))), ..TubeChange::default() };
    fixture.run(Command::AlterTube { tube: tube("mail"), change }).await.unwrap();
    fixture.put("mail", &[1, 2, 3]).await;
    assert_eq!(payloads(&fixture.take("mail", 3).await), [1]);
    let mut first = fixture.submit(vec![take("mail", 2, MINUTE)]);
    let mut second = fixture.submit(vec![take("mail", 2, MINUTE)]);
    assert_eq!(fixture.idle().await, 2);
    fixture.clock.advance(Span::from_micros(4_999_999));
    assert_eq!(fixture.idle().await, 2, "there is no token yet");
    assert!(first.is_pending());
    fixture.clock.advance(Span::from_micros(1));
    assert_eq!(first.payloads().await, [2]);
    assert_eq!(fixture.idle().await, 1, "there was one token");
    assert!(second.is_pending());
    fixture.clock.advance(rate.per);
    assert_eq!(second.payloads().await, [3]);
}

#[tokio::test]
async fn an_expired_lease_serves_the_next_take() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    let lease = Some(Span::from_secs(3));
    let with_lease =
        Take { tube: tube("mail"), count: 1, session: None, lease, worker: None, wait: Span::ZERO };
    let first = taken(fixture.run(Command::Take(with_lease)).await);
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    fixture.idle().await;
    fixture.clock.advance(Span::from_secs(3));
    let second = taken(waiting.reply().await);
    assert_eq!((second[0].id, second[0].attempts), (first[0].id, 1));
    assert_ne!(second[0].lease, first[0].lease);
}

#[tokio::test]
async fn many_due_tasks_are_processed_in_portions() {
    let fixture = Fixture::new().await;
    fixture.run(put_delayed(2_500, 5)).await.unwrap();
    fixture.clock.advance(Span::from_secs(5));
    let mut count = 0;
    while count < 2_500 {
        count += taken(fixture.run(take("mail", 2_500, MINUTE)).await).len();
    }
    assert_eq!(count, 2_500);
    assert!((3..=4).contains(&ticks(&fixture)), "{} ticks", ticks(&fixture));
}

#[tokio::test]
async fn a_failing_store_is_retried_after_a_pause() {
    let fixture = Fixture::new().await;
    fixture.run(put_delayed(1, 5)).await.unwrap();
    fixture.control.failing.store(true, Ordering::SeqCst);
    fixture.clock.advance(Span::from_secs(5));
    for _ in 0..5 {
        fixture.idle().await;
    }
    assert_eq!(ticks(&fixture), 1, "one failed tick, and no other before the pause is over");
    let failed = fixture.run(put("mail", &[2], Span::ZERO)).await;
    assert_eq!(failed, Err(Error::Store("disk full".into())));
    fixture.clock.advance(Span::from_secs(1));
    fixture.idle().await;
    assert_eq!(ticks(&fixture), 2);
    // When the store works again, the missed tick is made up for.
    fixture.control.failing.store(false, Ordering::SeqCst);
    fixture.clock.advance(Span::from_secs(1));
    assert_eq!(taken(fixture.run(take("mail", 1, MINUTE)).await).len(), 1);
}

#[tokio::test]
async fn waiting_commands_get_the_error_of_a_failing_store() {
    let fixture = Fixture::new().await;
    let waiting = [(); 3].map(|()| fixture.submit(vec![take("mail", 1, MINUTE)]));
    assert_eq!(fixture.idle().await, 3);
    // The put succeeds, the takes after it fail.
    fixture.control.block();
    let put = fixture.submit(vec![put("mail", &[1], Span::ZERO)]);
    fixture.control.wait_blocked();
    fixture.control.failing_next.store(true, Ordering::SeqCst);
    fixture.control.unblock();
    assert!(put.reply().await.is_ok());
    for one in waiting {
        assert_eq!(one.reply().await, Err(Error::Store("disk full".into())));
    }
}

#[tokio::test]
async fn a_store_that_overstates_ready_tasks_does_not_keep_the_loop_busy() {
    let fixture = Fixture::new().await;
    fixture.control.overstates_ready.store(true, Ordering::SeqCst);
    let mut waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    assert!(waiting.is_pending());
    assert_eq!(
        fixture.control.verbs(),
        [["take"], ["take"]],
        "one try, and one that finds nothing"
    );
    fixture.put("mail", &[1]).await;
    assert_eq!(waiting.payloads().await, [1]);
}

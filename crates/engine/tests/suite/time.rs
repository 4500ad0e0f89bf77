//! What time alone does, and what a failing store must not cause.

use std::sync::atomic::Ordering;

use taskyard_core::{Body, Command, Error, NewTask, Span, Take};

use crate::rig::{MINUTE, Rig, put, take, taken, tube};

fn put_delayed(count: usize, seconds: u64) -> Command {
    let mut task = NewTask::new(Body::new(&[1]));
    task.delay = Some(Span::from_secs(seconds));
    Command::Put { tube: tube("mail"), tasks: vec![task; count], wait: Span::ZERO }
}

fn ticks(rig: &Rig) -> usize {
    rig.control.verbs().iter().flatten().filter(|verb| **verb == "tick").count()
}

#[tokio::test]
async fn the_end_of_a_delay_serves_whoever_waits() {
    let rig = Rig::new().await;
    rig.run(put_delayed(1, 5)).await.unwrap();
    let mut waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    rig.settled().await;
    assert_eq!(ticks(&rig), 0);
    rig.clock.advance(Span::from_secs(4));
    rig.settled().await;
    assert_eq!(ticks(&rig), 0, "nothing is due");
    assert!(waiting.is_pending());
    rig.clock.advance(Span::from_secs(1));
    assert_eq!(waiting.payloads().await, [1]);
    assert_eq!(ticks(&rig), 1);
}

#[tokio::test]
async fn a_lease_that_runs_out_serves_the_next() {
    let rig = Rig::new().await;
    rig.put("mail", &[1]).await;
    let lease = Some(Span::from_secs(3));
    let with_lease = Take { tube: tube("mail"), count: 1, session: None, lease, wait: Span::ZERO };
    let first = taken(rig.run(Command::Take(with_lease)).await);
    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    rig.settled().await;
    rig.clock.advance(Span::from_secs(3));
    let second = taken(waiting.reply().await);
    assert_eq!((second[0].id, second[0].attempts), (first[0].id, 1));
    assert_ne!(second[0].lease, first[0].lease);
}

#[tokio::test]
async fn much_that_is_due_at_once_is_done_in_portions() {
    let rig = Rig::new().await;
    rig.run(put_delayed(2_500, 5)).await.unwrap();
    rig.clock.advance(Span::from_secs(5));
    let mut count = 0;
    while count < 2_500 {
        count += taken(rig.run(take("mail", 2_500, MINUTE)).await).len();
    }
    assert_eq!(count, 2_500);
    assert!((3..=4).contains(&ticks(&rig)), "{} ticks", ticks(&rig));
}

#[tokio::test]
async fn a_failing_store_is_left_alone_for_a_while() {
    let rig = Rig::new().await;
    rig.run(put_delayed(1, 5)).await.unwrap();
    rig.control.failing.store(true, Ordering::SeqCst);
    rig.clock.advance(Span::from_secs(5));
    for _ in 0..5 {
        rig.settled().await;
    }
    assert_eq!(ticks(&rig), 1, "one failed tick, and no other before its time");
    let failed = rig.run(put("mail", &[2], Span::ZERO)).await;
    assert_eq!(failed, Err(Error::Store("disk full".into())));
    rig.clock.advance(Span::from_secs(1));
    rig.settled().await;
    assert_eq!(ticks(&rig), 2);
    // When the store is well again the tick that was missed is made good.
    rig.control.failing.store(false, Ordering::SeqCst);
    rig.clock.advance(Span::from_secs(1));
    assert_eq!(taken(rig.run(take("mail", 1, MINUTE)).await).len(), 1);
}

#[tokio::test]
async fn those_who_wait_learn_that_the_store_fails() {
    let rig = Rig::new().await;
    let waiting = [(); 3].map(|()| rig.ask(vec![take("mail", 1, MINUTE)]));
    assert_eq!(rig.settled().await, 3);
    // The put works, the takes after it do not.
    rig.control.hold();
    let put = rig.ask(vec![put("mail", &[1], Span::ZERO)]);
    rig.control.held();
    rig.control.failing_next.store(true, Ordering::SeqCst);
    rig.control.let_go();
    assert!(put.reply().await.is_ok());
    for one in waiting {
        assert_eq!(one.reply().await, Err(Error::Store("disk full".into())));
    }
}

#[tokio::test]
async fn a_store_that_promises_too_much_does_not_keep_the_loop_busy() {
    let rig = Rig::new().await;
    rig.control.boasts.store(true, Ordering::SeqCst);
    let mut waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert_eq!(rig.settled().await, 1);
    assert!(waiting.is_pending());
    assert_eq!(rig.control.verbs(), [["take"], ["take"]], "one try, and one in vain");
    rig.put("mail", &[1]).await;
    assert_eq!(waiting.payloads().await, [1]);
}

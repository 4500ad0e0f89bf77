//! How an engine ends.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use taskyard_core::{Command, Error, Execute, Reply, Span};

use crate::rig::{MINUTE, Rig, put, take};

#[tokio::test]
async fn stopping_finishes_what_is_here_and_refuses_what_comes() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let consumer = rig.ask(vec![take("mail", 1, Span::FOREVER)]);
    let producer = rig.ask(vec![put("small", &[3], Span::FOREVER)]);
    assert_eq!(rig.settled().await, 2);
    rig.control.hold();
    let running = rig.ask(vec![put("mail", &[], Span::ZERO)]);
    rig.control.held();
    let queued = rig.ask(vec![Command::Tubes { tube: None }]);
    let mut stopping = pin!(rig.engine.stop());
    assert!(stopping.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(rig.run(Command::Tubes { tube: None }).await, Err(Error::ShuttingDown));
    rig.control.let_go();
    assert!(running.reply().await.is_ok());
    assert!(matches!(queued.reply().await, Ok(Reply::Tubes(_))));
    assert_eq!(consumer.reply().await, Ok(Reply::Taken(Vec::new())));
    assert_eq!(producer.reply().await, Err(Error::ShuttingDown));
    assert_eq!(stopping.await, Ok(()));
    assert!(rig.control.closed.load(Ordering::SeqCst));
    assert_eq!(rig.engine.stop().await, Ok(()), "stopping twice is stopping");
    assert_eq!(rig.run(Command::Tubes { tube: None }).await, Err(Error::ShuttingDown));
    assert_eq!(rig.engine.waiting().await, []);
}

#[tokio::test]
async fn after_the_end_the_store_is_free() {
    let rig = Rig::new().await;
    let control = rig.control.clone();
    rig.engine.stop().await.unwrap();
    drop(rig);
    assert_eq!(Arc::strong_count(&control), 1, "nobody holds the store any more");
}

#[tokio::test]
async fn the_last_handle_ends_the_loop() {
    let rig = Rig::new().await;
    let control = rig.control.clone();
    let other = rig.engine.clone();
    drop(rig);
    assert_eq!(other.execute(vec![Command::Tubes { tube: None }]).await.len(), 1);
    assert!(!control.closed.load(Ordering::SeqCst));
    drop(other);
    control.wait_closed();
}

#[tokio::test]
async fn a_panic_in_the_store_leaves_nobody_waiting() {
    let rig = Rig::new().await;
    let stopped = Err(Error::Store("the engine stopped".into()));
    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    rig.settled().await;
    rig.control.hold();
    let running = rig.ask(vec![Command::Tubes { tube: None }]);
    rig.control.held();
    let queued = rig.ask(vec![Command::Tubes { tube: None }]);
    rig.control.panics.store(true, Ordering::SeqCst);
    rig.control.let_go();
    // The store may have done them: that nothing was done was not known, and was said.
    for unanswered in [waiting, running, queued] {
        let reply = unanswered.reply().await;
        assert!(matches!(reply, Err(Error::OutcomeUnknown(_))), "{reply:?}");
    }
    assert_eq!(rig.engine.stop().await, Err(Error::Store("the engine stopped".into())));
    assert_eq!(rig.run(Command::Tubes { tube: None }).await, stopped);
    assert_eq!(rig.engine.waiting().await, []);
}

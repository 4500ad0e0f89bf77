//! Shutdown of an engine: every caller gets a reply.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use taskyard_core::{Command, Error, Execute, Reply, Span};

use crate::fixture::{Fixture, MINUTE, put, take};

#[tokio::test]
async fn stopping_finishes_queued_commands_and_refuses_new_ones() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let consumer = fixture.submit(vec![take("mail", 1, Span::FOREVER)]);
    let producer = fixture.submit(vec![put("small", &[3], Span::FOREVER)]);
    assert_eq!(fixture.idle().await, 2);
    fixture.control.block();
    let running = fixture.submit(vec![put("mail", &[], Span::ZERO)]);
    fixture.control.wait_blocked();
    let queued = fixture.submit(vec![Command::Tubes { tube: None }]);
    let mut stopping = pin!(fixture.engine.stop());
    assert!(stopping.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(fixture.run(Command::Tubes { tube: None }).await, Err(Error::ShuttingDown));
    fixture.control.unblock();
    assert!(running.reply().await.is_ok());
    assert!(matches!(queued.reply().await, Ok(Reply::Tubes(_))));
    assert_eq!(consumer.reply().await, Ok(Reply::Taken(Vec::new())));
    assert_eq!(producer.reply().await, Err(Error::ShuttingDown));
    assert_eq!(stopping.await, Ok(()));
    assert!(fixture.control.closed.load(Ordering::SeqCst));
    assert_eq!(fixture.engine.stop().await, Ok(()), "stopping twice is allowed");
    assert_eq!(fixture.run(Command::Tubes { tube: None }).await, Err(Error::ShuttingDown));
    assert_eq!(fixture.engine.waiting().await, []);
}

#[tokio::test]
async fn after_the_end_the_store_is_released() {
    let fixture = Fixture::new().await;
    let control = fixture.control.clone();
    fixture.engine.stop().await.unwrap();
    drop(fixture);
    assert_eq!(Arc::strong_count(&control), 1, "the store is released");
}

#[tokio::test]
async fn the_last_handle_ends_the_loop() {
    let fixture = Fixture::new().await;
    let control = fixture.control.clone();
    let other = fixture.engine.clone();
    drop(fixture);
    assert_eq!(other.execute(vec![Command::Tubes { tube: None }]).await.len(), 1);
    assert!(!control.closed.load(Ordering::SeqCst));
    drop(other);
    control.wait_closed();
}

#[tokio::test]
async fn a_panic_in_the_store_ends_all_waits() {
    let fixture = Fixture::new().await;
    let stopped = Err(Error::Store("the engine stopped".into()));
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    fixture.idle().await;
    fixture.control.block();
    let running = fixture.submit(vec![Command::Tubes { tube: None }]);
    fixture.control.wait_blocked();
    let queued = fixture.submit(vec![Command::Tubes { tube: None }]);
    fixture.control.panics.store(true, Ordering::SeqCst);
    fixture.control.unblock();
    // The store may have executed them; the reply claimed that nothing was done.
    for unanswered in [waiting, running, queued] {
        let reply = unanswered.reply().await;
        assert!(matches!(reply, Err(Error::OutcomeUnknown(_))), "{reply:?}");
    }
    assert_eq!(fixture.engine.stop().await, Err(Error::Store("the engine stopped".into())));
    assert_eq!(fixture.run(Command::Tubes { tube: None }).await, stopped);
    assert_eq!(fixture.engine.waiting().await, []);
}

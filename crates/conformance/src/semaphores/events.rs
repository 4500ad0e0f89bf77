//! Events: each is delivered at least once.

use std::collections::BTreeSet;

use taskyard_core::EventKind::{Acquired, TryRelease};
use taskyard_core::{SemaphoreChange, Span};

use super::super::Harness;
use super::SemaphoreCommands;
use super::commands::YANG;

/// Events are repeated until they are acknowledged.
pub async fn events_repeat_until_acknowledged<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    let grant = queue.enqueue(1, 1.0).await.grant;
    let first = queue.fetch(None).await;
    let events = (first[0].task.0, Some(first[0].grant), first[0].kind, first[0].attempt);
    assert_eq!(events, (1, grant, Acquired, 1));
    assert_eq!(first[0].semaphore.as_str(), YANG);
    assert_eq!(queue.fetch(None).await, []);
    for (pause, attempt) in [(30, 2), (60, 3), (120, 4), (240, 5), (480, 6), (600, 7), (600, 8)] {
        queue.advance(Span::from_secs(pause - 1));
        assert_eq!(queue.fetch(None).await, []);
        queue.advance(Span::from_secs(1));
        let again = queue.fetch(None).await;
        assert_eq!((again[0].id, again[0].attempt), (first[0].id, attempt));
    }
    assert_eq!(queue.acknowledge(&first).await, 1);
    assert_eq!(queue.acknowledge(&first).await, 0, "a second acknowledgement has no effect");
    queue.advance(Span::from_secs(10_000));
    assert_eq!(queue.fetch(None).await, []);
}

/// A later event of a task waits for the earlier one.
pub async fn a_later_event_waits_for_the_earlier<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.enqueue(1, 1.0).await;
    let acquired = queue.fetch(None).await;
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.fetch(None).await, []);
    queue.acknowledge(&acquired).await;
    assert_eq!(queue.drain_events().await, [(1, TryRelease)]);
}

/// A release removes the pending events of a task.
pub async fn a_release_removes_pending_events<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.enqueue(1, 1.0).await;
    queue.fetch(None).await;
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.info().await.events, 2);
    queue.release_task(1).await;
    assert_eq!(queue.drain_events().await, [(2, Acquired)]);
    queue.advance(Span::from_secs(1000));
    assert_eq!(queue.fetch(None).await, []);
}

/// Each semaphore has its own events.
pub async fn each_semaphore_has_its_own_events<H: Harness>(queue: H) {
    queue.configure("other", SemaphoreChange::default()).await;
    queue.limits(1, 1).await;
    queue.enqueue(1, 1.0).await;
    assert_eq!(queue.fetch(Some("other")).await, []);
    assert_eq!(queue.fetch(Some(YANG)).await.len(), 1);
}

/// Every grant has its event, and a client that compares (task, grant, kind) finds each once.
pub async fn half_of_the_acks_are_lost<H: Harness>(queue: H) {
    queue.limits(5, 5).await;
    let entries: Vec<_> = (0..40).map(|task| (task, 1.0)).collect();
    let mut rng = fastrand::Rng::with_seed(7);
    queue.enqueue_many(&entries).await;
    let (mut events, mut deliveries) = (BTreeSet::new(), 0);
    while queue.info().await.acquired > 0 || queue.info().await.events > 0 {
        for event in queue.fetch(None).await {
            deliveries += 1;
            if events.insert((event.task, event.grant, event.kind)) && rng.bool() {
                // It releases without an acknowledgement.
                queue.release_task(event.task.0).await;
            } else if rng.bool() {
                queue.acknowledge(std::slice::from_ref(&event)).await;
                queue.release_task(event.task.0).await;
            }
        }
        queue.advance(Span::from_secs(700));
    }
    assert_eq!(events.len(), 40, "one grant for each task");
    assert!(deliveries > 40, "some events were repeated");
}

//! Who goes next: round robin over queues, order in a queue, several processors.

use std::collections::BTreeMap;

use taskyard::worker::Settings;
use taskyard::worker::kit::Kit;

use super::post::{Act, Post, notify, put};
use crate::rig::block_on;

fn batches_of(size: usize) -> Settings {
    Settings { batch_size: size, ..Settings::default() }
}

#[test]
fn two_full_queues_are_visited_by_turns() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).settings(batches_of(2)).build().unwrap();
        worker.init().await.unwrap();
        for n in 0..20 {
            put(kit.queue(), &n.to_string()).await;
            notify(kit.queue(), "x").await;
        }
        let running = kit.start(&worker).await;
        kit.drained("emails").await;
        kit.drained("notifications").await;
        let visits = post.visits();
        assert_eq!(visits.len(), 20);
        for pair in visits.windows(2) {
            assert_ne!(pair[0], pair[1], "{visits:?}");
        }
        let wanted: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(post.receivers(), wanted, "in order of arrival");
        running.stop().await;
    });
}

/// Upstream a processor was pinned to one queue when there were as many processors as queues.
#[test]
fn each_batch_size_holds_and_processors_share_the_queues() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let sizes = BTreeMap::from([(1, 3), (2, 7)]);
        let settings = Settings { max_processors: 4, batch_sizes: sizes, ..Settings::default() };
        let worker = post.worker(&kit).settings(settings).build().unwrap();
        worker.init().await.unwrap();
        for _ in 0..30 {
            put(kit.queue(), "x").await;
            notify(kit.queue(), "x").await;
        }
        let running = kit.start(&worker).await;
        for _ in 0..4 {
            post.begun().await;
        }
        let taken = |tube: taskyard::TubeInfo| tube.stats.tasks.taken;
        assert_eq!(taken(kit.tube("emails").await), 6);
        assert_eq!(taken(kit.tube("notifications").await), 14);
        post.gate.add_permits(1000);
        kit.drained("emails").await;
        kit.drained("notifications").await;
        running.stop().await;
    });
}

#[test]
fn every_task_is_handled_once() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let settings = Settings { max_processors: 8, ..batches_of(5) };
        let worker = post.worker(&kit).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        for n in 0..500 {
            put(kit.queue(), &n.to_string()).await;
        }
        kit.drained("emails").await;
        running.stop().await;
        let mut receivers: Vec<u32> =
            post.receivers().iter().map(|to| to.parse().unwrap()).collect();
        receivers.sort_unstable();
        assert_eq!(receivers, (0..500).collect::<Vec<_>>());
    });
}

#[test]
fn an_idle_worker_is_woken_by_any_of_its_queues() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        for _ in 0..5 {
            put(kit.queue(), "ann").await;
            kit.drained("emails").await;
            notify(kit.queue(), "x").await;
            kit.drained("notifications").await;
        }
        assert_eq!(post.visits(), [1, 2, 1, 2, 1, 2, 1, 2, 1, 2], "without any time passing");
        running.stop().await;
    });
}

/// One batch that waits for a busy processor would keep its tasks from every other worker.
#[test]
fn what_arrives_for_a_busy_worker_goes_back() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        post.begun().await;
        notify(kit.queue(), "x").await;
        kit.until("notifications", |tube| tube.stats.tasks.ready == 1).await;
        let task = kit.client().peek("notifications", taskyard::TaskId(0)).await.unwrap().unwrap();
        assert_eq!(task.attempts(), 0);
        post.gate.add_permits(2);
        kit.drained("notifications").await;
        running.stop().await;
    });
}

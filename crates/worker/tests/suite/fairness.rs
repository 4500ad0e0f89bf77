//! Fairness: round robin over queues, order in a queue, several processors.

use std::collections::BTreeMap;

use taskyard_worker::Settings;
use taskyard_worker::testing::TestKit;

use crate::recording_handler::{Act, RecordingHandler, client, notify, put};
use taskyard_testkit::server::block_on;

fn batches_of(size: usize) -> Settings {
    Settings { batch_size: size, ..Settings::default() }
}

#[test]
fn two_full_queues_are_served_alternately() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).settings(batches_of(2)).build().unwrap();
        worker.init().await.unwrap();
        for n in 0..20 {
            put(kit.queue(), &n.to_string()).await;
            notify(kit.queue(), "x").await;
        }
        let running = kit.start(&worker).await;
        kit.wait_drained("emails").await;
        kit.wait_drained("notifications").await;
        let served = recorder.queue_nums_served();
        assert_eq!(served.len(), 20);
        for pair in served.windows(2) {
            assert_ne!(pair[0], pair[1], "{served:?}");
        }
        let wanted: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(recorder.receivers(), wanted, "in order of arrival");
        running.stop().await;
    });
}

/// Upstream a processor was pinned to one queue when there were as many processors as queues.
#[test]
fn each_queue_has_its_batch_size_and_processors_share_the_queues() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let sizes = BTreeMap::from([(1, 3), (2, 7)]);
        let settings = Settings { max_processors: 4, batch_sizes: sizes, ..Settings::default() };
        let worker = recorder.worker(&kit).settings(settings).build().unwrap();
        worker.init().await.unwrap();
        for _ in 0..30 {
            put(kit.queue(), "x").await;
            notify(kit.queue(), "x").await;
        }
        let running = kit.start(&worker).await;
        for _ in 0..4 {
            recorder.started().await;
        }
        let taken = |tube: taskyard::TubeInfo| tube.stats.tasks.taken;
        assert_eq!(taken(kit.tube("emails").await), 6);
        assert_eq!(taken(kit.tube("notifications").await), 14);
        recorder.gate.add_permits(1000);
        kit.wait_drained("emails").await;
        kit.wait_drained("notifications").await;
        running.stop().await;
    });
}

#[test]
fn every_task_is_handled_once() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let settings = Settings { max_processors: 8, ..batches_of(5) };
        let worker = recorder.worker(&kit).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        for n in 0..500 {
            put(kit.queue(), &n.to_string()).await;
        }
        kit.wait_drained("emails").await;
        running.stop().await;
        let mut receivers: Vec<u32> =
            recorder.receivers().iter().map(|to| to.parse().unwrap()).collect();
        receivers.sort_unstable();
        assert_eq!(receivers, (0..500).collect::<Vec<_>>());
    });
}

#[test]
fn an_idle_worker_is_woken_by_any_of_its_queues() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        for _ in 0..5 {
            put(kit.queue(), "ann").await;
            kit.wait_drained("emails").await;
            notify(kit.queue(), "x").await;
            kit.wait_drained("notifications").await;
        }
        assert_eq!(
            recorder.queue_nums_served(),
            [1, 2, 1, 2, 1, 2, 1, 2, 1, 2],
            "without any delay"
        );
        running.stop().await;
    });
}

/// A batch that waits for a busy processor would withhold its tasks from every other worker.
#[test]
fn a_batch_for_a_busy_worker_is_released() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        recorder.started().await;
        notify(kit.queue(), "x").await;
        kit.wait_until("notifications", |tube| tube.stats.tasks.ready == 1).await;
        let task = client(&kit).peek("notifications", taskyard::TaskId(0)).await.unwrap().unwrap();
        assert_eq!(task.attempts(), 0);
        recorder.gate.add_permits(2);
        kit.wait_drained("notifications").await;
        running.stop().await;
    });
}

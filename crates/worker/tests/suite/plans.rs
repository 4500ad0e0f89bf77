//! Plans: how a worker applies them, and how a manager in the same process computes them.

use std::collections::BTreeMap;
use std::time::Duration;

use taskyard_worker::testing::TestKit;
use taskyard_worker::{Dispatcher, Handler, Manager, Plan, PlanError, Settings, TypedTask};

use crate::queues::{EmailsTask, Handlers};
use crate::recording_handler::{Act, RecordingHandler, notify, put};
use taskyard_testkit::server::block_on;

fn plan(version: u64, share: &[(u32, usize)]) -> Plan {
    Plan { version, share: BTreeMap::from_iter(share.iter().copied()) }
}

#[test]
fn processors_are_distributed_by_the_plan() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let settings = Settings { max_processors: 3, batch_size: 1, ..Settings::default() };
        let worker = recorder.worker(&kit).settings(settings).build().unwrap();
        worker.init().await.unwrap();
        for _ in 0..9 {
            put(kit.queue(), "x").await;
            notify(kit.queue(), "x").await;
        }
        worker.apply(plan(5, &[(2, 2)])).unwrap();
        assert_eq!(worker.apply(plan(4, &[(1, 1)])), Err(PlanError::Outdated));
        let many = PlanError::TooManyProcessors { asked: 4, max: 3 };
        assert_eq!(worker.apply(plan(6, &[(1, 2), (2, 2)])), Err(many));
        let running = kit.start(&worker).await;
        recorder.started().await;
        recorder.started().await;
        let busy = |num| {
            let report = worker.report();
            report.into_iter().find(|report| report.queue_num == num).unwrap().busy
        };
        assert_eq!((busy(1), busy(2)), (0, 2));
        assert_eq!(recorder.queue_nums_served(), [2, 2]);
        worker.apply(plan(6, &[(1, 1), (2, 2)])).unwrap();
        recorder.started().await;
        assert_eq!(busy(1), 1);
        recorder.gate.add_permits(18);
        kit.wait_drained("emails").await;
        kit.wait_drained("notifications").await;
        running.stop().await;
        let report = worker.report();
        assert!(report.iter().all(|report| report.seconds_per_task.is_some() && report.busy == 0));
    });
}

#[test]
fn with_an_empty_plan_a_worker_is_idle() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.apply(plan(1, &[])).unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(recorder.mails().is_empty());
        worker.apply(plan(2, &[(1, 1)])).unwrap();
        kit.wait_drained("emails").await;
        running.stop().await;
    });
}

/// A manager assigns processors to the queue with tasks, and its end changes nothing.
#[test]
fn a_manager_plans_for_several_workers() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let settings = Settings { max_processors: 2, batch_size: 1, ..Settings::default() };
        let worker = || recorder.worker(&kit).settings(settings.clone()).build().unwrap();
        let workers = [worker(), worker()];
        for worker in &workers {
            worker.init().await.unwrap();
        }
        for _ in 0..20 {
            put(kit.queue(), "x").await;
        }
        let mut manager = Manager::new(workers.clone());
        assert!(manager.evaluate().await.unwrap());
        assert!(!manager.evaluate().await.unwrap(), "nothing has changed");
        drop(manager);
        let mut running = Vec::new();
        for worker in &workers {
            running.push(kit.start(worker).await);
        }
        for _ in 0..4 {
            recorder.started().await;
        }
        assert_eq!(
            recorder.queue_nums_served(),
            [1; 4],
            "all processors work on the queue with tasks"
        );
        recorder.gate.add_permits(100);
        kit.wait_drained("emails").await;
        for running in running {
            running.stop().await;
        }
    });
}

/// One worker has both queues, the other only the first: the whole share of the first queue was assigned to the worker with
/// both, and the second queue had no processor.
#[test]
fn a_queue_of_a_single_worker_gets_a_processor() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let of = |count| Settings { max_processors: count, batch_size: 1, ..Settings::default() };
        let both = recorder.worker(&kit).settings(of(2)).build().unwrap();
        let emails = kit.worker(Handlers::default().on_emails(recorder.clone()));
        assert!(emails.build().unwrap().init().await.is_err(), "the other queue has no handler");
        let only = Dispatcher::new([(EmailsTask::QUEUE, Some(waiting(&recorder)))]);
        let only = kit.worker(only).settings(of(1)).build().unwrap();
        for worker in [&both, &only] {
            worker.init().await.unwrap();
        }
        for _ in 0..100 {
            put(kit.queue(), "x").await;
        }
        notify(kit.queue(), "x").await;
        let mut manager = Manager::new([both.clone(), only.clone()]);
        assert!(manager.evaluate().await.unwrap());
        let running = [kit.start(&both).await, kit.start(&only).await];
        for _ in 0..3 {
            recorder.started().await;
        }
        let mut served = recorder.queue_nums_served();
        served.sort_unstable();
        assert_eq!(served, [1, 2], "of the worker with both");
        for running in running {
            running.crash().await;
        }
    });
}

/// A handler that counts its start and never ends.
fn waiting(recorder: &RecordingHandler) -> Handler {
    let started = recorder.started.clone();
    Handler::raw(move |_, _, _| {
        started.add_permits(1);
        std::future::pending()
    })
}

/// The target latencies of the settings were ignored, and a rejected plan was not sent again.
#[test]
fn a_manager_uses_the_target_latencies_and_repeats_a_rejected_plan() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let target_latencies = BTreeMap::from([(1, Duration::from_secs(100))]);
        let settings = Settings { max_processors: 12, target_latencies, ..Settings::default() };
        let worker = recorder.worker(&kit).settings(settings.clone()).build().unwrap();
        worker.init().await.unwrap();
        assert!(!Manager::new([]).evaluate().await.unwrap(), "no worker to plan for");
        for _ in 0..30 {
            put(kit.queue(), "x").await;
            notify(kit.queue(), "x").await;
        }
        // A newer plan of another manager.
        let far = worker.store().now().as_micros() as u64 + 1_000_000;
        worker.apply(plan(far, &[(1, 6), (2, 6)])).unwrap();
        let mut manager = Manager::new([worker.clone()]);
        assert!(!manager.evaluate().await.unwrap(), "it is rejected");
        kit.advance(Duration::from_secs(5));
        assert!(manager.evaluate().await.unwrap(), "it is sent again");
        let one = Settings { batch_size: 1, ..settings };
        worker.reconfigure(one).unwrap();
        let running = kit.start(&worker).await;
        for _ in 0..12 {
            recorder.started().await;
        }
        let emails = recorder.queue_nums_served().iter().filter(|num| **num == 1).count();
        assert_eq!(emails, 1, "its target latency is long");
        running.crash().await;
    });
}

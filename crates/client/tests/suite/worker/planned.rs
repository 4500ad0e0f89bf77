//! A worker that follows a plan, and what it reports.

use std::collections::BTreeMap;
use std::time::Duration;

use taskyard::worker::kit::Kit;
use taskyard::worker::{Dispatcher, Handler, Manager, Plan, PlanError, Settings, TypedTask};

use super::post::{Act, Post, notify, put};
use super::queues::{EmailsTask, Handlers};
use crate::rig::block_on;

fn plan(version: u64, share: &[(u32, usize)]) -> Plan {
    Plan { version, share: BTreeMap::from_iter(share.iter().copied()) }
}

#[test]
fn processors_go_where_the_plan_says() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let settings = Settings { max_processors: 3, batch_size: 1, ..Settings::default() };
        let worker = post.worker(&kit).settings(settings).build().unwrap();
        worker.init().await.unwrap();
        for _ in 0..9 {
            put(kit.queue(), "x").await;
            notify(kit.queue(), "x").await;
        }
        worker.apply(plan(5, &[(2, 2)])).unwrap();
        assert_eq!(worker.apply(plan(4, &[(1, 1)])), Err(PlanError::Old));
        let many = PlanError::TooMany { asked: 4, max: 3 };
        assert_eq!(worker.apply(plan(6, &[(1, 2), (2, 2)])), Err(many));
        let running = kit.start(&worker).await;
        post.begun().await;
        post.begun().await;
        let busy = |num| {
            let report = worker.report();
            report.into_iter().find(|report| report.queue_num == num).unwrap().busy
        };
        assert_eq!((busy(1), busy(2)), (0, 2));
        assert_eq!(post.visits(), [2, 2]);
        worker.apply(plan(6, &[(1, 1), (2, 2)])).unwrap();
        post.begun().await;
        assert_eq!(busy(1), 1);
        post.gate.add_permits(18);
        kit.drained("emails").await;
        kit.drained("notifications").await;
        running.stop().await;
        let report = worker.report();
        assert!(report.iter().all(|report| report.seconds_per_task.is_some() && report.busy == 0));
    });
}

#[test]
fn an_empty_plan_means_idle_until_the_next() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).build().unwrap();
        worker.apply(plan(1, &[])).unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(post.mails().is_empty());
        worker.apply(plan(2, &[(1, 1)])).unwrap();
        kit.drained("emails").await;
        running.stop().await;
    });
}

/// A manager sends idle processors to where the work is, and its death changes nothing.
#[test]
fn a_manager_plans_for_several_workers() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let settings = Settings { max_processors: 2, batch_size: 1, ..Settings::default() };
        let worker = || post.worker(&kit).settings(settings.clone()).build().unwrap();
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
            post.begun().await;
        }
        assert_eq!(post.visits(), [1; 4], "all processors are at the queue with tasks");
        post.gate.add_permits(100);
        kit.drained("emails").await;
        for running in running {
            running.stop().await;
        }
    });
}

/// One worker has both queues, the other only the first: all that the first queue was to get was given to the
/// worker with both, and the second queue had nobody.
#[test]
fn a_queue_that_one_worker_alone_has_is_planned_for() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let of = |count| Settings { max_processors: count, batch_size: 1, ..Settings::default() };
        let both = post.worker(&kit).settings(of(2)).build().unwrap();
        let emails = kit.worker(Handlers::default().on_emails(post.clone()));
        assert!(emails.build().unwrap().init().await.is_err(), "the other queue has no handler");
        let only = Dispatcher::new([(EmailsTask::QUEUE, Some(waiting(&post)))]);
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
            post.begun().await;
        }
        let mut visits = post.visits();
        visits.sort_unstable();
        assert_eq!(visits, [1, 2], "of the worker with both");
        for running in running {
            running.crash().await;
        }
    });
}

/// Counts as begun and never ends.
fn waiting(post: &Post) -> Handler {
    let begun = post.begun.clone();
    Handler::raw(move |_, _, _| {
        begun.add_permits(1);
        std::future::pending()
    })
}

/// What the settings say about latencies was not asked, and a plan that was refused never sent again.
#[test]
fn a_manager_heeds_the_settings_and_repeats_what_was_refused() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let target_latencies = BTreeMap::from([(1, Duration::from_secs(100))]);
        let settings = Settings { max_processors: 12, target_latencies, ..Settings::default() };
        let worker = post.worker(&kit).settings(settings.clone()).build().unwrap();
        worker.init().await.unwrap();
        assert!(!Manager::new([]).evaluate().await.unwrap(), "nobody to plan for");
        for _ in 0..30 {
            put(kit.queue(), "x").await;
            notify(kit.queue(), "x").await;
        }
        // Somebody else's plan is in the way.
        let far = worker.store().now().as_micros() as u64 + 1_000_000;
        worker.apply(plan(far, &[(1, 6), (2, 6)])).unwrap();
        let mut manager = Manager::new([worker.clone()]);
        assert!(!manager.evaluate().await.unwrap(), "it was refused");
        kit.advance(Duration::from_secs(5));
        assert!(manager.evaluate().await.unwrap(), "and is told again");
        let one = Settings { batch_size: 1, ..settings };
        worker.reconfigure(one).unwrap();
        let running = kit.start(&worker).await;
        for _ in 0..12 {
            post.begun().await;
        }
        let emails = post.visits().iter().filter(|num| **num == 1).count();
        assert_eq!(emails, 1, "its tasks have time");
        running.crash().await;
    });
}

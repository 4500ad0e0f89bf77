//! The outcomes that handlers give to tasks: done, retry, bury, several queues in one call.

use std::collections::BTreeMap;
use std::time::Duration;

use taskyard::State;
use taskyard_core::limits::RESULT_BYTES_MAX;
use taskyard_core::{
    Command, Error, Execute, Kind, Span, Take, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};
use taskyard_worker::testing::TestKit;
use taskyard_worker::{
    BatchOutcome, Dispatcher, Handler, HandlerStats, OnConflict, PutOptions, RawTask, Retry,
    SettledCount, Store, TypedTask, worker_name,
};

use crate::faulty_queue::{Fault, FaultyQueue};
use crate::queues::{EmailsTask, NotificationsTask};
use crate::recording_handler::{Act, RecordingHandler, client, mail, put};
use taskyard_testkit::server::block_on;

#[test]
fn a_retried_task_is_delayed() {
    block_on(async {
        let (kit, recorder) =
            (TestKit::new(), RecordingHandler::new(Act::RetryIn(Duration::from_secs(30))));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        kit.wait_until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        recorder.set_act(Act::Done);
        kit.advance(Duration::from_secs(30));
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 1).await;
        let mails = recorder.mails();
        assert_eq!((mails[0].attempts, mails[1].attempts), (0, 1));
        assert_eq!(mails[0].prev_start_time, None);
        assert!(mails[1].prev_start_time < Some(worker.store().now()));
        assert_eq!(mails[0].task_id, mails[1].task_id);
        running.stop().await;
    });
}

#[test]
fn a_task_is_put_with_a_key_and_a_number_of_attempts() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        let options = PutOptions {
            unique_for: Duration::from_secs(60),
            attempts_max: Some(2),
            ..PutOptions::keyed("ann:welcome").unwrap()
        };
        let id = mail("ann").put(kit.queue(), options.clone()).await.unwrap();
        assert_eq!(mail("ben").put(kit.queue(), options.clone()).await.unwrap(), id);
        let task = client(&kit).peek("emails", id).await.unwrap().unwrap().task;
        assert_eq!((task.key.as_deref(), task.attempts_max), (options.key.as_ref(), Some(2)));
        let replace = PutOptions { on_conflict: OnConflict::Replace, ..options.clone() };
        assert_eq!(mail("eve").put(kit.queue(), replace).await.unwrap(), id);
        let running = kit.start(&worker).await;
        kit.wait_drained("emails").await;
        assert_eq!(recorder.receivers(), ["eve"]);
        assert_eq!(mail("ann").put(kit.queue(), options.clone()).await.unwrap(), id, "still held");
        kit.advance(Duration::from_secs(60));
        assert_ne!(mail("ann").put(kit.queue(), options.clone()).await.unwrap(), id);
        let keyless = PutOptions { key: None, ..options };
        let refusal = mail("ann").put(kit.queue(), keyless).await.unwrap_err();
        assert!(refusal.to_string().contains("need a key"), "{refusal}");
        assert!(PutOptions::keyed("").is_err());
        running.stop().await;
    });
}

#[test]
fn a_task_is_put_with_a_ttl_and_a_ttr() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        let now = worker.store().now();
        let (ttl, ttr) = (Some(Duration::from_secs(30)), Some(Duration::from_secs(7)));
        let options = PutOptions { ttl, ttr, ..PutOptions::default() };
        let mails = [(mail("ann"), options.clone()), (mail("ben"), PutOptions::default())];
        let placed = EmailsTask::put_each(kit.queue(), &mails).await.unwrap();
        let task = client(&kit).peek("emails", placed[0].id).await.unwrap().unwrap().task;
        assert_eq!((task.expires, task.ttr), (now + Span::from_secs(30), Span::from_secs(7)));
        let take = Take {
            tube: TubeName::new("emails").unwrap(),
            count: 1,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let until = client(&kit).take_with(take).await.unwrap()[0].task.lease_until;
        assert_eq!(until, Some(now + Span::from_secs(7)), "the lease of a take without one");
        kit.advance(Duration::from_secs(7));
        kit.wait_until("emails", |tube| tube.stats.tasks.ready == 2).await;
        kit.advance(Duration::from_secs(30));
        kit.wait_until("emails", |tube| tube.stats.tasks.ready == 1).await;
        let running = kit.start(&worker).await;
        kit.wait_drained("emails").await;
        running.stop().await;
        assert_eq!(recorder.receivers(), ["ben"]);
    });
}

#[test]
fn a_task_is_put_into_a_sub_queue() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let options = TubeOptions { queue_num: Some(1), ..TubeOptions::new(Kind::UtubeTtl) };
        client(&kit).create("emails", options).await.unwrap();
        let settings = taskyard_worker::Settings { max_processors: 2, ..Default::default() };
        let worker = recorder.worker(&kit).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        let of = |customer: &str| PutOptions {
            subqueue: Some(customer.into()),
            ..PutOptions::default()
        };
        let mails = ["a1", "a2", "b1"].map(|to| (mail(to), of(&to[..1])));
        EmailsTask::put_each(kit.queue(), &mails).await.unwrap();
        while recorder.receivers().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(kit.tube("emails").await.stats.tasks.taken, 2);
        let mut first = recorder.receivers();
        first.sort();
        assert_eq!(first, ["a1", "b1"], "one task of each sub-queue runs");
        recorder.gate.add_permits(3);
        kit.wait_drained("emails").await;
        assert_eq!(recorder.receivers().len(), 3);
        let notice = NotificationsTask::default();
        let refusal = notice.put(kit.queue(), of("ann")).await.unwrap_err().to_string();
        assert!(refusal.contains("a fifottl tube does not support sub-queues"), "{refusal}");
        assert_eq!(kit.tube("notifications").await.stats.calls.put, 0);
        running.stop().await;
    });
}

/// Without the right to read its tube a producer cannot know whether the tube has sub-queues.
#[test]
fn a_sub_queue_needs_no_right_but_put() {
    block_on(async {
        let kit = TestKit::new();
        let options = TubeOptions { queue_num: Some(1), ..TubeOptions::new(Kind::UtubeTtl) };
        client(&kit).create("emails", options).await.unwrap();
        let queue = FaultyQueue::new(kit.queue().clone());
        queue.fail_next("tubes", 1, Fault::Refuse(Error::Invalid("access denied".into())));
        let options = PutOptions { subqueue: Some("ann".into()), ..PutOptions::default() };
        let id = mail("ann").put(&queue, options).await.unwrap();
        let task = client(&kit).peek("emails", id).await.unwrap().unwrap().task;
        assert_eq!((task.subqueue.as_deref(), queue.faults()), (Some("ann"), 1));
    });
}

#[test]
fn a_task_is_put_with_a_delay_or_a_priority() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        let now = worker.store().now();
        let later = PutOptions::at(now + Span::from_secs(10));
        mail("later").put(kit.queue(), later.clone()).await.unwrap();
        mail("soon").put(kit.queue(), PutOptions::after(Duration::from_secs(5))).await.unwrap();
        let last = PutOptions { pri: Some(9), ..PutOptions::default() };
        mail("last").put(kit.queue(), last).await.unwrap();
        put(kit.queue(), "first").await;
        let both = PutOptions { delay: Some(Duration::ZERO), ..later };
        let refusal = mail("both").put(kit.queue(), both).await.unwrap_err();
        assert!(refusal.to_string().contains("not both"), "{refusal}");
        let running = kit.start(&worker).await;
        kit.wait_drained("emails").await;
        kit.advance(Duration::from_secs(5));
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 3).await;
        kit.advance(Duration::from_secs(5));
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 4).await;
        assert_eq!(recorder.receivers(), ["first", "last", "soon", "later"]);
        running.stop().await;
    });
}

#[test]
fn tasks_of_several_queues_are_settled_in_one_call() {
    block_on(async {
        let kit = TestKit::new();
        // Both handlers send their tasks to the test, which settles them together.
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel::<(Store, Vec<u64>)>();
        let collect = || {
            let send = send.clone();
            Handler::raw(move |ctx, store, tasks: Vec<RawTask>| {
                let send = send.clone();
                async move {
                    let ids = tasks.iter().map(|task| task.delivery.task_id).collect();
                    send.send((store, ids))?;
                    ctx.cancelled().await;
                    Ok(HandlerStats::default())
                }
            })
        };
        let handlers =
            Dispatcher::new([]).with_queue(1, "a", collect()).with_queue(2, "b", collect());
        let settings = taskyard_worker::Settings { max_processors: 2, ..Default::default() };
        let worker = kit.worker(handlers).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put_many("a", &[1, 2]).await.unwrap();
        client(&kit).put_many("b", &[1, 2]).await.unwrap();
        let mut ids = Vec::new();
        while ids.len() < 4 {
            ids.extend(receive.recv().await.unwrap().1);
        }
        let store = worker.store().clone();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4, "numbers are unique in the store");
        let unknown = 77;
        let settled = store.done(&[ids[0], ids[3], unknown]).await.unwrap();
        assert_eq!(settled, SettledCount { done: 2, lost: 1 });
        let past = Timestamp::EPOCH;
        let retry = Retry { task_id: ids[1], next_start_time: past };
        assert_eq!(store.retry(&[retry]).await.unwrap().done, 1);
        assert_eq!(store.bury(&[ids[2]]).await.unwrap().done, 1);
        assert_eq!(
            store.done(&ids).await.unwrap(),
            SettledCount { done: 0, lost: 4 },
            "settled before"
        );
        let stats = store.stats().await.unwrap();
        let counts: Vec<_> =
            stats.iter().map(|stat| (stat.tasks.total(), stat.tasks.buried)).collect();
        assert_eq!(counts, [(1, 0), (1, 1)]);
        let nums: Vec<_> = stats.iter().map(|stat| stat.queue_num).collect();
        assert_eq!(nums, worker.queue_nums(), "by the numbers of the contract");
        running.crash().await;
    });
}

#[test]
fn a_batch_outcome_retries_and_buries() {
    block_on(async {
        let kit = TestKit::new();
        let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
            let mut outcome = BatchOutcome::new(&store);
            for RawTask { delivery, .. } in tasks {
                match delivery.attempts {
                    2 => outcome.bury(delivery.task_id, "too many attempts"),
                    attempts => outcome.retry(delivery.task_id, attempts, "not yet"),
                }
            }
            outcome.commit().await
        });
        let worker =
            kit.worker(Dispatcher::new([]).with_queue(1, "mail", handler)).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        for seconds in [1, 2] {
            kit.wait_until("mail", |tube| tube.stats.tasks.delayed == 1).await;
            kit.advance(Duration::from_secs(seconds));
        }
        kit.wait_until("mail", |tube| tube.stats.tasks.buried == 1).await;
        let task = client(&kit).peek("mail", TaskId(0)).await.unwrap().unwrap();
        assert_eq!((task.task.state, task.attempts()), (State::Buried, 2));
        running.stop().await;
    });
}

#[test]
fn the_test_kit_shows_the_tasks_that_a_handler_put() {
    block_on(async {
        let kit = TestKit::new();
        let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
            for to in ["ann", "ben"] {
                mail(to).put(&store, PutOptions::after(Duration::from_secs(9))).await?;
            }
            let mut outcome = BatchOutcome::new(&store);
            tasks.iter().for_each(|task| outcome.done(task.delivery.task_id));
            outcome.commit().await
        });
        let idle = Handler::raw(|_, _, _| async { Ok(HandlerStats::default()) });
        let handlers =
            Dispatcher::new([]).with_queue(7, "orders", handler).with_queue(1, "emails", idle);
        let worker = kit.worker(handlers).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put("orders", "x").await.unwrap();
        kit.wait_until("orders", |tube| tube.stats.calls.ack == 1).await;
        let mails = kit.tasks::<EmailsTask>().await;
        assert_eq!(mails, [mail("ann"), mail("ben")]);
        running.crash().await;
    });
}

/// A handler that acks its tasks with the result that a function makes of the place in the batch.
fn with_result<R: serde::Serialize + 'static>(result: fn(usize) -> R) -> Dispatcher {
    let handler = Handler::raw(move |_, store, tasks: Vec<RawTask>| async move {
        let mut outcome = BatchOutcome::new(&store);
        for (place, task) in tasks.iter().enumerate() {
            outcome.done_with(task.delivery.task_id, &result(place));
        }
        outcome.commit().await
    });
    Dispatcher::new([]).with_queue(7, "orders", handler)
}

/// The done tasks of a batch of two, each with its result.
async fn results_of(handlers: Dispatcher) -> Vec<Option<BTreeMap<String, usize>>> {
    let kit = TestKit::new();
    let worker = kit.worker(handlers).build().unwrap();
    worker.init().await.unwrap();
    let keep_done = Some(Some(Span::from_secs(3600)));
    let change = TubeChange { keep_done, ..TubeChange::default() };
    let alter = Command::AlterTube { tube: TubeName::new("orders").unwrap(), change };
    kit.queue().execute(vec![alter]).await.remove(0).unwrap();
    for _ in 0..2 {
        client(&kit).put("orders", "x").await.unwrap();
    }
    let running = kit.start(&worker).await;
    kit.wait_until("orders", |tube| tube.stats.tasks.kept == 2).await;
    running.stop().await;
    let mut results = Vec::new();
    for id in 0..2 {
        let task = client(&kit).peek("orders", TaskId(id)).await.unwrap().unwrap().task;
        assert_eq!(task.state, State::Done);
        let finished = task.finished.expect("it is done");
        assert_eq!(finished.worker(), Some(&*worker_name()));
        results.push(finished.result().map(|bytes| rmp_serde::from_slice(bytes).unwrap()));
    }
    results
}

#[test]
fn a_task_is_done_with_a_result() {
    block_on(async {
        let result = |place| BTreeMap::from([("place".to_owned(), place)]);
        assert_eq!(results_of(with_result(result)).await, [Some(result(0)), Some(result(1))]);
    });
}

/// What cannot be encoded, and what is too large.
struct Unfit(usize);

impl serde::Serialize for Unfit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => Err(serde::ser::Error::custom("it has no form")),
            _ => serializer.serialize_str(&"x".repeat(RESULT_BYTES_MAX)),
        }
    }
}

#[test]
fn a_task_is_done_without_a_result_that_does_not_fit() {
    block_on(async {
        assert_eq!(results_of(with_result(Unfit)).await, [None, None]);
    });
}

//! What handlers do with tasks: done, retry, bury, several queues in one call.

use std::time::Duration;

use taskyard::State;
use taskyard::worker::kit::Kit;
use taskyard::worker::{
    Dispatcher, Handler, HandlerStats, PutOptions, RawTask, Retry, Settled, Store, Tally, TypedTask,
};
use taskyard_core::{Span, TaskId, Timestamp};

use super::post::{Act, Post, mail, put};
use super::queues::EmailsTask;
use crate::rig::block_on;

#[test]
fn a_retried_task_waits_for_its_time() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::RetryIn(Duration::from_secs(30))));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        kit.until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        post.now(Act::Done);
        kit.advance(Duration::from_secs(30));
        kit.until("emails", |tube| tube.stats.calls.ack == 1).await;
        let mails = post.mails();
        assert_eq!((mails[0].attempts, mails[1].attempts), (0, 1));
        assert_eq!(mails[0].prev_start_time, None);
        assert!(mails[1].prev_start_time < Some(worker.store().now()));
        assert_eq!(mails[0].task_id, mails[1].task_id);
        running.stop().await;
    });
}

#[test]
fn a_task_is_put_for_later_or_with_priority() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        let now = worker.store().now();
        let later = PutOptions::at(now + Span::from_secs(10));
        mail("later").put(kit.queue(), later).await.unwrap();
        mail("soon").put(kit.queue(), PutOptions::after(Duration::from_secs(5))).await.unwrap();
        let last = PutOptions { pri: Some(9), ..PutOptions::default() };
        mail("last").put(kit.queue(), last).await.unwrap();
        put(kit.queue(), "first").await;
        let both = PutOptions { delay: Some(Duration::ZERO), ..later };
        let refusal = mail("both").put(kit.queue(), both).await.unwrap_err();
        assert!(refusal.to_string().contains("not both"), "{refusal}");
        let running = kit.start(&worker).await;
        kit.drained("emails").await;
        kit.advance(Duration::from_secs(5));
        kit.until("emails", |tube| tube.stats.calls.ack == 3).await;
        kit.advance(Duration::from_secs(5));
        kit.until("emails", |tube| tube.stats.calls.ack == 4).await;
        assert_eq!(post.receivers(), ["first", "last", "soon", "later"]);
        running.stop().await;
    });
}

#[test]
fn numbers_of_several_queues_are_settled_in_one_call() {
    block_on(async {
        let kit = Kit::new();
        // Both handlers hand their tasks to the test, which settles them together.
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
        let handlers = Dispatcher::new([]).and(1, "a", collect()).and(2, "b", collect());
        let settings = taskyard::worker::Settings { max_processors: 2, ..Default::default() };
        let worker = kit.worker(handlers).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        kit.client().put_many("a", &[1, 2]).await.unwrap();
        kit.client().put_many("b", &[1, 2]).await.unwrap();
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
        assert_eq!(settled, Settled { done: 2, lost: 1 });
        let past = Timestamp::EPOCH;
        let retry = Retry { task_id: ids[1], next_start_time: past };
        assert_eq!(store.retry(&[retry]).await.unwrap().done, 1);
        assert_eq!(store.bury(&[ids[2]]).await.unwrap().done, 1);
        assert_eq!(store.done(&ids).await.unwrap(), Settled { done: 0, lost: 4 }, "settled before");
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
fn a_tally_settles_each_as_it_went() {
    block_on(async {
        let kit = Kit::new();
        let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
            let mut tally = Tally::new(&store);
            for RawTask { delivery, .. } in tasks {
                match delivery.attempts {
                    2 => tally.bury(delivery.task_id, "given up"),
                    attempts => tally.retry(delivery.task_id, attempts, "not yet"),
                }
            }
            tally.settle().await
        });
        let worker = kit.worker(Dispatcher::new([]).and(1, "mail", handler)).build().unwrap();
        let running = kit.start(&worker).await;
        kit.client().put("mail", "x").await.unwrap();
        for seconds in [1, 2] {
            kit.until("mail", |tube| tube.stats.tasks.delayed == 1).await;
            kit.advance(Duration::from_secs(seconds));
        }
        kit.until("mail", |tube| tube.stats.tasks.buried == 1).await;
        let task = kit.client().peek("mail", TaskId(0)).await.unwrap().unwrap();
        assert_eq!((task.task.state, task.attempts()), (State::Buried, 2));
        running.stop().await;
    });
}

#[test]
fn a_kit_shows_what_a_handler_put() {
    block_on(async {
        let kit = Kit::new();
        let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
            for to in ["ann", "ben"] {
                mail(to).put(&store, PutOptions::after(Duration::from_secs(9))).await?;
            }
            let mut tally = Tally::new(&store);
            tasks.iter().for_each(|task| tally.done(task.delivery.task_id));
            tally.settle().await
        });
        let idle = Handler::raw(|_, _, _| async { Ok(HandlerStats::default()) });
        let handlers = Dispatcher::new([]).and(7, "orders", handler).and(1, "emails", idle);
        let worker = kit.worker(handlers).build().unwrap();
        let running = kit.start(&worker).await;
        kit.client().put("orders", "x").await.unwrap();
        kit.until("orders", |tube| tube.stats.calls.ack == 1).await;
        let mails = kit.tasks::<EmailsTask>().await;
        assert_eq!(mails, [mail("ann"), mail("ben")]);
        running.crash().await;
    });
}

//! The typed calls of the client, over an embedded queue.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskyard::{
    Client, Error, Kind, NewTask, Outcome, Span, State, TaskId, TubeChange, TubeOptions,
    bytes_task, new_task,
};
use taskyard_core::Error as Refusal;

use taskyard_testkit::server::{TestServer, block_on};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Mail {
    to: String,
    lines: Vec<u32>,
}

fn mail(to: &str) -> Mail {
    Mail { to: to.into(), lines: vec![1, 2] }
}

async fn client() -> Client {
    Client::open("memory:").await.expect("memory opens")
}

#[test]
fn data_is_encoded_and_decoded() {
    block_on(async {
        let client = client().await;
        client.put("mail", &mail("ann")).await.unwrap();
        let task = client.take("mail", Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(task.data::<Mail>().unwrap(), mail("ann"));
        assert!(matches!(task.data::<Vec<bool>>(), Err(Error::Decode(_))));
        assert_eq!(task.bytes(), None);
    });
}

#[test]
fn bytes_of_every_size_are_preserved() {
    block_on(async {
        let client = client().await;
        for size in [0, 1, 255, 256, 65_535, 65_536] {
            let bytes = vec![0xc1; size];
            client.put_bytes("raw", &bytes).await.unwrap();
            let task = client.take("raw", Duration::ZERO).await.unwrap().unwrap();
            assert_eq!(task.bytes(), Some(&bytes[..]), "{size} bytes");
        }
    });
}

#[test]
fn a_batch_is_put_and_acked() {
    block_on(async {
        let client = client().await;
        let ids = client.put_many("mail", &[mail("ann"), mail("ben")]).await.unwrap();
        assert_eq!(ids.len(), 2);
        let tasks = client.take_many("mail", 10, Duration::ZERO).await.unwrap();
        let outcomes = client.ack_many(&tasks).await.unwrap();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done(_))));
        assert_eq!(client.ack_many(&tasks).await.unwrap(), vec![Outcome::Missing; 2]);
        assert_eq!(client.stats("mail").await.unwrap().tasks.done, 2);
    });
}

#[test]
fn deliveries_end_by_ack_release_bury_and_delete() {
    block_on(async {
        let client = client().await;
        let id = client.put("mail", "x").await.unwrap();
        let take = || async { client.take("mail", Duration::ZERO).await.unwrap().unwrap() };
        let first = take().await;
        client.release(&first).await.unwrap();
        assert!(matches!(client.ack(&first).await, Err(Error::Stale { .. })));
        let second = take().await;
        assert_eq!(second.attempts(), 1);
        let longer = client.touch(&second, Duration::from_secs(60)).await.unwrap();
        assert!(longer.task.lease_until > second.task.lease_until);
        assert_eq!(longer.data::<String>().unwrap(), "x");
        client.release_uncounted(&longer).await.unwrap();
        let third = take().await;
        assert_eq!(third.attempts(), 1);
        client.release_later(&third, Duration::from_secs(60)).await.unwrap();
        assert_eq!(client.peek("mail", id).await.unwrap().unwrap().task.state, State::Delayed);
        client.bury(&third).await.unwrap_err();
        assert!(client.delete("mail", id).await.unwrap());
        assert!(!client.delete("mail", id).await.unwrap());
        let gone = client.ack(&third).await.unwrap_err();
        assert!(matches!(gone, Error::Refused(taskyard_core::Error::TaskNotFound(..))), "{gone}");
    });
}

#[test]
fn buried_tasks_are_kicked() {
    block_on(async {
        let client = client().await;
        client.put("mail", "x").await.unwrap();
        let task = client.take("mail", Duration::ZERO).await.unwrap().unwrap();
        client.bury(&task).await.unwrap();
        assert_eq!(client.kick("mail", 5).await.unwrap(), 1);
        assert_eq!(client.kick("mail", 5).await.unwrap(), 0);
    });
}

#[test]
fn tasks_have_options() {
    block_on(async {
        let client = client().await;
        let late = NewTask { delay: Some(Span::from_secs(60)), ..new_task("late").unwrap() };
        let last = NewTask { pri: Some(9), ..bytes_task(b"last").unwrap() };
        let first = NewTask { pri: Some(1), ..new_task("first").unwrap() };
        let tasks = vec![late, last, first];
        let placed = client.put_tasks("mail", tasks, Duration::ZERO).await.unwrap();
        let states: Vec<State> = placed.iter().map(|placed| placed.state).collect();
        assert_eq!(states, [State::Delayed, State::Ready, State::Ready]);
        let order = client.take_many("mail", 10, Duration::ZERO).await.unwrap();
        assert_eq!(order.iter().map(|task| task.id().0).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(client.deliveries("mail", 10).await.unwrap().len(), 2);
        client.release_all("mail").await.unwrap();
        assert_eq!(client.stats("mail").await.unwrap().tasks.ready, 2);
    });
}

#[test]
fn tubes_are_created_changed_and_dropped() {
    block_on(async {
        let client = client().await;
        let options = TubeOptions::new(Kind::Utube);
        client.create("orders", options.clone()).await.unwrap();
        assert!(client.create("orders", options.clone()).await.is_err());
        assert!(!client.create_if_missing("orders", options).await.unwrap());
        client.put_in("orders", "ann", "1").await.unwrap();
        client.put_in("orders", "ann", "2").await.unwrap();
        assert_eq!(client.take_many("orders", 10, Duration::ZERO).await.unwrap().len(), 1);
        assert!(client.pause("orders").await.unwrap().options.paused);
        assert!(!client.resume("orders").await.unwrap().options.paused);
        let change = TubeChange { pri: Some(3), ..TubeChange::default() };
        assert_eq!(client.alter("orders", change).await.unwrap().options.pri, 3);
        assert!(client.drop_tube("orders").await.is_err());
        client.truncate("orders").await.unwrap();
        client.drop_tube("orders").await.unwrap();
        assert!(client.tubes().await.unwrap().is_empty());
    });
}

/// A put with a sub-queue into a tube without sub-queues was accepted, and the sub-queue was ignored.
#[test]
fn sub_queues_need_a_tube_that_supports_them() {
    block_on(async {
        let client = client().await;
        let error = client.put_in("orders", "ann", "1").await.unwrap_err();
        assert!(matches!(error, Error::Refused(Refusal::TubeNotFound(_))), "{error}");
        client.put("orders", "1").await.unwrap();
        let error = client.put_in("orders", "ann", "1").await.unwrap_err().to_string();
        assert!(error.contains("a fifottl tube does not support sub-queues"), "{error}");
        assert_eq!(client.stats("orders").await.unwrap().tasks.total(), 1);
        client.drop_tube("orders").await.unwrap();
        client.create("orders", TubeOptions::new(Kind::UtubeTtl)).await.unwrap();
        client.put_in("orders", "ann", "1").await.unwrap();
    });
}

#[test]
fn failures_results_and_chosen_tasks() {
    block_on(async {
        let server = TestServer::in_memory().await;
        for client in [client().await, server.client(), Client::new(server.connect())] {
            let keep_done = Some(Duration::from_secs(3600).into());
            let options = TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) };
            client.create("story", options).await.unwrap();
            client.put_many("story", &["a", "b", "c", "d"]).await.unwrap();
            let tasks = client.take_many("story", 4, Duration::ZERO).await.unwrap();
            client.fail(&tasks[0], "no route to host").await.unwrap();
            client.fail_later(&tasks[1], "timeout", Duration::from_secs(60)).await.unwrap();
            client.bury_with(&tasks[2], "bounced").await.unwrap();
            client.ack_with(&tasks[3], &["sent", "twice"]).await.unwrap();
            let shown = client.peek_many("story", &[0, 1, 2, 3].map(TaskId)).await.unwrap();
            let expected = [
                (State::Ready, 1, Some("no route to host")),
                (State::Delayed, 1, Some("timeout")),
                (State::Buried, 0, Some("bounced")),
                (State::Done, 0, None),
            ];
            for (task, expected) in shown.iter().zip(expected) {
                let failures = task.task.failures.as_ref();
                let last = failures.and_then(|failures| failures.iter().last());
                let error = last.map(|failure| failure.error.to_string());
                let found = (task.task.state, task.task.attempts, error.as_deref());
                assert_eq!(found, expected, "{}", task.id());
            }
            let finished = shown[3].task.finished.as_ref().expect("it is done");
            let result: Vec<String> = rmp_serde::from_slice(finished.result().unwrap()).unwrap();
            assert_eq!(result, ["sent", "twice"]);
            let again = client.take("story", Duration::ZERO).await.unwrap().unwrap();
            client.bury_with(&again, "bounced").await.unwrap();
            for (reset, attempts) in [(false, 1), (true, 0)] {
                let ids = [TaskId(0), TaskId(1)];
                let kicked = client.kick_tasks("story", &ids, reset).await.unwrap();
                assert!(matches!(kicked[..], [Outcome::Done(_), Outcome::Stale]), "{kicked:?}");
                let again = client.take("story", Duration::ZERO).await.unwrap().unwrap();
                assert_eq!((again.id(), again.task.attempts), (TaskId(0), attempts));
                client.bury(&again).await.unwrap();
            }
            client.truncate("story").await.unwrap();
            client.drop_tube("story").await.unwrap();
        }
        server.stop().await;
    });
}

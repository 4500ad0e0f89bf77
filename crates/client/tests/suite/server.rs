//! The client over HTTP: waits, tokens, errors and addresses.

use std::time::Duration;

use taskyard::{
    Error, Http, HttpError, Kind, NewTask, NoEstimate, TubeName, TubeOptions, new_task,
};
use taskyard_core::{Command, Error as Refusal, Execute, Span, TaskId};

use taskyard_testkit::server::{TestServer, block_on};
use taskyard_wire::http::TasksQuery;

#[test]
fn a_task_is_put_taken_and_acked() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = test_server.client();
        let id = client.put("mail", &("ann", 7)).await.unwrap();
        assert_eq!(id, TaskId(0));
        let task = client.take("mail", Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(task.data::<(String, u32)>().unwrap(), ("ann".into(), 7));
        client.ack(&task).await.unwrap();
        let stale = client.ack(&task).await.unwrap_err();
        assert!(matches!(stale, Error::Refused(Refusal::TaskNotFound(..))), "{stale}");
        test_server.stop().await;
    });
}

/// A put and a list show when their tasks will start if they ask for it.
#[test]
fn estimates_are_shown_with_tasks_and_tubes() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let (client, http) = (test_server.client(), &test_server.http);
        let tube = TubeName::new("mail").unwrap();
        let first = client.put("mail", "a").await.unwrap();
        let tasks = [new_task("b").unwrap()];
        let put = http.put_estimated(&tube, &tasks, Span::ZERO).await.unwrap();
        let queue = put.tasks[0].queue.as_deref().unwrap();
        assert_eq!((queue.ahead, &queue.estimate), (Some(1), &None));
        assert_eq!(queue.no_estimate.as_ref().unwrap().name, "no_consumer");
        let query = TasksQuery { estimate: true, ..TasksQuery::default() };
        let page = http.tasks(&tube, &query).await.unwrap();
        let ahead = page.tasks.iter().map(|task| task.queue.as_deref().unwrap().ahead);
        assert_eq!(ahead.collect::<Vec<_>>(), [Some(0), Some(1)]);
        let plain = http.tasks(&tube, &TasksQuery::default()).await.unwrap();
        assert!(plain.tasks.iter().all(|task| task.queue.is_none()));
        for tubes in [None, Some(&tube)] {
            let shown = http.tubes_estimated(tubes).await.unwrap().remove(0);
            assert_eq!(shown.no_drain.unwrap().name, "no_consumer");
            assert_eq!(http.tubes(tubes).await.unwrap().remove(0).no_drain, None);
        }
        let positions = client.positions("mail", &[TaskId(1), first, TaskId(7)]).await.unwrap();
        let reason = Some(Err(NoEstimate::NoConsumer));
        let shown = positions.iter().map(|position| (position.id, position.ahead));
        assert_eq!(shown.collect::<Vec<_>>(), [(TaskId(1), 1), (first, 0)]);
        assert!(positions.iter().all(|position| position.estimate == reason));
        test_server.stop().await;
    });
}

#[test]
fn a_waiting_take_is_woken_by_a_put() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = test_server.client();
        client.create("mail", TubeOptions::new(Kind::Fifo)).await.unwrap();
        let taker = client.clone();
        let taking = tokio::spawn(async move { taker.take("mail", Duration::from_secs(60)).await });
        let tube = TubeName::new("mail").unwrap();
        while test_server.http.consumers(&tube, 10).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        client.put("mail", "x").await.unwrap();
        assert!(taking.await.unwrap().unwrap().is_some());
    });
}

/// Servers refuse waits longer than five minutes, so a longer wait is split into several requests.
#[test]
fn a_long_wait_is_split() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = test_server.client();
        client.create("mail", TubeOptions::new(Kind::Fifo)).await.unwrap();
        let taker = client.clone();
        let taking =
            tokio::spawn(async move { taker.take("mail", Duration::from_secs(3600)).await });
        let tube = TubeName::new("mail").unwrap();
        let mut since = None;
        for _ in 0..3 {
            // Each request waits again.
            let consumer = loop {
                let consumers = test_server.http.consumers(&tube, 1).await.unwrap();
                match consumers.into_iter().next() {
                    Some(consumer) if Some(consumer.since) != since => break consumer,
                    _ => tokio::task::yield_now().await,
                }
            };
            since = Some(consumer.since);
            test_server.clock.advance(Span::from_secs(300));
        }
        client.put("mail", "x").await.unwrap();
        assert!(taking.await.unwrap().unwrap().is_some());
    });
}

#[test]
fn every_tube_name_is_encoded_in_the_path() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = test_server.client();
        for name in ["a b", "50%", "%2e%2e", "почта", "a?b#c", "a\\b", "...", "+", "take"] {
            client.put(name, name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            let task = client.take(name, Duration::ZERO).await.unwrap().unwrap();
            assert_eq!(task.data::<String>().unwrap(), name);
        }
        for name in [".", ".."] {
            let error = client.put(name, "x").await.unwrap_err();
            assert!(matches!(error, Error::Refused(Refusal::Invalid(_))), "{name}: {error}");
        }
        assert_eq!(client.tubes().await.unwrap().len(), 9);
    });
}

#[test]
fn the_token_is_sent() {
    block_on(async {
        let test_server = TestServer::with_token("secret-0123456789").await;
        let tubes = || Command::Tubes { tube: None };
        let without = test_server.http.execute_one(tubes()).await.unwrap_err();
        assert!(matches!(without, HttpError::Unauthorized(_)), "{without}");
        let wrong = test_server.http.clone().with_token("guess").unwrap();
        assert!(matches!(wrong.execute_one(tubes()).await, Err(HttpError::Unauthorized(_))));
        let right = test_server.http.clone().with_token("secret-0123456789\n").unwrap();
        right.execute_one(tubes()).await.unwrap();
        assert!(!format!("{right:?}").contains("secret"));
    });
}

#[test]
fn refusals_keep_their_error_and_message() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = test_server.client();
        let options = TubeOptions { capacity: Some(1), ..TubeOptions::new(Kind::LimFifoTtl) };
        client.create("inbox", options).await.unwrap();
        client.put("inbox", "x").await.unwrap();
        let full = client.put("inbox", "y").await.unwrap_err();
        assert!(matches!(full, Error::Refused(Refusal::TubeFull { capacity: 1, .. })), "{full}");
        let tube = TubeName::new("big").unwrap();
        let tasks = vec![new_task(&"x".repeat(2 << 20)).unwrap()];
        let put = Command::Put { tube, tasks, wait: Span::ZERO };
        let large = test_server.http.execute_one(put).await.unwrap_err();
        assert!(large.to_string().contains("store the data somewhere else"), "{large}");
        assert!(matches!(Refusal::from(large), Refusal::TooLarge { .. }));
    });
}

#[test]
fn a_batch_of_commands_has_one_reply_each() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let tube = TubeName::new("mail").unwrap();
        let tasks: Vec<NewTask> = vec![new_task("x").unwrap()];
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        let replies = test_server
            .http
            .execute(vec![put.clone(), Command::Tick { limit: 1, seed: 0 }, put])
            .await;
        assert!(replies[0].is_ok() && replies[2].is_ok());
        assert!(matches!(replies[1], Err(Refusal::Invalid(_))));
    });
}

#[test]
fn an_unreachable_server_is_reported() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let http = test_server.http.clone();
        test_server.stop().await;
        let unreachable = http.execute_one(Command::Tubes { tube: None }).await.unwrap_err();
        assert!(matches!(unreachable, HttpError::Unreachable { .. }), "{unreachable}");
    });
}

#[test]
fn invalid_urls_are_refused() {
    for url in ["", "mail", "https://", "ftp://x", "http://", "127.0.0.1:7070"] {
        assert!(matches!(Http::new(url), Err(HttpError::Url(_))), "{url}");
    }
    let http = Http::new("http://ann:secret@127.0.0.1:7070/queue/").unwrap();
    assert_eq!(http.url(), "http://127.0.0.1:7070/queue");
    assert_eq!(http.with_token("two\nlines").unwrap_err(), HttpError::Token);
}

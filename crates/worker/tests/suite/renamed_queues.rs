//! A queue is identified by its permanent number: one that is renamed in the contract keeps its tasks.

use std::sync::{Arc, Mutex};

use taskyard::{Client, Execute, Kind, TubeOptions};
use taskyard_engine::{Engine, Settings as EngineSettings};
use taskyard_store::OpenOptions;
use taskyard_stores::open;
use taskyard_worker::testing::{ManualTimer, RunningWorker};
use taskyard_worker::{Dispatcher, Handler, HandlerStats, InitError, RawTask, Worker};

use taskyard_testkit::server::{self, TestServer, block_on};

/// A handler that acks, and the tasks that it handled.
#[derive(Clone, Default)]
struct AckingHandler(Arc<Mutex<Vec<u64>>>);

impl AckingHandler {
    fn handler(&self) -> Handler {
        let handled = self.clone();
        Handler::raw(move |_, store, tasks: Vec<RawTask>| {
            let handled = handled.clone();
            async move {
                let ids: Vec<u64> = tasks.iter().map(|task| task.delivery.task_id).collect();
                handled.0.lock().unwrap().extend(&ids);
                store.done(&ids).await?;
                Ok(HandlerStats { processed: ids.len(), ..HandlerStats::default() })
            }
        })
    }
}

fn worker<E: Execute + Clone + 'static>(queue: &E, num: u32, name: &str, was: &[&str]) -> Worker {
    let was: Vec<String> = was.iter().map(|name| (*name).into()).collect();
    let queues =
        Dispatcher::new([]).with_renamed_queue(num, name, &was, AckingHandler::default().handler());
    Worker::builder("renamed", queue.clone(), queues).build().unwrap()
}

async fn keeps_its_tasks<E: Execute + Clone + 'static>(queue: E, timer: Arc<ManualTimer>) {
    let client = Client::new(queue.clone());
    worker(&queue, 1, "emails", &[]).init().await.unwrap();
    assert_eq!(client.tube("emails").await.unwrap().options.queue_num, Some(1));
    for text in ["a", "b", "c"] {
        client.put("emails", text).await.unwrap();
    }
    let error = worker(&queue, 1, "letters", &[]).init().await.unwrap_err();
    assert!(matches!(error, InitError::QueueNumTaken { num: 1, .. }), "{error}");
    assert!(error.to_string().contains("write 'was: [emails]'"), "{error}");

    let handled = AckingHandler::default();
    let was = ["mails".to_owned(), "emails".to_owned()];
    let queues = Dispatcher::new([]).with_renamed_queue(1, "letters", &was, handled.handler());
    let renamed = Worker::builder("renamed", queue.clone(), queues);
    let renamed = renamed.timer(timer.clone()).build().unwrap();
    let running = RunningWorker::start(&renamed, timer).await;
    while client.stats("letters").await.unwrap().tasks.total() > 0 {
        tokio::task::yield_now().await;
    }
    running.stop().await;
    assert_eq!(handled.0.lock().unwrap().len(), 3);
    assert!(client.tube("emails").await.is_err(), "it was renamed to letters");
    // A second registration succeeds, also without the old name.
    worker(&queue, 1, "letters", &["emails"]).init().await.unwrap();
    worker(&queue, 1, "letters", &[]).init().await.unwrap();
}

#[test]
fn a_renamed_queue_keeps_its_tasks_over_the_network() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        keeps_its_tasks(
            test_server.http.clone(),
            Arc::new(ManualTimer::new(test_server.clock.clone())),
        )
        .await;
        test_server.stop().await;
        let test_server = TestServer::in_memory().await;
        keeps_its_tasks(
            test_server.connect(),
            Arc::new(ManualTimer::new(test_server.clock.clone())),
        )
        .await;
        test_server.stop().await;
    });
}

#[test]
fn a_renamed_queue_keeps_its_tasks_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".into(), format!("sqlite:{}", folder.path().display())] {
        block_on(async {
            let clock = server::clock();
            let store = open(&url, &OpenOptions::default()).unwrap();
            let engine = Engine::start(store, clock.clone(), EngineSettings::default());
            keeps_its_tasks(engine.clone(), Arc::new(ManualTimer::new(clock))).await;
            engine.stop().await.unwrap();
        });
    }
}

/// Which of two tubes is the queue cannot be guessed; a wrong guess would lose tasks.
#[test]
fn an_ambiguous_registration_is_refused() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let (queue, client) = (test_server.http.clone(), test_server.client());
        worker(&queue, 1, "emails", &[]).init().await.unwrap();
        client.create("letters", TubeOptions::new(Kind::FifoTtl)).await.unwrap();
        let error = worker(&queue, 1, "letters", &["emails"]).init().await.unwrap_err();
        assert!(error.to_string().contains("only one can be the queue"), "{error}");
        let error = worker(&queue, 2, "emails", &[]).init().await.unwrap_err();
        assert!(error.to_string().contains("the number of another queue"), "{error}");
        assert_eq!(client.tube("letters").await.unwrap().options.queue_num, None);
        test_server.stop().await;
    });
}

/// A store may have tubes from before there were numbers, and tubes that a producer created first.
#[test]
fn a_tube_without_a_number_gets_it() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let (queue, client) = (test_server.connect(), test_server.client());
        client.put("emails", "a").await.unwrap();
        worker(&queue, 1, "emails", &[]).init().await.unwrap();
        client.put("old_notes", "a").await.unwrap();
        worker(&queue, 2, "notes", &["old_notes"]).init().await.unwrap();
        for (name, num) in [("emails", 1), ("notes", 2)] {
            let tube = client.tube(name).await.unwrap();
            assert_eq!((tube.options.queue_num, tube.stats.tasks.ready), (Some(num), 1));
        }
        test_server.stop().await;
    });
}

#[test]
fn workers_that_register_together_agree() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let queue = test_server.http.clone();
        let workers: Vec<_> = (0..8).map(|_| worker(&queue, 1, "emails", &[])).collect();
        let mut starting = tokio::task::JoinSet::new();
        for worker in workers {
            starting.spawn(async move { worker.init().await });
        }
        for started in starting.join_all().await {
            started.unwrap();
        }
        let renamed: Vec<_> = (0..8).map(|_| worker(&queue, 1, "letters", &["emails"])).collect();
        let mut starting = tokio::task::JoinSet::new();
        for worker in renamed {
            starting.spawn(async move { worker.init().await });
        }
        for started in starting.join_all().await {
            started.unwrap();
        }
        assert_eq!(test_server.client().tubes().await.unwrap().len(), 1);
        test_server.stop().await;
    });
}

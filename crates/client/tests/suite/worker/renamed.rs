//! Queues are known by their permanent numbers: one that is renamed in the contract keeps its tasks.

use std::sync::{Arc, Mutex};

use taskyard::worker::kit::{HandTimer, Running};
use taskyard::worker::{Dispatcher, Handler, HandlerStats, InitError, RawTask, Worker};
use taskyard::{Client, Execute, Kind, TubeOptions};
use taskyard_engine::{Engine, Settings as EngineSettings};
use taskyard_store::OpenOptions;
use taskyard_stores::open;

use crate::rig::{self, Rig, block_on};

/// A handler that acks, and what it saw.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<u64>>>);

impl Seen {
    fn handler(&self) -> Handler {
        let seen = self.clone();
        Handler::raw(move |_, store, tasks: Vec<RawTask>| {
            let seen = seen.clone();
            async move {
                let ids: Vec<u64> = tasks.iter().map(|task| task.delivery.task_id).collect();
                seen.0.lock().unwrap().extend(&ids);
                store.done(&ids).await?;
                Ok(HandlerStats { processed: ids.len(), ..HandlerStats::default() })
            }
        })
    }
}

fn worker<E: Execute + Clone + 'static>(queue: &E, num: u32, name: &str, was: &[&str]) -> Worker {
    let was: Vec<String> = was.iter().map(|name| (*name).into()).collect();
    let queues = Dispatcher::new([]).and_renamed(num, name, &was, Seen::default().handler());
    Worker::builder("renamed", queue.clone(), queues).build().unwrap()
}

async fn keeps_its_tasks<E: Execute + Clone + 'static>(queue: E, timer: Arc<HandTimer>) {
    let client = Client::new(queue.clone());
    worker(&queue, 1, "emails", &[]).init().await.unwrap();
    assert_eq!(client.tube("emails").await.unwrap().options.queue_num, Some(1));
    for text in ["a", "b", "c"] {
        client.put("emails", text).await.unwrap();
    }
    let error = worker(&queue, 1, "letters", &[]).init().await.unwrap_err();
    assert!(matches!(error, InitError::NumberTaken { num: 1, .. }), "{error}");
    assert!(error.to_string().contains("write 'was: [emails]'"), "{error}");

    let seen = Seen::default();
    let was = ["mails".to_owned(), "emails".to_owned()];
    let queues = Dispatcher::new([]).and_renamed(1, "letters", &was, seen.handler());
    let renamed = Worker::builder("renamed", queue.clone(), queues);
    let renamed = renamed.timer(timer.clone()).build().unwrap();
    let running = Running::start(&renamed, timer).await;
    while client.stats("letters").await.unwrap().tasks.total() > 0 {
        tokio::task::yield_now().await;
    }
    running.stop().await;
    assert_eq!(seen.0.lock().unwrap().len(), 3);
    assert!(client.tube("emails").await.is_err(), "it is called letters now");
    // Once more is fine, also while nobody remembers the old name.
    worker(&queue, 1, "letters", &["emails"]).init().await.unwrap();
    worker(&queue, 1, "letters", &[]).init().await.unwrap();
}

#[test]
fn a_renamed_queue_keeps_its_tasks_over_the_network() {
    block_on(async {
        let rig = Rig::in_memory().await;
        keeps_its_tasks(rig.http.clone(), Arc::new(HandTimer::new(rig.clock.clone()))).await;
        rig.stop().await;
        let rig = Rig::in_memory().await;
        keeps_its_tasks(rig.connect(), Arc::new(HandTimer::new(rig.clock.clone()))).await;
        rig.stop().await;
    });
}

#[test]
fn a_renamed_queue_keeps_its_tasks_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".into(), format!("sqlite:{}", folder.path().display())] {
        block_on(async {
            let clock = rig::clock();
            let store = open(&url, &OpenOptions::default()).unwrap();
            let engine = Engine::start(store, clock.clone(), EngineSettings::default());
            keeps_its_tasks(engine.clone(), Arc::new(HandTimer::new(clock))).await;
            engine.stop().await.unwrap();
        });
    }
}

/// Which of two tubes is the queue cannot be guessed; a wrong guess would lose tasks.
#[test]
fn what_is_not_clear_is_refused() {
    block_on(async {
        let rig = Rig::in_memory().await;
        let (queue, client) = (rig.http.clone(), rig.client());
        worker(&queue, 1, "emails", &[]).init().await.unwrap();
        client.create("letters", TubeOptions::new(Kind::FifoTtl)).await.unwrap();
        let error = worker(&queue, 1, "letters", &["emails"]).init().await.unwrap_err();
        assert!(error.to_string().contains("only one can be the queue"), "{error}");
        let error = worker(&queue, 2, "emails", &[]).init().await.unwrap_err();
        assert!(error.to_string().contains("the number of another queue"), "{error}");
        assert_eq!(client.tube("letters").await.unwrap().options.queue_num, None);
        rig.stop().await;
    });
}

/// Stores have tubes from before there were numbers, and tubes that a producer made first.
#[test]
fn a_tube_without_a_number_gets_it() {
    block_on(async {
        let rig = Rig::in_memory().await;
        let (queue, client) = (rig.connect(), rig.client());
        client.put("emails", "a").await.unwrap();
        worker(&queue, 1, "emails", &[]).init().await.unwrap();
        client.put("old_notes", "a").await.unwrap();
        worker(&queue, 2, "notes", &["old_notes"]).init().await.unwrap();
        for (name, num) in [("emails", 1), ("notes", 2)] {
            let tube = client.tube(name).await.unwrap();
            assert_eq!((tube.options.queue_num, tube.stats.tasks.ready), (Some(num), 1));
        }
        rig.stop().await;
    });
}

#[test]
fn workers_that_begin_together_agree() {
    block_on(async {
        let rig = Rig::in_memory().await;
        let queue = rig.http.clone();
        let workers: Vec<_> = (0..8).map(|_| worker(&queue, 1, "emails", &[])).collect();
        let mut beginning = tokio::task::JoinSet::new();
        for worker in workers {
            beginning.spawn(async move { worker.init().await });
        }
        for begun in beginning.join_all().await {
            begun.unwrap();
        }
        let renamed: Vec<_> = (0..8).map(|_| worker(&queue, 1, "letters", &["emails"])).collect();
        let mut beginning = tokio::task::JoinSet::new();
        for worker in renamed {
            beginning.spawn(async move { worker.init().await });
        }
        for begun in beginning.join_all().await {
            begun.unwrap();
        }
        assert_eq!(rig.client().tubes().await.unwrap().len(), 1);
        rig.stop().await;
    });
}

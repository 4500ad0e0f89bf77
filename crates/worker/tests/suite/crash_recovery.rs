//! A worker crashes and another continues, over each transport and store: memory, SQLite, HTTP, iproto.

use std::sync::Arc;
use std::time::Duration;

use taskyard::{Client, Execute, TubeInfo};
use taskyard_engine::{Engine, Settings as EngineSettings};
use taskyard_store::OpenOptions;
use taskyard_stores::open;
use taskyard_worker::testing::{ManualTimer, RunningWorker};
use taskyard_worker::{PutOptions, Settings, TypedTask, Worker};

use crate::recording_handler::{Act, RecordingHandler, mail};
use taskyard_testkit::server::{self, TestServer, block_on};

async fn wait_until(client: &Client, condition: impl Fn(&TubeInfo) -> bool) {
    while !condition(&client.tube("emails").await.unwrap()) {
        tokio::task::yield_now().await;
    }
}

/// Puts, handles, retries and acks; then crashes in the middle of a batch and continues with another worker.
async fn crash_and_recover<E: Execute + Clone + 'static>(queue: E, timer: Arc<ManualTimer>) {
    let client = Client::new(queue.clone());
    let start = async |recorder: &RecordingHandler| {
        let settings = Settings { max_processors: 2, batch_size: 10, ..Settings::default() };
        let worker = Worker::builder("recovering", queue.clone(), recorder.handlers());
        let worker = worker.settings(settings).timer(timer.clone()).build().unwrap();
        RunningWorker::start(&worker, timer.clone()).await
    };
    let recorder = RecordingHandler::new(Act::RetryIn(Duration::from_secs(5)));
    let running = start(&recorder).await;
    mail("ann").put(&queue, PutOptions::default()).await.unwrap();
    wait_until(&client, |tube| tube.stats.tasks.delayed == 1).await;
    recorder.set_act(Act::Wait);
    timer.advance(Duration::from_secs(5));
    recorder.started().await;
    recorder.started().await;
    assert_eq!(recorder.mails()[1].attempts, 1);
    for n in 0..30 {
        mail(&n.to_string()).put(&queue, PutOptions::default()).await.unwrap();
    }
    recorder.started().await;
    running.crash().await;
    let next = RecordingHandler::new(Act::Done);
    let running = start(&next).await;
    wait_until(&client, |tube| tube.stats.tasks.ready == 0).await;
    while client.stats("emails").await.unwrap().tasks.total() > 0 {
        timer.advance(Duration::from_secs(10));
        tokio::task::yield_now().await;
    }
    running.stop().await;
    let mut seen = next.receivers();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 31, "nothing is lost");
}

#[test]
fn over_http() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        crash_and_recover(
            test_server.http.clone(),
            Arc::new(ManualTimer::new(test_server.clock.clone())),
        )
        .await;
        test_server.stop().await;
    });
}

#[test]
fn over_iproto() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        crash_and_recover(
            test_server.connect(),
            Arc::new(ManualTimer::new(test_server.clock.clone())),
        )
        .await;
        test_server.stop().await;
    });
}

#[test]
fn on_memory_and_sqlite_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".into(), format!("sqlite:{}", folder.path().display())] {
        block_on(async {
            let clock = server::clock();
            let store = open(&url, &OpenOptions::default()).unwrap();
            let engine = Engine::start(store, clock.clone(), EngineSettings::default());
            crash_and_recover(engine.clone(), Arc::new(ManualTimer::new(clock))).await;
            engine.stop().await.unwrap();
        });
    }
}

//! The same worker on every way to a queue: memory, SQLite, HTTP, iproto.

use std::sync::Arc;
use std::time::Duration;

use taskyard::worker::kit::{HandTimer, Running};
use taskyard::worker::{PutOptions, Settings, TypedTask, Worker};
use taskyard::{Client, Execute, TubeInfo};
use taskyard_engine::{Engine, Settings as EngineSettings};
use taskyard_store::OpenOptions;
use taskyard_stores::open;

use super::post::{Act, Post, mail};
use crate::rig::{self, Rig, block_on};

async fn until<E: Execute>(client: &Client<E>, fulfilled: impl Fn(&TubeInfo) -> bool) {
    while !fulfilled(&client.tube("emails").await.unwrap()) {
        tokio::task::yield_now().await;
    }
}

/// Puts, handles, retries and acks; then crashes in the middle of a batch and goes on with another worker.
async fn works<E: Execute + Clone + 'static>(queue: E, timer: Arc<HandTimer>) {
    let client = Client::new(queue.clone());
    let start = async |post: &Post| {
        let settings = Settings { max_processors: 2, batch_size: 10, ..Settings::default() };
        let worker = Worker::builder("ways", queue.clone(), post.handlers());
        let worker = worker.settings(settings).timer(timer.clone()).build().unwrap();
        Running::start(&worker, timer.clone()).await
    };
    let post = Post::new(Act::RetryIn(Duration::from_secs(5)));
    let running = start(&post).await;
    mail("ann").put(&queue, PutOptions::default()).await.unwrap();
    until(&client, |tube| tube.stats.tasks.delayed == 1).await;
    post.now(Act::Wait);
    timer.advance(Duration::from_secs(5));
    post.begun().await;
    post.begun().await;
    assert_eq!(post.mails()[1].attempts, 1);
    for n in 0..30 {
        mail(&n.to_string()).put(&queue, PutOptions::default()).await.unwrap();
    }
    post.begun().await;
    running.crash().await;
    let next = Post::new(Act::Done);
    let running = start(&next).await;
    until(&client, |tube| tube.stats.tasks.ready == 0).await;
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
        let rig = Rig::in_memory().await;
        works(rig.http.clone(), Arc::new(HandTimer::new(rig.clock.clone()))).await;
        rig.stop().await;
    });
}

#[test]
fn over_iproto() {
    block_on(async {
        let rig = Rig::in_memory().await;
        works(rig.connect(), Arc::new(HandTimer::new(rig.clock.clone()))).await;
        rig.stop().await;
    });
}

#[test]
fn on_memory_and_sqlite_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".into(), format!("sqlite:{}", folder.path().display())] {
        block_on(async {
            let clock = rig::clock();
            let store = open(&url, &OpenOptions::default()).unwrap();
            let engine = Engine::start(store, clock.clone(), EngineSettings::default());
            works(engine.clone(), Arc::new(HandTimer::new(clock))).await;
            engine.stop().await.unwrap();
        });
    }
}

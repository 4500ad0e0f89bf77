//! Clients that `Client::open` opens by the URL of a shared store.

use std::sync::Arc;

use taskyard::Client;
use tokio::sync::Notify;

/// A function of one client runs the task that another client of the same store has put.
pub async fn a_function_runs_the_task_of_another_client(url: &str) {
    let producer = Client::open(url).await.unwrap();
    producer.put("mail", "hello").await.unwrap();
    let consumer = Client::open(url).await.unwrap();
    let ran = Arc::new(Notify::new());
    let stop = ran.clone();
    let function = move |text: String, _task| {
        assert_eq!(text, "hello");
        ran.notify_one();
        async { Ok::<_, String>(()) }
    };
    let worker = consumer.worker("mail");
    worker.run_until(async move { stop.notified().await }, function).await.unwrap();
    assert_eq!(producer.stats("mail").await.unwrap().tasks.total(), 0, "the task was acked");
    consumer.close().await.unwrap();
    producer.close().await.unwrap();
}

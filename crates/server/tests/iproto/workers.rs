//! The names under which sessions take tasks.

use serde_json::{Value, json};
use taskyard_core::{Command, Span, Take, TubeName};

use crate::fixture::TestServer;
use crate::native::execute;

async fn get(server: &TestServer, path: &str) -> Value {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.get(format!("http://{}{path}", server.http)).send().await.unwrap();
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

async fn holders(server: &TestServer) -> Vec<Value> {
    let held = get(server, "/v1/tubes/mail/deliveries").await;
    held["deliveries"].as_array().unwrap().iter().map(|one| one["worker"].clone()).collect()
}

#[tokio::test]
async fn a_session_takes_under_its_address_or_the_name_that_it_sets() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    for task in 0..4 {
        client.done("queue.tube.mail:put", json!([task])).await;
    }
    let address = client.stream.local_addr().unwrap().to_string();
    assert_eq!(client.done("queue.worker", json!([])).await, json!([address]));
    client.done("queue.tube.mail:take", json!([0])).await;
    client.done("queue.tube.mail:take_many", json!([1])).await;
    assert_eq!(
        client.done("queue.worker", json!(["web1:7:mailer"])).await,
        json!(["web1:7:mailer"])
    );
    client.done("queue.tube.mail:take", json!([])).await;
    assert_eq!(holders(&server).await, [json!(address), json!(address), json!("web1:7:mailer")]);
    client.done("queue.tube.mail:fail", json!([2, { "error": "no route" }])).await;
    client.done("queue.tube.mail:ack", json!([0])).await;
    let failed = get(&server, "/v1/tubes/mail/tasks/2").await;
    assert_eq!(failed["failures"][0]["worker"], "web1:7:mailer");
    let workers = get(&server, "/v1/workers").await["workers"].clone();
    let [unnamed, named] = workers.as_array().unwrap().as_slice() else { panic!("{workers}") };
    assert_eq!((&unnamed["name"], &unnamed["done"]), (&json!(address), &json!(1)));
    assert_eq!((&unnamed["address"], &unnamed["running_count"]), (&json!("127.0.0.1"), &json!(1)));
    assert_eq!((&named["program"], &named["failed"]), (&json!("mailer"), &json!(1)));
    assert_eq!(named["address"], "127.0.0.1");
    client.refused("queue.worker", json!([""]), 32, "the name of a worker").await;
    assert_eq!(server.answered("worker").await, 2);
}

#[tokio::test]
async fn a_session_that_waits_is_a_worker() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let (_, take) =
        client.call_bytes("queue.tube.mail:take", &json!([]), taskyard_iproto::Shape::Call);
    client.send(&take).await;
    server.consumers("mail", 1).await;
    let address = client.stream.local_addr().unwrap().to_string();
    assert_eq!(get(&server, "/v1/workers").await["workers"][0]["name"], json!(address));
}

#[tokio::test]
async fn native_takes_have_the_name_of_the_session_unless_they_give_one() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    for task in 0..2 {
        client.done("queue.tube.mail:put", json!([task])).await;
    }
    let take = |worker: Option<&str>| {
        let (tube, worker) = (TubeName::new("mail").unwrap(), worker.map(Into::into));
        let (session, lease, wait) = (None, Some(Span::from_secs(60)), Span::ZERO);
        Command::Take(Take { tube, count: 1, session, lease, worker, wait })
    };
    execute(&mut client, &[take(None), take(Some("host:3:w"))]).await;
    let address = client.stream.local_addr().unwrap().to_string();
    assert_eq!(holders(&server).await, [json!(address), json!("host:3:w")]);
    let workers = get(&server, "/v1/workers").await["workers"].clone();
    assert_eq!(workers[1]["address"], "127.0.0.1");
}

// Only clients over HTTP had a version.
#[tokio::test]
async fn a_session_may_tell_the_version_of_its_client() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    for task in 0..3 {
        client.done("queue.tube.mail:put", json!([task])).await;
    }
    let shown = async || {
        let workers = get(&server, "/v1/workers").await["workers"].clone();
        let shown = |one: &Value| (one["name"].clone(), one["version"].clone());
        workers.as_array().unwrap().iter().map(shown).collect::<Vec<_>>()
    };
    let address = json!(client.stream.local_addr().unwrap().to_string());
    client.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(shown().await, [(address.clone(), Value::Null)]);
    let version = json!([null, { "version": "1.2.0" }]);
    assert_eq!(client.done("queue.worker", version).await, json!([address]));
    client.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(shown().await, [(address.clone(), json!("1.2.0"))]);
    client.done("queue.worker", json!(["web1:7:mailer"])).await;
    client.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(shown().await[1], (json!("web1:7:mailer"), json!("1.2.0")));
    for wrong in ["", "<b>", "0123456789012345678901234567890123"] {
        let args = json!([null, { "version": wrong }]);
        client.refused("queue.worker", args, 32, "the version of a client").await;
    }
}

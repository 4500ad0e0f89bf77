//! Forged messages: wrong and used tokens, forged ends, tasks that no gateway submits, backends that violate the
//! protocol.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{accept_async, connect_async};

use super::fixture::{Part, RedisFixture};
use crate::fixture::connect;

/// A scheduler and a backend; the test acts as the gateway.
async fn start_without_gateway() -> Option<(RedisFixture, Part, Part)> {
    let fixture = RedisFixture::new(1, "")?;
    let (scheduler, backends) = (fixture.scheduler("one"), fixture.backends().await);
    fixture.until(|status| status["backends"] == 1 && status["paused"] == false).await;
    Some((fixture, scheduler, backends))
}

/// Submits a task with these fields: program, options, main, and names and texts of files.
pub fn submit(fixture: &RedisFixture, fields: &[&str]) -> String {
    let mut call = vec!["submit", "none", "20000", "", "1", "0", "0", "timed", "30000000", "1000"];
    call.extend_from_slice(&fields[..3]);
    call.push("");
    call.extend_from_slice(&fields[3..]);
    fixture.function(&call).lines().next().unwrap().to_owned()
}

/// The address of the backend that has claimed the task, and the attempt.
async fn address(fixture: &RedisFixture, id: &str) -> (String, String) {
    let claimed = |text: &str| text.split_once(' ').map(|(one, two)| (one.into(), two.into()));
    let key = format!("task:{id}:backend");
    loop {
        if let Some(found) = claimed(&fixture.redis().talk(&["LINDEX", &key, "-1"])) {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

async fn status_of(address: &str) -> u16 {
    match connect_async(address).await {
        Ok(_) => 101,
        Err(Error::Http(answer)) => answer.status().as_u16(),
        Err(error) => panic!("{error}"),
    }
}

/// Clients of a gateway received the address of its Redis and system errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_learn_the_address_of_redis() {
    let Some(fixture) = RedisFixture::new(1, "") else { return };
    let gateway = fixture.gateway().await;
    fixture.redis().kill();
    let expected = "the pool cannot reach its database; try again later";
    let answer = gateway.run("true").await;
    assert_eq!(answer["error"]["error"], expected, "{answer}");
    let mut client = gateway.start("{}", "true").await;
    assert_eq!(client.until("deny").await.error(), expected);
    let url = format!("http://{}/pool/status", gateway.address);
    let status = reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await;
    let status = status.unwrap().text().await.unwrap();
    assert!(status.contains(expected) && !status.contains("127.0.0.1"), "{status}");
    fixture.redis().start();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_valid_once_and_only_for_its_task() {
    let Some((fixture, _scheduler, _backends)) = start_without_gateway().await else { return };
    let id = submit(&fixture, &["sh", "{}", "", "a.sh", "echo up; exec sleep 1000"]);
    let (_, address) = address(&fixture, &id).await;
    let (door, token) = address.rsplit_once('/').unwrap();
    for wrong in
        [format!("{door}/{}", "0".repeat(32)), format!("{door}/{token}0"), format!("{door}/%00")]
    {
        assert_eq!(status_of(&wrong).await, 403, "{wrong}");
    }
    let (mut socket, _) = connect_async(&address).await.unwrap();
    assert_eq!(status_of(&address).await, 403, "it was used");
    // Unknown verbs are ignored.
    for message in ["", "dance", "limit x", "limit", "finish 1", "input"] {
        socket.send(Message::text(message)).await.unwrap();
    }
    loop {
        let reply = socket.next().await.unwrap().unwrap();
        if reply.is_binary() && reply.into_data().starts_with(b"up") {
            break;
        }
    }
    // A message beyond the limit ends the connection, and with it the task.
    let _ = socket.send(Message::binary(vec![0; 4 << 20])).await;
    while socket.next().await.is_some_and(|reply| reply.is_ok()) {}
    fixture.until(|status| status["in_redis"]["allocations"].as_array().unwrap().is_empty()).await;
    fixture.function(&["withdraw", &id]);
    fixture.until_empty().await;
}

/// A program ends at once, on a backend that fails before its client received anything: the client received the error
/// that it was lost, although it had seen no output.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ended_unseen_is_repeated_at_most_twice() {
    let Some((fixture, _scheduler, _backends)) = start_without_gateway().await else { return };
    let id = submit(&fixture, &["sh", "{}", "", "a.sh", "exit 0"]);
    for again in 0..3 {
        let (attempt, _) = address(&fixture, &id).await;
        let key = format!("task:{id}");
        while fixture.redis().talk(&["HGET", &key, "over"]) != attempt {
            tokio::task::yield_now().await;
        }
        // As a gateway does whose connection to the backend broke.
        let reply = fixture.function(&["report_lost", &id, &attempt, "2"]);
        let expected = if again < 2 { "waits" } else { "over" };
        assert_eq!(reply.lines().next(), Some(expected), "{again}: {reply}");
    }
    fixture.function(&["withdraw", &id]);
    fixture.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_checks_tasks_from_redis_like_those_of_clients() {
    let Some((fixture, _scheduler, _backends)) = start_without_gateway().await else { return };
    let cases = [
        (vec!["rm", "{}", "", "a.sh", "x"], "the program is not configured on this backend"),
        (vec!["sh", "{}", "", "../a.sh", "x"], "invalid file name"),
        (vec!["sh", "{}", "", "a.sh", "x", "b.sh", "y"], "`main` must name one of the files"),
        (vec!["sh", "{\"format\": \"exe\"}", "", "a.sh", "x"], "unknown format"),
        (vec!["sh", "{\"x\": 1}", "", "a.sh", "x"], "unknown field"),
        (vec!["sh", "nonsense", "", "a.sh", "x"], "expected"),
    ];
    for (fields, expected) in cases {
        let id = submit(&fixture, &fields);
        let (_, address) = address(&fixture, &id).await;
        let (mut socket, _) = connect_async(&address).await.unwrap();
        let reply = socket.next().await.unwrap().unwrap().into_text().unwrap();
        assert!(reply.starts_with("complete") && reply.contains(expected), "{fields:?}: {reply}");
        fixture.function(&["withdraw", &id]);
    }
    fixture.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_ends_and_unknown_backends_are_ignored() {
    let Some((fixture, _scheduler, _backends)) = start_without_gateway().await else { return };
    let id = submit(&fixture, &["sh", "{}", "", "a.sh", "echo made > result.txt; exec sleep 1000"]);
    let (attempt, address) = address(&fixture, &id).await;
    let (mut socket, _) = connect_async(&address).await.unwrap();
    let before = fixture.redis().talk(&["HGETALL", "queue.executing"]);
    for how in ["done", "lost", "stuck"] {
        let reply = fixture.function(&["finish", &id, "1-1", how, "1", "-"]);
        assert_eq!(reply.lines().next(), Some("0"));
    }
    let first = |reply: String| reply.lines().next().unwrap_or_default().to_owned();
    assert_eq!(first(fixture.function(&["mark_seen", &id, "1-1"])), "refused");
    assert_eq!(first(fixture.function(&["report_lost", &id, "1-1", "2"])), "waits");
    assert_eq!(fixture.function(&["claim", "77", "ws://127.0.0.1:1/x"]), "unknown");
    assert_eq!(fixture.function(&["lower_duration", &id, "90000000"]), "raised");
    assert_eq!(fixture.function(&["lower_duration", "5", "1"]), "missing");
    assert_eq!(fixture.function(&["withdraw", "5"]), "\n0");
    assert_eq!(fixture.redis().talk(&["HGETALL", "queue.executing"]), before);
    assert_eq!(first(fixture.function(&["mark_seen", &id, &attempt])), "shown");
    // Its time is over; the result so far is sent.
    socket.send(Message::text("limit 1")).await.unwrap();
    let mut all = Vec::new();
    while let Some(Ok(reply)) = socket.next().await {
        all.push(reply);
    }
    assert!(all.iter().any(|reply| reply.to_text().is_ok_and(|text| text.starts_with("result"))));
    fixture.function(&["withdraw", &id]);
    fixture.until_empty().await;
}

/// A backend of the test that sends arbitrary messages.
struct FakeBackend {
    number: String,
    listener: TcpListener,
}

impl FakeBackend {
    async fn new(fixture: &RedisFixture) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reply = fixture.function(&["heartbeat", "", "60000", "{}", ""]);
        FakeBackend { number: reply.lines().next().unwrap().to_owned(), listener }
    }

    /// Claims the next task and sends these messages to its gateway. Returns the attempt when the gateway has
    /// disconnected.
    async fn send(&self, fixture: &RedisFixture, messages: Vec<Message>) -> String {
        let address = format!("ws://{}/x", self.listener.local_addr().unwrap());
        let claimed = loop {
            let reply = fixture.function(&["claim", &self.number, &address]);
            if reply.lines().count() > 5 {
                break reply;
            }
            tokio::task::yield_now().await;
        };
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut socket = accept_async(stream).await.unwrap();
        for message in messages {
            let _ = socket.send(message).await;
        }
        while socket.next().await.is_some_and(|reply| reply.is_ok()) {}
        claimed.lines().nth(1).unwrap().to_owned()
    }
}

/// Invalid messages of a backend end its connection, and the task is requeued; its client sees nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_checks_messages_of_backends() {
    let more = "limits: {output_bytes_max: 1000, result_bytes_max: 2000}\n\
                leases: {task_seconds: 15, backend_seconds: 3, leader_seconds: 3}\n";
    let Some(fixture) = RedisFixture::new(1, more) else { return };
    let (_scheduler, gateway) = (fixture.scheduler("one"), fixture.gateway().await);
    fixture.until(|status| status["leader"]["name"].is_string()).await;
    let backend = FakeBackend::new(&fixture).await;
    let huge =
        vec![Message::text(r#"output {"stream": "stdout"}"#), Message::binary(vec![b'x'; 1 << 20])];
    let lies = [
        vec![Message::text("dance {}")],
        vec![Message::text("deny {\"error\": \"no\"}")],
        vec![Message::text("queue {}")],
        vec![Message::text("result")],
        vec![Message::text("output {\"stream\": \"stdin\"}")],
        vec![Message::binary("bytes of nothing")],
        vec![Message::text(r#"output {"stream": "stdout"}"#), Message::text("complete {}")],
        huge,
    ];
    for some in lies.chunks(3) {
        let mut client = gateway.start("{}", "").await;
        for lie in some {
            backend.send(&fixture, lie.clone()).await;
        }
        if some.len() < 3 {
            drop(client);
            fixture.until_empty().await;
            continue;
        }
        let received = client.rest().await;
        let strange: Vec<_> = received.iter().filter(|one| one.verb != "queue").collect();
        assert_eq!(strange.len(), 1, "{received:?}");
        assert_eq!(strange[0].error(), "the program or its backend was killed");
        fixture.until_empty().await;
    }
}

/// Messages that every client of Redis can publish: an old address again, and an address that is not stored. The
/// gateway disconnected from the current backend, and the task was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_and_unknown_addresses_are_not_followed() {
    let Some(fixture) = RedisFixture::new(1, "") else { return };
    let (_scheduler, _backends) = (fixture.scheduler("one"), fixture.backends().await);
    let gateway = fixture.gateway().await;
    let mut client =
        gateway.start(r#"{"duration": 30}"#, "echo up; sleep 1; echo x > result.txt").await;
    client.until_output("up").await;
    let allocations = fixture.status().await["in_redis"]["allocations"].clone();
    let id = allocations[0]["task"].as_str().unwrap().to_owned();
    let own = allocations[0]["attempt"].as_str().unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("ws://{}/x", listener.local_addr().unwrap());
    let name = fixture.redis().talk(&["HGET", &format!("task:{id}"), "gateway"]);
    for attempt in ["1-1", &own, "9999999999999999-1", "strange", ""] {
        let reply = format!("backend {id} {attempt} {nowhere}");
        let received = fixture.redis().talk(&["PUBLISH", &format!("gateway:{name}"), &reply]);
        assert_eq!(received, "1", "the gateway listens");
    }
    for reply in ["", "backend", "dance 1", "queue 1 {", "end 1", &format!("waits {id} 1-1")] {
        fixture.redis().talk(&["PUBLISH", &format!("gateway:{name}"), reply]);
    }
    assert_eq!(client.until("result").await.bytes, b"x\n");
    assert_eq!(client.until("complete").await.error(), "");
    let came = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
    assert!(came.is_err(), "no connection was made");
    fixture.until_empty().await;
}

/// Invalid input of a client is refused, and nothing of it reaches Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_input_never_reaches_redis() {
    let Some(fixture) = RedisFixture::new(1, "") else { return };
    let gateway = fixture.gateway().await;
    fixture.until(|status| status["in_redis"]["incarnation"] != "").await;
    let large = "#".repeat(4 << 20);
    for reply in [
        "dance {}",
        "start",
        "options {\"duration\": -1}",
        "input {\"filename\": \"../a.sh\"}",
        &large,
    ] {
        let mut client = connect(&gateway.address, "/pool/run/sh").await;
        client.send_late(reply).await;
        // The bytes of a file with an invalid name, if the first message announces them.
        client.send_file_late("../a.sh", "x").await;
        let received = client.rest().await;
        // A message beyond the limit only ends the connection.
        let denied = received.last().is_some_and(|last| last.verb == "deny");
        assert!(denied || reply.len() == large.len(), "{reply:.40}: {received:?}");
    }
    assert_eq!(fixture.redis().talk(&["KEYS", "task:*"]), "");
    assert_eq!(fixture.redis().talk(&["LLEN", "queue.incoming"]), "0");
}

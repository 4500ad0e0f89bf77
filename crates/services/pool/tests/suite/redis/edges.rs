//! Those who say what they should not: wrong tokens, used ones, forged ends, tasks that no gateway would bring, backends that lie.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{accept_async, connect_async};

use super::yard::{Part, Yard};
use crate::rig::connect;

/// A scheduler and a backend, and the test in the place of a gateway.
async fn without_gateway() -> Option<(Yard, Part, Part)> {
    let yard = Yard::new(1, "")?;
    let (scheduler, backends) = (yard.scheduler("one"), yard.backends().await);
    yard.until(|status| status["backends"] == 1 && status["paused"] == false).await;
    Some((yard, scheduler, backends))
}

/// Brings a task with these fields: program, options, main, and names and texts of files.
pub fn bring(yard: &Yard, fields: &[&str]) -> String {
    let mut call =
        vec!["arrive", "nobody", "20000", "", "1", "0", "0", "timed", "30000000", "1000"];
    call.extend_from_slice(&fields[..3]);
    call.push("");
    call.extend_from_slice(&fields[3..]);
    yard.function(&call).lines().next().unwrap().to_owned()
}

/// Where the backend waits that has claimed the task, and in which attempt.
async fn address(yard: &Yard, id: &str) -> (String, String) {
    let claimed = |text: &str| text.split_once(' ').map(|(one, two)| (one.into(), two.into()));
    let key = format!("task:{id}:backend");
    loop {
        if let Some(found) = claimed(&yard.redis().talk(&["LINDEX", &key, "-1"])) {
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

/// Clients of a gateway were told where its Redis is, and what the system said about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_learns_nothing_of_where_redis_is() {
    let Some(yard) = Yard::new(1, "") else { return };
    let gateway = yard.gateway().await;
    yard.redis().kill();
    let words = "the pool cannot reach its database; try again later";
    let answer = gateway.run("true").await;
    assert_eq!(answer["error"]["error"], words, "{answer}");
    let mut client = gateway.start("{}", "true").await;
    assert_eq!(client.until("deny").await.error(), words);
    let url = format!("http://{}/pool/status", gateway.address);
    let status = reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await;
    let status = status.unwrap().text().await.unwrap();
    assert!(status.contains(words) && !status.contains("127.0.0.1"), "{status}");
    yard.redis().start();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_opens_once_and_only_for_its_task() {
    let Some((yard, _scheduler, _backends)) = without_gateway().await else { return };
    let id = bring(&yard, &["sh", "{}", "", "a.sh", "echo up; exec sleep 1000"]);
    let (_, address) = address(&yard, &id).await;
    let (door, token) = address.rsplit_once('/').unwrap();
    for wrong in
        [format!("{door}/{}", "0".repeat(32)), format!("{door}/{token}0"), format!("{door}/%00")]
    {
        assert_eq!(status_of(&wrong).await, 403, "{wrong}");
    }
    let (mut socket, _) = connect_async(&address).await.unwrap();
    assert_eq!(status_of(&address).await, 403, "it was used");
    // Verbs that do not exist change nothing.
    for word in ["", "dance", "limit x", "limit", "finish 1", "input"] {
        socket.send(Message::text(word)).await.unwrap();
    }
    loop {
        let said = socket.next().await.unwrap().unwrap();
        if said.is_binary() && said.into_data().starts_with(b"up") {
            break;
        }
    }
    // A message beyond the limit ends the connection, and with it the task.
    let _ = socket.send(Message::binary(vec![0; 4 << 20])).await;
    while socket.next().await.is_some_and(|said| said.is_ok()) {}
    yard.until(|status| status["in_redis"]["allocations"].as_array().unwrap().is_empty()).await;
    yard.function(&["leave", &id]);
    yard.until_empty().await;
}

/// A program that ends at once, on a backend that dies before anybody has heard it: its client was told that it was lost, although
/// nobody had seen anything of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ended_unheard_is_done_again_twice_at_most() {
    let Some((yard, _scheduler, _backends)) = without_gateway().await else { return };
    let id = bring(&yard, &["sh", "{}", "", "a.sh", "exit 0"]);
    for again in 0..3 {
        let (attempt, _) = address(&yard, &id).await;
        let key = format!("task:{id}");
        while yard.redis().talk(&["HGET", &key, "over"]) != attempt {
            tokio::task::yield_now().await;
        }
        // As its gateway does whose connection to the backend broke.
        let said = yard.function(&["lose", &id, &attempt, "2"]);
        let expected = if again < 2 { "waits" } else { "over" };
        assert_eq!(said.lines().next(), Some(expected), "{again}: {said}");
    }
    yard.function(&["leave", &id]);
    yard.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_believes_redis_no_more_than_a_client() {
    let Some((yard, _scheduler, _backends)) = without_gateway().await else { return };
    let cases = [
        (vec!["rm", "{}", "", "a.sh", "x"], "this backend has no such program"),
        (vec!["sh", "{}", "", "../a.sh", "x"], "is no file name"),
        (vec!["sh", "{}", "", "a.sh", "x", "b.sh", "y"], "say which file to start with"),
        (vec!["sh", "{\"format\": \"exe\"}", "", "a.sh", "x"], "is no format"),
        (vec!["sh", "{\"x\": 1}", "", "a.sh", "x"], "unknown field"),
        (vec!["sh", "nonsense", "", "a.sh", "x"], "expected"),
    ];
    for (fields, words) in cases {
        let id = bring(&yard, &fields);
        let (_, address) = address(&yard, &id).await;
        let (mut socket, _) = connect_async(&address).await.unwrap();
        let said = socket.next().await.unwrap().unwrap().into_text().unwrap();
        assert!(said.starts_with("complete") && said.contains(words), "{fields:?}: {said}");
        yard.function(&["leave", &id]);
    }
    yard.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_ends_and_strangers_change_nothing() {
    let Some((yard, _scheduler, _backends)) = without_gateway().await else { return };
    let id = bring(&yard, &["sh", "{}", "", "a.sh", "echo made > result.txt; exec sleep 1000"]);
    let (attempt, address) = address(&yard, &id).await;
    let (mut socket, _) = connect_async(&address).await.unwrap();
    let before = yard.redis().talk(&["HGETALL", "queue.executing"]);
    for how in ["done", "lost", "stuck"] {
        let said = yard.function(&["finish", &id, "1-1", how, "1", "-"]);
        assert_eq!(said.lines().next(), Some("0"));
    }
    let first = |said: String| said.lines().next().unwrap_or_default().to_owned();
    assert_eq!(first(yard.function(&["show", &id, "1-1"])), "refused");
    assert_eq!(first(yard.function(&["lose", &id, "1-1", "2"])), "waits");
    assert_eq!(yard.function(&["claim", "77", "ws://127.0.0.1:1/x"]), "unknown");
    assert_eq!(yard.function(&["wish", &id, "90000000"]), "raised");
    assert_eq!(yard.function(&["wish", "5", "1"]), "missing");
    assert_eq!(yard.function(&["leave", "5"]), "\n0");
    assert_eq!(yard.redis().talk(&["HGETALL", "queue.executing"]), before);
    assert_eq!(first(yard.function(&["show", &id, &attempt])), "shown");
    // It has had its time; what there is of a result comes.
    socket.send(Message::text("limit 1")).await.unwrap();
    let mut all = Vec::new();
    while let Some(Ok(said)) = socket.next().await {
        all.push(said);
    }
    assert!(all.iter().any(|said| said.to_text().is_ok_and(|text| text.starts_with("result"))));
    yard.function(&["leave", &id]);
    yard.until_empty().await;
}

/// A backend of the test: it has a number and a task, and says what it likes.
struct Liar {
    number: String,
    listener: TcpListener,
}

impl Liar {
    async fn new(yard: &Yard) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let said = yard.function(&["beat", "", "60000", "{}", ""]);
        Liar { number: said.lines().next().unwrap().to_owned(), listener }
    }

    /// Takes the next task, and says this to the gateway that comes. Answers the attempt when the gateway is gone.
    async fn say(&self, yard: &Yard, messages: Vec<Message>) -> String {
        let address = format!("ws://{}/x", self.listener.local_addr().unwrap());
        let claimed = loop {
            let said = yard.function(&["claim", &self.number, &address]);
            if said.lines().count() > 5 {
                break said;
            }
            tokio::task::yield_now().await;
        };
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut socket = accept_async(stream).await.unwrap();
        for message in messages {
            let _ = socket.send(message).await;
        }
        while socket.next().await.is_some_and(|said| said.is_ok()) {}
        claimed.lines().nth(1).unwrap().to_owned()
    }
}

/// What no backend says ends its connection, and the task takes its place again; its client sees nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_believes_a_backend_no_more_than_a_client() {
    let more = "limits: {output_bytes_max: 1000, result_bytes_max: 2000}\n\
                leases: {task_seconds: 15, backend_seconds: 3, leader_seconds: 3}\n";
    let Some(yard) = Yard::new(1, more) else { return };
    let (_scheduler, gateway) = (yard.scheduler("one"), yard.gateway().await);
    yard.until(|status| status["leader"]["name"].is_string()).await;
    let liar = Liar::new(&yard).await;
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
            liar.say(&yard, lie.clone()).await;
        }
        if some.len() < 3 {
            drop(client);
            yard.until_empty().await;
            continue;
        }
        let heard = client.rest().await;
        let strange: Vec<_> = heard.iter().filter(|one| one.verb != "queue").collect();
        assert_eq!(strange.len(), 1, "{heard:?}");
        assert_eq!(strange[0].error(), "the program or its backend was killed");
        yard.until_empty().await;
    }
}

/// Words that anybody can say who reaches Redis: an old address once more, and one that nobody has written down. The
/// gateway left the backend that it followed, and the task was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_comes_again_or_from_nowhere_is_not_followed() {
    let Some(yard) = Yard::new(1, "") else { return };
    let (_scheduler, _backends) = (yard.scheduler("one"), yard.backends().await);
    let gateway = yard.gateway().await;
    let mut client =
        gateway.start(r#"{"duration": 30}"#, "echo up; sleep 1; echo x > result.txt").await;
    client.until_output("up").await;
    let allocations = yard.status().await["in_redis"]["allocations"].clone();
    let id = allocations[0]["task"].as_str().unwrap().to_owned();
    let own = allocations[0]["attempt"].as_str().unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("ws://{}/x", listener.local_addr().unwrap());
    let name = yard.redis().talk(&["HGET", &format!("task:{id}"), "gateway"]);
    for attempt in ["1-1", &own, "9999999999999999-1", "strange", ""] {
        let said = format!("backend {id} {attempt} {nowhere}");
        let heard = yard.redis().talk(&["PUBLISH", &format!("gateway:{name}"), &said]);
        assert_eq!(heard, "1", "the gateway listens");
    }
    for said in ["", "backend", "dance 1", "queue 1 {", "end 1", &format!("waits {id} 1-1")] {
        yard.redis().talk(&["PUBLISH", &format!("gateway:{name}"), said]);
    }
    assert_eq!(client.until("result").await.bytes, b"x\n");
    assert_eq!(client.until("complete").await.error(), "");
    let came = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
    assert!(came.is_err(), "nobody went there");
    yard.until_empty().await;
}

/// What a client may not say it is told, and nothing of it comes to Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_may_not_say_never_comes_to_redis() {
    let Some(yard) = Yard::new(1, "") else { return };
    let gateway = yard.gateway().await;
    yard.until(|status| status["in_redis"]["life"] != "").await;
    let large = "#".repeat(4 << 20);
    for said in [
        "dance {}",
        "start",
        "options {\"duration\": -1}",
        "input {\"filename\": \"../a.sh\"}",
        &large,
    ] {
        let mut client = connect(&gateway.address, "/pool/run/sh").await;
        client.say_late(said).await;
        // The bytes of a file with a name that is none, where the first word was for them.
        client.file_late("../a.sh", "x").await;
        let heard = client.rest().await;
        // A message beyond the limit only ends the connection.
        let denied = heard.last().is_some_and(|last| last.verb == "deny");
        assert!(denied || said.len() == large.len(), "{said:.40}: {heard:?}");
    }
    assert_eq!(yard.redis().talk(&["KEYS", "task:*"]), "");
    assert_eq!(yard.redis().talk(&["LLEN", "queue.incoming"]), "0");
}

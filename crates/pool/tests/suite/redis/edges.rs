//! Those who say what they should not: wrong tokens, used ones, forged ends, tasks that no gateway would bring.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::yard::{Part, Yard};

/// A scheduler and a backend, and the test in the place of a gateway.
async fn without_gateway() -> Option<(Yard, Part, Part)> {
    let yard = Yard::new(1, "")?;
    let (scheduler, backends) = (yard.scheduler("one"), yard.backends().await);
    yard.until(|status| status["backends"] == 1 && status["paused"] == false).await;
    Some((yard, scheduler, backends))
}

/// Brings a task with these fields: program, options, main, and names and texts of files.
fn bring(yard: &Yard, fields: &[&str]) -> String {
    let mut call = vec!["arrive", "nobody", "20000", "", "1", "0", "0", "timed", "3000000", "1000"];
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
    let id = bring(&yard, &["sh", "{}", "", "a.sh", "echo made > result.txt; exec sleep 2"]);
    let (attempt, address) = address(&yard, &id).await;
    let before = yard.redis().talk(&["HGETALL", "queue.executing"]);
    for how in ["done", "lost", "stuck"] {
        let said = yard.function(&["finish", &id, "1-1", how, "1", "-"]);
        assert_eq!(said.lines().next(), Some("0"));
    }
    let first = |said: String| said.lines().next().unwrap_or_default().to_owned();
    assert_eq!(first(yard.function(&["show", &id, "1-1"])), "refused");
    assert_eq!(first(yard.function(&["lose", &id, "1-1", "2"])), "waits");
    assert_eq!(yard.function(&["claim", "77", "ws://127.0.0.1:1/x"]), "unknown");
    assert_eq!(yard.function(&["wish", &id, "9000000"]), "raised");
    assert_eq!(yard.function(&["wish", "5", "1"]), "missing");
    assert_eq!(yard.function(&["leave", "5"]), "\n0");
    assert_eq!(yard.redis().talk(&["HGETALL", "queue.executing"]), before);
    assert_eq!(first(yard.function(&["show", &id, &attempt])), "shown");
    let (mut socket, _) = connect_async(&address).await.unwrap();
    let mut all = Vec::new();
    while let Some(Ok(said)) = socket.next().await {
        all.push(said);
    }
    assert!(all.iter().any(|said| said.to_text().is_ok_and(|text| text.starts_with("result"))));
    yard.function(&["leave", &id]);
    yard.until_empty().await;
}

//! Many requests at once on one connection.

use std::collections::BTreeSet;

use serde_json::json;
use taskyard_wire::iproto::{Operation, Shape};

use crate::rig::Rig;

#[tokio::test]
async fn what_arrives_together_is_done_in_order() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let mut bytes = Vec::new();
    let mut calls = Vec::new();
    for round in 0..500 {
        for (verb, args, answer) in [
            ("put", json!([round]), json!([[round, "r", round]])),
            ("take", json!([0]), json!([[round, "t", round]])),
            ("ack", json!([round]), json!([[round, "-", round]])),
        ] {
            let name = format!("queue.tube.mail:{verb}");
            let (sync, request) = talk.call_bytes(&name, &args, Shape::Call);
            bytes.extend(request);
            calls.push((sync, answer));
        }
    }
    talk.send(&bytes).await;
    for (sync, answer) in calls {
        assert_eq!(talk.answer_to(sync).await.unwrap(), answer);
    }
}

#[tokio::test]
async fn a_take_that_waits_holds_up_nobody() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifottl").await;
    let first = talk.post("queue.tube.mail:take", json!([])).await;
    let second = talk.post("queue.tube.mail:take", json!([60])).await;
    rig.consumers("mail", 2).await;
    talk.ping().await;
    let put = talk.post("queue.tube.mail:put", json!(["a"])).await;
    let mut answered = [talk.next().await.unwrap(), talk.next().await.unwrap()];
    answered.sort_by_key(|answer| answer.0);
    assert_eq!(answered[0], (first, Ok(json!([[0, "t", "a"]]))));
    assert_eq!(answered[1], (put, Ok(json!([[0, "r", "a"]]))));
    rig.advance(61);
    assert_eq!(talk.answer_to(second).await.unwrap(), json!([]));
}

#[tokio::test]
async fn takes_and_puts_of_one_write_keep_their_order() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let mut bytes = Vec::new();
    let mut expected = BTreeSet::new();
    for task in 0..100 {
        for (verb, args, state) in [("take", json!([]), "t"), ("put", json!([task]), "r")] {
            let name = format!("queue.tube.mail:{verb}");
            let (sync, request) = talk.call_bytes(&name, &args, Shape::Call);
            bytes.extend(request);
            expected.insert((sync, json!([[task, state, task]]).to_string()));
        }
    }
    talk.send(&bytes).await;
    let mut answered = BTreeSet::new();
    for _ in 0..expected.len() {
        let (sync, answer) = talk.next().await.unwrap();
        answered.insert((sync, answer.unwrap().to_string()));
    }
    assert_eq!(answered, expected);
}

#[tokio::test]
async fn too_many_requests_of_one_connection_are_refused_at_once() {
    let rig = Rig::with(|config| config.in_flight_max = 3).await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    for _ in 0..3 {
        talk.post("queue.tube.mail:take", json!([])).await;
    }
    rig.consumers("mail", 3).await;
    talk.refused("queue.tube.mail:put", json!([1]), 32, "not answered yet").await;
    talk.ping().await;
    let mut other = rig.connect().await;
    other.done("queue.tube.mail:put", json!([1])).await;
    talk.next().await.unwrap().1.unwrap();
    // One is answered, so one more may come.
    let put = talk.post("queue.tube.mail:put", json!([2])).await;
    let answers = [talk.next().await.unwrap(), talk.next().await.unwrap()];
    assert!(answers.iter().any(|answer| answer.0 == put && answer.1.is_ok()), "{answers:?}");
}

#[tokio::test]
async fn too_many_requests_of_all_connections_are_refused_at_once() {
    let rig = Rig::with(|config| config.in_flight_total_max = 2).await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let mut other = rig.connect().await;
    talk.post("queue.tube.mail:take", json!([])).await;
    other.post("queue.tube.mail:take", json!([])).await;
    rig.consumers("mail", 2).await;
    let mut third = rig.connect().await;
    third.refused("queue.tube.mail:put", json!([1]), 32, "all connections").await;
    third.ping().await;
    drop(talk);
    rig.consumers("mail", 1).await;
    third.done("queue.tube.mail:put", json!([1])).await;
    assert!(other.next().await.unwrap().1.is_ok());
}

// Answers that nobody read were all made at once, 30 MB of them here; they must wait, and all come once
// somebody reads.
#[tokio::test]
async fn a_client_that_reads_late_gets_everything() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let data = "x".repeat(100_000);
    talk.done("queue.tube.mail:put", json!([data])).await;
    let args = crate::rig::packed(&json!([0]));
    let (name, shape) = ("queue.tube.mail:peek", Shape::Call);
    let mut bytes = Vec::new();
    for _ in 0..300 {
        bytes.extend(talk.request(&Operation::Call { name, args: &args, shape }).1);
    }
    talk.send(&bytes).await;
    let mut made = 0;
    while made == 0 {
        made = rig.answered("peek").await;
    }
    assert!(made < 200, "{made} answers were made for a client that does not read");
    for _ in 0..300 {
        assert_eq!(talk.next().await.unwrap().1.unwrap()[0][2], data.as_str());
    }
    talk.ping().await;
}

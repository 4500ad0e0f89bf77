//! Takes and puts that wait.

use serde_json::json;
use taskyard_wire::iproto::Shape;
use tokio::task::yield_now;

use crate::rig::Rig;

#[tokio::test]
async fn thousands_wait_and_a_ping_is_answered() {
    let rig = Rig::new().await;
    let mut admin = rig.with_tube("mail", "fifo").await;
    let mut talks = Vec::new();
    for _ in 0..50 {
        let mut talk = rig.connect().await;
        let mut bytes = Vec::new();
        for _ in 0..100 {
            bytes.extend(talk.call_bytes("queue.tube.mail:take", &json!([]), Shape::Call).1);
        }
        talk.send(&bytes).await;
        talks.push(talk);
    }
    rig.consumers("mail", 5_000).await;
    admin.ping().await;
    admin.refused("queue.tube.mail:drop", json!([]), 32, "There are consumers").await;
    // Each wakes one.
    for task in 0..200 {
        admin.done("queue.tube.mail:put", json!([task])).await;
    }
    rig.consumers("mail", 4_800).await;
    talks.drain(2..);
    rig.consumers("mail", 0).await;
    for talk in &mut talks {
        for _ in 0..100 {
            assert!(talk.next().await.unwrap().1.is_ok());
        }
    }
}

#[tokio::test]
async fn a_wait_ends_with_its_time() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let short = talk.post("queue.tube.mail:take", json!([1.5])).await;
    let long = talk.post("queue.tube.mail:take_many", json!([5, 10])).await;
    rig.consumers("mail", 2).await;
    rig.advance(2);
    assert_eq!(talk.answer_to(short).await.unwrap(), json!([]));
    rig.advance(10);
    assert_eq!(talk.answer_to(long).await.unwrap(), json!([[]]));
}

#[tokio::test]
async fn a_put_waits_for_room() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    talk.done("queue.create_tube", json!(["mail", "limfifottl", { "capacity": 1 }])).await;
    talk.done("queue.tube.mail:put", json!([1])).await;
    let waiting = talk.post("queue.tube.mail:put", json!([2, { "timeout": 60 }])).await;
    while rig.engine.waiting().await.is_empty() {
        yield_now().await;
    }
    let deleted = talk.post("queue.tube.mail:delete", json!([0])).await;
    let mut answers = [talk.next().await.unwrap(), talk.next().await.unwrap()];
    answers.sort_by_key(|answer| answer.0);
    assert_eq!(answers[0], (waiting, Ok(json!([[1, "r", 2]]))));
    assert_eq!(answers[1], (deleted, Ok(json!([[0, "-", 1]]))));
    let waiting = talk.post("queue.tube.mail:put", json!([3, { "timeout": 60 }])).await;
    while rig.engine.waiting().await.is_empty() {
        yield_now().await;
    }
    rig.advance(61);
    assert_eq!(talk.answer_to(waiting).await.unwrap(), json!([null]));
}

#[tokio::test]
async fn a_consumer_that_leaves_takes_nothing_along() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let mut leaving = rig.connect().await;
    leaving.post("queue.tube.mail:take", json!([])).await;
    rig.consumers("mail", 1).await;
    drop(leaving);
    rig.consumers("mail", 0).await;
    talk.done("queue.tube.mail:put", json!([1])).await;
    assert_eq!(talk.done("queue.tube.mail:take", json!([0])).await, json!([[0, "t", 1]]));
}

//! Sessions: what a client holds returns when it leaves, unless it comes back in time.

use serde_json::json;

use crate::rig::Rig;

#[tokio::test]
async fn what_a_client_holds_returns_when_it_leaves() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let mut leaving = rig.connect().await;
    for task in 0..3 {
        talk.done("queue.tube.mail:put", json!([task])).await;
    }
    leaving.done("queue.tube.mail:take", json!([0])).await;
    leaving.done("queue.tube.mail:take", json!([0])).await;
    rig.ready("mail", 1).await;
    talk.refused("queue.tube.mail:ack", json!([0]), 32, "Task was not taken").await;
    drop(leaving);
    rig.ready("mail", 3).await;
    assert_eq!(talk.done("queue.tube.mail:take", json!([0])).await, json!([[0, "t", 0]]));
}

#[tokio::test]
async fn a_client_that_comes_back_in_time_finishes_its_task() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    talk.done("queue.cfg", json!([{ "ttr": 10.0 }])).await;
    talk.done("queue.tube.mail:put", json!([1])).await;
    let mut first = rig.connect().await;
    first.done("queue.tube.mail:take", json!([0])).await;
    let session = first.identity().await;
    assert_eq!(first.identity().await, session);
    drop(first);
    rig.connections(1).await;
    rig.advance(9);
    let mut second = rig.connect().await;
    second.identify(&session).await.unwrap();
    rig.advance(60);
    assert_eq!(second.done("queue.tube.mail:ack", json!([0])).await, json!([[0, "-", 1]]));
    assert_eq!(second.identity().await, session);
}

#[tokio::test]
async fn a_client_that_comes_back_too_late_is_not_known() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    talk.done("queue.cfg", json!([{ "ttr": 10 }])).await;
    talk.done("queue.tube.mail:put", json!([1])).await;
    let mut first = rig.connect().await;
    first.done("queue.tube.mail:take", json!([0])).await;
    let session = first.identity().await;
    drop(first);
    rig.connections(1).await;
    rig.advance(11);
    let mut second = rig.connect().await;
    let fault = second.identify(&session).await.unwrap_err();
    assert!(fault.code == 32 && fault.text.contains("is unknown."), "{fault:?}");
    let fault = second.identify(b"short").await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (32, "Invalid UUID format."));
    rig.ready("mail", 1).await;
    second.ping().await;
}

#[tokio::test]
async fn connections_that_share_a_session_share_its_tasks() {
    let rig = Rig::new().await;
    let mut one = rig.with_tube("mail", "fifottl").await;
    let session = one.identity().await;
    let mut two = rig.connect().await;
    two.identify(&session).await.unwrap();
    for task in 0..2 {
        one.done("queue.tube.mail:put", json!([task])).await;
        one.done("queue.tube.mail:take", json!([0])).await;
    }
    two.done("queue.tube.mail:release", json!([0])).await;
    drop(one);
    // The other one is still there.
    two.done("queue.tube.mail:touch", json!([1, 5])).await;
    two.done("queue.tube.mail:ack", json!([1])).await;
}

#[tokio::test]
async fn whoever_goes_over_to_another_session_leaves_the_old_one() {
    let rig = Rig::new().await;
    let mut one = rig.with_tube("mail", "fifo").await;
    one.done("queue.tube.mail:put", json!([1])).await;
    let mut two = rig.connect().await;
    two.done("queue.tube.mail:take", json!([0])).await;
    rig.ready("mail", 0).await;
    let session = one.identity().await;
    two.identify(&[7; 16]).await.unwrap_err();
    // Nothing has changed by the refusal.
    rig.ready("mail", 0).await;
    two.identify(&session).await.unwrap();
    rig.ready("mail", 1).await;
    two.refused("queue.tube.mail:ack", json!([0]), 32, "Task was not taken").await;
    one.done("queue.tube.mail:take", json!([0])).await;
    two.done("queue.tube.mail:ack", json!([0])).await;
}

// What follows an identify in the same write belongs to the new session already.
#[tokio::test]
async fn what_follows_an_identify_waits_for_it() {
    let rig = Rig::new().await;
    let mut one = rig.with_tube("mail", "fifo").await;
    one.done("queue.tube.mail:put", json!([1])).await;
    one.done("queue.tube.mail:take", json!([0])).await;
    let session = one.identity().await;
    let mut two = rig.connect().await;
    let mut args = vec![0x91, 0xb0];
    args.extend(session);
    let name = "queue.identify";
    let shape = taskyard_wire::iproto::Shape::Call;
    let identify = taskyard_wire::iproto::Operation::Call { name, args: &args, shape };
    let (_, mut bytes) = two.request(&identify);
    let (ack, more) = two.call_bytes("queue.tube.mail:ack", &json!([0]), shape);
    bytes.extend(more);
    two.send(&bytes).await;
    assert!(two.next_bytes().await.unwrap().ends_with(&session));
    assert_eq!(two.answer_to(ack).await.unwrap(), json!([[0, "-", 1]]));
}

#[tokio::test]
async fn ttr_is_the_time_of_a_delivery() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifottl").await;
    talk.done("queue.tube.mail:put", json!([1, { "ttr": 5 }])).await;
    talk.done("queue.tube.mail:take", json!([0])).await;
    rig.advance(6);
    talk.refused("queue.tube.mail:ack", json!([0]), 32, "Task was not taken").await;
    rig.ready("mail", 1).await;
}

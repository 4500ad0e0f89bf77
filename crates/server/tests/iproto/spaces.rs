//! The spaces that can be read.

use serde_json::{Value, json};
use taskyard_wire::iproto::{Operation, parse_reply};

use crate::rig::{Answer, Rig, Talk, packed};

async fn select(talk: &mut Talk, space: u64, iterator: u64, key: Value, limit: u64) -> Answer {
    let key = packed(&key);
    talk.ask(&Operation::Select { space, index: 0, limit, offset: 0, iterator, key: &key }).await
}

/// How many rows there are. Identities are no text, so that rows with them cannot be read as JSON.
async fn count(talk: &mut Talk, space: u64) -> usize {
    let key = packed(&json!([]));
    let (limit, iterator) = (u64::MAX, 2);
    let select = Operation::Select { space, index: 0, limit, offset: 0, iterator, key: &key };
    let (_, bytes) = talk.request(&select);
    talk.send(&bytes).await;
    let frame = talk.next_bytes().await.unwrap();
    let data = parse_reply(&frame).unwrap().data.unwrap();
    match data[0] {
        0xdd => u32::from_be_bytes(data[1..5].try_into().unwrap()) as usize,
        short => usize::from(short & 0x0f),
    }
}

#[tokio::test]
async fn the_schema_is_told_and_other_spaces_are_not_there() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let spaces = select(&mut talk, 281, 2, json!([]), u64::MAX).await.unwrap();
    let names: Vec<_> = spaces.as_array().unwrap().iter().map(|row| &row[2]).collect();
    for name in ["_queue", "_queue_consumers", "_queue_taken"] {
        assert!(names.contains(&&json!(name)), "{spaces}");
    }
    assert!(
        !select(&mut talk, 289, 2, json!([]), 10_000).await.unwrap().as_array().unwrap().is_empty()
    );
    assert_eq!(select(&mut talk, 277, 2, json!([]), 10_000).await.unwrap(), json!([]));
    let fault = select(&mut talk, 600, 2, json!([]), 1).await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (36, "Space '#600' does not exist"));
}

#[tokio::test]
async fn tubes_consumers_and_taken_tasks_are_rows() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifottl").await;
    talk.done("queue.create_tube", json!(["post", "fifo"])).await;
    let tubes = select(&mut talk, 512, 2, json!([]), 100).await.unwrap();
    assert_eq!(tubes.as_array().unwrap().len(), 2, "{tubes}");
    assert!(tubes.to_string().contains("fifottl"), "{tubes}");
    let one = select(&mut talk, 512, 2, json!([]), 1).await.unwrap();
    assert_eq!(one.as_array().unwrap().len(), 1);
    let named = select(&mut talk, 512, 0, json!(["post"]), 100).await.unwrap();
    assert_eq!(named.as_array().unwrap().len(), 1, "{named}");
    assert_eq!(count(&mut talk, 513).await, 0);
    assert_eq!(count(&mut talk, 514).await, 0);
    let mut other = rig.connect().await;
    other.done("queue.tube.mail:put", json!([1])).await;
    other.done("queue.tube.mail:take", json!([0])).await;
    other.post("queue.tube.post:take", json!([])).await;
    rig.consumers("post", 1).await;
    assert_eq!(count(&mut talk, 513).await, 1);
    assert_eq!(count(&mut talk, 514).await, 1);
    drop(other);
    rig.ready("mail", 1).await;
    assert_eq!(count(&mut talk, 513).await, 0);
    assert_eq!(count(&mut talk, 514).await, 0);
}

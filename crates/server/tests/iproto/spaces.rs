//! The spaces that SELECT can read.

use serde_json::{Value, json};
use taskyard_core::tube::Kind;
use taskyard_core::{
    Body, Command, Execute, NewTask, Reply, SessionId, Span, Take, TubeName, TubeOptions,
};
use taskyard_iproto::{Operation, parse_reply};
use taskyard_server::{Grant, Grants, User, Users, Verb};

use crate::fixture::{IprotoAnswer, RawClient, TestServer, packed};

async fn select(
    client: &mut RawClient,
    space: u64,
    iterator: u64,
    key: Value,
    limit: u64,
) -> IprotoAnswer {
    let key = packed(&key);
    client
        .execute(&Operation::Select { space, index: 0, limit, offset: 0, iterator, key: &key })
        .await
}

/// The number of rows. Identities are no text, so rows with them cannot be read as JSON.
async fn count(client: &mut RawClient, space: u64) -> usize {
    let key = packed(&json!([]));
    let (limit, iterator) = (u64::MAX, 2);
    let select = Operation::Select { space, index: 0, limit, offset: 0, iterator, key: &key };
    let (_, bytes) = client.request(&select);
    client.send(&bytes).await;
    let frame = client.next_bytes().await.unwrap();
    let data = parse_reply(&frame).unwrap().data.unwrap();
    match data[0] {
        0xdd => u32::from_be_bytes(data[1..5].try_into().unwrap()) as usize,
        short => usize::from(short & 0x0f),
    }
}

#[tokio::test]
async fn the_schema_lists_only_known_spaces() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let spaces = select(&mut client, 281, 2, json!([]), u64::MAX).await.unwrap();
    let names: Vec<_> = spaces.as_array().unwrap().iter().map(|row| &row[2]).collect();
    for name in ["_queue", "_queue_consumers", "_queue_taken"] {
        assert!(names.contains(&&json!(name)), "{spaces}");
    }
    assert!(
        !select(&mut client, 289, 2, json!([]), 10_000)
            .await
            .unwrap()
            .as_array()
            .unwrap()
            .is_empty()
    );
    assert_eq!(select(&mut client, 277, 2, json!([]), 10_000).await.unwrap(), json!([]));
    let fault = select(&mut client, 600, 2, json!([]), 1).await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (36, "Space '#600' does not exist"));
}

#[tokio::test]
async fn tubes_consumers_and_taken_tasks_are_rows() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    client.done("queue.create_tube", json!(["post", "fifo"])).await;
    let tubes = select(&mut client, 512, 2, json!([]), 100).await.unwrap();
    assert_eq!(tubes.as_array().unwrap().len(), 2, "{tubes}");
    assert!(tubes.to_string().contains("fifottl"), "{tubes}");
    let one = select(&mut client, 512, 2, json!([]), 1).await.unwrap();
    assert_eq!(one.as_array().unwrap().len(), 1);
    let named = select(&mut client, 512, 0, json!(["post"]), 100).await.unwrap();
    assert_eq!(named.as_array().unwrap().len(), 1, "{named}");
    assert_eq!(count(&mut client, 513).await, 0);
    assert_eq!(count(&mut client, 514).await, 0);
    let mut other = server.connect().await;
    other.done("queue.tube.mail:put", json!([1])).await;
    other.done("queue.tube.mail:take", json!([0])).await;
    other.post("queue.tube.post:take", json!([])).await;
    server.consumers("post", 1).await;
    assert_eq!(count(&mut client, 513).await, 1);
    assert_eq!(count(&mut client, 514).await, 1);
    drop(other);
    server.ready("mail", 1).await;
    assert_eq!(count(&mut client, 513).await, 0);
    assert_eq!(count(&mut client, 514).await, 0);
}

/// Creates a tube and takes this many tasks from it, without an iproto connection.
async fn take_many(server: &TestServer, name: &str, count: usize) {
    let tube = TubeName::new(name).unwrap();
    let options = TubeOptions::new(Kind::Fifo);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    let session = SessionId([7; 16]);
    let join = Command::JoinSession { session, create: true };
    let mut commands = vec![create, join];
    for start in (0..count).step_by(10_000) {
        let count = (count - start).min(10_000);
        let tasks = vec![NewTask::new(Body::new(&[0xc0])); count];
        commands.push(Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO });
        let (tube, session, wait) = (tube.clone(), Some(session), Span::ZERO);
        commands.push(Command::Take(Take {
            tube,
            count,
            session,
            lease: None,
            worker: None,
            wait,
        }));
    }
    let replies = server.engine.execute(commands).await;
    let taken = replies.iter().map(|reply| match reply {
        Ok(Reply::Taken(tasks)) => tasks.len(),
        _ => 0,
    });
    assert_eq!(taken.sum::<usize>(), count);
}

/// The rows of the taken tasks with this key.
async fn taken(client: &mut RawClient, index: u64, key: Value, limit: u64) -> IprotoAnswer {
    let key = packed(&key);
    let select = Operation::Select { space: 514, index, limit, offset: 0, iterator: 0, key: &key };
    client.execute(&select).await
}

// The list of taken tasks silently ended at ten thousand of a tube, and a task behind them was not
// found by its key either.
#[tokio::test]
async fn all_taken_tasks_are_listed_and_found_by_key() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    take_many(&server, "many", 12_000).await;
    assert_eq!(count(&mut client, 514).await, 12_000);
    let row = taken(&mut client, 1, json!([1, 11_500]), 10).await.unwrap();
    assert_eq!((row.as_array().unwrap().len(), &row[0][2]), (1, &json!(11_500)), "{row}");
    let session = row[0][0].clone();
    let same = taken(&mut client, 0, json!([session, 1, 11_500]), 10).await.unwrap();
    assert_eq!(same, row);
    for nothing in [json!([0, 11_500]), json!([1, 12_000]), json!([9])] {
        assert_eq!(taken(&mut client, 1, nothing, 10).await.unwrap(), json!([]));
    }
    let few = taken(&mut client, 1, json!([]), 3).await.unwrap();
    assert_eq!(few.as_array().unwrap().len(), 3);
    // Taken tasks are listed; ready tasks are not.
    client.done("queue.tube.mail:put", json!([1])).await;
    assert_eq!(taken(&mut client, 1, json!([0, 0]), 10).await.unwrap(), json!([]));
}

#[tokio::test]
async fn too_many_taken_tasks_are_an_error() {
    let server = TestServer::new().await;
    take_many(&server, "many", 100_001).await;
    let mut client = server.connect().await;
    let fault = taken(&mut client, 0, json!([]), u64::MAX).await.unwrap_err();
    assert!(fault.text.contains("more than 100000 tasks are taken"), "{fault:?}");
    let some = taken(&mut client, 0, json!([]), 5).await.unwrap();
    assert_eq!(some.as_array().unwrap().len(), 5);
    let last = taken(&mut client, 1, json!([0, 100_000]), 5).await.unwrap();
    assert_eq!(last[0][2], 100_000);
}

// A client that knows the identity of a session may join it, and every user with a grant on all
// tubes could read it.
#[tokio::test]
async fn identities_are_visible_only_to_administrators() {
    let everyday = Grants::List(vec![Grant::new("*", &[Verb::Put, Verb::Take])]);
    let users = Users::new(vec![User::guest(everyday)]);
    let server = TestServer::with(|config| config.users = users).await;
    take_many(&server, "many", 1).await;
    let mut client = server.connect().await;
    client.post("queue.tube.many:take", json!([])).await;
    server.consumers("many", 1).await;
    let row = taken(&mut client, 1, json!([0, 0]), 1).await.unwrap();
    assert_eq!((&row[0][0], &row[0][2]), (&json!(""), &json!(0)));
    let waiting = select(&mut client, 513, 2, json!([]), 1).await.unwrap();
    assert_eq!(waiting[0][0], "");
}

// The tubes of the manager were listed among those of the user.
#[tokio::test]
async fn internal_tubes_are_shown_only_when_they_are_named() {
    let (server, internal) = (TestServer::new().await, "taskyard.manager.seat");
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.create_tube", json!([internal, "fifo"])).await;
    let all = client.done("queue.statistics", json!([])).await;
    assert!(all[0]["mail"].is_object() && all[0].as_object().unwrap().len() == 1, "{all}");
    assert_eq!(client.done("queue.tube", json!([])).await, json!([["mail"]]));
    for iterator in [0, 2, 5] {
        let rows = select(&mut client, 512, iterator, json!([]), 10).await.unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 1, "iterator {iterator}: {rows}");
    }
    let one = client.done("queue.statistics", json!([internal])).await;
    assert!(one[0]["tasks"].is_object(), "{one}");
    assert_eq!(client.done("queue.tube", json!([internal])).await, json!([true]));
    let row = select(&mut client, 512, 0, json!([internal]), 10).await.unwrap();
    assert_eq!(row[0][0], internal, "{row}");
}

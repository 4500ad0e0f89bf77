//! Unique keys of tasks through the client, over every transport.

use std::time::Duration;

use taskyard::{
    Client, Error, Execute, HeldKey, Key, KeyRequest, NewTask, OnConflict, Placed, Span, State,
    TaskId, new_task,
};
use taskyard_core::{Command, Error as Refusal, List, ListOrder, Reply, StateSet, TubeName};

use taskyard_testkit::server::{TestServer, block_on};

async fn keys_are_unique(client: Client) {
    let first = client.put_keyed("mail", "a", "one").await.unwrap();
    assert_eq!(first, Placed { id: TaskId(0), state: State::Ready, existing: false });
    let again = client.put_keyed("mail", "a", "two").await.unwrap();
    assert_eq!(again, Placed { existing: true, ..first });
    let held = HeldKey { key: Key::new("a").unwrap(), unique_for: Span::from_secs(3600) };
    let key = Some(Box::new(KeyRequest { held, on_conflict: OnConflict::Replace }));
    let task = NewTask { key, delay: Some(Span::from_secs(60)), ..new_task("three").unwrap() };
    let tasks = vec![task.clone(), new_task("other").unwrap()];
    let placed = client.put_tasks("mail", tasks, Duration::ZERO).await.unwrap();
    let delayed = Placed { id: TaskId(0), state: State::Delayed, existing: true };
    let other = Placed { id: TaskId(1), state: State::Ready, existing: false };
    assert_eq!(placed, [delayed, other]);
    let shown = client.peek("mail", TaskId(0)).await.unwrap().unwrap();
    assert_eq!(shown.data::<String>().unwrap(), "three");
    assert_eq!(shown.task.key, Some(Box::new(Key::new("a").unwrap())));
    let order = ListOrder::Id { states: StateSet::UNFINISHED, after: None };
    let (tube, key) = (TubeName::new("mail").unwrap(), Some(Key::new("a").unwrap()));
    let list = Command::List(List { tube, order, limit: 9, key });
    let Some(Ok(Reply::Listed(listed))) = client.execute(vec![list]).await.pop() else {
        panic!("a list")
    };
    assert_eq!(listed.iter().map(|task| task.id).collect::<Vec<_>>(), [TaskId(0)]);
    client
        .execute(vec![Command::Delete {
            tube: TubeName::new("mail").unwrap(),
            ids: vec![TaskId(0)],
            show: false,
        }])
        .await;
    let ended = client.put_tasks("mail", vec![task], Duration::ZERO).await.unwrap();
    assert_eq!(ended, [Placed { state: State::Done, ..delayed }]);
    let refused = client.put_keyed("mail", "", "x").await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Invalid(_))), "{refused}");
}

#[test]
fn embedded() {
    block_on(async { keys_are_unique(Client::open("memory:").await.unwrap()).await });
}

#[test]
fn over_http() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        keys_are_unique(test_server.client()).await;
        test_server.stop().await;
    });
}

#[test]
fn over_iproto() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        keys_are_unique(Client::new(test_server.connect())).await;
        test_server.stop().await;
    });
}

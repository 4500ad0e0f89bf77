//! Unique keys of tasks.

use serde_json::{Value, json};
use taskyard_iproto::{Operation, auth};
use taskyard_server::{Grant, Grants, User, Users, Verb};

use crate::fixture::{RawClient, TestServer};

const PUT: &str = "queue.tube.mail:put";

async fn put(client: &mut RawClient, data: Value, options: Value) -> Value {
    client.done(PUT, json!([data, options])).await[0].clone()
}

#[tokio::test]
async fn a_held_key_is_answered_with_its_holder() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let first = put(&mut client, json!("one"), json!({ "key": "a", "delay": 5 })).await;
    assert_eq!(first, json!([0, "~", "one"]));
    let keep = json!({ "key": "a", "on_conflict": "keep" });
    assert_eq!(put(&mut client, json!("two"), keep.clone()).await, json!([0, "~", "one"]));
    let replace = json!({ "key": "a", "on_conflict": "replace", "unique_for": 60 });
    assert_eq!(put(&mut client, json!("three"), replace.clone()).await, json!([0, "r", "three"]));
    client.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(put(&mut client, json!("four"), replace.clone()).await, json!([0, "t", "three"]));
    client.done("queue.tube.mail:ack", json!([0])).await;
    // The holder has ended: its data is gone, its id is known.
    assert_eq!(put(&mut client, json!("five"), replace.clone()).await, json!([0, "-", null]));
    server.advance(60);
    assert_eq!(put(&mut client, json!("six"), replace).await, json!([1, "r", "six"]));
    // A number is a key as well, and the same as its text.
    assert_eq!(put(&mut client, json!(1), json!({ "key": 17 })).await, json!([2, "r", 1]));
    assert_eq!(put(&mut client, json!(2), json!({ "key": "17" })).await, json!([2, "r", 1]));
}

#[tokio::test]
async fn keys_work_in_every_kind_of_tube_and_every_shape_of_call() {
    let server = TestServer::new().await;
    for kind in ["fifo", "fifottl", "limfifottl", "utube", "utubettl"] {
        let options = json!({ "capacity": 1 });
        let mut client = server.connect().await;
        client.done("queue.create_tube", json!([kind, kind, options])).await;
        let name = format!("queue.tube.{kind}:put");
        let key = json!({ "key": "a" });
        assert_eq!(client.done(&name, json!([1, key])).await, json!([[0, "r", 1]]), "{kind}");
        assert_eq!(client.done(&name, json!([2, key])).await, json!([[0, "r", 1]]), "{kind}");
        assert_eq!(client.call_16(&name, json!([3, key])).await.unwrap(), json!([[0, "r", 1]]));
        let expression = format!("return queue.tube.{kind}:put(...)");
        assert_eq!(client.eval(&expression, json!([4, key])).await.unwrap(), json!([[0, "r", 1]]));
    }
    let mut client = server.connect().await;
    let full = client.done("queue.tube.limfifottl:put", json!([5, { "key": "b" }])).await;
    assert_eq!(full, json!([null]), "as upstream answers a put into a full tube");
}

#[tokio::test]
async fn a_batch_shows_each_holder() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    for n in 0..150 {
        put(&mut client, json!(n), json!({ "key": n })).await;
    }
    client.done("queue.tube.mail:delete", json!([3])).await;
    let tasks: Vec<_> = (0..150).map(|n| json!([n + 1_000, { "key": n }])).collect();
    let placed = client.done("queue.tube.mail:put_many", json!([tasks])).await[0].clone();
    let expected: Vec<_> = (0..150)
        .map(|n| if n == 3 { json!([150, "r", 1_003]) } else { json!([n, "r", n]) })
        .collect();
    assert_eq!(placed, json!(expected));
    let same = json!([[["x", { "key": "new" }], ["y", { "key": "new" }], ["z"]]]);
    let placed = client.done("queue.tube.mail:put_many", same).await;
    assert_eq!(placed, json!([[[151, "r", "x"], [151, "r", "x"], [152, "r", "z"]]]));
}

#[tokio::test]
async fn wrong_options_are_named() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    for (options, text) in [
        (json!({ "key": "" }), "Invalid value of key"),
        (json!({ "key": "x".repeat(129) }), "Invalid value of key"),
        (json!({ "key": [1] }), "Invalid value of key: table"),
        (json!({ "key": "a", "unique_for": 604_801 }), "unique_for may be 604800 seconds"),
        (json!({ "key": "a", "unique_for": -1 }), "Invalid value of unique_for: -1"),
        (json!({ "key": "a", "unique_for": "x" }), "Invalid value of unique_for: x"),
        (json!({ "key": "a", "on_conflict": "merge" }), "on_conflict: merge; use keep or replace"),
        (json!({ "unique_for": 1 }), "unique_for needs a key"),
        (json!({ "on_conflict": "keep" }), "on_conflict needs a key"),
    ] {
        client.refused(PUT, json!([1, options]), 32, text).await;
    }
    assert_eq!(put(&mut client, json!(1), json!({})).await, json!([0, "r", 1]));
}

/// A user who may only put could read the tasks of others by guessing their keys.
#[tokio::test]
async fn the_data_of_a_holder_needs_the_grant_to_peek() {
    let boss = User::new("boss", "secret", Grants::All);
    let grants = vec![Grant::new("mail", &[Verb::Put])];
    let producer = User::new("ann", "x", Grants::List(grants));
    let server = TestServer::with(|config| config.users = Users::new(vec![boss, producer])).await;
    let mut boss = login(&server, "boss", "secret").await;
    boss.done("queue.create_tube", json!(["mail", "fifottl"])).await;
    put(&mut boss, json!("private"), json!({ "key": "a" })).await;
    let mut ann = login(&server, "ann", "x").await;
    assert_eq!(put(&mut ann, json!("mine"), json!({ "key": "a" })).await, json!([0, "r", null]));
    assert_eq!(put(&mut ann, json!("mine"), json!({ "key": "b" })).await, json!([1, "r", "mine"]));
}

async fn login(server: &TestServer, user: &str, password: &str) -> RawClient {
    let mut client = server.connect().await;
    let scramble = Some(auth::scramble(password, &client.greeting.salt));
    client.execute(&Operation::Auth { user, scramble }).await.unwrap();
    client
}

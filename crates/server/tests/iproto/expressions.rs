//! The expressions that clients and administrators send.

use serde_json::json;
use taskyard_iproto::Operation;
use taskyard_server::{Grant, Grants, User, Users, Verb};

use crate::fixture::TestServer;

#[tokio::test]
async fn the_expressions_of_the_go_client() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let exists = "local name = ... ; return queue.tube[name] ~= nil";
    assert_eq!(client.eval(exists, json!(["mail"])).await.unwrap(), json!([false]));
    let create = "local name, type, cfg = ... ; queue.create_tube(name, type, cfg)";
    let options = json!({ "temporary": true, "if_not_exists": true });
    let created = client.eval(create, json!(["mail", "fifottl", options])).await.unwrap();
    assert_eq!(created, json!([]));
    assert_eq!(client.eval(exists, json!(["mail"])).await.unwrap(), json!([true]));
}

#[tokio::test]
async fn a_variable_outlives_its_connection() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let fault = client.eval("return tube:put('a')", json!([])).await.unwrap_err();
    assert!(fault.code == 32 && fault.text.contains("tube"), "{fault:?}");
    client.eval("tube = queue.create_tube('mail', 'fifottl')", json!([])).await.unwrap();
    let mut other = server.connect().await;
    let put = other.eval("return tube:put('a', {pri = 2})", json!([])).await.unwrap();
    assert_eq!(put, json!([[0, "r", "a"]]));
    assert_eq!(other.eval("tube:put('b')", json!([])).await.unwrap(), json!([]));
    let taken = client.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(taken, json!([[1, "t", "b"]]));
}

// Programs that are run more than once: the second run finds what the first created.
#[tokio::test]
async fn a_tube_is_created_unless_it_exists() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let missing = "return queue.tube.mail == nil";
    assert_eq!(client.eval(missing, json!([])).await.unwrap(), json!([true]));
    assert_eq!(client.eval("return not queue.tube.mail", json!([])).await.unwrap(), json!([true]));
    let make = "if not queue.tube.mail then queue.create_tube('mail', 'fifottl') end";
    assert_eq!(client.eval(make, json!([])).await.unwrap(), json!([]));
    client.done("queue.tube.mail:put", json!(["a"])).await;
    assert_eq!(client.eval(make, json!([])).await.unwrap(), json!([]));
    assert_eq!(client.eval(missing, json!([])).await.unwrap(), json!([false]));
    let peeked = client.done("queue.tube.mail:peek", json!([0])).await;
    assert_eq!(peeked, json!([[0, "r", "a"]]), "it is the same tube");
}

#[tokio::test]
async fn the_last_return_value_is_sent() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let create = "queue.create_tube('mail', 'fifottl')";
    let yes = client.eval(&format!("{create} return true"), json!([])).await.unwrap();
    assert_eq!(yes, json!([true]));
    let fault = client.eval(&format!("{create} return true"), json!([])).await.unwrap_err();
    assert!(fault.text.contains("already exists"), "an error is sent all the same: {fault:?}");
    let put = client.eval("queue.tube.mail:put('a') return", json!([])).await.unwrap();
    assert_eq!(put, json!([]));
    let put = client.eval("queue.tube.mail:put('b') return nil", json!([])).await.unwrap();
    assert_eq!(put, json!([null]));
    assert_eq!(client.eval("return true", json!([])).await.unwrap(), json!([true]));
    let ready = |stats: &serde_json::Value| stats[0]["tasks"]["ready"].clone();
    let stats = client.eval("return queue.statistics().mail", json!([])).await.unwrap();
    assert_eq!(ready(&stats), json!(2));
}

#[tokio::test]
async fn several_tubes_of_one_expression() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let three = "a = queue.create_tube('a', 'fifo'); queue.create_tube('b', 'fifo')\n\
                 if not queue.tube.c then queue.create_tube('c', 'fifo') end return true";
    // A request in the same write finds them.
    let (first, eval) = client.request(&Operation::Eval { expression: three, args: &[0x90] });
    let put = Operation::Eval { expression: "return queue.tube.c:put(1)", args: &[0x90] };
    let (second, put) = client.request(&put);
    client.send(&[eval, put].concat()).await;
    assert_eq!(client.next().await.unwrap(), (first, Ok(json!([true]))));
    assert_eq!(client.next().await.unwrap(), (second, Ok(json!([[0, "r", 1]]))));
    assert_eq!(client.eval("return a:put(2)", json!([])).await.unwrap(), json!([[0, "r", 2]]));
    for tube in ["a", "b", "c"] {
        assert_eq!(client.done("queue.tube", json!([tube])).await, json!([true]));
    }
    let fault = client.eval(three, json!([])).await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (32, "Space 'a' already exists"));
    client.ping().await;
}

// The refusal named a method `eval`, which is not in the expression.
#[tokio::test]
async fn a_missing_tube_is_named_in_the_error() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let fault = client.eval("t = queue.tube.nope", json!([])).await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (33, "Procedure 'queue.tube.nope' is not defined"));
    let fault = client.eval("return queue.tube.nope", json!([])).await.unwrap_err();
    assert_eq!(fault.code, 32);
    assert!(fault.text.contains("return queue.tube['nope'] ~= nil"), "{fault:?}");
}

// If one of several tubes is not allowed, none is created.
#[tokio::test]
async fn all_tubes_of_an_expression_must_be_allowed() {
    let own = Grants::List(vec![Grant::new("own*", &[Verb::Create, Verb::Eval])]);
    let users = Users::new(vec![User::guest(own)]);
    let server = TestServer::with(|config| config.users = users).await;
    let mut client = server.connect().await;
    let both = "queue.create_tube('own1', 'fifo') queue.create_tube('other', 'fifo')";
    assert_eq!(client.eval(both, json!([])).await.unwrap_err().code, 42);
    assert_eq!(client.done("queue.tube", json!(["own1"])).await, json!([false]));
    let both = "queue.create_tube('own1', 'fifo') queue.create_tube('own2', 'fifo')";
    client.eval(both, json!([])).await.unwrap();
    assert_eq!(client.done("queue.tube", json!(["own2"])).await, json!([true]));
}

#[tokio::test]
async fn unsupported_expressions_are_refused() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    assert_eq!(client.eval("return queue.state()", json!([])).await.unwrap(), json!(["RUNNING"]));
    let fault = client.eval("return os.execute('id')", json!([])).await.unwrap_err();
    assert_eq!(fault.code, 32);
    client.ping().await;
}

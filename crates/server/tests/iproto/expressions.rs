//! The expressions that clients and administrators send.

use serde_json::json;
use taskyard_server::{Grant, Grants, User, Users, Verb};
use taskyard_wire::iproto::Operation;

use crate::rig::Rig;

#[tokio::test]
async fn the_expressions_of_the_go_client() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let exists = "local name = ... ; return queue.tube[name] ~= nil";
    assert_eq!(talk.eval(exists, json!(["mail"])).await.unwrap(), json!([false]));
    let create = "local name, type, cfg = ... ; queue.create_tube(name, type, cfg)";
    let options = json!({ "temporary": true, "if_not_exists": true });
    let created = talk.eval(create, json!(["mail", "fifottl", options])).await.unwrap();
    assert_eq!(created, json!([]));
    assert_eq!(talk.eval(exists, json!(["mail"])).await.unwrap(), json!([true]));
}

#[tokio::test]
async fn a_variable_outlives_its_connection() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let fault = talk.eval("return tube:put('a')", json!([])).await.unwrap_err();
    assert!(fault.code == 32 && fault.text.contains("tube"), "{fault:?}");
    talk.eval("tube = queue.create_tube('mail', 'fifottl')", json!([])).await.unwrap();
    let mut other = rig.connect().await;
    let put = other.eval("return tube:put('a', {pri = 2})", json!([])).await.unwrap();
    assert_eq!(put, json!([[0, "r", "a"]]));
    assert_eq!(other.eval("tube:put('b')", json!([])).await.unwrap(), json!([]));
    let taken = talk.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(taken, json!([[1, "t", "b"]]));
}

// The idioms of programs that are run more than once: the second time finds what the first made.
#[tokio::test]
async fn a_tube_is_made_unless_it_is_there() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let missing = "return queue.tube.mail == nil";
    assert_eq!(talk.eval(missing, json!([])).await.unwrap(), json!([true]));
    assert_eq!(talk.eval("return not queue.tube.mail", json!([])).await.unwrap(), json!([true]));
    let make = "if not queue.tube.mail then queue.create_tube('mail', 'fifottl') end";
    assert_eq!(talk.eval(make, json!([])).await.unwrap(), json!([]));
    talk.done("queue.tube.mail:put", json!(["a"])).await;
    assert_eq!(talk.eval(make, json!([])).await.unwrap(), json!([]));
    assert_eq!(talk.eval(missing, json!([])).await.unwrap(), json!([false]));
    let peeked = talk.done("queue.tube.mail:peek", json!([0])).await;
    assert_eq!(peeked, json!([[0, "r", "a"]]), "it is the same tube");
}

#[tokio::test]
async fn what_a_last_return_says_is_sent() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let create = "queue.create_tube('mail', 'fifottl')";
    let yes = talk.eval(&format!("{create} return true"), json!([])).await.unwrap();
    assert_eq!(yes, json!([true]));
    let fault = talk.eval(&format!("{create} return true"), json!([])).await.unwrap_err();
    assert!(fault.text.contains("already exists"), "a refusal is told all the same: {fault:?}");
    let put = talk.eval("queue.tube.mail:put('a') return", json!([])).await.unwrap();
    assert_eq!(put, json!([]));
    let put = talk.eval("queue.tube.mail:put('b') return nil", json!([])).await.unwrap();
    assert_eq!(put, json!([null]));
    assert_eq!(talk.eval("return true", json!([])).await.unwrap(), json!([true]));
    let ready = |stats: &serde_json::Value| stats[0]["tasks"]["ready"].clone();
    let stats = talk.eval("return queue.statistics().mail", json!([])).await.unwrap();
    assert_eq!(ready(&stats), json!(2));
}

#[tokio::test]
async fn several_tubes_of_one_expression() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let three = "a = queue.create_tube('a', 'fifo'); queue.create_tube('b', 'fifo')\n\
                 if not queue.tube.c then queue.create_tube('c', 'fifo') end return true";
    // What follows in the same breath finds them.
    let (first, eval) = talk.request(&Operation::Eval { expression: three, args: &[0x90] });
    let put = Operation::Eval { expression: "return queue.tube.c:put(1)", args: &[0x90] };
    let (second, put) = talk.request(&put);
    talk.send(&[eval, put].concat()).await;
    assert_eq!(talk.next().await.unwrap(), (first, Ok(json!([true]))));
    assert_eq!(talk.next().await.unwrap(), (second, Ok(json!([[0, "r", 1]]))));
    assert_eq!(talk.eval("return a:put(2)", json!([])).await.unwrap(), json!([[0, "r", 2]]));
    for tube in ["a", "b", "c"] {
        assert_eq!(talk.done("queue.tube", json!([tube])).await, json!([true]));
    }
    let fault = talk.eval(three, json!([])).await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (32, "Space 'a' already exists"));
    talk.ping().await;
}

// The refusal named a method `eval`, which nobody had written.
#[tokio::test]
async fn a_tube_that_is_not_there_has_its_own_name() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let fault = talk.eval("t = queue.tube.nope", json!([])).await.unwrap_err();
    assert_eq!((fault.code, &*fault.text), (33, "Procedure 'queue.tube.nope' is not defined"));
    let fault = talk.eval("return queue.tube.nope", json!([])).await.unwrap_err();
    assert_eq!(fault.code, 32);
    assert!(fault.text.contains("return queue.tube['nope'] ~= nil"), "{fault:?}");
}

// Of several tubes none may be made when one is not allowed.
#[tokio::test]
async fn all_tubes_of_an_expression_must_be_allowed() {
    let own = Grants::List(vec![Grant::new("own*", &[Verb::Create, Verb::Eval])]);
    let users = Users::new(vec![User::guest(own)]);
    let rig = Rig::with(|config| config.users = users).await;
    let mut talk = rig.connect().await;
    let both = "queue.create_tube('own1', 'fifo') queue.create_tube('other', 'fifo')";
    assert_eq!(talk.eval(both, json!([])).await.unwrap_err().code, 42);
    assert_eq!(talk.done("queue.tube", json!(["own1"])).await, json!([false]));
    let both = "queue.create_tube('own1', 'fifo') queue.create_tube('own2', 'fifo')";
    talk.eval(both, json!([])).await.unwrap();
    assert_eq!(talk.done("queue.tube", json!(["own2"])).await, json!([true]));
}

#[tokio::test]
async fn what_is_not_understood_is_said() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    assert_eq!(talk.eval("return queue.state()", json!([])).await.unwrap(), json!(["RUNNING"]));
    let fault = talk.eval("return os.execute('id')", json!([])).await.unwrap_err();
    assert_eq!(fault.code, 32);
    talk.ping().await;
}

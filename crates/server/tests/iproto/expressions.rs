//! The expressions that clients and administrators send.

use serde_json::json;

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

#[tokio::test]
async fn what_is_not_understood_is_said() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    assert_eq!(talk.eval("return queue.state()", json!([])).await.unwrap(), json!(["RUNNING"]));
    let fault = talk.eval("return os.execute('id')", json!([])).await.unwrap_err();
    assert_eq!(fault.code, 32);
    talk.ping().await;
}

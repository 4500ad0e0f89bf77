//! Every function, its answers and its errors.

use serde_json::{Value, json};

use taskyard_core::{Command, Execute, Reply, RetryPolicy, Span, TaskId, TubeChange, TubeName};
use taskyard_iproto::{Operation, Shape};
use taskyard_store::OpenOptions;

use crate::fixture::{RawClient, TestServer};
use crate::native::execute;

#[tokio::test]
async fn a_task_is_put_taken_and_acknowledged() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let put = client.done("queue.tube.mail:put", json!([{ "to": "ann" }, {}])).await;
    assert_eq!(put, json!([[0, "r", { "to": "ann" }]]));
    let put = client.done("queue.tube.mail:put", json!(["later", { "delay": 5.5 }])).await;
    assert_eq!(put, json!([[1, "~", "later"]]));
    let taken = client.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(taken, json!([[0, "t", { "to": "ann" }]]));
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await, json!([]));
    let acked = client.done("queue.tube.mail:ack", json!([0])).await;
    assert_eq!(acked, json!([[0, "-", { "to": "ann" }]]));
    client.refused("queue.tube.mail:ack", json!([0]), 32, "Task was not taken").await;
    client.refused("queue.tube.mail:ack", json!([77]), 32, "Task was not taken").await;
}

/// For these clients a done task that is kept does not exist.
#[tokio::test]
async fn done_tasks_are_kept_and_hidden() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("other", "fifo").await;
    let options = json!({ "keep_done": 60, "keep_done_max": 9 });
    client.done("queue.create_tube", json!(["mail", "fifottl", options])).await;
    for data in 0..2 {
        client.done("queue.tube.mail:put", json!([data])).await;
        client.done("queue.tube.mail:take", json!([0])).await;
    }
    let acked = client.done("queue.tube.mail:ack", json!([0, { "result": [1, "sent"] }])).await;
    assert_eq!(acked, json!([[0, "-", 0]]));
    // Upstream ignores further arguments.
    assert_eq!(client.done("queue.tube.mail:ack", json!([1, "text"])).await, json!([[1, "-", 1]]));
    for verb in ["peek", "bury"] {
        let name = format!("queue.tube.mail:{verb}");
        client.refused(&name, json!([1]), 32, "Task 1 not found").await;
    }
    // The list of Taskyard shows them on request.
    let list = async |client: &mut RawClient, options: Value| {
        client.done("queue.tube.mail:list", json!([options])).await[0].clone()
    };
    assert_eq!(list(&mut client, json!({})).await, json!([]));
    let done = list(&mut client, json!({ "state": "done" })).await;
    assert_eq!(done, json!([[0, "-", 0], [1, "-", 1]]));
    let deleted = client.done("queue.tube.mail:delete", json!([1])).await;
    assert_eq!(deleted, json!([[1, "-", 1]]));
    client.refused("queue.tube.mail:delete", json!([1]), 32, "Task 1 not found").await;
    let (tube, ids) = (TubeName::new("mail").unwrap(), vec![TaskId(0)]);
    let reply = server.engine.execute(vec![Command::Peek { tube, ids }]).await.remove(0);
    let Ok(Reply::Tasks(tasks)) = reply else { panic!("{reply:?}") };
    let finished = tasks[0].finished.as_ref().expect("it is done");
    assert_eq!(finished.result(), Some(&b"\x92\x01\xa4sent"[..]));
    let wrong = json!(["wrong", "fifo", { "keep_done_max": "x" }]);
    client.refused("queue.create_tube", wrong, 32, "Invalid value of keep_done_max: x").await;
}

#[tokio::test]
async fn the_other_verbs() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    for data in 0..3 {
        client.done("queue.tube.mail:put", json!([data])).await;
    }
    client.done("queue.tube.mail:take", json!([0])).await;
    let touched = client.done("queue.tube.mail:touch", json!([0, 2.5])).await;
    assert_eq!(touched, json!([[0, "t", 0]]));
    assert_eq!(client.done("queue.tube.mail:touch", json!([0, 0])).await, json!([]));
    let released = client.done("queue.tube.mail:release", json!([0, []])).await;
    assert_eq!(released, json!([[0, "r", 0]]));
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await[0][0], 0);
    let released = client.done("queue.tube.mail:release", json!([0, { "delay": 60 }])).await;
    assert_eq!(released, json!([[0, "~", 0]]));
    assert_eq!(client.done("queue.tube.mail:bury", json!([1])).await, json!([[1, "!", 1]]));
    assert_eq!(client.done("queue.tube.mail:bury", json!([1])).await, json!([[1, "!", 1]]));
    assert_eq!(client.done("queue.tube.mail:peek", json!([1])).await, json!([[1, "!", 1]]));
    assert_eq!(client.done("queue.tube.mail:kick", json!([5])).await, json!([1]));
    assert_eq!(client.done("queue.tube.mail:kick", json!([])).await, json!([0]));
    assert_eq!(client.done("queue.tube.mail:kick", json!([-1])).await, json!([-1]));
    assert_eq!(client.done("queue.tube.mail:delete", json!([2])).await, json!([[2, "-", 2]]));
    for verb in ["peek", "delete", "bury"] {
        let name = format!("queue.tube.mail:{verb}");
        client.refused(&name, json!([2]), 32, "Task 2 not found").await;
    }
    for verb in ["release", "touch"] {
        let name = format!("queue.tube.mail:{verb}");
        client.refused(&name, json!([1, 1.0]), 32, "").await;
    }
    client.done("queue.tube.mail:take", json!([0])).await;
    client.refused("queue.tube.mail:drop", json!([]), 32, "There are taken tasks").await;
    assert_eq!(client.done("queue.tube.mail:release_all", json!([])).await, json!([]));
    assert_eq!(client.done("queue.tube.mail:truncate", json!([])).await, json!([]));
    assert_eq!(client.done("queue.tube.mail:drop", json!([])).await, json!([true]));
    client.refused("queue.tube.mail:drop", json!([]), 33, "'queue.tube.mail:drop'").await;
}

#[tokio::test]
async fn a_task_is_buried_with_an_error() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    for data in 0..2 {
        client.done("queue.tube.mail:put", json!([data])).await;
    }
    client.done("queue.tube.mail:take", json!([0])).await;
    let error = json!({ "error": "bounced" });
    for id in 0..2 {
        let buried = client.done("queue.tube.mail:bury", json!([id, error])).await;
        assert_eq!(buried, json!([[id, "!", id]]));
    }
    let (tube, ids) = (TubeName::new("mail").unwrap(), vec![TaskId(0), TaskId(1)]);
    let reply = server.engine.execute(vec![Command::Peek { tube, ids }]).await.remove(0);
    let Ok(Reply::Tasks(tasks)) = reply else { panic!("{reply:?}") };
    for task in &tasks {
        let failures = task.failures.as_ref().expect("the error is kept");
        assert_eq!(&*failures.last().unwrap().error, "bounced", "{}", task.id);
    }
}

#[tokio::test]
async fn missing_tubes_and_tasks_are_named() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    for name in ["queue.tube.post:put", "queue.tube.mail:fly", "queue.fly", "fly", "queue.tube.x"] {
        client.refused(name, json!([1]), 33, &format!("Procedure '{name}' is not defined")).await;
    }
    client.done("queue.tube.mail:put", json!([1])).await;
    client.done("queue.tube.mail:take", json!([0])).await;
    let text = "fifo queue does not support touch";
    client.refused("queue.tube.mail:touch", json!([0, 1]), 32, text).await;
    client.refused("queue.create_tube", json!(["mail", "fifo"]), 32, "already exists").await;
    client.refused("queue.create_tube", json!(["a", "lifo"]), 32, "Unknown tube type lifo").await;
    client.refused("queue.tube.mail:put", json!([]), 39, "Tuple field 3").await;
    // A missing tube is reported before any other error of the call.
    client.refused("queue.tube.post:ack", json!(["x"]), 33, "'queue.tube.post:ack'").await;
}

// Wrong arguments were refused before the kind of the tube was known.
#[tokio::test]
async fn argument_errors_depend_on_the_kind_of_the_tube() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    for (kind, field) in
        [("fifo", 3), ("fifottl", 8), ("limfifottl", 8), ("utube", 4), ("utubettl", 9)]
    {
        client.done("queue.create_tube", json!([kind, kind])).await;
        let put = format!("queue.tube.{kind}:put");
        let text = format!("Tuple field {field} required by space format is missing");
        client.refused(&put, json!([]), 39, &text).await;
        let wrong = json!(["x", { "pri": "x" }]);
        if kind.ends_with("ttl") {
            client.refused(&put, wrong, 23, "Tuple field 6").await;
        } else {
            assert_eq!(client.done(&put, wrong).await, json!([[0, "r", "x"]]));
        }
    }
    let eval = client.eval("return queue.tube.utube:put('y', {ttl = 'x'})", json!([])).await;
    assert_eq!(eval.unwrap(), json!([[1, "r", "y"]]));
}

// A put that waits for the kind of its tube runs before requests that were sent after it.
#[tokio::test]
async fn a_call_that_depends_on_the_kind_keeps_its_order() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let mut bytes = Vec::new();
    for args in [json!([0]), json!([1, { "pri": "x" }]), json!([2]), json!([3, { "ttl": [] }])] {
        bytes.extend(client.call_bytes("queue.tube.mail:put", &args, Shape::Call).1);
    }
    client.send(&bytes).await;
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(client.next().await.unwrap());
    }
    answers.sort_by_key(|answer| answer.0);
    for (id, (_, answer)) in answers.into_iter().enumerate() {
        assert_eq!(answer, Ok(json!([[id, "r", id]])));
    }
}

// Connection pools of the Go and Python clients use only a server that answers this.
#[tokio::test]
async fn connection_pools_see_a_running_writable_server() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let info = client.done("box.info", json!([])).await;
    let info = &info[0];
    assert_eq!((&info["status"], &info["ro"]), (&json!("running"), &json!(false)), "{info}");
    assert_eq!(info["version"], client.greeting.version.as_str());
    assert_eq!(client.call_16("box.info", json!([])).await.unwrap()[0][0]["ro"], false);
}

#[tokio::test]
async fn the_queue_itself() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let options = json!({ "if_not_exists": true, "temporary": true });
    for name in ["queue.create_tube", "queue.schema.create_tube"] {
        assert_eq!(client.done(name, json!(["mail", "fifo", options])).await, json!([]));
    }
    assert_eq!(client.done("queue.state", json!([])).await, json!(["RUNNING"]));
    assert_eq!(client.done("queue.tube", json!([])).await, json!([["mail"]]));
    assert_eq!(client.done("queue.tube", json!(["mail"])).await, json!([true]));
    assert_eq!(client.done("queue.tube", json!(["post"])).await, json!([false]));
    assert_eq!(client.done("queue.tube", json!(["a/b"])).await, json!([false]));
    assert_eq!(client.done("queue.cfg", json!([{}])).await, json!([]));
    client.refused("queue.cfg", json!([{ "ttr": -1 }]), 32, "Invalid value of ttr: -1").await;
}

#[tokio::test]
async fn statistics_always_have_the_same_keys() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let mut expected = json!({
        "tasks": { "ready": 0, "taken": 0, "buried": 0, "delayed": 0, "done": 0, "total": 0 },
        "calls": {
            "ack": 0, "bury": 0, "delete": 0, "kick": 0, "put": 0, "release": 0, "take": 0,
            "touch": 0, "ttl": 0, "ttr": 0, "delay": 0,
        },
    });
    assert_eq!(client.done("queue.statistics", json!(["mail"])).await, json!([expected]));
    client.done("queue.tube.mail:put", json!([1])).await;
    client.done("queue.tube.mail:take", json!([0])).await;
    client.done("queue.tube.mail:ack", json!([0])).await;
    expected["tasks"]["done"] = json!(1);
    for verb in ["put", "take", "ack"] {
        expected["calls"][verb] = json!(1);
    }
    assert_eq!(client.done("queue.stats", json!(["mail"])).await, json!([expected]));
    assert_eq!(client.done("queue.statistics", json!([])).await, json!([{ "mail": expected }]));
    client.refused("queue.statistics", json!(["post"]), 32, "attempt to index a nil value").await;
}

#[tokio::test]
async fn the_old_shape_puts_each_result_into_a_list() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    client.done("queue.create_tube", json!(["mail", "limfifottl", { "capacity": 1 }])).await;
    for (name, args, shape) in [
        ("queue.tube.mail:put", json!(["a"]), json!([[0, "r", "a"]])),
        ("queue.tube.mail:put", json!(["b"]), json!([[null]])),
        ("queue.tube.mail:take", json!([0]), json!([[0, "t", "a"]])),
        ("queue.tube.mail:take", json!([0]), json!([])),
        ("queue.tube.mail:kick", json!([1]), json!([[0]])),
        ("queue.state", json!([]), json!([["RUNNING"]])),
        ("queue.tube", json!(["mail"]), json!([[true]])),
        ("queue.tube", json!([]), json!([["mail"]])),
        ("queue.tube.mail:truncate", json!([]), json!([])),
    ] {
        assert_eq!(client.call_16(name, args).await.unwrap(), shape, "{name}");
    }
    let statistics = client.call_16("queue.statistics", json!(["mail"])).await.unwrap();
    assert_eq!(statistics[0][0]["calls"]["put"], 1);
    let full = client.done("queue.tube.mail:put", json!(["c"])).await;
    assert_eq!(full, json!([[1, "r", "c"]]));
    assert_eq!(client.done("queue.tube.mail:put", json!(["d"])).await, json!([null]));
}

#[tokio::test]
async fn many_tasks_at_once() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let tasks = json!([["a"], ["b", { "pri": 7 }], ["c", { "delay": 60 }]]);
    let put = client.done("queue.tube.mail:put_many", json!([tasks])).await;
    assert_eq!(put, json!([[[0, "r", "a"], [1, "r", "b"], [2, "~", "c"]]]));
    let taken = client.done("queue.tube.mail:take_many", json!([10, 0])).await;
    assert_eq!(taken, json!([[[0, "t", "a"], [1, "t", "b"]]]));
    assert_eq!(client.done("queue.tube.mail:take_many", json!([10, 0])).await, json!([[]]));
    let acked = client.done("queue.tube.mail:ack_many", json!([[0, 2, 1, 77]])).await;
    assert_eq!(acked, json!([[[0, "-", "a"], [1, "-", "b"]]]));
}

#[tokio::test]
async fn tasks_are_listed_by_pages() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    for task in 0..5 {
        client.done("queue.tube.mail:put", json!([task])).await;
    }
    for id in [1, 2, 4] {
        client.done("queue.tube.mail:bury", json!([id])).await;
    }
    let mut list = async |options| client.done("queue.tube.mail:list", json!([options])).await;
    let first = list(json!({ "state": "buried", "limit": 2 })).await;
    assert_eq!(first, json!([[[1, "!", 1], [2, "!", 2]], 2]));
    let second = list(json!({ "state": "buried", "limit": 2, "after": 2 })).await;
    assert_eq!(second, json!([[[4, "!", 4]], null]));
    assert_eq!(list(json!({ "state": "taken" })).await, json!([[], null]));
    assert_eq!(list(json!({ "state": "ready,buried" })).await[0].as_array().unwrap().len(), 5);
    assert_eq!(client.done("queue.tube.mail:list", json!([])).await[0][3], json!([3, "r", 3]));
    let old = client.call_16("queue.tube.mail:list", json!([{ "limit": 1 }])).await.unwrap();
    assert_eq!(old, json!([[[0, "r", 0]], [0]]));
    client.refused("queue.tube.mail:list", json!([{ "limit": 0 }]), 32, "1 and 1000").await;
    client.refused("queue.tube.no:list", json!([]), 33, "'queue.tube.no:list'").await;
    let eval = Operation::Eval {
        expression: "return queue.tube.mail:list({state = 'buried', limit = 1})",
        args: &[0x90],
    };
    assert_eq!(client.execute(&eval).await.unwrap(), json!([[[1, "!", 1]], 1]));
}

// The answer to a list of large tasks was as large as all of them together.
#[tokio::test]
async fn a_list_of_large_tasks_has_smaller_pages() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let large = "x".repeat(100_000);
    let tasks = vec![json!([large]); 50];
    for _ in 0..6 {
        client.done("queue.tube.mail:put_many", json!([tasks])).await;
    }
    let (mut listed, mut pages, mut after) = (0, 0, json!(null));
    loop {
        let options = json!({ "limit": 1000, "after": after });
        let page = client.done("queue.tube.mail:list", json!([options])).await;
        let tasks = page[0].as_array().unwrap();
        for task in tasks {
            assert_eq!(task[0], listed);
            listed += 1;
        }
        (pages, after) = (pages + 1, page[1].clone());
        if after.is_null() {
            break;
        }
    }
    assert!(listed == 300 && pages > 1, "{listed} in {pages}");
}

#[tokio::test]
async fn payloads_come_back_as_they_were_sent() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    for (data, id) in [json!(null), json!([]), json!({ "a": [1.5, -1, "ü"] })].iter().zip(0..) {
        let put = client.done("queue.tube.mail:put", json!([data])).await;
        assert_eq!(put, json!([[id, "r", data]]));
        let acked = async {
            client.done("queue.tube.mail:take", json!([0])).await;
            client.done("queue.tube.mail:ack", json!([id])).await
        };
        assert_eq!(acked.await, json!([[id, "-", data]]));
    }
    let large = "x".repeat(200_000);
    client.done("queue.tube.mail:put", json!([large])).await;
    let taken = client.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(taken[0][2], Value::String(large));
    let too_large = "x".repeat((1 << 20) + 1);
    client.refused("queue.tube.mail:put", json!([too_large]), 32, "the limit is 1048576").await;
}

// The answers to ack and similar calls show the payload, also if it is only on disk.
#[tokio::test]
async fn payloads_on_disk_are_shown_too() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().display());
    let options = OpenOptions { memory_bytes: 0, ..OpenOptions::default() };
    let server = TestServer::on(taskyard_stores::open(&url, &options).unwrap(), |_| {}).await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let data = |id: u64| format!("{id}").repeat(1_000);
    for id in 0..6 {
        client.done("queue.tube.mail:put", json!([data(id)])).await;
    }
    for id in 0..5 {
        assert_eq!(client.done("queue.tube.mail:take", json!([0])).await[0][2], data(id));
    }
    for (verb, args, id, state) in [
        ("touch", json!([0, 5]), 0, "t"),
        ("ack", json!([0]), 0, "-"),
        ("release", json!([1]), 1, "r"),
        ("bury", json!([2]), 2, "!"),
        ("peek", json!([2]), 2, "!"),
        ("delete", json!([5]), 5, "-"),
    ] {
        let answer = client.done(&format!("queue.tube.mail:{verb}"), args).await;
        assert_eq!(answer, json!([[id, state, data(id)]]), "{verb}");
    }
    let acked = client.done("queue.tube.mail:ack_many", json!([[3, 4]])).await;
    assert_eq!(acked, json!([[[3, "-", data(3)], [4, "-", data(4)]]]));
    server.stop().await.unwrap().unwrap();
}

#[tokio::test]
async fn the_prefix_is_configurable() {
    let server = TestServer::with(|config| config.prefix = "my.jobs".into()).await;
    let mut client = server.connect().await;
    client.done("my.jobs.create_tube", json!(["mail", "fifo"])).await;
    client.done("my.jobs.tube.mail:put", json!([1])).await;
    client.refused("queue.tube.mail:put", json!([1]), 33, "queue.tube.mail:put").await;
    client.refused("my.jobs.tube.no:put", json!([1]), 33, "'my.jobs.tube.no:put'").await;
}

// `fail` without a delay was ready at once over iproto, whatever the retry policy of its tube.
#[tokio::test]
async fn a_failure_without_a_delay_follows_the_retry_policy() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    client.done("queue.tube.mail:put", json!(["a"])).await;
    let fail = async |client: &mut RawClient, options: Value| {
        client.done("queue.tube.mail:take", json!([0])).await;
        let failed = client.done("queue.tube.mail:fail", json!([0, options])).await;
        failed[0][1].clone()
    };
    assert_eq!(fail(&mut client, json!({ "error": "no route" })).await, "r", "no policy");
    let policy = RetryPolicy {
        delay: Span::from_secs(60),
        factor_permille: 1_000,
        delay_max: Span::from_secs(60),
        jitter_permille: 0,
        retry_lost: false,
    };
    let change = TubeChange { retry: Some(Some(Box::new(policy))), ..TubeChange::default() };
    let tube = TubeName::new("mail").unwrap();
    execute(&mut client, &[Command::AlterTube { tube, change }]).await;
    let explicit = json!({ "error": "no route", "delay": 0 });
    assert_eq!(fail(&mut client, explicit).await, "r", "an explicit delay is used");
    assert_eq!(fail(&mut client, json!({ "error": "no route" })).await, "~");
    server.advance(59);
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await, json!([]));
    server.advance(1);
    server.ready("mail", 1).await;
    assert_eq!(fail(&mut client, json!({})).await, "~", "an error is not needed");
}

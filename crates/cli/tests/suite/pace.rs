//! Retry policies and rate limits on the command line.

use serde_json::{Value, json};

use crate::process::{Serving, binary};

/// A server that keeps tasks in memory.
fn serve() -> Serving {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
    Serving::start(&mut command)
}

fn shown(server: &Serving, command: &[&str]) -> Value {
    server.run(&[command, &["--json"]].concat()).json()[0].clone()
}

/// Takes a task and fails it; returns it afterwards with the seconds that it waits.
fn fail(server: &Serving, flags: &[&str]) -> (Value, f64) {
    server.run(&["take", "jobs"]).good();
    let fail = ["fail", "jobs", "0", "--error", "no route"];
    server.run(&[&fail[..], flags].concat()).good();
    waiting(server)
}

fn waiting(server: &Serving) -> (Value, f64) {
    let task = shown(server, &["peek", "jobs", "0"]);
    let moment = |name: &str| task[name].as_f64().unwrap_or_default();
    let wait = if task["state"] == "delayed" { moment("due") - moment("failed_at") } else { 0.0 };
    (task, wait.round())
}

#[test]
fn policies_and_rates_are_set_shown_and_removed() {
    let server = serve();
    let create = ["tube", "create", "jobs", "--retry", "default", "--rate", "100/1m"];
    server.run(&create).good();
    let text = server.run(&["tube", "show", "jobs"]).good();
    assert!(text.contains("retry           5s,factor=2,max=3600s,jitter=0.2\n"), "{text}");
    assert!(text.contains("rate            100/60s\n"), "{text}");
    assert!(!text.contains("retry-lost"), "{text}");
    server.run(&[&create[..], &["--if-not-exists"]].concat()).good();
    let other = ["tube", "create", "jobs", "--if-not-exists", "--retry", "1s"];
    assert!(server.run(&other).ends(6).err.contains("retry is {"));

    let alter = |flags: &[&str]| shown(&server, &[&["tube", "alter", "jobs"], flags].concat());
    let tube = alter(&["--retry-lost"]);
    assert_eq!((&tube["retry"]["delay"], &tube["retry_lost"]), (&json!(5.0), &json!(true)));
    let tube = alter(&["--retry", "10s,factor=3,max=2h,jitter=0", "--rate", "5/s,burst=20"]);
    let policy = json!({ "delay": 10.0, "factor": 3.0, "delay_max": 7200.0, "jitter": 0.0 });
    assert_eq!((&tube["retry"], &tube["retry_lost"]), (&policy, &json!(true)));
    assert_eq!(tube["rate"], json!({ "count": 5, "per": 1.0, "burst": 20 }));
    assert_eq!(alter(&["--retry-lost=false"])["retry_lost"], Value::Null);
    let tube = alter(&["--retry", "none", "--rate", "none"]);
    assert_eq!((&tube["retry"], &tube["rate"]), (&Value::Null, &Value::Null));
    let refused = server.run(&["tube", "alter", "jobs", "--retry-lost"]).ends(2);
    assert!(refused.err.contains("--retry-lost needs a retry policy"), "{refused:?}");
    for flags in [["--retry", "5s,factor=0"], ["--rate", "5"], ["--rate", "0/s"]] {
        server.run(&[&["tube", "alter", "jobs"][..], &flags].concat()).ends(2);
    }
    server.run(&["tube", "create", "lost", "--retry-lost"]).ends(2);
}

#[test]
fn fail_follows_the_policy_unless_it_names_a_delay() {
    let server = serve();
    let retry = ["--retry", "100s,factor=3,jitter=0"];
    server.run(&[&["tube", "create", "jobs"][..], &retry].concat()).good();
    server.run(&["put", "jobs", "x", "--attempts-max", "3"]).good();
    let (task, wait) = fail(&server, &["--delay", "0"]);
    assert_eq!((&task["state"], wait, &task["attempts_max"]), (&json!("ready"), 0.0, &json!(3)));
    assert_eq!(fail(&server, &[]).1, 300.0, "the second attempt");
    server.run(&["put", "jobs", "x", "--attempts-max", "0"]).ends(2);
}

#[test]
fn a_worker_follows_the_policy_unless_it_has_a_delay() {
    let server = serve();
    let work = |flags: &[&str]| {
        let worker = ["worker", "jobs", "--drain", "--exec", "exit 3"];
        server.run(&[&worker[..], flags].concat()).good();
        waiting(&server).1
    };
    server.run(&["put", "jobs", "x"]).good();
    assert_eq!(work(&[]), 5.0, "a tube without a policy");
    for (flags, wait) in [(&[][..], 100.0), (&["--retry", "1h"], 3600.0)] {
        server.run(&["tube", "drop", "jobs", "--yes"]).good();
        server.run(&["tube", "create", "jobs", "--retry", "100s,jitter=0"]).good();
        server.run(&["put", "jobs", "x"]).good();
        assert_eq!(work(flags), wait, "{flags:?}");
    }
}

#[test]
fn the_rate_is_limited() {
    let server = serve();
    server.run(&["tube", "create", "jobs", "--rate", "1/1h"]).good();
    server.run(&["put", "jobs", "x", "y"]).good();
    server.run(&["take", "jobs"]).good();
    server.run(&["take", "jobs"]).ends(3);
    let task = shown(&server, &["peek", "jobs", "1"]);
    assert_eq!(task["reason"]["name"], "rate_limited");
    assert!(task["reason"]["until"].is_f64(), "{task}");
    // People saw only that the limit is reached.
    for args in [&["peek", "jobs", "1"][..], &["task", "jobs", "1"], &["tasks", "jobs"]] {
        let text = server.run(args).good();
        assert!(text.contains("is reached; next delivery in "), "{args:?}: {text}");
    }
}

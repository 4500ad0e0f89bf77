//! `put`, `take`, `ack` and the other commands for tasks.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use serde_json::json;

use crate::process::{Serving, TestServer, binary};

#[test]
fn a_task_is_put_taken_and_acked() {
    let server = TestServer::new();
    assert_eq!(server.run(&["put", "mail", r#"{"to": "ann"}"#]).good(), "0\n");
    let taken = server.run(&["take", "mail", "--json"]).json();
    assert_eq!(taken.len(), 1);
    let task = &taken[0];
    assert_eq!(task["id"], 0);
    assert_eq!(task["attempts"], 0);
    assert_eq!(task["data"], json!({"to": "ann"}));
    assert_eq!(task["due"], task["created"], "since when it was ready");
    assert_eq!(server.run(&["peek", "mail", "0", "--json"]).json()[0]["due"], task["due"]);
    let name = format!("0:{}", task["lease"]);
    assert_eq!(server.run(&["ack", "mail", &name]).good(), "acked 0\n");
    server.run(&["ack", "mail", &name]).ends(4);
    server.run(&["take", "mail"]).ends(3);
}

#[test]
fn take_prints_the_command_to_ack() {
    let server = TestServer::new();
    server.run(&["put", "my mail", "hello"]).good();
    let taken = server.run(&["take", "my mail", "--lease", "1m30s"]).ends(0);
    assert!(taken.out.contains("\"hello\""), "{taken:?}");
    let ack = taken.err.split("when done: ").nth(1).expect("the ack is shown").trim().to_owned();
    assert!(taken.err.contains("90 s") && ack.contains("ack 'my mail' 0:"), "{taken:?}");
    let mut shell = std::process::Command::new("sh");
    let pasted =
        shell.args(["-c", &ack]).env("TASKYARD_URL", &server.serving.url).output().unwrap();
    assert!(pasted.status.success(), "{pasted:?}");
}

#[test]
fn data_is_json_text_or_a_file() {
    let server = TestServer::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letter");
    fs::write(&file, "dear ann\n").unwrap();
    let binary = folder.path().join("binary");
    fs::write(&binary, [0xff, 0x00]).unwrap();
    let (file, binary) = (format!("@{}", file.display()), format!("@{}", binary.display()));
    let put = ["put", "mail", "17", "{broken", &file, &binary, "-5", "null"];
    assert_eq!(server.run(&put).good(), "0\n1\n2\n3\n4\n5\n");
    let piped = server.serving.run_with(&["put", "mail", "-"], "[1, 2]\n");
    assert_eq!(piped.good(), "6\n");
    let data: Vec<_> = server.run(&["take", "mail", "--count", "10", "--json"]).json();
    let data: Vec<_> = data.iter().map(|task| task["data"].clone()).collect();
    let expected = json!([17, "{broken", "dear ann", null, -5, null, [1, 2]]);
    assert_eq!(json!(data), expected);
    let peeked = server.run(&["peek", "mail", "3", "5", "--json"]).json();
    assert_eq!(peeked[0]["data_base64"], "xAL/AA==");
    assert!(peeked[1].get("data").is_some_and(|data| data.is_null()));
}

#[test]
fn options_of_a_put_are_stored() {
    let server = TestServer::new();
    let put = [
        "put",
        "mail",
        "x",
        "--pri",
        "3",
        "--ttl",
        "1h",
        "--ttr",
        "90s",
        "--at",
        "2100-01-01T00:00:00Z",
        "--meta",
        r#"{"trace": 7}"#,
        "--json",
    ];
    assert_eq!(server.run(&put).json(), [json!({"id": 0, "state": "delayed"})]);
    let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!(task["pri"], 3);
    assert_eq!(task["ttr"], 90.0);
    assert_eq!(task["due"], 4_102_444_800.0);
    assert_eq!(task["meta"], json!({"trace": 7}));
    assert_eq!(task["reason"]["name"], "not_due");
    let shown = server.run(&["peek", "mail", "0"]).good();
    assert!(shown.contains("; due in ") && shown.contains("(2100-01-01T00:00:00Z)"), "{shown}");
    server.run(&["put", "mail", "x", "--meta", "7"]).ends(2);
    server.run(&["put", "mail", "x", "--ttl", "soon"]).ends(2);
    server.run(&["put", "mail", "x", "--delay", "5s", "--at", "2100-01-01"]).ends(2);
}

#[test]
fn lines_become_tasks() {
    let server = TestServer::new();
    let lines: String = (0..2500).map(|n| format!("{n}\n\n")).collect();
    let put = server.serving.run_with(&["put", "numbers", "--lines"], &lines).ends(0);
    assert_eq!(put.out.lines().count(), 2500);
    assert!(put.err.contains("2500 tasks"), "{}", put.err);
    let taken = server.run(&["take", "numbers", "--count", "3000", "--json"]).json();
    assert!(taken.iter().enumerate().all(|(n, task)| task["data"] == n), "in their order");
    assert_eq!(taken.len(), 2500);
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    for args in [vec!["stats"], vec!["take", "mail"], vec!["completions", "bash"], vec!["--help"]] {
        let mut command = binary();
        command.args(&args).env("TASKYARD_URL", &server.serving.url);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let mut complaint = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert!(child.wait().unwrap().success(), "{args:?}: {complaint}");
        assert!(!complaint.contains("panicked"), "{args:?}: {complaint}");
    }
}

#[test]
fn release_bury_kick_touch_and_delete_work() {
    let server = TestServer::new();
    server.run(&["put", "mail", "a", "b", "c"]).good();
    let lease = server.run(&["take", "mail", "--json"]).json()[0]["lease"].to_string();
    let name = format!("0:{lease}");
    let shown = server.run(&["peek", "mail", "0"]).good();
    assert!(shown.contains("runs now; its lease ends in "), "{shown}");
    assert_eq!(server.run(&["touch", "mail", &name, "--by", "5m"]).good(), "touched 0\n");
    assert_eq!(server.run(&["release", "mail", &name, "--delay", "1h"]).good(), "released 0\n");
    assert_eq!(server.run(&["bury", "mail", "0", "1"]).good(), "buried 0\nburied 1\n");
    assert_eq!(server.run(&["kick", "mail"]).good(), "kicked 1\n");
    assert_eq!(server.run(&["kick", "mail", "--all", "--json"]).json(), [json!({"kicked": 1})]);
    let deleted = server.run(&["delete", "mail", "1", "9", "--json"]).ends(4).json();
    let expected = [json!({"id": 1, "outcome": "done"}), json!({"id": 9, "outcome": "missing"})];
    assert_eq!(deleted, expected);
    let peeked = server.run(&["peek", "mail", "2", "9"]).ends(4);
    assert!(peeked.out.contains("waits for a consumer"), "{peeked:?}");
}

// Invalid JSON was stored as text without a hint.
#[test]
fn invalid_json_gets_a_hint() {
    let server = TestServer::new();
    let put = server.run(&["put", "mail", r#"{"to": ann}"#]).ends(0);
    assert!(
        put.err.contains("looks like JSON but is not") && put.err.contains("--as text"),
        "{put:?}"
    );
    assert_eq!(put.out, "0\n");
    let refused = server.run(&["put", "mail", r#"{"to": ann}"#, "--as", "json"]).ends(2);
    assert!(refused.err.contains("is not JSON"), "{refused:?}");
    assert_eq!(server.run(&["put", "mail", "[draft]", "--as", "text"]).ends(0).err, "");
    assert_eq!(server.run(&["put", "mail", "17", "--as", "text"]).ends(0).err, "");
    let lines = server.serving.run_with(&["put", "mail", "--lines"], "[a\n[b\n").ends(0);
    assert_eq!(lines.err.matches("looks like JSON").count(), 1, "{lines:?}");
    let data = server.run(&["take", "mail", "--count", "9", "--json"]).json();
    let data: Vec<_> = data.iter().map(|task| task["data"].clone()).collect();
    assert_eq!(json!(data), json!([r#"{"to": ann}"#, "[draft]", "17", "[a", "[b"]));
}

// A paused tube was reported as empty.
#[test]
fn a_take_from_a_paused_tube_says_that_it_is_paused() {
    let server = TestServer::new();
    server.run(&["put", "my mail", "x"]).good();
    server.run(&["tube", "pause", "my mail"]).good();
    let taken = server.run(&["take", "my mail"]).ends(3);
    assert!(
        taken.err.contains("is paused, 1 ready") && taken.err.contains("tube resume 'my mail'"),
        "{taken:?}"
    );
    server.run(&["tube", "resume", "my mail"]).good();
    server.run(&["take", "my mail"]).ends(0);
    assert!(server.run(&["take", "my mail"]).ends(3).err.contains("nothing to take"));
}

// --pri -1 was reported as an invalid digit, and a date was refused.
#[test]
fn invalid_numbers_and_times_print_the_valid_forms() {
    let server = TestServer::new();
    for args in [&["put", "mail", "x", "--pri", "-1"][..], &["tube", "create", "x", "--pri", "-1"]]
    {
        let wrong = server.run(args).ends(2);
        assert!(wrong.err.contains("a whole number from 0 to 18446744073709551615"), "{wrong:?}");
    }
    server.run(&["put", "mail", "x", "--at", "2100-01-01"]).good();
    let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!(task["due"], 4_102_444_800.0, "midnight in UTC");
    let wrong = server.run(&["put", "mail", "x", "--at", "2100-01-01T08:00:00"]).ends(2);
    assert!(wrong.err.contains("with its zone such as 2030-01-31T08:00:00Z"), "{wrong:?}");
}

// The attempts of kicked tasks were not documented: after --all the next failure buried each again.
#[test]
fn a_kicked_task_keeps_its_attempts() {
    let server = TestServer::new();
    server.run(&["tube", "create", "mail", "--attempts-max", "1"]).good();
    server.run(&["put", "mail", "x"]).good();
    for attempts in 1..3 {
        server.run(&["take", "mail"]).ends(0);
        server.run(&["release", "mail", "0"]).good();
        let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
        assert_eq!((&task["state"], &task["attempts"]), (&json!("buried"), &json!(attempts)));
        assert_eq!(server.run(&["kick", "mail", "--all"]).good(), "kicked 1\n");
    }
    let help = server.run(&["kick", "--help"]).good();
    assert!(help.contains("A kicked task keeps its attempts"), "{help}");
}

/// There was no way to find a buried task without guessing its id.
#[test]
fn tasks_are_found_by_state_and_payload() {
    let server = TestServer::new();
    server.run(&["put", "mail", r#"{"to": "ann"}"#, r#"{"to": "bob"}"#, r#"{"to": "cyd"}"#]).good();
    server.run(&["bury", "mail", "1"]).good();
    let shown = server.run(&["tasks", "mail", "--state", "buried"]).good();
    assert!(shown.contains("bob") && shown.contains("buried") && !shown.contains("ann"), "{shown}");
    let found = server.run(&["tasks", "mail", "--match", "cyd", "--json"]).json();
    assert_eq!((found.len(), &found[0]["id"]), (1, &json!(2)));
    let first = server.run(&["tasks", "mail", "--limit", "2"]).ends(0);
    assert!(first.err.contains("add --after 1"), "{first:?}");
    let rest = server.run(&["tasks", "mail", "--after", "1", "--json"]).json();
    assert_eq!((rest.len(), &rest[0]["id"]), (1, &json!(2)));
    let queue = server.run(&["tasks", "mail", "--order", "queue", "--json"]).json();
    assert_eq!(queue.iter().map(|task| &task["id"]).collect::<Vec<_>>(), [0, 2]);
    let next = server.run(&["peek", "mail"]).good();
    assert!(next.contains("ann") && next.contains("cyd") && !next.contains("bob"), "{next}");
    server.run(&["tasks", "nowhere"]).ends(4);
}

#[test]
fn everything_about_a_task_is_shown() {
    let server = TestServer::new();
    server.run(&["put", "mail", r#"{"to": "ann"}"#, "--pri", "5"]).good();
    let shown = server.run(&["task", "mail", "0"]).good();
    for part in [
        "ready",
        "priority      5",
        "position      1",
        "attempts      0",
        r#"{"to":"ann"}"#,
        "created",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(server.run(&["task", "mail", "0", "--json"]).json()[0]["pri"], 5);
    server.run(&["put", "mail", "urgent", "--pri", "1"]).good();
    assert_eq!(server.run(&["task", "mail", "0", "--json"]).json()[0]["position"], 2);
    server.run(&["bury", "mail", "0"]).good();
    assert!(!server.run(&["task", "mail", "0"]).good().contains("position"));
    server.run(&["task", "mail", "9"]).ends(4);
}

#[test]
fn estimates_are_shown_where_they_are_asked_for() {
    let server = TestServer::new();
    let reason = "? (no consumer takes tasks of this tube)";
    let put = server.run(&["put", "mail", "a", "b", "--estimate"]).good();
    assert_eq!(put, format!("0\t{reason}\n1\t{reason}\n"));
    let put = server.run(&["put", "mail", "c", "--estimate", "--json"]).json();
    assert_eq!(
        (&put[0]["ahead"], &put[0]["no_estimate"]["name"]),
        (&json!(2), &json!("no_consumer"))
    );
    let lines =
        server.serving.run_with(&["put", "mail", "--lines", "--estimate"], &"x\n".repeat(250));
    assert_eq!(lines.good().lines().filter(|line| line.ends_with(reason)).count(), 250);
    for shown in [&["task", "mail", "1"][..], &["peek", "mail", "1", "--estimate"]] {
        assert!(server.run(shown).good().contains(reason), "{shown:?}");
    }
    assert!(server.run(&["task", "mail", "1"]).good().contains("starts in"));
    let listed = server.run(&["tasks", "mail", "--limit", "1", "--estimate"]).good();
    assert!(listed.contains("STARTS IN") && listed.contains(reason), "{listed}");
    for plain in [&["tasks", "mail"][..], &["peek", "mail", "1"], &["put", "mail", "d"]] {
        assert!(!server.run(plain).good().contains(reason), "{plain:?}");
    }
    for shown in
        [&["tasks", "mail", "--estimate", "--json"][..], &["peek", "mail", "--estimate", "--json"]]
    {
        assert_eq!(server.run(shown).json()[1]["ahead"], 1, "{shown:?}");
    }
    assert_eq!(server.run(&["task", "mail", "1", "--json"]).json()[0]["ahead"], 1);
    let many: Vec<String> = (0..101).map(|id| id.to_string()).collect();
    let mut peek = vec!["peek", "mail", "--estimate"];
    peek.extend(many.iter().map(String::as_str));
    assert!(server.run(&peek).ends(1).err.contains("at most 100 tasks"));
}

/// The first task teaches how long tasks run, the second one runs, and the third has an estimate that is compared at its start.
#[test]
fn stats_show_when_a_tube_is_empty_and_how_many_estimates_held() {
    let server = TestServer::new();
    server.run(&["put", "mail", "a", "b", "c"]).good();
    assert!(server.run(&["stats"]).good().contains("? (no consumer takes tasks of this tube)"));
    server.run(&["take", "mail"]).ends(0);
    server.run(&["ack", "mail", "0"]).good();
    server.run(&["take", "mail"]).ends(0);
    // A delivery counts from the end of its second on.
    while !server.run(&["task", "mail", "2"]).good().contains("(90 %: ") {}
    let stats = server.run(&["stats"]).good();
    assert!(stats.contains("DRAINS IN") && stats.contains("(90 %: "), "{stats}");
    server.run(&["ack", "mail", "1"]).good();
    server.run(&["take", "mail"]).ends(0);
    let stats = server.run(&["stats", "mail"]).good();
    assert!(
        stats.contains("mail: p90 held for ") && stats.contains(" % of 1 estimate\n"),
        "{stats}"
    );
    let stats = server.run(&["stats", "--json"]).json();
    assert_eq!(stats[0]["estimates"]["checked"], 1);
    assert!(stats[0].get("drain").or(stats[0].get("no_drain")).is_some(), "{stats:?}");
}

#[test]
fn a_failure_is_shown_and_the_task_is_retried() {
    let server = TestServer::new();
    server.run(&["tube", "create", "mail", "--attempts-max", "1"]).good();
    server.run(&["put", "mail", "one"]).good();
    server.run(&["put", "mail", "two"]).good();
    for id in ["0", "1"] {
        server.run(&["take", "mail", "--worker", "web1:7:mailer"]).good();
        let error = if id == "0" { "no route to host" } else { "timeout" };
        assert_eq!(
            server.run(&["fail", "mail", id, "--error", error]).good(),
            format!("failed {id}\n")
        );
    }
    let shown = server.run(&["task", "mail", "0"]).good();
    let failed = shown.lines().find(|line| line.starts_with("failed")).expect("a failure");
    assert!(failed.contains("attempt 1") && failed.contains("by web1:7:mailer"), "{failed}");
    assert!(failed.ends_with(": no route to host"), "{failed}");
    let listed = server.run(&["tasks", "mail", "--error-match", "timeout", "--json"]).json();
    assert_eq!((listed.len(), &listed[0]["id"]), (1, &json!(1)));
    let dry = server.run(&["retry", "mail", "--error-match", "timeout", "--dry-run"]).good();
    assert_eq!(dry, "1 task would be kicked\n");
    let retried =
        server.run(&["retry", "mail", "--error-match", "timeout", "--reset-attempts"]).good();
    assert_eq!(retried, "kicked 1 task\n");
    assert_eq!(server.run(&["peek", "mail", "1", "--json"]).json()[0]["attempts"], 0);
    assert_eq!(server.run(&["retry", "mail", "0"]).good(), "kicked 0\n");
    let again = server.run(&["retry", "mail", "0"]).ends(5);
    assert!(again.err.contains("task 0 of mail is not buried"), "{again:?}");
    server.run(&["retry", "mail"]).ends(2);
    server.run(&["retry", "mail", "0", "--error-match", "x"]).ends(2);
}

#[test]
fn chosen_tasks_are_deleted_after_a_confirmation() {
    let server = TestServer::new();
    server.run(&["put", "mail", "ann", "bob", "ann"]).good();
    let asked = server.run(&["delete", "mail", "--match", "ann"]).ends(2);
    assert!(asked.err.contains("--yes"), "{asked:?}");
    let deleted = server.run(&["delete", "mail", "--match", "ann", "--yes", "--json"]).json();
    assert_eq!(deleted, [json!({ "matched": 2, "changed": 2, "scanned": 3 })]);
    assert_eq!(server.run(&["tasks", "mail", "--json"]).json().len(), 1);
}

#[test]
fn chosen_tasks_are_buried_and_released() {
    let server = TestServer::new();
    server.run(&["put", "mail", "ann", "bob", "ann"]).good();
    let bury = ["bury", "mail", "--match", "ann", "--error", "bounced"];
    let counted = server.run(&[&bury[..], &["--dry-run"]].concat()).good();
    assert_eq!(counted, "2 tasks would be buried\n");
    assert_eq!(server.run(&bury).good(), "buried 2 tasks\n");
    assert_eq!(
        server.run(&["tasks", "mail", "--error-match", "bounced", "--json"]).json().len(),
        2
    );
    server.run(&["take", "mail", "--worker", "w1"]).good();
    let released = server.run(&["release", "mail", "--worker", "w1", "--json"]).json();
    assert_eq!(released, [json!({ "matched": 1, "changed": 1, "scanned": 1 })]);
    server.run(&["release", "mail"]).ends(2);
    server.run(&["bury", "mail", "1", "--match", "x"]).ends(2);
    server.run(&["release", "mail", "--worker", "w1", "--uncounted"]).ends(2);
}

/// The example in docs/tubes.md.
#[test]
fn done_tasks_are_kept_with_their_results() {
    let server = TestServer::new();
    server.run(&["tube", "create", "reports", "--keep-done", "2d"]).good();
    let shown = server.run(&["tube", "show", "reports"]).good();
    assert!(shown.contains("keep-done") && shown.contains("172800s"), "{shown}");
    server.run(&["put", "reports", r#"{"month": "2026-10"}"#]).good();
    server.run(&["take", "reports", "--worker", "me"]).ends(0);
    server.run(&["ack", "reports", "0", "--result", r#"{"pages": 12}"#]).good();
    let none = server.run(&["tasks", "reports"]).ends(0);
    assert!(none.err.contains("no such task"), "{none:?}");
    let list = server.run(&["tasks", "reports", "--state", "done"]).good();
    assert!(list.contains("done") && list.contains("me"), "{list}");
    let task = server.run(&["task", "reports", "0"]).good();
    for part in [
        "state         done",
        "worker        me",
        r#"result        {"pages":12}"#,
        "finished",
        "ran",
    ] {
        assert!(task.contains(part), "{part}: {task}");
    }
    assert!(!task.contains("expires"), "{task}");
    let json = &server.run(&["task", "reports", "0", "--json"]).json()[0];
    assert_eq!((&json["result"], &json["worker"]), (&json!({"pages": 12}), &json!("me")));
    server.run(&["tube", "alter", "reports", "--keep-done", "none"]).good();
    server.run(&["task", "reports", "0"]).ends(4);
}

#[test]
fn a_key_is_put_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Serving::start(binary().current_dir(folder.path()).args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--iproto",
        "127.0.0.1:0",
        "--store",
        "memory:",
    ]));
    let put = |data: &str, more: &[&str]| {
        let args = [&["put", "mail", data, "--key", "report: 1"], more].concat();
        server.run(&args).ends(0)
    };
    let first = put("1", &["--unique-for", "1h", "--delay", "1h"]);
    assert_eq!((&*first.out, &*first.err), ("0\n", ""));
    let kept = put("2", &[]);
    assert_eq!(kept.out, "0\n");
    assert!(kept.err.contains("task 0 (delayed) has this key; nothing was added"), "{kept:?}");
    let replaced = put("3", &["--replace", "--unique-for", "1h"]);
    assert_eq!(replaced.out, "0\n");
    assert!(replaced.err.contains("task 0 has this key and was replaced"), "{replaced:?}");
    server.run(&["put", "mail", "other"]).good();
    let listed = server.run(&["tasks", "mail", "--key", "report: 1", "--json"]).json();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["data"], &listed[0]["key"]), (&json!(3), &json!("report: 1")));
    let shown = server.run(&["task", "mail", "0"]).good();
    assert!(shown.contains("key           report: 1\n"), "{shown}");
    assert!(!server.run(&["task", "mail", "1"]).good().contains("\nkey "));
    server.run(&["delete", "mail", "--key", "report: 1", "--yes"]).good();
    let json = put("4", &["--json"]);
    assert_eq!(json.out, "{\"id\":0,\"state\":\"done\",\"existing\":true}\n");
    assert!(json.err.contains("task 0 had this key and has ended"), "{json:?}");
    for wrong in [
        vec!["put", "mail", "a", "b", "--key", "k"],
        vec!["put", "mail", "--lines", "--key", "k"],
        vec!["put", "mail", "a", "--key", ""],
        vec!["put", "mail", "a", "--unique-for", "1h"],
        vec!["put", "mail", "a", "--replace"],
        vec!["put", "mail", "a", "--key", "k", "--unique-for", "8d"],
        vec!["tasks", "mail", "--key", "k", "--order", "queue"],
        vec!["delete", "mail", "--key", "", "--yes"],
    ] {
        server.run(&wrong).ends(2);
    }
}

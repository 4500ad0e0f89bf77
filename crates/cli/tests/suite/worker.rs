//! `worker`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use taskyard_testkit::certificates::Authority;

use crate::process::{Running, Serving, TestServer, binary, run};

#[test]
fn it_prints_and_acks() {
    let server = TestServer::new();
    server.run(&["put", "mail", "hello", r#"{"to": "ann"}"#]).good();
    let printed = server.run(&["worker", "mail", "--drain"]).good();
    assert_eq!(printed, "0 \"hello\"\n1 {\"to\":\"ann\"}\n");
    assert_eq!(server.run(&["stats", "--json"]).json()[0]["calls"]["ack"], 2);
}

#[test]
fn it_runs_a_command_for_each_task() {
    let server = TestServer::new();
    server.run(&["put", "mail", "hello", r#"{"to": "ann"}"#]).good();
    let exec = r#"echo "$TASKYARD_TUBE $TASKYARD_ID $(cat)""#;
    let printed = server.run(&["worker", "mail", "--drain", "--exec", exec]).good();
    assert_eq!(printed, "mail 0 hello\nmail 1 {\"to\":\"ann\"}\n");
}

#[test]
fn a_failed_command_fails_the_task() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let ran =
        server.run(&["worker", "mail", "--drain", "--retry", "1h", "--exec", "exit 3"]).ends(0);
    assert!(ran.err.contains("exit status: 3; will be tried again"), "{}", ran.err);
    let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!(task["error"], "exit status: 3");
    let worker = task["failures"][0]["worker"].as_str().expect("the name of the worker");
    assert!(worker.ends_with(":taskyard"), "{worker}");
    assert_eq!((&task["state"], &task["attempts"]), (&"delayed".into(), &1.into()));
}

// Only the exit status was kept: to see why a command failed, its output had to be found in the log of the worker.
#[test]
fn the_last_errors_of_a_command_are_kept() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let exec = "echo first >&2; echo no route to host >&2; exit 3";
    let flags = ["worker", "mail", "--drain", "--retry", "1h", "--exec", exec];
    let ran = server.run(&flags).ends(0);
    assert!(ran.err.starts_with("first\nno route to host\n"), "it is passed on: {}", ran.err);
    let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!(task["error"], "exit status: 3: first\nno route to host");
}

#[test]
fn the_output_of_a_command_is_kept_as_its_result() {
    let server = TestServer::new();
    server.run(&["tube", "create", "mail", "--keep-done", "1h"]).good();
    server.run(&["put", "mail", "ann", "bob", "eve"]).good();
    let exec = r#"to=$(cat); case $to in ann) echo '{"sent": 1}';; bob) echo "sent to $to";; esac"#;
    let flags = ["worker", "mail", "--drain", "--keep-output", "--exec", exec];
    assert_eq!(server.run(&flags).good(), "{\"sent\": 1}\nsent to bob\n", "it is passed on");
    let tasks = server.run(&["peek", "mail", "0", "1", "2", "--json"]).json();
    let results: Vec<_> = tasks.iter().map(|task| task["result"].clone()).collect();
    assert_eq!(results, [json!({"sent": 1}), json!("sent to bob"), json!("")]);
    // As JSON this number cannot be stored, and the list is too large: the texts are kept instead.
    server.run(&["put", "mail", "big", "long"]).good();
    let exec = r#"case $(cat) in big) echo 99999999999999999999999;; long) echo "[0.1$(printf ',0.1%.0s' $(seq 12000))]";; esac"#;
    server.run(&["worker", "mail", "--drain", "--keep-output", "--exec", exec]).good();
    let tasks = server.run(&["peek", "mail", "3", "4", "--json"]).json();
    assert_eq!(tasks[0]["result"], "99999999999999999999999");
    assert!(
        tasks[1]["result"].as_str().is_some_and(|text| text.starts_with("[0.1,0.1")),
        "{tasks:?}"
    );
    let refused = server.run(&["worker", "mail", "--drain", "--keep-output"]).ends(2);
    assert!(refused.err.contains("--exec"), "{}", refused.err);
}

// The program after -- did not run, and the tasks were acked: the parser accepts it together with a tube.
#[test]
fn a_program_without_a_contract_is_refused() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let ran = server.run(&["worker", "mail", "--drain", "--", "true"]).ends(2);
    assert!(ran.err.contains("--contract FILE") && ran.err.contains("--exec"), "{}", ran.err);
    assert_eq!(server.run(&["peek", "mail", "0", "--json"]).json()[0]["state"], "ready");
}

/// A worker on the tube `mail` of this server.
fn worker(serving: &Serving, flags: &[&str]) -> Running {
    let mut command = binary();
    command.args(["worker", "mail"]).args(flags).env("TASKYARD_URL", &serving.url);
    Running::start(&mut command)
}

/// A named pipe: a reader waits until it is opened for writing.
fn gate(folder: &Path) -> PathBuf {
    let gate = folder.join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    gate
}

fn open(gate: &Path) {
    fs::write(gate, "go\n").unwrap();
}

// A Ctrl-C killed the shell at once and returned the task, while the children of the shell kept
// running. The first signal now lets the command finish.
#[test]
fn the_first_signal_lets_the_command_finish() {
    for signal in ["INT", "TERM", "HUP"] {
        let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
        let gate = gate(folder.path());
        server.run(&["put", "mail", "a", "b"]).good();
        let exec = format!("echo started; cat {}", gate.display());
        let mut worker = worker(&server.serving, &["--exec", &exec]);
        assert_eq!(worker.line(), "started\n");
        worker.signal(signal);
        assert!(worker.error_line().contains("stopping when task 0 is done"));
        open(&gate);
        assert_eq!(worker.ended().ends(0).out, "go\n", "and nothing else was started");
        let tube = &server.run(&["stats", "--json"]).json()[0];
        assert_eq!((&tube["calls"]["ack"], &tube["tasks"]["ready"]), (&json!(1), &json!(1)));
    }
}

// Only the shell was killed, and its child kept running with a task that another worker had.
#[test]
fn the_second_signal_kills_the_command_and_returns_the_task() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let gate = gate(folder.path());
    server.run(&["put", "mail", "a"]).good();
    let exec = format!("echo started; (cat {0}; cat {0}) & wait", gate.display());
    let mut worker = worker(&server.serving, &["--exec", &exec]);
    assert_eq!(worker.line(), "started\n");
    worker.signal("INT");
    assert!(worker.error_line().contains("again to kill its command"));
    worker.signal("TERM");
    // This waits for all processes that have the output open, not only for the worker.
    let ran = worker.ended().ends(0);
    assert!(ran.out.is_empty() && ran.err.contains("killed and returned"), "{ran:?}");
    let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!((&task["state"], &task["attempts"]), (&json!("ready"), &json!(0)));
}

#[test]
fn a_signal_ends_a_waiting_worker() {
    let server = TestServer::new();
    server.run(&["put", "mail", "a"]).good();
    let mut worker = worker(&server.serving, &[]);
    assert_eq!(worker.line(), "0 \"a\"\n");
    worker.signal("TERM");
    worker.ended().ends(0);
}

// A worker ended with its server and had to be started again by hand.
#[test]
fn it_waits_for_an_unreachable_server() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::folder(folder.path(), &[]);
    serving.run(&["put", "mail", "before"]).good();
    let mut worker = worker(&serving, &[]);
    assert_eq!(worker.line(), "0 \"before\"\n");
    // The worker prints before it acks: stopped in between, the server would deliver the task again.
    while serving.run(&["stats", "--json"]).json()[0]["tasks"]["total"] != 0 {}
    let address = serving.url.trim_start_matches("http://").to_owned();
    serving.signal("TERM");
    serving.ended();
    assert!(worker.error_line().contains("retrying until the server answers"));
    let mut again = binary();
    again.args(["serve", "--iproto", "off", "--http", &address, "--data"]).arg(folder.path());
    let serving = Serving::start(&mut again);
    serving.run(&["put", "mail", "after"]).good();
    assert_eq!(worker.line(), "1 \"after\"\n");
    assert!(worker.error_line().ends_with("answers again\n"));
    worker.signal("TERM");
    assert_eq!(worker.ended().ends(0).err, "", "it is said once");
}

/// A stopped worker dropped its pending take, and in one stop of twenty the task that it
/// delivered stayed taken for the whole lease.
#[test]
fn no_task_stays_taken_after_a_stop() {
    let server = TestServer::new();
    for round in 0..10 {
        server.run(&["put", "mail", "a", "b", "c", "d"]).good();
        let mut worker = worker(&server.serving, &[]);
        worker.line();
        worker.signal("TERM");
        worker.ended().ends(0);
        assert_eq!(
            server.run(&["stats", "--json"]).json()[0]["tasks"]["taken"],
            0,
            "round {round}"
        );
    }
}

#[test]
fn a_drain_does_not_wait_for_a_server_that_never_answered() {
    let ran = run(&["worker", "mail", "--drain", "--url", "http://127.0.0.1:1"]).ends(7);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
}

#[test]
fn the_lease_of_a_long_command_is_extended() {
    for kind in ["fifottl", "fifo"] {
        let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
        let gate = gate(folder.path());
        server.run(&["tube", "create", "mail", "--kind", kind]).good();
        server.run(&["put", "mail", "a"]).good();
        let exec = format!("echo started; cat {}", gate.display());
        let mut worker = worker(&server.serving, &["--exec", &exec, "--lease", "3s", "--drain"]);
        assert_eq!(worker.line(), "started\n");
        let until = || {
            let held = server.run(&["tube", "deliveries", "mail", "--json"]).json();
            held[0]["until"].as_f64().unwrap()
        };
        let first = until();
        while until() <= first {}
        open(&gate);
        worker.ended().ends(0);
        assert_eq!(server.run(&["stats", "--json"]).json()[0]["calls"]["ack"], 1);
    }
}

// A hanging command kept its task for ever: the lease was extended without limit.
#[test]
fn a_command_is_killed_after_run_max() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let gate = gate(folder.path());
    server.run(&["put", "mail", "a"]).good();
    let exec = format!("echo started; (cat {0}; cat {0}) & wait", gate.display());
    let flags = ["--exec", &exec, "--lease", "1s", "--run-max", "2s", "--retry", "1h", "--drain"];
    let ran = worker(&server.serving, &flags).ended().ends(0);
    assert_eq!(ran.out, "started\n");
    assert!(
        ran.err.contains("task 0: ran longer than 2 s (--run-max); killed, will be tried again"),
        "{ran:?}"
    );
    let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!((&task["state"], &task["attempts"]), (&json!("delayed"), &json!(1)));
    server.run(&["worker", "mail", "--run-max", "0"]).ends(2);
}

/// The response to a request for this path.
pub fn fetch(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The address of the metrics that a worker has printed.
pub fn metrics_address(line: &str) -> String {
    let address =
        line.strip_prefix("metrics: http://").and_then(|rest| rest.strip_suffix("/metrics\n"));
    address.unwrap_or_else(|| panic!("{line}")).to_owned()
}

// The worker of the command line had no metrics.
#[test]
fn it_serves_its_metrics() {
    let server = TestServer::new();
    server.run(&["put", "mail", "a", "b"]).good();
    server.run(&["put", "mail", "late", "--delay", "1h"]).good();
    let mut worker = worker(&server.serving, &["--metrics", "127.0.0.1:0"]);
    let address = metrics_address(&worker.error_line());
    let shows = |line: &str| fetch(&address, "/metrics").lines().any(|found| found == line);
    while !shows("queue_tasks_processed_total{tube=\"mail\"} 2") {}
    assert!(shows("queue_tasks_delayed{tube=\"mail\"} 1"), "as the server says");
    assert!(shows("queue_running_workers 1") && shows("queue_tasks_in_progress{tube=\"mail\"} 0"));
    assert!(fetch(&address, "/").starts_with("HTTP/1.1 404 "));
    worker.signal("TERM");
    worker.ended().ends(0);
    let refused = server.run(&["worker", "mail", "--metrics", "0.0.0.0:0"]).ends(2);
    assert!(refused.err.contains("--insecure"), "{refused:?}");
}

// The help listed --lease, --retry and --drain under the options of a contract, which refuses two of them.
#[test]
fn help_groups_the_options() {
    let help = run(&["worker", "--help"]).good();
    let group = |option: &str| {
        let before = &help[..help.find(&format!("      {option}")).expect(option)];
        before.lines().rev().find(|line| line.ends_with(':') && !line.starts_with(' ')).unwrap()
    };
    for (heading, options) in [
        ("Options:", &["--lease", "--run-max", "--metrics"][..]),
        ("With a tube:", &["--exec", "--concurrency", "--retry", "--drain"]),
        ("With a contract:", &["--contract", "--processors", "--config", "--unmanaged", "--name"]),
        ("Server:", &["--url", "--token"]),
    ] {
        for option in options {
            assert_eq!(group(option), heading, "{option}\n{help}");
        }
    }
    assert!(help.contains("taskyard worker [OPTIONS] <TUBE> [--exec <CMD>]\n"), "{help}");
    assert!(
        help.contains("taskyard worker [OPTIONS] --contract <FILE> -- <PROGRAM>...\n"),
        "{help}"
    );
    run(&["worker", "--contract", "queues.yaml", "--concurrency", "2", "--", "cat"]).ends(2);
}

// The worker ran one command at a time, and a slow one held up all others.
#[test]
fn several_commands_run_at_the_same_time() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let gate = gate(folder.path());
    server.run(&["put", "mail", "a", "b", "c", "d"]).good();
    // Open for both, so that neither side waits for the other. Each line ends one command.
    let mut lines = fs::OpenOptions::new().read(true).write(true).open(&gate).unwrap();
    let exec = format!("echo started; read line < {}", gate.display());
    let mut worker = worker(&server.serving, &["--exec", &exec, "--concurrency", "3", "--drain"]);
    for _ in 0..3 {
        assert_eq!(worker.line(), "started\n");
    }
    let tasks = &server.run(&["stats", "--json"]).json()[0]["tasks"];
    assert_eq!((&tasks["taken"], &tasks["ready"]), (&json!(3), &json!(1)), "not one more");
    lines.write_all(b"\n").unwrap();
    assert_eq!(worker.line(), "started\n");
    lines.write_all(b"\n\n\n").unwrap();
    worker.ended().ends(0);
    assert_eq!(server.run(&["stats", "--json"]).json()[0]["calls"]["ack"], 4);
    server.run(&["worker", "mail", "--concurrency", "0"]).ends(2);
}

// With several commands the second signal kills all of them.
#[test]
fn the_second_signal_kills_all_commands() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let gate = gate(folder.path());
    server.run(&["put", "mail", "a", "b"]).good();
    let exec = format!("echo started; cat {}", gate.display());
    let mut worker = worker(&server.serving, &["--exec", &exec, "--concurrency", "2"]);
    assert_eq!([worker.line(), worker.line()], ["started\n", "started\n"]);
    worker.signal("TERM");
    for _ in 0..2 {
        assert!(worker.error_line().contains("press Ctrl-C again to kill its command"));
    }
    worker.signal("TERM");
    let ran = worker.ended().ends(0);
    assert_eq!(ran.err.matches("killed and returned").count(), 2, "{ran:?}");
    let tasks = &server.run(&["stats", "--json"]).json()[0]["tasks"];
    assert_eq!((&tasks["ready"], &tasks["taken"]), (&json!(2), &json!(0)));
}

// The worker ended when a command could not be started, and its task stayed taken until its lease ended.
#[test]
fn a_command_that_cannot_be_started_fails_its_task() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let mut command = binary();
    command.args(["worker", "mail", "--drain", "--retry", "1h", "--exec", "true"]);
    // There is no shell in this folder.
    command.env("TASKYARD_URL", &server.serving.url).env("PATH", "/nonexistent");
    let ran = Running::start(&mut command).ended().ends(0);
    assert!(ran.err.contains("task 0: cannot start the command: "), "{ran:?}");
    let task = &server.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!((&task["state"], &task["attempts"]), (&json!("delayed"), &json!(1)));
    assert!(task["error"].as_str().unwrap().starts_with("cannot start the command: "), "{task}");
}

// Each of a thousand idle commands waited for its task with a connection of its own.
#[test]
fn one_take_waits_for_all_idle_commands() {
    let server = TestServer::new();
    server.run(&["put", "mail", "a"]).good();
    let mut worker = worker(&server.serving, &["--concurrency", "50"]);
    assert_eq!(worker.line(), "0 \"a\"\n");
    let consumers = loop {
        let tube = server.run(&["stats", "--json"]).json().remove(0);
        if tube["tasks"]["total"] == 0 && tube["consumers"] != 0 {
            break tube["consumers"].clone();
        }
    };
    assert_eq!(consumers, 1);
    worker.signal("TERM");
    worker.ended().ends(0);
}

// The command line refused https:// as if it were no URL of a server.
#[test]
fn an_encrypted_server_is_reached() {
    let server = ["stats", "--url", "https://127.0.0.1:1"];
    let mut command = binary();
    command.args(server).env("TASKYARD_CA", "/nonexistent/roots.pem");
    let ran = Running::start(&mut command).ended();
    assert!(ran.err.contains("/nonexistent/roots.pem"), "{ran:?}");
    let folder = tempfile::tempdir().unwrap();
    let roots = Authority::new(folder.path(), "ca").certificate;
    let mut command = binary();
    command.args(server).env("TASKYARD_CA", roots);
    let ran = Running::start(&mut command).ended().ends(7);
    assert!(ran.err.contains("no answer from https://127.0.0.1:1"), "{ran:?}");
}

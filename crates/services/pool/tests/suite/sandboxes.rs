//! Sandboxes that are started ahead of tasks, and their init process.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use taskyard_pool::Config;

use crate::fixture::{TestPool, connect};

const INIT: &str = env!("CARGO_BIN_EXE_taskyard-pool-sandbox-init");
const ARGUMENT: &str = "taskyard-pool-sandbox-init";

/// A pool with sandboxes; `None` where they are not possible.
async fn sandboxed(backends: u32, more: &str) -> Option<TestPool> {
    let site = TestPool::new(backends, more).await;
    site.has_bubblewrap().then_some(site)
}

fn output(answer: &Value) -> String {
    let result = if answer["ok"].is_object() { &answer["ok"] } else { &answer["error"] };
    let pieces = result["output"].as_array().unwrap();
    pieces.iter().filter_map(|piece| piece["text"].as_str()).collect()
}

/// The processes that have a folder below this one among their arguments, the init process last.
fn marked_processes(folder: &Path) -> Vec<Pid> {
    let folder = folder.to_str().unwrap();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let expected = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&expected).contains(folder).then(|| Pid::from_raw(number))?
    });
    let mut pids: Vec<Pid> = pids.collect();
    pids.sort_unstable_by_key(|pid| pid.as_raw_nonzero());
    pids
}

#[tokio::test]
async fn sandboxes_are_ready_before_the_first_task_and_after_each() {
    let Some(site) = sandboxed(2, "").await else { return };
    site.until_ready(2).await;
    assert_eq!(site.pool.backends().folders(), 0, "no task has one of their folders");
    for round in 1..=3 {
        assert_eq!(output(&site.run("pwd; ls").await), "/job\na.sh\n");
        site.until_ready(2).await;
        assert_eq!(site.pool.backends().sandboxes().used, round);
    }
    let mut session = site.connect("/pool/run/sh/interactive").await;
    session.send("start {}").await;
    session.stdin("word").await;
    session.until_output("word").await;
    assert_eq!(site.pool.backends().sandboxes().used, 4);
    assert_eq!(site.pool.backends().sandboxes().ready, 1, "the other backend is free");
    drop(session);
    site.until_empty().await;
    site.stop().await;
    assert_eq!(marked_processes(site.pool.backends().folder()), []);
}

#[tokio::test]
async fn tasks_do_not_see_each_other() {
    let Some(site) = sandboxed(1, "").await else { return };
    let leave = "echo x > left; echo x > /tmp/left; echo x > /dev/shm/left";
    for _ in 0..3 {
        site.until_ready(1).await;
        let answer = site.run(&format!("find . /tmp /dev/shm -type f; {leave}")).await;
        assert_eq!(output(&answer), "./a.sh\n");
    }
    assert_eq!(site.pool.backends().sandboxes().used, 3);
}

/// A sandbox that was started before a folder was replaced showed the old one: a task ran with deleted files.
#[tokio::test]
async fn sandboxes_that_show_replaced_paths_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    // Programs have users of their own.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), all).unwrap();
    let place = folder.path().join("data");
    let write = |text: &str| {
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("version"), text).unwrap();
    };
    write("old");
    let path = place.display();
    let config = format!(
        "backends: 1\nseed: 1\nprograms: {{sh: {{command: [/bin/cat, '{path}/version'], read: ['{path}']}}}}\n"
    );
    let site = TestPool::of(Config::parse(&config).unwrap()).await;
    if !site.has_bubblewrap() {
        return;
    }
    for text in ["old", "new", "newer"] {
        if text != "old" {
            std::fs::rename(&place, folder.path().join(format!("before {text}"))).unwrap();
            write(text);
        }
        let (_, answer) = site.post(json!({ "input": [] })).await;
        assert_eq!(output(&answer), text);
        site.until_ready(1).await;
    }
}

/// A missing command was tried in one sandbox after the other and requeued, as if another machine had it.
#[tokio::test]
async fn a_missing_program_is_tried_once() {
    let config = "backends: 1\nseed: 1\nprograms: {sh: {command: [/usr/bin/nosuch]}, odd: {command: [/etc]}}\n";
    let site = TestPool::of(Config::parse(config).unwrap()).await;
    if !site.has_bubblewrap() {
        return;
    }
    for program in ["sh", "odd"] {
        let (_, answer) = site.post_to(program, json!({ "input": [] })).await;
        let stderr = &answer["error"]["error"];
        assert_eq!(*stderr, "the program could not be started", "{answer}");
        assert!(output(&answer).starts_with("cannot start"), "{answer}");
    }
    assert_eq!(site.status().await.counts.requeued, 0);
}

#[tokio::test]
async fn sandboxes_that_died_are_replaced_unnoticed() {
    let Some(site) = sandboxed(1, "").await else { return };
    site.until_ready(1).await;
    let folder = site.pool.backends().folder().to_owned();
    // The init process, bubblewrap itself, then the folder.
    for harm in 0..3 {
        let all = loop {
            let all = marked_processes(&folder);
            if all.len() == 2 {
                break all;
            }
            tokio::task::yield_now().await;
        };
        match harm {
            0 | 1 => kill_process(all[1 - harm], Signal::KILL).unwrap(),
            _ => {
                let inner = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
                std::fs::remove_dir(inner.path()).unwrap();
            }
        }
        assert_eq!(output(&site.run("echo well").await), "well\n");
        let mut session = site.connect("/pool/run/sh/interactive").await;
        session.stdin("one ").await;
        session.send("start {}").await;
        session.stdin("two").await;
        session.until_output("one two").await;
        drop(session);
        site.until_empty().await;
        site.until_ready(1).await;
    }
    assert_eq!(site.status().await.counts.requeued, 0);
    // A session may have come before the sandbox after the first task of its round was ready.
    assert!(site.pool.backends().sandboxes().used >= 3);
}

/// Input that a session received before it started must reach the sandbox that replaces it.
#[tokio::test]
async fn a_session_whose_sandbox_died_loses_no_input() {
    let Some(site) = sandboxed(1, "").await else { return };
    for _ in 0..3 {
        site.until_ready(1).await;
        let folder = site.pool.backends().folder().to_owned();
        while marked_processes(&folder).len() < 2 {
            tokio::task::yield_now().await;
        }
        for pid in marked_processes(&folder) {
            // The other processes may have ended with the first.
            let _ = kill_process(pid, Signal::KILL);
        }
        let mut session = site.connect("/pool/run/sh/interactive").await;
        session.stdin("one ").await;
        session.send("start {}").await;
        session.stdin("two").await;
        session.until_output("one two").await;
        drop(session);
        site.until_empty().await;
    }
}

const TWO: &str = "
backends: 2
programs:
  a: {command: [/bin/sh, '{main}'], environment: {WHO: a}}
  b: {command: [/bin/sh, '{main}'], environment: {WHO: b}}
  c: {command: [/bin/sh, '{main}'], environment: {WHO: c}}
";

#[tokio::test]
async fn alternating_programs_have_their_own_sandboxes() {
    let site = TestPool::of(Config::parse(TWO).unwrap()).await;
    if !site.has_bubblewrap() {
        return;
    }
    let run = async |program: &str| {
        let file = json!({ "filename": "x", "text": "echo $WHO" });
        let answer = site.post_to(program, json!({ "input": [file] })).await.1;
        assert_eq!(output(&answer), format!("{program}\n"), "{answer}");
        site.until_empty().await;
        site.until_ready(2).await;
    };
    site.until_ready(2).await;
    run("b").await;
    assert_eq!(site.pool.backends().sandboxes().used, 0, "those for a are not for b");
    for program in ["a", "b", "a", "b"] {
        run(program).await;
    }
    assert_eq!(site.pool.backends().sandboxes().used, 4);
    run("c").await;
    run("c").await;
    assert_eq!(site.pool.backends().sandboxes().used, 5);
}

/// A halted session keeps its user id while it ends, and ready sandboxes of other programs have the rest.
#[tokio::test]
async fn ready_sandboxes_are_removed_if_a_task_needs_their_user() {
    let more = "limits: {kill_after_seconds: 1000}\nprograms:\n  \
                aside: {command: [/bin/true], environment: {WHO: aside}}\n  \
                deaf: {command: [/bin/true], interactive: [/usr/bin/perl, -e, \
                '$SIG{TERM} = \"IGNORE\"; $| = 1; print \"up\\n\"; sleep 1 while 1']}\n  \
                other: {command: [/bin/echo, well], environment: {WHO: other}}\n";
    let site = TestPool::of(Config::parse(&format!("backends: 1\nseed: 1\n{more}")).unwrap()).await;
    if !site.has_bubblewrap() {
        return;
    }
    site.until_ready(1).await;
    let mut halted = site.connect("/pool/run/deaf/interactive").await;
    halted.send("start {}").await;
    halted.until_output("up").await;
    assert_eq!(site.pool.backends().sandboxes().ready, 1, "those of the first program");
    // It ignores SIGTERM, and there are two users.
    for round in 0..3 {
        let answer = site.post_to("other", json!({ "input": [] })).await.1;
        assert_eq!(output(&answer), "well\n", "round {round}: {answer}");
        let answer = site.post_to("deaf", json!({ "input": [] })).await.1;
        assert!(answer["ok"].is_object(), "round {round}: {answer}");
    }
    assert_eq!(site.status().await.counts.halted, 1);
    assert_eq!(site.pool.backends().sandboxes().ready, 0);
    site.pool.backends().fail_backend(0).await.unwrap();
    site.until_empty().await;
}

#[tokio::test]
async fn a_program_inherits_three_streams_and_nothing_else() {
    let programs = "programs:\n  \
                    list: {command: [/bin/ls, /proc/self/fd], interactive: [/bin/ls, /proc/self/fd]}\n  \
                    input: {command: [/bin/readlink, /proc/self/fd/0]}\n  \
                    peek: {command: [/bin/ls, /proc/1/fd, /proc/1/exe]}\n";
    let site = TestPool::of(Config::parse(&format!("backends: 1\n{programs}")).unwrap()).await;
    if !site.has_bubblewrap() {
        return;
    }
    let run = async |program: &str| output(&site.post_to(program, json!({ "input": [] })).await.1);
    // The last one is the folder itself.
    let wanted = "0\n1\n2\n3\n";
    assert_eq!(run("list").await, wanted);
    let mut session = connect(&site.address, "/pool/run/list/interactive").await;
    session.send("start {}").await;
    let received: Vec<u8> = session.rest().await.into_iter().flat_map(|one| one.bytes).collect();
    assert_eq!(String::from_utf8(received).unwrap(), wanted);
    assert_eq!(run("input").await, "/dev/null\n");
    // The init process keeps its own descriptors to itself.
    let seen = run("peek").await;
    assert!(seen.contains("cannot open directory '/proc/1/fd'"), "{seen}");
    assert!(seen.contains("'/proc/1/exe': Permission denied"), "{seen}");
}

#[tokio::test]
async fn limits_are_the_same_with_and_without_sandbox() {
    let more =
        "limits: {memory_bytes_max: 1073741825, file_bytes_max: 3145729, processes_max: 50}\n";
    let mut seen = Vec::new();
    for isolation in ["", "sandbox: none"] {
        let site = TestPool::new(1, &format!("{more}{isolation}")).await;
        let mut client = site.start(r#"{"duration": 7}"#, "cat /proc/self/limits").await;
        let received = client.rest().await.into_iter().flat_map(|one| one.bytes).collect();
        let text = String::from_utf8(received).unwrap();
        // Inside a sandbox its own processes are counted too.
        let lines = text.lines().filter(|line| !line.starts_with("Max processes"));
        seen.push(lines.map(String::from).collect::<Vec<_>>());
        let root = site.pool.backends().isolation().first_uid().is_some();
        assert!(!root || text.contains("50  ") || text.contains("54  "), "{text}");
    }
    let with = seen[0].join("\n");
    for wanted in [
        "1073741825           1073741825",
        "3145729              3145729",
        "256                  256",
    ] {
        assert!(with.contains(wanted), "{wanted} is not in {with}");
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_session_receives_the_exit_of_its_program() {
    let programs = "programs:\n  \
                    kills: {command: [/bin/true], interactive: [/bin/sh, -c, 'echo up; kill -9 $$']}\n  \
                    exits: {command: [/bin/true], interactive: [/bin/sh, -c, 'echo up; exit 137']}\n  \
                    none: {command: [/bin/true], interactive: [/nowhere/at/all]}\n";
    let site = TestPool::of(Config::parse(&format!("backends: 1\n{programs}")).unwrap()).await;
    if !site.has_bubblewrap() {
        return;
    }
    for (program, expected) in [
        ("kills", "the program was killed by signal 9"),
        ("exits", "the program exited with status 137"),
        ("none", "the program could not be started"),
    ] {
        let mut session = connect(&site.address, &format!("/pool/run/{program}/interactive")).await;
        session.send("start {}").await;
        let received = session.rest().await;
        assert_eq!(received.last().unwrap().error(), expected, "{received:?}");
        site.until_empty().await;
    }
}

/// Starts the init process by hand with this standard output, and returns its exit status and its error output.
fn start_by_hand(stdout: Stdio) -> (Option<i32>, String) {
    let mut command = Command::new(INIT);
    command.arg(ARGUMENT).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_invalid_request_runs_nothing() {
    let (code, stderr) = start_by_hand(Stdio::null());
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("not by hand") && stderr.lines().count() == 1, "{stderr}");
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let touch = format!(r#"{{"command": ["/usr/bin/touch", {trace:?}]}}"#);
    let sized = [&(touch.len() as u32).to_be_bytes()[..], touch.as_bytes()].concat();
    for rubbish in [b"touch".to_vec(), b"\0\0\0\x05touch".to_vec(), touch.clone().into(), sized] {
        let (mut own, other) = UnixStream::pair().unwrap();
        own.write_all(&rubbish).unwrap();
        own.shutdown(std::net::Shutdown::Write).unwrap();
        let (code, stderr) = start_by_hand(OwnedFd::from(other).into());
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("not by hand"), "{stderr}");
    }
    assert!(!trace.exists());
    // A closed socket without a request is a normal end.
    let (_, other) = UnixStream::pair().unwrap();
    assert_eq!(start_by_hand(OwnedFd::from(other).into()), (Some(0), String::new()));
}

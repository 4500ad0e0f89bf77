//! A pool, by itself and beside a queue.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskyard_testkit::certificates::Authority;
use taskyard_testkit::skipped::skip;
use tempfile::TempDir;

use crate::process::{Serving, TOKEN, binary, run, token_file};
use crate::users::UsersFolder;

/// The programs of a pool.
pub const CONFIG: &str = "
backends: 1
programs:
  sh: {command: [/bin/sh, '{main}'], input: .sh, formats: {txt: text/plain}, result: 'r.{format}'}
";

/// Whether bubblewrap works on this machine.
static BUBBLEWRAP: LazyLock<bool> = LazyLock::new(|| {
    let mut trial = Command::new("/usr/bin/bwrap");
    trial.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"]);
    trial.status().is_ok_and(|status| status.success())
});

/// A file of a pool; without bubblewrap its programs have no sandbox.
pub fn config(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pool.yaml");
    let sandbox = if *BUBBLEWRAP { "" } else { "sandbox: none\n" };
    fs::write(&file, format!("{text}{sandbox}")).unwrap();
    (folder, file)
}

/// Runs a script in the pool over plain HTTP.
fn post(url: &str, script: &str) -> Value {
    let address = url.trim_start_matches("http://");
    let file = serde_json::json!({ "filename": "a.sh", "text": script });
    let body = serde_json::json!({ "input": [file] }).to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let size = body.len();
    write!(
        stream,
        "POST /pool/run/sh HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {size}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// What an address of the server answers, as text.
fn get(url: &str, path: &str) -> String {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// One task that holds the backend until it ends, and one that waits for it and gets an estimate.
fn run_two(url: &str) {
    let first = url.to_owned();
    // The first ends as soon as the second waits.
    let first = thread::spawn(move || post(&first, "while ! [ -e /nowhere ]; do sleep 0.05; done"));
    while !get(url, "/metrics").contains("taskyard_pool_running{class=\"fast\"} 1\n") {
        thread::yield_now();
    }
    let answer = post(url, "echo x > r.txt");
    assert_eq!(answer["ok"]["result"], "eAo=", "{answer}");
    assert_eq!(first.join().unwrap()["error"]["error"], "time limit (0.3 s)");
}

/// A default task is lowered for the next one, which waited and got an estimate.
#[test]
fn metrics_and_status_show_each_class_and_the_accuracy_of_estimates() {
    let classes = "classes: [{name: fast, seconds: 0.3, limit: 100%}, {name: slow, seconds: 30, \
                   limit: 50%}]";
    let (folder, file) = config(&format!("{CONFIG}\n{classes}\n"));
    let file = file.to_str().unwrap();
    let mut alone = binary();
    alone.args(["pool", "serve", "--http", "127.0.0.1:0", file]);
    for serving in [Serving::start(&mut alone), Serving::folder(folder.path(), &["--pool", file])] {
        run_two(&serving.url);
        let metrics = get(&serving.url, "/metrics");
        for line in [
            "taskyard_service_unhealthy{service=\"pool\"} 0",
            "# TYPE taskyard_pool_queued gauge",
            "taskyard_pool_queued{class=\"fast\"} 0",
            "taskyard_pool_running{class=\"interactive\"} 0",
            "taskyard_pool_limit{class=\"slow\"} 1",
            "taskyard_pool_admitted_total{class=\"fast\"} 2",
            "taskyard_pool_started_total{class=\"slow\"} 2",
            "taskyard_pool_lowered_total{class=\"slow\"} 1",
            "taskyard_pool_denied_total{class=\"interactive\"} 0",
            "taskyard_pool_halted_total 0",
            "taskyard_pool_estimates_given_total{class=\"fast\"} 1",
            "taskyard_pool_estimate_total{class=\"fast\",within=\"late\"} 0",
            "taskyard_pool_backends 1",
        ] {
            assert!(metrics.contains(&format!("{line}\n")), "{line} is not in {metrics}");
        }
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse::<f64>().unwrap()
        };
        assert!(value("taskyard_pool_waited_seconds_total{class=\"fast\"}") > 0.0);
        assert!(value("taskyard_pool_early_seconds_total{class=\"fast\"}") > 0.0);
        assert!(get(&serving.url, "/healthz").contains(r#""pool":"ok""#));
        let shown = serving.run(&["pool", "status"]).good();
        assert!(shown.contains("1 of 1"), "{shown}");
        assert!(shown.contains("100.0 % of 1 task with an estimate started no later"), "{shown}");
    }
}

// A pool of its own had neither a certificate nor users: its token travelled in clear text, and nothing was recorded.
#[test]
fn a_pool_by_itself_has_tls_users_and_an_audit() {
    let (_folder, file) = config(CONFIG);
    let users = UsersFolder::new();
    let [boss, reader] = [("boss", "admin"), ("reader", "read")]
        .map(|(name, role)| users.add(&[name, "--role", role]));
    let folder = users.folder.path();
    let authority = Authority::new(folder, "ca");
    let (own, audit) = (authority.issue("server"), folder.join("audit.jsonl"));
    let mut command = binary();
    command.args(["pool", "serve", "--http", "127.0.0.1:0", "--users", &users.users]).arg(&file);
    command.arg("--tls-cert").arg(&own.certificate).arg("--tls-key").arg(&own.key);
    let serving = Serving::start(command.arg("--audit").arg(&audit));
    assert!(serving.url.starts_with("https://127.0.0.1:"), "{}", serving.url);
    let pasted = format!("pool status --url {} --token-file FILE --ca ", serving.url);
    assert!(serving.screen.contains(&pasted), "{}", serving.screen);
    let ca = ["--ca", authority.certificate.to_str().unwrap()];
    let as_user = |token: &str, args: &[&str]| {
        serving.run(&[args, &ca[..], &["--token-file", token]].concat())
    };
    assert!(as_user(&boss, &["pool", "status"]).good().contains("fast"));
    let refused = as_user(&reader, &["pool", "status"]).ends(8);
    assert!(refused.err.contains("the role 'admin'"), "{refused:?}");
    serving.run(&[&["pool", "status"], &ca[..]].concat()).ends(8);
    as_user(&boss, &["tube", "create", "mail"]).good();
    let line = fs::read_to_string(&audit).unwrap();
    assert!(line.contains(r#""user":"boss""#) && line.contains("create_tube"), "{line}");
    // The gateway of a pool over Redis has the same options.
    let help = run(&["pool", "gateway", "--help"]).good();
    for option in ["--tls-cert", "--tls-key", "--tls-client-ca", "--users", "--audit"] {
        assert!(help.contains(option), "{option}: {help}");
    }
}

/// Asks for a WebSocket with these protocols; answers the head of what comes back.
fn upgrade(url: &str, protocols: &str) -> String {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET /pool/run/sh HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         sec-websocket-protocol: {protocols}\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8(answer).unwrap().to_lowercase()
}

/// A page cannot set headers of a WebSocket, so it sends the token among the protocols.
#[test]
fn a_websocket_sends_its_token_among_the_protocols() {
    let (folder, file) = config(CONFIG);
    let token = token_file(folder.path());
    let mut command = binary();
    command.args(["pool", "serve", "--http", "127.0.0.1:0"]).arg(&file);
    let serving = Serving::start(command.arg("--token-file").arg(&token));
    for wrong in [
        "taskyard.pool",
        "taskyard.pool, bearer.wrong",
        &format!("bearer.{}", &TOKEN[1..]),
        "bearer.",
    ] {
        let answer = upgrade(&serving.url, wrong);
        assert!(answer.starts_with("http/1.1 401"), "{wrong}: {answer}");
    }
    let answer = upgrade(&serving.url, &format!("taskyard.pool, bearer.{TOKEN}"));
    assert!(answer.starts_with("http/1.1 101"), "{answer}");
    assert!(answer.contains("sec-websocket-protocol: taskyard.pool\r\n"), "{answer}");
    assert!(!answer.contains(TOKEN), "the token is not sent back: {answer}");
    // The page itself is public, and shows nothing without the token.
    assert!(get(&serving.url, "/pool").starts_with("HTTP/1.1 200"));
    for path in ["/pool/status", "/pool/programs", "/metrics"] {
        assert!(get(&serving.url, path).starts_with("HTTP/1.1 401"), "{path}");
    }
}

#[test]
fn a_pool_without_a_queue_runs_programs_and_shows_its_status() {
    let (_folder, file) = config(CONFIG);
    let mut command = binary();
    command.args(["pool", "serve", "--http", "127.0.0.1:0"]).arg(&file);
    let serving = Serving::start(&mut command);
    let screen = &serving.screen;
    assert!(screen.contains("/pool (programs: sh)"), "{screen}");
    // Its queue is not used, so `put` is not suggested.
    assert!(screen.contains(" pool status --url") && !screen.contains(" put "), "{screen}");
    assert_eq!(post(&serving.url, "echo x > r.txt")["ok"]["result"], "eAo=");
    let status = &serving.run(&["pool", "status", "--json"]).json()[0];
    assert_eq!((&status["backends"], &status["counts"]["arrived"]), (&1.into(), &1.into()));
    let shown = serving.run(&["pool", "status"]).good();
    assert!(shown.contains("slow") && shown.contains("1 backend, 0 tasks running"), "{shown}");
    // Both say how memory is limited.
    let accounting = status["memory_accounting"].as_str().unwrap();
    assert!(accounting.contains("of each task"), "{accounting}");
    assert!(shown.contains(accounting) && screen.contains(accounting), "{shown}{screen}");
    serving.signal("TERM");
    assert!(serving.ended().0.success());
}

/// The processes that have a folder below this one among their arguments, as folders of `/proc`.
fn marked(folder: &Path) -> Vec<PathBuf> {
    let folder = folder.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    // Processes of a sandbox have it among their arguments, the pool itself does not.
    let is_marked = |process: &PathBuf| {
        let line = fs::read(process.join("cmdline"));
        line.is_ok_and(|line| String::from_utf8_lossy(&line).contains(folder))
    };
    all.filter(is_marked).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let given_up = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < given_up, "not in time: {what}");
        thread::yield_now();
    }
}

/// The init process of a sandbox is a small program, and ends with the pool however that ends.
#[test]
fn sandboxes_are_ready_and_end_with_the_pool() {
    let (_folder, file) = config(CONFIG);
    let temporary = tempfile::tempdir().unwrap();
    // Programs have users of their own, which have to pass through it.
    fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o711)).unwrap();
    for ending in ["KILL", "TERM"] {
        let mut command = binary();
        command.args(["pool", "serve", "--http", "127.0.0.1:0"]).arg(&file);
        let serving = Serving::start(command.env("TMPDIR", temporary.path()));
        let status = || serving.run(&["pool", "status", "--json"]).json().remove(0);
        if !*BUBBLEWRAP {
            assert!(status()["not_isolated"].to_string().contains("`sandbox: none`"));
            return skip("bubblewrap does not work on this machine");
        }
        until("a sandbox is ready", || status()["sandboxes"]["ready"] == 1);
        assert_eq!(post(&serving.url, "echo x > r.txt")["ok"]["result"], "eAo=");
        until("another one is ready", || status()["sandboxes"] == json!({ "ready": 1, "used": 1 }));
        until("it has two processes", || marked(temporary.path()).len() == 2);
        let program = |process: &PathBuf| fs::read_link(process.join("exe")).ok();
        let programs: Vec<_> = marked(temporary.path()).iter().filter_map(program).collect();
        // Only root may know what the init process is.
        let is_small = programs.iter().any(|program| program.ends_with("taskyard-sandbox"));
        assert!(is_small || programs.len() < 2, "{programs:?}");
        let shown = serving.run(&["pool", "status"]).good();
        assert!(shown.contains("sandboxes: 1 ready, 1 task started in a ready one"), "{shown}");
        let metrics = get(&serving.url, "/metrics");
        assert!(metrics.contains("\ntaskyard_pool_sandboxes_ready 1\n"), "{metrics}");
        assert!(metrics.contains("\ntaskyard_pool_sandboxes_used_total 1\n"), "{metrics}");
        serving.signal(ending);
        assert_eq!(serving.ended().0.success(), ending == "TERM");
        until("no process is left", || marked(temporary.path()).is_empty());
    }
    // The second pool has removed the folder of the first one.
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// A pool without bubblewrap started, with a warning, and its programs could read every file of the machine.
#[test]
fn a_pool_without_a_sandbox_starts_only_if_its_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pool.yaml");
    let missing = format!("{CONFIG}isolation: {{bubblewrap: /nowhere/bwrap}}\n");
    fs::write(&file, &missing).unwrap();
    let path = file.to_str().unwrap();
    let ran = run(&["pool", "serve", "--http", "127.0.0.1:0", path]).ends(1);
    assert!(ran.err.contains("/nowhere/bwrap does not exist; install bubblewrap"), "{}", ran.err);
    assert!(ran.err.contains("write `sandbox: none`"), "{}", ran.err);
    fs::write(&file, format!("{missing}sandbox: none\n")).unwrap();
    let serving =
        Serving::start(binary().args(["pool", "serve", "--http", "127.0.0.1:0"]).arg(&file));
    assert!(serving.screen.contains("not isolated: programs can access"), "{}", serving.screen);
    assert_eq!(post(&serving.url, "echo x > r.txt")["ok"]["result"], "eAo=");
}

#[test]
fn the_sandbox_init_process_is_not_started_by_hand() {
    let ran = run(&["taskyard-pool-sandbox-init"]).ends(2);
    assert!(ran.err.contains("not by hand") && ran.err.lines().count() == 1, "{}", ran.err);
    assert_eq!(ran.out, "");
}

#[test]
fn a_pool_beside_a_queue_shares_its_address() {
    let (folder, file) = config(CONFIG);
    let serving = Serving::folder(folder.path(), &["--pool", file.to_str().unwrap()]);
    assert_eq!(post(&serving.url, "echo x > r.txt")["ok"]["result"], "eAo=");
    serving.run(&["put", "mail", "a"]).good();
    serving.run(&["pool", "status"]).good();
}

#[test]
fn a_wrong_file_is_a_wrong_argument() {
    let (_folder, file) = config("backends: 0\nprograms: {x: {command: [/bin/true]}}");
    let refused = run(&["pool", "serve", file.to_str().unwrap()]).ends(2);
    assert!(refused.err.contains("backends must be 1 to 250"), "{}", refused.err);
    run(&["pool", "serve", "not-there.yaml"]).ends(2);
}

#[test]
fn a_server_without_a_pool_says_so() {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
    let serving = Serving::start(&mut command);
    assert_ne!(serving.run(&["pool", "status"]).exit, 0);
}

#[test]
fn parts_over_redis_report_invalid_arguments() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    for part in ["gateway", "scheduler", "backend"] {
        let ran = run(&["pool", part, file, "--redis", "nonsense"]).ends(2);
        assert!(ran.err.contains("redis://"), "{part}: {}", ran.err);
        run(&["pool", part, file]).ends(2);
    }
    let ran =
        run(&["pool", "backend", file, "--redis", "redis://127.0.0.1:1", "--listen", "0.0.0.0:0"]);
    assert!(ran.ends(2).err.contains("--advertise"));
    let redis = ["--redis", "redis://127.0.0.1:1"];
    let with = |part: &str, more: &[&str]| {
        run(&[&["pool", part, file], &redis[..], more].concat()).ends(2).err
    };
    assert!(with("backend", &["--tls-cert", file]).contains("--tls-key"));
    let refused = with("backend", &["--tls-cert", "no.crt", "--tls-key", "no.key"]);
    assert!(refused.contains("no.crt"), "{refused}");
    let refused = with("gateway", &["--backend-ca", "no.crt", "--http", "127.0.0.1:0"]);
    assert!(refused.contains("no.crt"), "{refused}");
    let ran = run(&["pool", "status", "--redis", "redis://127.0.0.1:1"]);
    assert!(ran.err.contains("127.0.0.1:1"), "{}", ran.err);
}

//! `serve --record` and `simulate`: a trace of a real server, and its replay.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Serving, binary, run};

/// The payload of all tasks, which is in no trace.
const PAYLOAD: &str = "payload-8d1f7a3c5e";

struct TraceFolder {
    _folder: TempDir,
    file: PathBuf,
}

impl TraceFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("monday.trace");
        TraceFolder { _folder: folder, file }
    }

    fn path(&self) -> &str {
        self.file.to_str().unwrap()
    }

    fn serve(&self, flags: &[&str]) -> Serving {
        let mut command = binary();
        command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
        command.args(["--record", self.path()]).args(flags);
        Serving::start(&mut command)
    }

    fn simulate(&self, flags: &[&str]) -> Vec<Value> {
        let ran = run(&[&["simulate", self.path(), "--json"], flags].concat()).ends(0);
        ran.json()
    }
}

/// Puts so many tasks, takes and acks them one by one.
fn work(server: &Serving, tasks: usize) {
    let payload = format!("\"{PAYLOAD}\"");
    for _ in 0..tasks {
        server.run(&["put", "mail", &payload]).good();
    }
    for id in 0..tasks {
        server.run(&["take", "mail"]).good();
        server.run(&["ack", "mail", &id.to_string()]).good();
    }
}

fn contains(file: &Path, text: &str) -> bool {
    let bytes = fs::read(file).unwrap();
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn a_recorded_server_is_replayed() {
    let folder = TraceFolder::new();
    let server = folder.serve(&[]);
    work(&server, 5);
    server.run(&["put", "reports", "1"]).good();
    server.signal("TERM");
    assert!(server.ended().0.success());
    assert_eq!(fs::metadata(&folder.file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(contains(&folder.file, "mail") && !contains(&folder.file, PAYLOAD));

    let rows = folder.simulate(&[]);
    let mail = &rows[0];
    assert_eq!((rows.len(), &mail["tube"]), (2, &"mail".into()), "{rows:?}");
    for side in ["recorded", "simulated"] {
        assert_eq!(mail[side]["deliveries"], 5, "{mail}");
        assert_eq!(mail[side]["consumers"], 1, "{mail}");
        assert!(mail[side]["last_end"].is_f64() && mail[side]["drain"].is_null(), "{mail}");
    }
    assert_eq!(rows[1]["simulated"]["waiting"], 1, "no consumer took reports: {rows:?}");
    // A consumer that takes at once lets tasks wait no longer than those of the command line did.
    let shown = |side: &str, name: &str| mail[side][name].as_f64().unwrap();
    assert!(shown("simulated", "max") <= shown("recorded", "max"), "{mail}");
    let more = &folder.simulate(&["--consumers", "mail=5"])[0]["simulated"];
    assert_eq!((&more["max"], &more["consumers"]), (&0.0.into(), &5.into()), "{more}");

    let text = run(&["simulate", folder.path(), "--consumers", "1"]).good();
    for part in ["6 tasks of 2 tubes", "recorded", "simulated", "P99", "LAST END", "mean wait", "█"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let rows = folder.simulate(&["--classes", "default", "--consumers", "2", "--limit", "slow=1"]);
    assert_eq!((rows.len(), &rows[2]["class"]), (5, &"fast".into()), "{rows:?}");
}

#[test]
fn mistakes_are_refused_with_advice() {
    let folder = TraceFolder::new();
    fs::write(&folder.file, "hello").unwrap();
    let refused = run(&["serve", "--store", "memory:", "--record", folder.path()]).ends(6);
    assert!(refused.err.contains("exists already; remove it, or name another"), "{refused:?}");
    assert_eq!(fs::read(&folder.file).unwrap(), b"hello");
    let refused = run(&["simulate", folder.path()]).ends(1);
    assert!(refused.err.contains("not a trace of this version"), "{refused:?}");
    let missing = run(&["simulate", "/nonexistent/trace"]).ends(1);
    assert_eq!(
        missing.err.matches("os error 2").count(),
        1,
        "the cause is named once: {missing:?}"
    );
    assert!(missing.err.contains("cannot open the trace /nonexistent/trace"), "{missing:?}");
    for flags in
        [["--consumers", "x"], ["--limit", "slow"], ["--rate", "mail=5"], ["--classes", "a"]]
    {
        run(&[&["simulate", folder.path()][..], &flags].concat()).ends(2);
    }
    run(&["serve", "--record-max", "1MB"]).ends(2);
}

// A server that is killed leaves what was recorded until shortly before.
#[test]
fn a_killed_server_leaves_a_readable_trace() {
    let folder = TraceFolder::new();
    let server = folder.serve(&[]);
    work(&server, 3);
    // What was written is read while the server runs, without a fixed time to wait.
    let given_up = Instant::now() + Duration::from_secs(60);
    loop {
        let rows = folder.simulate(&[]);
        if rows.first().is_some_and(|mail| mail["recorded"]["deliveries"] == 3) {
            break;
        }
        assert!(Instant::now() < given_up, "the trace has not all deliveries: {rows:?}");
    }
    server.signal("KILL");
    assert!(!server.ended().0.success());
    let mail = &folder.simulate(&[])[0];
    assert_eq!((&mail["tube"], &mail["recorded"]["deliveries"]), (&"mail".into(), &3.into()));
    let unknown = run(&["simulate", folder.path(), "--limit", "slow=2"]).ends(2);
    assert!(unknown.err.contains("no tube or semaphore 'slow'; it has mail"), "{unknown:?}");
}

#[test]
fn a_trace_has_a_maximum_size() {
    let folder = TraceFolder::new();
    let server = folder.serve(&["--record-max", "256"]);
    let lines: String = (0..1_000).map(|number| format!("{number}\n")).collect();
    for _ in 0..3 {
        server.run_with(&["put", "mail", "--lines"], &lines).good();
    }
    server.signal("TERM");
    assert!(server.ended().0.success(), "the server goes on without the trace");
    assert!(fs::metadata(&folder.file).unwrap().len() <= 256);
    let ran = run(&["simulate", folder.path()]).ends(0);
    assert!(ran.err.contains("maximum size (--record-max)"), "{ran:?}");
}

//! `serve --audit` and `audit`: the file, its rotation, and what survives a kill.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Running, Serving, binary, http_post, run};

struct AuditFolder {
    folder: TempDir,
    file: PathBuf,
}

impl AuditFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.jsonl");
        AuditFolder { folder, file }
    }

    fn serve(&self, flags: &[&str]) -> Serving {
        let file = self.file.to_str().unwrap();
        Serving::folder(&self.folder.path().join("data"), &[&["--audit", file], flags].concat())
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

// An entry must not be lost if the server is killed right after its answer.
#[test]
fn the_line_of_an_answered_action_survives_a_kill() {
    let folder = AuditFolder::new();
    for count in 1..=5 {
        let server = folder.serve(&[]);
        let answer = http_post(&server.url, "/v1/tubes/mail/put", r#"{"data":1}"#);
        assert!(answer.contains("200 OK"), "{answer}");
        let answer = http_post(&server.url, "/v1/tubes/mail/truncate", "{}");
        server.signal("KILL");
        assert!(answer.contains("200 OK"), "{answer}");
        let lines = lines(&folder.file);
        let truncated = lines.iter().filter(|line| line["action"] == "truncate");
        assert_eq!(truncated.count(), count);
    }
    let mode = fs::metadata(&folder.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

// The rotation of logs moves the file and sends a signal, while actions go on.
#[test]
fn no_line_is_lost_when_the_file_is_rotated() {
    let folder = AuditFolder::new();
    let server = folder.serve(&[]);
    http_post(&server.url, "/v1/tubes/mail/put", r#"{"data":1}"#);
    let (is_done, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let rotated: Vec<PathBuf> =
        (1..=5).map(|number| folder.file.with_extension(number.to_string())).collect();
    thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !is_done.load(Ordering::SeqCst) {
                        let body = r#"{"name":"mail"}"#;
                        let answer = http_post(&server.url, "/v1/tubes/mail/name", body);
                        assert!(answer.contains("200 OK"), "{answer}");
                        sent.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for path in &rotated {
            let before = sent.load(Ordering::SeqCst);
            while sent.load(Ordering::SeqCst) < before + 10 {
                thread::yield_now();
            }
            fs::rename(&folder.file, path).unwrap();
            server.signal("HUP");
            // The server makes the file again.
            while !folder.file.exists() {
                thread::yield_now();
            }
        }
        is_done.store(true, Ordering::SeqCst);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
    let all = rotated.iter().chain([&folder.file]).flat_map(|path| lines(path));
    let renames = all.filter(|line| line["action"] == "name_tube").count();
    assert_eq!(renames, sent.load(Ordering::SeqCst));
    assert!(rotated.iter().all(|path| !lines(path).is_empty()));
    let mode = fs::metadata(&folder.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_command_shows_the_entries() {
    let folder = AuditFolder::new();
    let server = folder.serve(&[]);
    let none = server.run(&["audit"]).good();
    assert!(none.contains("no actions"), "{none}");
    server.run(&["put", "mail", "1"]).good();
    server.run(&["delete", "mail", "0"]).good();
    let shown = server.run(&["audit"]).good();
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{shown}");
    assert_eq!(rows[0][..4], ["TIME", "USER", "FROM", "ACTION"]);
    let delete = ["guest", "127.0.0.1", "delete", "tube", "mail", "1", "done", "1", "id"];
    assert_eq!(rows[2][1..], delete, "{shown}");
    let json = server.run(&["audit", "--json"]).json();
    assert_eq!(json, lines(&folder.file));
    assert_eq!(server.run(&["audit", "--json", "--limit", "1"]).json(), json[1..]);
    for wrong in ["0", "1001"] {
        server.run(&["audit", "--limit", wrong]).ends(2);
    }
}

#[test]
fn a_server_does_not_start_with_a_file_that_others_can_write() {
    let folder = AuditFolder::new();
    fs::write(&folder.file, "").unwrap();
    fs::set_permissions(&folder.file, fs::Permissions::from_mode(0o666)).unwrap();
    let data = folder.folder.path().join("data");
    let flags = ["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--data"];
    let paths = [data.to_str().unwrap(), "--audit", folder.file.to_str().unwrap()];
    let refused = run(&[&flags[..], &paths[..]].concat()).ends(2);
    assert!(refused.err.contains("chmod 600"), "{refused:?}");
    assert!(!data.exists());
}

// The audit is a part of the log, too, and the log of other parts need not be as detailed.
#[test]
fn entries_and_changes_of_users_are_logged_without_secrets() {
    let folder = AuditFolder::new();
    let users = folder.folder.path().join("users.toml");
    let users = users.to_str().unwrap();
    let token = run(&["user", "add", "boss", "--role", "admin", "--users", users]).good();
    let mut command = binary();
    command.env("TASKYARD_LOG", "warn,audit=info");
    command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--users", users]);
    command.arg("--audit").arg(&folder.file);
    let mut server = Running::start(command.arg("--data").arg(folder.folder.path().join("data")));
    while !server.line().contains("Ctrl-C") {}
    run(&["user", "add", "ann", "--role", "read", "--users", users]).good();
    let line = server.error_line();
    assert!(line.contains("INFO reload_users done"), "{line}");
    assert!(line.contains("1 added; added: ann"), "{line}");
    fs::write(users, "[[users]]\nname = 'eve'\npassword = 's3cret\n").unwrap();
    let mut line = server.error_line();
    while !line.contains("reload_users failed") {
        line = server.error_line();
        assert!(!line.is_empty());
    }
    assert!(!line.contains("s3cret"), "{line}");
    // The log is written before the file, and no answer waits for this line.
    while lines(&folder.file).len() < 2 {
        thread::yield_now();
    }
    let text = fs::read_to_string(&folder.file).unwrap();
    assert!(!text.contains(token.trim()) && !text.contains("s3cret"), "{text}");
    let lines = lines(&folder.file);
    assert_eq!(lines[0]["detail"], "1 added; added: ann");
    assert_eq!((&lines[1]["outcome"], &lines[1]["protocol"]), (&"failed".into(), &"file".into()));
}

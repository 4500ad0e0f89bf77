//! `backup` and `restore`, and what they refuse.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::many::{TASKS, source};
use crate::process::{Ran, Serving, TOKEN, binary, http_post, run, token_file};

/// A folder with a store of many tasks, and place for backups.
pub struct BackupFolder {
    folder: TempDir,
}

impl BackupFolder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        source(&folder.path().join("data"));
        BackupFolder { folder }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("paths of tests are text").into()
    }

    pub fn has(&self, name: &str) -> bool {
        self.folder.path().join(name).exists()
    }

    /// A server without a manager, which would add a task of its own.
    pub fn serve(&self) -> Serving {
        Serving::folder(&self.folder.path().join("data"), &["--no-manager"])
    }

    pub fn restore(&self, file: &str, data: &str) -> Ran {
        run(&["restore", &self.path(file), "--data", &self.path(data)])
    }
}

/// The numbers of tasks that are ready and that exist.
pub fn counts(serving: &Serving) -> (Value, Value) {
    let stats = serving.run(&["tube", "show", "mail", "--json"]).json().remove(0);
    let tasks = &stats["tasks"];
    (tasks["ready"].clone(), tasks["total"].clone())
}

#[test]
fn a_backup_of_a_used_server_is_restored() {
    let folder = BackupFolder::new();
    let serving = folder.serve();
    let taken = serving.run(&["take", "mail", "--count", "3", "--json"]).json();
    serving.run(&["ack", "mail", &format!("0:{}", taken[0]["lease"])]).good();
    let (file, stop) = (folder.path("queue.backup"), AtomicBool::new(false));
    let made = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let put = http_post(&serving.url, "/v1/tubes/other/put", r#"{"data":1}"#);
                assert!(put.contains("200 OK"), "{put}");
            }
        });
        let made = serving.run(&["backup", &file, "--json"]);
        stop.store(true, Ordering::Relaxed);
        made
    });
    let summary = made.json().remove(0);
    assert!(summary["tasks"].as_u64() >= Some(TASKS as u64 - 1), "{summary}");
    assert_eq!(summary["bytes"], fs::metadata(&file).expect("the file").len());
    assert!(!folder.has("queue.backup.partial"));
    let checked = run(&["restore", &file, "--check"]).good();
    assert!(checked.contains("is intact: ") && checked.contains("sqlite:"), "{checked}");
    let restored = folder.restore("queue.backup", "restored").good();
    assert!(restored.starts_with("restored "), "{restored}");
    drop(serving);
    let serving = Serving::folder(Path::new(&folder.path("restored")), &[]);
    // The taken ones are ready again.
    assert_eq!(counts(&serving).0, TASKS - 1);
    let again = serving.run(&["take", "mail", "--json"]).json();
    assert_eq!(again[0]["id"], 1);
    assert!(again[0]["lease"].as_u64() > taken[2]["lease"].as_u64());
    let stale = format!("1:{}", taken[1]["lease"]);
    serving.run(&["ack", "mail", &stale]).ends(5);
}

#[test]
fn the_commands_of_the_document_work() {
    let document = include_str!("../../../../docs/operate/backup.md");
    let script = document.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let folder = BackupFolder::new();
    let serving = folder.serve();
    let program = Path::new(env!("CARGO_BIN_EXE_taskyard")).parent().expect("a folder");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-ec", script.expect("the commands")]).current_dir(folder.folder.path());
    shell.env("PATH", format!("{}:/usr/bin:/bin", program.display()));
    let output = shell.env("TASKYARD_URL", &serving.url).output().expect("a shell");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    for expected in ["backed up 40000 tasks", "queue.backup is intact: 40000", "restored 40000"] {
        assert!(printed.contains(expected), "{printed}");
    }
    drop(serving);
    let serving = Serving::folder(Path::new(&folder.path("restored")), &[]);
    assert_eq!(counts(&serving).0, TASKS);
}

#[test]
fn a_backup_goes_through_a_pipe() {
    let folder = BackupFolder::new();
    let serving = folder.serve();
    let script = r#""$0" backup - | "$0" restore - --data "$1""#;
    let program = env!("CARGO_BIN_EXE_taskyard");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, program, &folder.path("restored")]);
    shell.env("TASKYARD_URL", &serving.url);
    let output = shell.output().expect("a shell");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("backed up 40000 tasks in 1 tube"), "{printed}");
    drop(serving);
    let serving = Serving::folder(Path::new(&folder.path("restored")), &[]);
    assert_eq!(counts(&serving).0, TASKS);
}

#[test]
fn what_cannot_be_done_is_refused() {
    let folder = BackupFolder::new();
    let serving = folder.serve();
    let file = folder.path("queue.backup");
    serving.run(&["backup", &file]).good();
    let printed = serving.run(&["backup", &file]).ends(6);
    assert!(
        printed.err.contains("exists; choose another name, or replace it with --force"),
        "{printed:?}"
    );
    let printed = serving.run(&["backup", "--force", &file]).good();
    assert!(printed.starts_with("backed up 40000 tasks in 1 tube into "), "{printed}");
    let printed = serving.run(&["backup", &folder.path("")]).ends(6);
    assert!(printed.err.contains("is not a file"), "{printed:?}");
    serving.run(&["backup", &folder.path("none/x")]).ends(1);
    // A used folder, that of the server itself included.
    let printed = folder.restore("queue.backup", "data").ends(6);
    assert!(printed.err.contains("is not empty: it has taskyard."), "{printed:?}");
    fs::create_dir(folder.path("own")).expect("a folder");
    fs::write(folder.path("own/notes"), "x").expect("a file");
    let printed = folder.restore("queue.backup", "own").ends(6);
    assert!(printed.err.contains("it has notes"), "{printed:?}");
    run(&["restore", &file]).ends(2);
    // Damage, a cut, another file.
    let intact = fs::read(&file).expect("the file");
    for (bytes, expected) in [
        (&intact[..intact.len() / 2], "it was cut, or the backup was not finished"),
        (&[&intact[..], b"x"].concat(), "it is damaged at byte"),
        (&b"SQLite format 3"[..], "it is not a backup of taskyard"),
    ] {
        fs::write(folder.path("bad"), bytes).expect("a file");
        let printed = folder.restore("bad", "new").ends(1);
        assert!(
            printed.err.contains("cannot restore ") && printed.err.contains(expected),
            "{printed:?}"
        );
        run(&["restore", &folder.path("bad"), "--check"]).ends(1);
        assert!(!folder.has("new") && !folder.has("new.restoring"));
    }
    folder.restore("none", "new").ends(1);
    run(&["backup", &file, "--force", "--url", "http://127.0.0.1:1"]).ends(7);
    assert_eq!(fs::read(&file).expect("the file").len(), intact.len(), "it is still there");
}

#[test]
fn only_administrators_make_backups_and_only_of_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let token = token_file(folder.path());
    let serving = Serving::folder(&folder.path().join("data"), &["--token-file", &token]);
    serving.run(&["backup", &path("a")]).ends(8);
    assert!(!folder.path().join("a").exists() && !folder.path().join("a.partial").exists());
    serving.run(&["backup", &path("a"), "--token-file", &token]).good();
    let entries = serving.run(&["audit", "--json", "--token", TOKEN]).json();
    assert_eq!((&entries[0]["action"], &entries[0]["outcome"]), (&"backup".into(), &"done".into()));
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
    let serving = Serving::start(&mut command);
    let printed = serving.run(&["backup", &path("b")]).ends(6);
    assert!(
        printed.err.contains("makes no backups of the memory store; use `serve --data DIR`"),
        "{printed:?}"
    );
}

/// A backup in a folder that others can write to followed a link at the name of its unfinished file, and emptied the file behind it.
/// One that was there already kept its mode.
#[test]
fn a_link_is_not_followed_and_the_file_is_private() {
    let folder = BackupFolder::new();
    let serving = folder.serve();
    let (file, partial) = (folder.path("queue.backup"), folder.path("queue.backup.partial"));
    fs::write(folder.path("other"), "content").expect("a file");
    std::os::unix::fs::symlink(folder.path("other"), &partial).expect("a link");
    let printed = serving.run(&["backup", &file]).ends(1);
    assert!(printed.err.contains("cannot write ") && !folder.has("queue.backup"), "{printed:?}");
    fs::remove_file(&partial).expect("the link is still there");
    fs::hard_link(folder.path("other"), &partial).expect("a link");
    let printed = back_up_again(&serving, &file).ends(1);
    assert!(printed.err.contains("not a regular file of this user"), "{printed:?}");
    assert_eq!(fs::read(folder.path("other")).expect("the file"), b"content");
    fs::remove_file(&partial).expect("the link is still there");
    fs::write(&partial, "earlier").expect("a file");
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o644)).expect("its owner");
    back_up_again(&serving, &file).good();
    assert_eq!(fs::metadata(&file).expect("the file").permissions().mode() & 0o777, 0o600);
}

/// Makes a backup after one whose client is gone: the server may not have noticed that yet.
pub fn back_up_again(serving: &Serving, file: &str) -> Ran {
    loop {
        let made = serving.run(&["backup", file]);
        if !made.err.contains("another backup of this server is running") {
            return made;
        }
    }
}

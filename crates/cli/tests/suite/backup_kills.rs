//! `backup`, `restore` or the server is killed. The test decides how many bytes pass before the kill, so each run kills at the same
//! places.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::{Body, Command, Kind, NewTask, Span, Timestamp, TubeName, TubeOptions};
use taskyard_store::OpenOptions;
use taskyard_stores::open;

use crate::backup::{BackupFolder, back_up_again, counts};
use crate::many::TASKS;
use crate::preload::library;
use crate::process::{Ran, Running, Serving, binary, run};

/// The longest part of an answer that is not a part of the file: its head, and the lengths of its parts.
const HEAD_BYTES: u64 = 64 << 10;

/// A proxy that lets so many bytes of the answer of a server pass, and no more until it is opened. It has one connection.
struct AnswerGate {
    url: String,
    reached: Receiver<()>,
    opener: Option<Sender<()>>,
}

impl AnswerGate {
    fn new(serving: &Serving, bytes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        let address = serving.url.trim_start_matches("http://").to_owned();
        let (reach, reached) = channel();
        let (opener, opened) = channel::<()>();
        thread::spawn(move || {
            let (client, _) = listener.accept().expect("a client connects");
            let server = TcpStream::connect(address).expect("the server listens");
            let requests = [&client, &server].map(|socket| socket.try_clone().expect("a socket"));
            thread::spawn(move || io::copy(&mut &requests[0], &mut &requests[1]));
            let passed = io::copy(&mut (&server).take(bytes), &mut &client);
            assert_eq!(passed.expect("both are there"), bytes, "the answer is longer");
            reach.send(()).expect("the test waits");
            // Its end opens the gate, too.
            _ = opened.recv();
            _ = io::copy(&mut &server, &mut &client);
            _ = client.shutdown(Shutdown::Both);
            _ = server.shutdown(Shutdown::Both);
        });
        AnswerGate { url, reached, opener: Some(opener) }
    }

    /// Waits until the bytes have passed.
    fn wait(&self) {
        self.reached.recv().expect("the bytes pass");
    }

    fn open(&mut self) {
        self.opener = None;
    }
}

/// Starts a backup through a gate.
fn back_up(gate: &AnswerGate, file: &str) -> Running {
    Running::start(binary().args(["backup", file]).env("TASKYARD_URL", &gate.url))
}

/// Waits until this does not hold any more; the command must still run then.
fn wait_while(running: &mut Running, holds: impl Fn() -> bool) {
    while holds() {
        assert!(!running.has_ended(), "the command ended before it was killed");
        thread::yield_now();
    }
}

fn length(path: &str) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

#[test]
fn a_killed_backup_leaves_no_file_and_does_not_block_the_next() {
    let folder = BackupFolder::new();
    let serving = folder.serve();
    let (file, partial) = (folder.path("queue.backup"), folder.path("queue.backup.partial"));
    serving.run(&["backup", &file]).good();
    let whole = length(&file);
    fs::remove_file(&file).expect("it is there");
    // The head of the answer is more than nothing, so some bytes of the file are missing in the last case, too.
    for bytes in [2 * HEAD_BYTES, whole / 2, whole] {
        let gate = AnswerGate::new(&serving, bytes);
        let mut backup = back_up(&gate, &file);
        gate.wait();
        wait_while(&mut backup, || length(&partial) + HEAD_BYTES < bytes);
        // This kills it.
        drop(backup);
        drop(gate);
        assert!(!folder.has("queue.backup") && length(&partial) < whole);
        let refused = folder.restore("queue.backup.partial", "new").ends(1);
        assert!(refused.err.contains("it was cut, or the backup was not finished"), "{refused:?}");
        let made = back_up_again(&serving, &file).good();
        assert!(made.starts_with("backed up 40000 tasks"), "{made}");
        assert!(!folder.has("queue.backup.partial"));
        run(&["restore", &file, "--check"]).good();
        fs::remove_file(&file).expect("it is there");
    }
}

/// A folder with a store of payloads that are together larger than what the sockets between a server and a client hold.
fn large_payloads(folder: &Path) {
    let store = open(&format!("sqlite:{}", folder.display()), &OpenOptions::default());
    let store = store.expect("it opens");
    let tube = TubeName::new("mail").expect("a name");
    let options = TubeOptions::new(Kind::FifoTtl);
    // Binary data of a megabyte less some bytes: the largest payload.
    let body = Body::new(&[&[0xc6, 0, 0x0f, 0xff, 0], &vec![7_u8; 0xfff00][..]].concat());
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    let put = |_| Command::Put {
        tube: tube.clone(),
        tasks: vec![NewTask::new(body.clone()); 8],
        wait: Span::ZERO,
    };
    let commands = [create].into_iter().chain((0..6).map(put)).collect();
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let replies = block_on(store.execute(now, commands)).replies;
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    block_on(store.close()).expect("it closes");
}

#[test]
fn a_server_killed_during_a_backup_leaves_no_backup() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    large_payloads(&folder.path().join("data"));
    let serve = || Serving::folder(&folder.path().join("data"), &["--no-manager"]);
    let (file, partial) = (path("queue.backup"), path("queue.backup.partial"));
    let serving = serve();
    let mut gate = AnswerGate::new(&serving, 8 << 20);
    let backup = back_up(&gate, &file);
    gate.wait();
    // The server has more to send.
    let refused = serving.run(&["backup", &path("other")]);
    assert!(refused.err.contains("another backup of this server is running"), "{refused:?}");
    serving.signal("KILL");
    let (status, _) = serving.ended();
    assert_eq!(status.signal(), Some(9));
    gate.open();
    let ended = backup.ended();
    assert!(ended.exit != 0 && ended.err.contains("no backup in "), "{ended:?}");
    assert!([&file, &partial].iter().all(|path| !Path::new(path).exists()));
    let serving = serve();
    let made = serving.run(&["backup", &file]).good();
    assert!(made.starts_with("backed up 48 tasks"), "{made}");
    run(&["restore", &file, "--check"]).good();
}

/// Starts a restore and writes so many bytes of a backup to it. It has read them but for what a pipe holds, and waits for more.
fn restore_begun(data: &str, bytes: &[u8]) -> (Running, ChildStdin) {
    let mut command = binary();
    command.args(["restore", "-", "--data", data]).stdin(Stdio::piped());
    let mut restore = Running::start(&mut command);
    let mut input = restore.input();
    input.write_all(bytes).expect("the restore reads it");
    (restore, input)
}

/// What a killed restore left is neither a folder of a server nor in the way of another restore. A server on it started with no
/// task, as on a new folder.
fn check_left(folder: &BackupFolder, left: &str) {
    for name in ["new", "new.restoring"] {
        assert_eq!(folder.has(name), name == left, "{name}, not {left}");
    }
    let mut serve = binary();
    serve.args(["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--data"]);
    let Ran { exit, err, .. } = Running::start(serve.arg(folder.path(left))).ended();
    assert!(exit != 0 && err.contains("a restore into it did not end; run"), "{exit}: {err}");
    folder.restore("queue.backup", "new").good();
    assert!(!folder.has("new.restoring") && !folder.has("new.restoring.lock"));
    let restored = Serving::folder(Path::new(&folder.path("new")), &[]);
    assert_eq!(counts(&restored).0, TASKS);
    drop(restored);
    fs::remove_dir_all(folder.path("new")).expect("it is there");
}

#[test]
fn a_killed_restore_leaves_no_folder_and_the_next_one_works() {
    let folder = BackupFolder::new();
    folder.serve().run(&["backup", &folder.path("queue.backup")]).good();
    let backup = fs::read(folder.path("queue.backup")).expect("the file");
    // The input has no end, so the last case is a restore that has all bytes and waits for more.
    for bytes in [0, backup.len() / 2, backup.len()] {
        let (mut restore, input) = restore_begun(&folder.path("new"), &backup[..bytes]);
        wait_while(&mut restore, || !folder.has("new.restoring/taskyard.restoring"));
        // This kills it.
        drop(restore);
        drop(input);
        check_left(&folder, "new.restoring");
    }
}

#[test]
fn a_backup_or_restore_killed_at_its_end_has_no_result() {
    let folder = BackupFolder::new();
    let serving = folder.serve();
    let file = folder.path("queue.backup");
    let library = library(Path::new(&folder.path("")), "kill_at_rename");
    let killed_at = |name: &str, args: &[&str]| {
        let mut command = binary();
        command.args(args).env("TASKYARD_URL", &serving.url);
        command.env("LD_PRELOAD", &library).env("TEST_RENAME", folder.path(name));
        let ended = command.stdout(Stdio::null()).status().expect("the binary starts");
        assert_eq!(ended.signal(), Some(9), "{args:?} is killed at {name}");
    };
    killed_at("queue.backup", &["backup", &file]);
    assert!(!folder.has("queue.backup") && folder.has("queue.backup.partial"));
    back_up_again(&serving, &file).good();
    assert!(!folder.has("queue.backup.partial"));
    let data = folder.path("new");
    for (name, left) in [
        ("new.restoring/taskyard.db", "new.restoring"),
        // It has verified everything.
        ("new", "new.restoring"),
        ("new/taskyard.restoring", "new"),
    ] {
        killed_at(name, &["restore", &file, "--data", &data]);
        check_left(&folder, left);
    }
}

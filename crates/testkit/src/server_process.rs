//! Runs a server of the binary `taskyard`, whose log is kept, and reads its start screen.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use crate::recorded_output::{is_kept, log_file, record};

/// The variable that says how much is logged.
pub const LOG: &str = "TASKYARD_LOG";

/// A command that starts the binary, without arguments and without the settings of this shell. Only the tests of the binary's own
/// package know where it is.
pub type Binary = fn() -> Command;

/// A running server. Dropping this kills it.
pub struct ServerProcess {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Its address for clients over HTTP.
    pub url: String,
    /// Its start screen.
    pub screen: String,
}

impl ServerProcess {
    /// Starts the server and reads its start screen.
    pub fn start(command: &mut Command) -> Self {
        // All of the log is kept where it is searched for secrets.
        if is_kept() && command.get_envs().all(|(name, value)| name != LOG || value.is_none()) {
            command.env(LOG, "debug");
        }
        let child = command.stdout(Stdio::piped()).stderr(log_file("server")).spawn();
        let mut child = child.expect("the binary starts");
        record_command_line(command, &child);
        let mut out = BufReader::new(child.stdout.take().expect("the output is piped"));
        let mut screen = String::new();
        while !screen.contains("Ctrl-C") {
            let read = out.read_line(&mut screen).expect("the start screen is text");
            assert!(read > 0, "the server ended after {screen:?}");
        }
        record("server", &screen);
        let url = shown_url(&screen);
        ServerProcess { child, out, url, screen }
    }

    /// Starts a server on the store of this URL, on any free ports.
    pub fn on_store(binary: Binary, url: &str) -> Self {
        let mut command = binary();
        command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0"]);
        // Its password must not be in the list of processes.
        Self::start(command.env("TASKYARD_STORE", url))
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        send_signal(self.child.id(), name);
    }

    /// Waits for its end and returns the rest of its output.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("the output is text");
        (self.child.wait().expect("the server ends"), rest)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a process a signal by name, such as `STOP`.
pub fn send_signal(process: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status();
    assert!(sent.expect("there is a program that sends signals").success());
}

/// Keeps the command line of a process, which every user of the machine can read. Tests of `--token` show a token there.
pub fn record_command_line(command: &Command, child: &Child) {
    if !command.get_args().any(|arg| arg == "--token") {
        let line = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
        record("processes", &(String::from_utf8_lossy(&line) + "\n"));
    }
}

/// The address of a server in its start screen.
pub fn shown_url(screen: &str) -> String {
    let is_url = |word: &&str| word.starts_with("http://") || word.starts_with("https://");
    screen.split_whitespace().find(is_url).expect("the start screen shows the address").to_owned()
}

/// The address for clients of Tarantool's queue in the start screen of a server.
pub fn shown_iproto(screen: &str) -> &str {
    let line = screen.lines().find_map(|line| line.trim().strip_prefix("iproto "));
    line.and_then(|line| line.split(' ').next()).expect("the screen has such a line")
}

//! Runs the binary, also as a server in its own folder, and reads its output.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;

use serde_json::Value;
use taskyard_testkit::recorded_output::{record, register_secret};
use taskyard_testkit::server_process::{
    LOG, ServerProcess, record_command_line, send_signal, shown_url,
};
use tempfile::TempDir;

/// The result of a run of the binary.
#[derive(Debug)]
pub struct Ran {
    pub exit: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The output, after checking that the run succeeded.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!(self.exit, 0, "{self:?}");
        self.out
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn ends(self, exit: i32) -> Ran {
        assert_eq!(self.exit, exit, "{self:?}");
        self
    }

    /// Every line of the output as JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{self:?}"));
        self.out.lines().map(parse).collect()
    }
}

/// The token of servers that require one.
pub const TOKEN: &str = "secret-0123456789";

/// A file with the token that no other user can read.
pub fn token_file(folder: &Path) -> String {
    register_secret(TOKEN);
    let path = folder.join("token");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.and_then(|mut file| writeln!(file, "{TOKEN}")).expect("a file can be written");
    path.to_str().expect("paths of tests are text").into()
}

/// The binary without the settings of this shell.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    without_settings(&mut command).stdin(Stdio::null());
    command
}

/// Removes the settings of this shell: the program reads a variable for each one. Those of fixtures are for the tests alone.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TASKYARD_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the binary until it ends.
pub fn run(args: &[&str]) -> Ran {
    finish(binary().args(args), "")
}

fn finish(command: &mut Command, input: &str) -> Ran {
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    // On a thread of its own: a command that prints while it reads would wait for its reader, which still wrote.
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        if let Some(mut stdin) = stdin {
            scope.spawn(move || {
                stdin.write_all(input.as_bytes()).expect("the binary reads its input");
            });
        }
        child.wait_with_output().expect("the binary ends")
    });
    let ran = Ran {
        exit: output.status.code().expect("the binary is not killed"),
        out: String::from_utf8(output.stdout).expect("the output is text"),
        err: String::from_utf8(output.stderr).expect("the complaints are text"),
    };
    keep(command, &ran);
    ran
}

/// Keeps what a command printed. Only `user add` prints a secret: the token of the new user.
fn keep(command: &Command, ran: &Ran) {
    let is_verb = |at, verb| command.get_args().nth(at).is_some_and(|arg| arg == verb);
    match is_verb(0, "user") && is_verb(1, "add") {
        true => register_secret(&ran.out),
        false => record("command", &ran.out),
    }
    record("command", &ran.err);
}

/// A running command, read line by line. Dropping this kills it.
pub struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
}

impl Running {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the binary starts");
        record_command_line(command, &child);
        let out = BufReader::new(child.stdout.take().expect("the output is piped"));
        let err = BufReader::new(child.stderr.take().expect("the complaints are piped"));
        Running { child, out, err }
    }

    /// The next line of its output.
    pub fn line(&mut self) -> String {
        next_line(&mut self.out)
    }

    /// The next line of its error output.
    pub fn error_line(&mut self) -> String {
        next_line(&mut self.err)
    }

    /// What it reads, if that is piped.
    pub fn input(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("the input is piped")
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        send_signal(self.child.id(), name);
    }

    /// Waits until it and everything that writes to its output has ended.
    pub fn ended(mut self) -> Ran {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).expect("the output is text");
        self.err.read_to_string(&mut err).expect("the complaints are text");
        let status = self.child.wait().expect("it ends");
        record("command", &format!("{out}{err}"));
        Ran { exit: status.code().expect("the binary is not killed"), out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("the lines are text");
    record("command", &line);
    line
}

/// A server whose log is read.
pub struct LoggedServer {
    pub running: Running,
    pub url: String,
    pub screen: String,
}

impl LoggedServer {
    /// Starts the server and reads its start screen.
    pub fn start(command: &mut Command) -> Self {
        let mut running = Running::start(command.env(LOG, "info"));
        let mut screen = String::new();
        while !screen.contains("Ctrl-C") {
            let line = running.line();
            assert!(!line.is_empty(), "the server ended after {screen:?}");
            screen.push_str(&line);
        }
        LoggedServer { running, url: shown_url(&screen), screen }
    }

    /// Waits for a line of the log.
    pub fn logs(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let line = self.running.error_line();
            assert!(!line.is_empty(), "the log ended without {text:?}: {seen}");
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }
}

/// A running server, and commands against it. Dropping this kills it.
pub struct Serving {
    pub process: ServerProcess,
}

impl Serving {
    /// Serves this folder on any free port.
    pub fn folder(folder: &Path, flags: &[&str]) -> Self {
        let mut command = binary();
        command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0", "--data"]);
        command.arg(folder).args(flags);
        Serving::start(&mut command)
    }

    /// Starts the server and reads its start screen.
    pub fn start(command: &mut Command) -> Self {
        Serving { process: ServerProcess::start(command) }
    }

    /// Runs a client command against it.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, "")
    }

    /// The same with this on the standard input.
    pub fn run_with(&self, args: &[&str], input: &str) -> Ran {
        finish(binary().args(args).env("TASKYARD_URL", &self.url), input)
    }

    /// Waits for its end and returns the rest of its output.
    pub fn ended(self) -> (ExitStatus, String) {
        self.process.ended()
    }
}

impl Deref for Serving {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

/// A server with its own folder.
pub struct TestServer {
    pub serving: Serving,
    _folder: TempDir,
}

impl TestServer {
    /// Starts a server on an empty folder.
    pub fn new() -> Self {
        TestServer::with(&[])
    }

    /// The same with more flags.
    pub fn with(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        TestServer { serving: Serving::folder(folder.path(), flags), _folder: folder }
    }

    /// Runs a client command.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.serving.run(args)
    }
}

/// The complete HTTP response to a GET.
pub fn http_get(url: &str, path: &str) -> String {
    http(url, &format!("GET {path}"), "")
}

/// The same with this header.
pub fn http_get_with(header: &str, url: &str, path: &str) -> String {
    http(url, &format!("GET {path}"), &format!("{header}\r\n\r\n"))
}

/// The complete HTTP response to a POST of JSON.
pub fn http_post(url: &str, path: &str, json: &str) -> String {
    let length = json.len();
    let body = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}");
    http(url, &format!("POST {path}"), &body)
}

/// The same with a token.
pub fn http_post_as(token: &str, url: &str, path: &str, json: &str) -> String {
    let length = json.len();
    let head = format!("Authorization: Bearer {token}\r\nContent-Type: application/json");
    http(url, &format!("POST {path}"), &format!("{head}\r\nContent-Length: {length}\r\n\r\n{json}"))
}

/// The response to a request; `rest` is what follows the common headers.
fn http(url: &str, method_and_path: &str, rest: &str) -> String {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let rest = if rest.is_empty() { "\r\n" } else { rest };
    let head = format!("{method_and_path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    stream.write_all((head + rest).as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers with text");
    record("answers", &answer);
    answer
}

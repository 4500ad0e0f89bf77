//! `top`, in a terminal and without one.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use crate::process::{Running, Serving, TestServer, binary, run, token_file};

/// The sequences that enter and leave full screen mode.
const TAKEN_OVER: &str = "\u{1b}[?1049h";
const GIVEN_BACK: &str = "\u{1b}[?1049l";
const CURSOR_SHOWN: &str = "\u{1b}[?25h";

/// The view in a terminal that `script` creates. Dropping this kills it.
struct PseudoTerminal {
    child: Child,
    keys: Option<ChildStdin>,
    out: ChildStdout,
    /// Everything that was written to the terminal so far.
    screen: String,
}

impl PseudoTerminal {
    /// Starts the view. The shell prints its process id before it runs the view.
    fn start(url: &str) -> Self {
        let line = format!(
            "stty rows 24 cols 120; echo pid $$.; exec '{}' top --interval 100ms --url {url}",
            env!("CARGO_BIN_EXE_taskyard"),
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        command.env("TERM", "xterm").env("SHELL", "/bin/sh").env_remove("TASKYARD_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("script is there");
        let out = child.stdout.take().expect("the output is piped");
        let keys = child.stdin.take();
        PseudoTerminal { child, keys, out, screen: String::new() }
    }

    /// Reads until this text is shown after what was read before.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        let seen = self.screen.len();
        let mut bytes = [0; 4096];
        while !self.screen[seen..].contains(text) {
            let read = self.out.read(&mut bytes).expect("the terminal is read");
            assert!(read > 0, "ended before {text:?}: {:?}", self.screen);
            self.screen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    /// Presses keys.
    fn press(&mut self, keys: &str) {
        let terminal = self.keys.as_mut().expect("keys can be pressed");
        terminal.write_all(keys.as_bytes()).expect("the keys arrive");
    }

    /// Sends a signal to the view itself.
    fn signal(&self, name: &str) {
        let (_, rest) = self.screen.split_once("pid ").expect("the shell said its number");
        let (pid, _) = rest.split_once('.').expect("the number ends");
        let kill = Command::new("kill").args(["-s", name, pid]).status();
        assert!(kill.expect("kill is there").success());
    }

    /// Waits for the end; checks the exit code and that the terminal was restored.
    #[track_caller]
    fn ends_well(mut self) {
        let mut rest = Vec::new();
        self.out.read_to_end(&mut rest).expect("the terminal is read");
        self.screen.push_str(&String::from_utf8_lossy(&rest));
        let status = self.child.wait().expect("script ends");
        assert!(status.success(), "{status}: {:?}", self.screen);
        let (_, after) = self.screen.split_once(TAKEN_OVER).expect("it was taken over");
        assert!(after.trim_end().ends_with(GIVEN_BACK), "{after:?}");
        assert!(after.contains(CURSOR_SHOWN), "{after:?}");
    }
}

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_end_it_and_restore_the_terminal() {
    let server = TestServer::new();
    server.run(&["put", "letters", "x"]).good();
    for keys in ["q", "\u{1b}", "\u{3}", "/qq\r>>rq"] {
        let mut terminal = PseudoTerminal::start(&server.serving.url);
        terminal.shows("letters");
        terminal.press(keys);
        terminal.ends_well();
    }
}

#[test]
fn signals_end_it_and_restore_the_terminal() {
    let server = TestServer::new();
    server.run(&["put", "letters", "x"]).good();
    for signal in ["TERM", "INT", "HUP"] {
        let mut terminal = PseudoTerminal::start(&server.serving.url);
        terminal.shows("letters");
        terminal.signal(signal);
        terminal.ends_well();
    }
}

#[test]
fn it_waits_for_an_unreachable_server() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::folder(folder.path(), &[]);
    serving.run(&["put", "letters", "x"]).good();
    let address = serving.url.trim_start_matches("http://").to_owned();
    let mut terminal = PseudoTerminal::start(&serving.url);
    terminal.shows("letters");
    serving.signal("TERM");
    serving.ended();
    terminal.shows("UNREACHABLE");
    let mut again = binary();
    again.args(["serve", "--iproto", "off", "--http", &address, "--data"]).arg(folder.path());
    let _serving = Serving::start(&mut again);
    terminal.shows("answered in");
    terminal.press("q");
    terminal.ends_well();
}

#[test]
fn without_a_terminal_one_table_is_printed() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    server.run(&["put", "sms", "x"]).good();
    server.run(&["put", "sms", "x", "--delay", "1h"]).good();
    server.run(&["tube", "pause", "mail"]).good();
    for flags in [&["top", "--interval", "100ms"][..], &["top", "--once", "--interval", "100ms"]] {
        let out = server.run(flags).good();
        let lines: Vec<Vec<&str>> =
            out.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(out.starts_with(&server.serving.url), "{out}");
        assert_eq!(lines[1][..4], ["2", "tubes:", "2", "ready,"], "{out}");
        assert_eq!(lines[2].join(" "), "wait p50 -, p99 -; run p50 -, p99 -", "{out}");
        assert_eq!(lines[4][..3], ["TUBE", "KIND", "READY"], "{out}");
        assert_eq!(lines[5][..4], ["mail", "(paused)", "fifottl", "1"], "{out}");
        assert_eq!(
            lines[6][..11],
            ["sms", "fifottl", "1", "0", "1", "0", "0", "0", "0", "0", "0"],
            "{out}"
        );
        assert_ne!(lines[6][11], "-", "the delayed task wakes: {out}");
    }
    let out = server.run(&["top", "--interval", "100ms", "--filter", "SM"]).good();
    assert!(out.contains("sms") && !out.contains("mail"), "{out}");
    let out = server.run(&["top", "--interval", "100ms", "--sort", "delayed"]).good();
    assert!(out.find("sms") < out.find("mail"), "{out}");
}

#[test]
fn json_lines_are_printed_until_a_signal() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let mut command = binary();
    command.args(["top", "--json", "--interval", "100ms", "--url", &server.serving.url]);
    let mut top = Running::start(&mut command);
    for _ in 0..2 {
        let line: serde_json::Value = serde_json::from_str(&top.line()).unwrap();
        assert_eq!(line["tubes"][0]["name"], "mail");
        assert_eq!(line["tubes"][0]["tasks"]["ready"], 1);
        assert_eq!(line["tubes"][0]["rates"]["put"], 0.0);
        assert_eq!(line["total"]["tubes"], 1);
        assert_eq!(line["url"], server.serving.url.as_str());
    }
    top.signal("TERM");
    assert_eq!(top.ended().ends(0).err, "");
    let once = server.run(&["top", "--json", "--once", "--interval", "100ms"]);
    assert_eq!(once.json().len(), 1);
}

#[test]
fn json_reports_an_unreachable_server_and_continues() {
    let mut command = binary();
    command.args(["top", "--json", "--interval", "100ms", "--url", "http://127.0.0.1:1"]);
    let mut top = Running::start(&mut command);
    for _ in 0..2 {
        let line: serde_json::Value = serde_json::from_str(&top.line()).unwrap();
        assert_eq!(line["url"], "http://127.0.0.1:1");
        assert!(line["error"].as_str().unwrap().starts_with("no answer from"), "{line}");
    }
    top.signal("INT");
    top.ended().ends(0);
}

#[test]
fn a_permanent_error_ends_it() {
    for flags in [&["top"][..], &["top", "--once"], &["top", "--once", "--json"]] {
        let ran = run(&[flags, &["--url", "http://127.0.0.1:1"]].concat()).ends(7);
        assert_eq!((ran.out.as_str(), ran.err.lines().count()), ("", 1), "{}", ran.err);
    }
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(&["--token-file", &token_file(folder.path())]);
    for flags in [&["top"][..], &["top", "--json"]] {
        server.run(flags).ends(8);
    }
    run(&["top", "--sort", "colour"]).ends(2);
}

#[test]
fn another_program_at_the_address_is_detected() {
    for body in ["", "hello", "{}", r#"{"tubes":[{"name":1}]}"#, r#"{"tubes":null}"#] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answering = thread::spawn(move || {
            let (mut caller, _) = listener.accept().expect("a connection");
            let _ = caller.read(&mut [0; 4096]).expect("the question is read");
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            caller.write_all((head + body).as_bytes()).expect("the answer is sent");
        });
        let ran = run(&["top", "--url", &url]).ends(1);
        assert!(ran.err.contains("is not a taskyard server"), "{}", ran.err);
        answering.join().unwrap();
    }
}

#[test]
fn the_help_lists_keys_and_examples() {
    let help = run(&["top", "--help"]).good();
    for word in
        ["Examples:", "taskyard top --once", "Keys:", "[default: 1s]", "TASKYARD_URL", "p50", "p99"]
    {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
    assert!(run(&["--help"]).good().contains("\n  top "));
}

//! `top`, in a terminal and without one.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::process::{Running, Serving, TestServer, binary, run, token_file};
use crate::pseudo_terminal::PseudoTerminal;

/// The sequences that enter and leave full screen mode.
const TAKEN_OVER: &str = "\u{1b}[?1049h";
const GIVEN_BACK: &str = "\u{1b}[?1049l";
const CURSOR_SHOWN: &str = "\u{1b}[?25h";

/// Starts the view in a terminal.
fn view(url: &str) -> PseudoTerminal {
    PseudoTerminal::start(&format!("top --interval 100ms --url {url}"))
}

/// Waits for the end of the view; checks the exit code and that the terminal was restored.
#[track_caller]
fn ends_well(terminal: PseudoTerminal) {
    let screen = terminal.ended();
    let (_, after) = screen.split_once(TAKEN_OVER).expect("it was taken over");
    assert!(after.trim_end().ends_with(GIVEN_BACK), "{after:?}");
    assert!(after.contains(CURSOR_SHOWN), "{after:?}");
}

#[test]
fn keys_end_it_and_restore_the_terminal() {
    let server = TestServer::new();
    server.run(&["put", "letters", "x"]).good();
    for keys in ["q", "\u{1b}", "\u{3}", "/qq\r>>rq"] {
        let mut terminal = view(&server.serving.url);
        terminal.shows("letters");
        terminal.press(keys);
        ends_well(terminal);
    }
}

#[test]
fn signals_end_it_and_restore_the_terminal() {
    let server = TestServer::new();
    server.run(&["put", "letters", "x"]).good();
    for signal in ["TERM", "INT", "HUP"] {
        let mut terminal = view(&server.serving.url);
        terminal.shows("letters");
        terminal.signal(signal);
        ends_well(terminal);
    }
}

#[test]
fn it_waits_for_an_unreachable_server() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::folder(folder.path(), &[]);
    serving.run(&["put", "letters", "x"]).good();
    let address = serving.url.trim_start_matches("http://").to_owned();
    let mut terminal = view(&serving.url);
    terminal.shows("letters");
    serving.signal("TERM");
    serving.ended();
    terminal.shows("UNREACHABLE");
    let mut again = binary();
    again.args(["serve", "--iproto", "off", "--http", &address, "--data"]).arg(folder.path());
    let _serving = Serving::start(&mut again);
    terminal.shows("answered in");
    terminal.press("q");
    ends_well(terminal);
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
        assert_eq!(lines[2].join(" "), "wait p50 -, p99 -; run p50 -, p99 -; fail/s 0", "{out}");
        assert_eq!(lines[4][..3], ["TUBE", "KIND", "READY"], "{out}");
        assert_eq!(lines[5][..4], ["mail", "(paused)", "fifottl", "1"], "{out}");
        assert_eq!(
            lines[6][..12],
            ["sms", "fifottl", "1", "0", "1", "0", "0", "0", "0", "0", "0", "0"],
            "{out}"
        );
        assert_ne!(lines[6][12], "-", "the delayed task wakes: {out}");
    }
    let out = server.run(&["top", "--interval", "100ms", "--view", "times"]).good();
    let titles =
        "TUBE READY TAKEN TAKE/S ACK/S FAIL/S WAIT P50 WAIT P90 WAIT P99 RUN P50 RUN P90 RUN P99";
    let line = |nth| out.lines().nth(nth).unwrap_or("").split_whitespace().collect::<Vec<_>>();
    assert_eq!(
        (line(4).join(" "), line(6).join(" ").as_str()),
        (titles.into(), "sms 1 0 0 0 0 - - - - - -"),
        "{out}"
    );
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
        assert_eq!(line["tubes"][0]["rates"]["fail"], 0.0);
        assert_eq!(line["total"]["tubes"], 1);
        assert_eq!(line["url"], server.serving.url.as_str());
    }
    top.signal("TERM");
    assert_eq!(top.ended().ends(0).err, "");
    let once = server.run(&["top", "--json", "--once", "--interval", "100ms"]);
    assert_eq!(once.json().len(), 1);
}

/// The times of a tube could only be seen on the page.
#[test]
fn times_are_those_of_each_tube() {
    let server = TestServer::new();
    for tube in ["mail", "sms"] {
        server.run(&["put", tube, "x"]).good();
    }
    server.run(&["take", "mail"]).good();
    server.run(&["ack", "mail", "0:0"]).good();
    let mut command = binary();
    command.args(["top", "--json", "--interval", "100ms", "--url", &server.serving.url]);
    let mut top = Running::start(&mut command);
    // They are shown when the second has ended.
    let tubes = loop {
        let line: serde_json::Value = serde_json::from_str(&top.line()).unwrap();
        let tubes = line["tubes"].clone();
        if !tubes[0]["wait"].is_null() && !tubes[0]["run"].is_null() {
            break tubes;
        }
    };
    for times in ["wait", "run"] {
        let shown = &tubes[0][times];
        assert!(shown["p50"].as_f64() <= shown["p90"].as_f64(), "{tubes}");
        assert!(shown["p90"].as_f64() <= shown["p99"].as_f64(), "{tubes}");
        assert!(shown["p50"].as_f64().is_some(), "{tubes}");
        assert_eq!(tubes[1][times], serde_json::Value::Null, "nothing of it was taken");
    }
    top.signal("TERM");
    top.ended().ends(0);
    let mut terminal = view(&server.serving.url);
    terminal.shows("t times");
    terminal.press("t");
    terminal.shows("t counts");
    terminal.press("q");
    ends_well(terminal);
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
    for word in [
        "Examples:",
        "taskyard top --once",
        "Keys:",
        "[default: 1s]",
        "TASKYARD_URL",
        "p50",
        "p99",
        "--view",
    ] {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
    assert!(run(&["--help"]).good().contains("\n  top "));
}

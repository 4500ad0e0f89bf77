//! The server's first screen, its refusals to start, and its end.

use std::process::Command;

use crate::rig::{Rig, Serving, binary, run};

/// The three lines to paste work as they are, in a shell.
#[test]
fn the_first_screen_can_be_pasted() {
    let rig = Rig::new();
    let screen = &rig.serving.screen;
    assert!(screen.starts_with(&format!("taskyard {}", env!("CARGO_PKG_VERSION"))), "{screen}");
    assert!(screen.contains("durable") && screen.contains("0 in 0 tubes"), "{screen}");
    let lines: Vec<&str> = screen.lines().filter(|line| line.contains(" mail")).collect();
    assert_eq!(lines.len(), 3, "{screen}");
    for line in lines {
        let output = Command::new("sh").args(["-c", line.trim()]).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
    let stats = rig.run(&["stats", "--json"]).json();
    assert_eq!(stats[0]["calls"]["ack"], 1);
}

#[test]
fn it_stops_when_asked_and_keeps_everything() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let serving = Serving::folder(folder.path(), &[]);
        serving.run(&["put", "mail", "a", "b"]).good();
        serving.run(&["take", "mail"]).ends(0);
        serving.signal(signal);
        let (status, rest) = serving.ended();
        assert!(status.success(), "{signal}: {status}");
        assert!(rest.starts_with("stopped; "), "{rest}");
        let serving = Serving::folder(folder.path(), &[]);
        assert!(serving.screen.contains("2 in 1 tube,"), "{}", serving.screen);
        assert!(serving.screen.contains("put mail2 "), "{}", serving.screen);
        assert_eq!(serving.run(&["stats", "--json"]).json()[0]["tasks"]["ready"], 2);
    }
}

#[test]
fn memory_is_said_to_be_gone() {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0"]);
    let serving = Serving::start(&mut command);
    assert!(serving.screen.contains("not durable"), "{}", serving.screen);
    serving.signal("TERM");
    assert!(serving.ended().1.contains("gone"));
}

#[test]
fn it_refuses_to_start_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let serving = Serving::folder(folder.path(), &[]);
    let second = run(&["serve", "--data", path, "--http", "127.0.0.1:0"]).ends(1);
    assert!(second.err.contains("in use"), "{}", second.err);
    let address = serving.url.trim_start_matches("http://");
    let busy = run(&["serve", "--store", "memory:", "--http", address]).ends(1);
    assert!(busy.err.contains("--http"), "{}", busy.err);
    let exposed = run(&["serve", "--store", "memory:", "--http", "0.0.0.0:0"]).ends(1);
    assert!(exposed.err.contains("--insecure"), "{}", exposed.err);
    let store = run(&["serve", "--store", "nowhere:"]).ends(1);
    assert!(store.err.contains("sqlite:DIR"), "{}", store.err);
}

#[test]
fn strict_servers_make_no_tubes() {
    let rig = Rig::with(&["--strict-tubes"]);
    rig.run(&["put", "mail", "x"]).ends(4);
    rig.run(&["tube", "create", "mail"]).good();
    rig.run(&["put", "mail", "x"]).good();
}

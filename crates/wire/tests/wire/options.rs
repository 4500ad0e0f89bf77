//! Options that a kind of tube does not have.

use taskyard_core::{Command, Error, Kind, Result, Span, TubeName, TubeOptions};
use taskyard_wire::http::{self, CreateRequest};

fn create(json: &str) -> Result<Command> {
    let request: CreateRequest = http::parse(json.as_bytes())?;
    request.into_command(TubeName::new("mail").unwrap())
}

#[track_caller]
fn refused(json: &str, words: &str) {
    match create(json) {
        Err(Error::Invalid(message)) => assert!(message.contains(words), "{message}"),
        other => panic!("not refused: {other:?}"),
    }
}

// A ttl on a fifo tube was accepted, shown and ignored.
#[test]
fn options_that_a_kind_ignores_are_refused() {
    for option in [r#""ttl": 1"#, r#""ttr": 1"#, r#""delay": 1"#, r#""pri": 1"#] {
        let name = option.split('"').nth(1).unwrap();
        for (kind, instead) in [("fifo", "fifottl"), ("utube", "utubettl")] {
            let words = format!("a {kind} tube has no {name}; make it a {instead} tube");
            refused(&format!(r#"{{"kind": "{kind}", {option}}}"#), &words);
        }
        for kind in ["fifottl", "utubettl"] {
            create(&format!(r#"{{"kind": "{kind}", {option}}}"#)).unwrap();
        }
    }
    refused(r#"{"kind": "fifo", "ttl_kills_taken": true}"#, "no ttl_kills_taken");
    create(r#"{"kind": "fifo", "pri": 0, "capacity": 5, "attempts_max": 2}"#).unwrap();
}

// A limfifottl tube without its limit was a fifottl tube that claimed to be limited.
#[test]
fn a_limited_tube_has_a_limit() {
    refused(r#"{"kind": "limfifottl"}"#, "give --capacity");
    create(r#"{"kind": "limfifottl", "capacity": 1}"#).unwrap();
}

/// A program behaves the same over the network and embedded, where the core decides.
#[test]
fn the_rust_client_is_lenient() {
    for kind in Kind::ALL {
        let options = TubeOptions { ttl: Some(Span::from_secs(1)), ..TubeOptions::new(kind) };
        let sent = serde_json::to_string(&CreateRequest::new(&options, false)).unwrap();
        let Ok(Command::CreateTube { options: read, .. }) = create(&sent) else {
            panic!("{sent} is refused");
        };
        assert_eq!(read, options);
    }
}

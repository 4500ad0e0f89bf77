//! Keeps what servers and commands print in the tests, and the secrets that the tests use. `cargo xtask test` names a folder for
//! both, and fails if a secret was printed. Without a folder nothing is kept.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{self, Stdio};
use std::sync::Once;

pub use taskyard_conformance::skipped::FOLDER_VARIABLE;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Shorter texts are also words of messages, and no server accepts them as a token.
const SECRET_BYTES_MIN: usize = 12;

/// What one process keeps in one file; more is left out.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// From now on this text must not be printed: a token, a password, or each line of a private key.
pub fn register_secret(text: &str) {
    let is_secret = |line: &&str| line.len() >= SECRET_BYTES_MIN && !line.starts_with("-----");
    let lines = text.lines().map(str::trim).filter(is_secret);
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    if !lines.is_empty() {
        append("secrets", "process", &lines);
    }
}

/// A random password of a database, which must not be printed, as it is or as a part of a URL. It has a character that URLs encode.
pub fn new_password() -> String {
    let password = format!("pass/{:016x}", fastrand::u64(..));
    register_secret(&password);
    register_secret(&in_url(&password));
    password
}

/// A password as a part of a URL.
pub fn in_url(password: &str) -> String {
    password.replace('/', "%2F")
}

/// Keeps what was printed, in a file of this name.
pub fn record(name: &str, text: &str) {
    append("output", name, text);
}

/// Where a process may write its log, so that it is kept.
pub fn log_file(name: &str) -> Stdio {
    open("output", name).map_or_else(Stdio::null, Stdio::from)
}

/// Whether output is kept.
pub fn is_kept() -> bool {
    env::var_os(FOLDER_VARIABLE).is_some()
}

/// Keeps the log of servers in this process, with all details.
pub fn keep_log() {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        let Some(file) = open("output", "log") else { return };
        // Without spans: tests check what workers do while no subscriber records them.
        let events =
            filter_fn(|metadata| metadata.is_event() && *metadata.level() <= LevelFilter::DEBUG);
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(file);
        let lines = lines.with_filter(events);
        // Another subscriber of the test process may be set already.
        let _ = tracing_subscriber::registry().with(lines).try_init();
    });
}

fn append(kind: &str, name: &str, text: &str) {
    let Some(mut file) = open(kind, name) else { return };
    let length = file.metadata().expect("a file of the tests has a length").len();
    if kind == "secrets" || length < FILE_BYTES_MAX {
        // One call, so that two threads do not mix their lines.
        file.write_all(text.as_bytes()).expect("the folder of the tests can be written");
    }
}

/// A file of this process.
fn open(kind: &str, name: &str) -> Option<File> {
    let folder = PathBuf::from(env::var_os(FOLDER_VARIABLE)?).join(kind);
    let path = folder.join(format!("{name}-{}", process::id()));
    let open = || OpenOptions::new().append(true).create(true).open(&path);
    let file = match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(&folder).and_then(|()| open())
        }
        opened => opened,
    };
    Some(file.expect("the folder of the tests can be written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_random_and_long_enough_to_be_searched_for() {
        let (one, other) = (new_password(), new_password());
        assert_ne!(one, other);
        assert!(one.len() >= SECRET_BYTES_MIN, "{one}");
        assert_ne!(in_url(&one), one);
    }
}

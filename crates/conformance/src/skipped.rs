//! Tests that are skipped because something is not there: `cargo xtask test` lists them at its end.
//!
//! It uses the standard library alone, so that a crate without the fixtures of the tests can include this file.

use std::env;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;

/// The variable that names the folder in which tests keep what they print.
pub const FOLDER_VARIABLE: &str = "TASKYARD_TEST_OUTPUT";

/// Whether the tests run without external tools on purpose.
pub fn is_embedded() -> bool {
    env::var_os("TASKYARD_EMBEDDED").is_some_and(|value| value == "1")
}

/// A tool of the tests: where the variable says, or at its usual place. `None` if it is not installed and the tests run without tools.
#[track_caller]
pub fn find_tool(variable: &str, usual: impl Into<PathBuf>) -> Option<PathBuf> {
    find_tool_with(variable, usual, "")
}

/// The same for a folder that is of no use without this file: an installation that was cut off has left the folder.
#[track_caller]
pub fn find_tool_with(variable: &str, usual: impl Into<PathBuf>, needed: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from);
    let needed = if needed.is_empty() { path.clone() } else { path.join(needed) };
    if needed.exists() {
        return Some(path);
    }
    skip_without(needed.display());
    None
}

/// Notes that this test is skipped because something is not installed. Fails, unless the tests run without tools.
#[track_caller]
pub fn skip_without(what: impl Display) {
    assert!(
        is_embedded(),
        "there is no {what}; run `eval \"$(cargo xtask tools)\"` first, or set TASKYARD_EMBEDDED=1 to go without"
    );
    skip(format_args!("there is no {what}"));
}

/// Notes that this test is skipped because this machine does not allow what it needs.
pub fn skip(why: impl Display) {
    let why = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    println!("skipped: {why}");
    let Some(folder) = env::var_os(FOLDER_VARIABLE) else { return };
    let folder = Path::new(&folder).join("output");
    let path = folder.join(format!("skipped-{}", process::id()));
    let line = format!("{why}\t{}\n", test_name());
    let written = fs::create_dir_all(&folder)
        .and_then(|()| File::options().append(true).create(true).open(path))
        .and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the folder of the tests can be written");
}

/// The name of the running test, with that of its binary. Each test has a thread of its own.
fn test_name() -> String {
    let program = env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash to the name of the target.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    format!("{program} {}", thread::current().name().unwrap_or("on another thread"))
}

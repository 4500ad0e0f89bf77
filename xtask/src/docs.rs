//! Writes the files that are generated from code: `docs/stores.md`, `docs/cli.md`, `deploy/systemd/taskyard.yaml`, the server's `openapi.json`, and the picture in
//! `docs/concepts.md`.

use crate::shell;

/// The tests that compare a generated file with the committed one; with `TASKYARD_WRITE_DOCS` set they write it. Only they
/// can ask the stores, the server and the command line, because this program compiles without them.
const TESTS: [&[&str]; 5] = [
    &["test", "-p", "taskyard-stores", "--test", "suite", "choosing::"],
    &["test", "-p", "taskyard-server", "--lib", "openapi::"],
    &["test", "-p", "taskyard-cli", "--test", "suite", "cli_page::"],
    &["test", "-p", "taskyard-cli", "--test", "suite", "config::the_file_of_the_package"],
    &["test", "-p", "taskyard-core", "--test", "suite", "state_picture::"],
];

/// Writes all generated files.
pub fn run() -> Result<(), String> {
    for test in TESTS {
        shell::run(shell::cargo().args(test).env("TASKYARD_WRITE_DOCS", "1"))?;
    }
    Ok(())
}

//! Writes the files that are generated from code, checks the documents, and builds them as a site.
//!
//! Generated are `docs/stores.md`, `docs/cli.md`, `docs/options.md`, `deploy/systemd/taskyard.yaml`, the server's `openapi.json`, and the
//! picture `docs/states.svg`.

use crate::shell;
use crate::site;
use crate::tidy;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentTasks {
    /// Generated files, checks and the site.
    All,
    /// The site and its links.
    Site,
}

/// The tests that compare a generated file with the committed one; with `TASKYARD_WRITE_DOCS` set they write it. Only they
/// can ask the stores, the server and the command line, because this program compiles without them.
const GENERATED: [&[&str]; 6] = [
    &["test", "-p", "taskyard-stores", "--test", "suite", "choosing::"],
    &["test", "-p", "taskyard-server", "--lib", "openapi::"],
    &["test", "-p", "taskyard-cli", "--test", "suite", "cli_page::"],
    &["test", "-p", "taskyard-cli", "--test", "suite", "config::the_file_of_the_package"],
    &["test", "-p", "taskyard-cli", "--bin", "taskyard", "settings::page::"],
    &["test", "-p", "taskyard-core", "--test", "suite", "state_picture::"],
];

/// The tests that read the commands and the blocks of code in the documents.
const CHECKS: [&str; 5] = ["test", "-p", "taskyard-cli", "--bin", "taskyard"];

/// Writes all generated files, checks the documents, and builds the site.
pub fn run(tasks: DocumentTasks) -> Result<(), String> {
    if tasks == DocumentTasks::All {
        for test in GENERATED {
            shell::run(shell::cargo().args(test).env("TASKYARD_WRITE_DOCS", "1"))?;
        }
        shell::run(shell::cargo().args(CHECKS).arg("document_check::"))?;
        tidy::run(tidy::Change::Nothing)?;
    }
    site::build()
}

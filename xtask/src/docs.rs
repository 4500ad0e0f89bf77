//! Documents that are made, not typed.

use crate::shell;

/// Writes them anew. The test that notices when they are old is also the program that makes them, because only it can
/// ask the stores; this one compiles without them.
pub fn run() -> Result<(), String> {
    let test = ["test", "-p", "taskyard-stores", "--test", "suite", "choosing::"];
    shell::run(shell::cargo().args(test).env("TASKYARD_WRITE_DOCS", "1"))
}

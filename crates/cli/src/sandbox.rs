//! The small program that a pool starts inside each sandbox. `taskyard` contains the same code and is used where this program is missing; it
//! only takes longer to start.

use std::process::ExitCode;

fn main() -> ExitCode {
    taskyard_pool::backend::run_as_sandbox_init().unwrap_or_else(|| {
        eprintln!(
            "taskyard-sandbox is started by `taskyard pool` inside each sandbox, not by hand"
        );
        ExitCode::FAILURE
    })
}

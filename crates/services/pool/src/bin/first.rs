//! What the pools of the tests start inside bubblewrap.

use std::process::ExitCode;

fn main() -> ExitCode {
    taskyard_pool::backend::enter().unwrap_or_else(|| {
        eprintln!("this is for the tests of the pool");
        ExitCode::FAILURE
    })
}

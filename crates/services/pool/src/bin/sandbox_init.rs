//! The executable that the tests of the pool start as the init process of a sandbox.

use std::process::ExitCode;

fn main() -> ExitCode {
    taskyard_pool::backend::run_as_sandbox_init().unwrap_or_else(|| {
        eprintln!("this executable is for the tests of the pool");
        ExitCode::FAILURE
    })
}

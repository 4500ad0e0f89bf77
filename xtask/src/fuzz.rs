//! Random input for what reads bytes from outside: every target of `fuzz/` for some seconds.
//!
//! Not part of `test`: it needs a nightly compiler and cargo-fuzz.

use crate::shell;

/// Seconds for each target, unless told otherwise.
pub const SECONDS: u64 = 60;

/// Runs every target; the first that finds something fails and leaves its input in `fuzz/artifacts`.
pub fn run(seconds: u64) -> Result<(), String> {
    let missing = "install what fuzzing needs: `rustup toolchain install nightly` and `cargo install cargo-fuzz`";
    shell::output(cargo_fuzz().arg("--version")).map_err(|_| missing.to_string())?;
    for target in shell::output(cargo_fuzz().arg("list"))?.lines() {
        let time = format!("-max_total_time={seconds}");
        shell::run(cargo_fuzz().args([
            "run",
            target,
            "--",
            &time,
            "-verbosity=0",
            "-print_final_stats=1",
        ]))?;
    }
    Ok(())
}

/// cargo-fuzz with the nightly compiler, whichever compiler started us.
fn cargo_fuzz() -> std::process::Command {
    let mut command = shell::program("rustup");
    // What the cargo above us has set would choose its own compiler again.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC");
    command.args(["run", "nightly", "cargo", "fuzz"]);
    command
}

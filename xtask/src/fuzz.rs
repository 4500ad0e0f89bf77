//! `cargo xtask fuzz`: runs every target of `fuzz/`, which feed random input to code that parses bytes from outside.
//!
//! Not part of `test`: it needs a nightly compiler and cargo-fuzz.

use crate::shell;

/// Seconds for each target by default.
pub const SECONDS: u64 = 60;

/// Runs every target; the first that finds something fails and leaves its input in `fuzz/artifacts`.
pub fn run(seconds: u64) -> Result<(), String> {
    let missing =
        "fuzzing needs: `rustup toolchain install nightly` and `cargo install cargo-fuzz`";
    shell::output(cargo_fuzz().arg("--version")).map_err(|_| missing.to_string())?;
    for target in shell::output(cargo_fuzz().arg("list"))?.lines() {
        let time = format!("-max_total_time={seconds}");
        shell::run(cargo_fuzz().args([
            "run",
            target,
            "--",
            &time,
            // Some pages of a data folder; without a corpus the default is one page.
            "-max_len=20000",
            "-verbosity=0",
            "-print_final_stats=1",
        ]))?;
    }
    Ok(())
}

/// cargo-fuzz with the nightly compiler, independent of the compiler of this process.
fn cargo_fuzz() -> std::process::Command {
    let mut command = shell::program("rustup");
    // These variables of the calling cargo would select its own compiler.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC");
    command.args(["run", "nightly", "cargo", "fuzz"]);
    command
}

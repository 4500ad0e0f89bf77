//! `health`: checks that a server runs and can read and write its store.

use clap::Args;
use serde_json::Value;
use taskyard_wire::Exit;

use crate::connect::{ServerArgs, block_on};
use crate::output;

/// The arguments of `health`.
#[derive(Debug, Args)]
#[command(after_help = "\
It prints ok and what an operator should look at, and exits with 0. If the server cannot be
reached, is still starting, or cannot write to its store, it prints why and exits with another
code. It needs no token, so a container or a load balancer can run it.

Examples:
  taskyard health
  taskyard health --url https://queue.example --json")]
pub struct HealthArgs {
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints the health of the server; an unhealthy one is an error.
pub fn run(args: HealthArgs) -> anyhow::Result<Exit> {
    let http = args.server.connect.http()?;
    let health: Value = block_on(async { Ok(http.get("/healthz").await?) })?;
    if args.server.json {
        output::json(&health)?;
        return Ok(Exit::Ok);
    }
    output::line("ok")?;
    for warning in health["warnings"].as_array().into_iter().flatten() {
        output::line(format!("warning: {}", printable(warning)))?;
    }
    let services = health["services"].as_object().into_iter().flatten();
    for (name, state) in services.filter(|(_, state)| *state != "ok") {
        output::line(format!(
            "warning: service {}: {}",
            output::printable(name),
            printable(state)
        ))?;
    }
    Ok(Exit::Ok)
}

fn printable(text: &Value) -> String {
    output::printable(text.as_str().unwrap_or_default())
}

//! Writes the log of long-running commands to standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable that says how much is logged.
const VARIABLE: &str = "TASKYARD_LOG";
/// A recovery with loss is always logged, whatever the level.
const SALVAGE: &str = "taskyard_store_sqlite::salvage";

/// Begins to log, with the level in `TASKYARD_LOG`: `info`, or `warn,taskyard_store=debug`.
pub fn start() {
    let asked = std::env::var(VARIABLE).ok().filter(|levels| !levels.trim().is_empty());
    let levels = asked.as_deref().map(str::parse::<Targets>);
    let unknown = levels.as_ref().is_some_and(Result::is_err);
    let levels = levels
        .and_then(Result::ok)
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(at_least_salvage(levels)).init();
    if unknown {
        tracing::warn!(
            "{VARIABLE} is not understood; write a level such as info or debug. Using warn"
        );
    }
}

fn at_least_salvage(levels: Targets) -> Targets {
    if levels.would_enable(SALVAGE, &tracing::Level::WARN) {
        return levels;
    }
    levels.with_target(SALVAGE, LevelFilter::WARN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_with_loss_is_logged_at_every_level() {
        for levels in ["off", "error", "warn", "taskyard_store=off", "debug,taskyard_store=error"] {
            let levels = at_least_salvage(levels.parse().unwrap());
            assert!(levels.would_enable(SALVAGE, &tracing::Level::WARN), "{levels}");
        }
        let more = at_least_salvage("debug".parse().unwrap());
        assert!(more.would_enable(SALVAGE, &tracing::Level::DEBUG));
    }
}

//! Asks for confirmation before tasks are removed.

use std::io::{self, IsTerminal};

use crate::failure::UsageError;
use crate::output;

/// Refuses to ask where no answer can be typed. `what` says what the command does.
pub fn check_terminal(what: &str) -> anyhow::Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    let why = format!(
        "{what} and asks for confirmation; standard input is no terminal, so confirm with --yes"
    );
    Err(UsageError(why).into())
}

/// Asks on the terminal, and says so if nothing is to be done.
pub fn confirmed(question: &str) -> anyhow::Result<bool> {
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    let yes = ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
    if !yes {
        output::note("nothing was removed");
    }
    Ok(yes)
}

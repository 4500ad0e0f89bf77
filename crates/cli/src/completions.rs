//! Completions for shells.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use taskyard_wire::Exit;

use crate::args::Cli;
use crate::output;

/// Which shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard completions bash > ~/.local/share/bash-completion/completions/taskyard
  taskyard completions zsh > ~/.zfunc/_taskyard
  taskyard completions fish > ~/.config/fish/completions/taskyard.fish")]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints what the shell reads.
pub fn run(args: CompletionsArgs) -> anyhow::Result<Exit> {
    // Written in one go, because the generator does not expect a reader that leaves.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "taskyard", &mut script);
    output::bytes(&script)?;
    Ok(Exit::Ok)
}

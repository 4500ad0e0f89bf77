//! `completions`: prints the completion script of a shell.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use taskyard_wire::Exit;

use crate::args::Cli;
use crate::output;

/// The arguments of `completions`.
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

/// Prints the script.
pub fn run(args: CompletionsArgs) -> anyhow::Result<Exit> {
    // Written at once, because the generator panics if its writer fails.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "taskyard", &mut script);
    output::bytes(&script)?;
    Ok(Exit::Ok)
}

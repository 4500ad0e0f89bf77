//! `config`: checks and writes the configuration file of a server.

mod check;
mod show;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use taskyard_wire::Exit;

/// The arguments of `config`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file is YAML. Its keys are the names of the options of `serve` without dashes in front:
`strict-tubes: true` is --strict-tubes. Options that may be repeated take a list. A relative path
starts at the folder of the file. An option on the command line replaces a variable
(TASKYARD_STRICT_TUBES=false), and a variable replaces the file.

Examples:
  taskyard config show > taskyard.yaml          all settings as comments, with their defaults
  taskyard config check taskyard.yaml           values and where they come from; opens all files
  taskyard serve --config taskyard.yaml")]
pub struct ConfigArgs {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Show all settings that a file gives and where they come from, and check the files that it names, without a start.
    #[command(after_help = "\
Examples:
  taskyard config check /etc/taskyard/taskyard.yaml --token-file /etc/taskyard/token
  taskyard config check taskyard.yaml --http 0.0.0.0:7070    with an option of serve
  taskyard config check taskyard.yaml --json | jq .problems

Tokens and passwords are not shown. Variables are those of the caller. No database is asked.
The exit code is 2 if a server would not start with this configuration.")]
    Check(ConfigCheckArgs),
    /// Print a configuration file with all settings and their defaults as comments; given options are set in it.
    #[command(after_help = "\
Examples:
  taskyard config show > taskyard.yaml
  taskyard config show --data /var/lib/taskyard --iproto off > taskyard.yaml")]
    Show(ConfigShowArgs),
}

#[derive(Debug, Args)]
struct ConfigCheckArgs {
    /// The file.
    file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    serve: ServeFlags,
}

#[derive(Debug, Args)]
struct ConfigShowArgs {
    #[command(flatten)]
    serve: ServeFlags,
}

/// Options of `serve`.
#[derive(Debug, Args)]
struct ServeFlags {
    /// Options of `serve`, which replace what the file sets.
    #[arg(value_name = "OPTION OF SERVE", trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

/// Runs the subcommand.
pub fn run(args: ConfigArgs) -> anyhow::Result<Exit> {
    match args.verb {
        ConfigVerb::Check(args) => check::run(&args),
        ConfigVerb::Show(args) => show::run(&args),
    }
}

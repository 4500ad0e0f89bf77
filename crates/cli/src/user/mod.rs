//! `user`: adds, lists and removes users in the file of users.

mod add;
mod list;
mod remove;
mod replace;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use taskyard_wire::Exit;

/// The arguments of `user`.
#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    verb: UserVerb,
}

#[derive(Debug, Subcommand)]
enum UserVerb {
    /// Add a user to the file; prints the token, which is not stored and not shown again.
    Add(add::AddUserArgs),
    /// List the users of the file.
    List(list::ListUsersArgs),
    /// Remove a user from the file.
    Remove(remove::RemoveUserArgs),
}

/// The file to read or change.
#[derive(Debug, Args)]
struct UsersFileArgs {
    /// The file of users of the server (serve --users FILE), which reads it again by itself.
    #[arg(long, value_name = "FILE", env = "TASKYARD_USERS")]
    users: PathBuf,
}

/// Runs the command.
pub fn run(args: UserArgs) -> anyhow::Result<Exit> {
    match args.verb {
        UserVerb::Add(args) => add::run(args),
        UserVerb::List(args) => list::run(args),
        UserVerb::Remove(args) => remove::run(args),
    }
}

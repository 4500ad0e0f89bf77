//! `user add`.

use std::io::ErrorKind;

use clap::Args;
use taskyard_core::access::Role;
use taskyard_server::NewSecret;
use taskyard_wire::Exit;

use super::UsersFileArgs;
use super::replace::{Replacement, names_in};
use crate::failure::UsageError;
use crate::output::{line, note};

/// The arguments of `user add`.
#[derive(Debug, Args)]
#[command(after_help = "\
Roles:
  read      show tubes, semaphores, schedules, workers and metrics, without payloads
  produce   put tasks
  consume   take and finish tasks, use semaphores
  operate   kick, delete, bury, pause, truncate, show tasks with their payloads
  admin     everything; with --tube only for these names

Examples:
  taskyard user add mailer --role produce --tube 'mail.*' --users users.toml
  taskyard user add metrics --role read --users users.toml > metrics.token
  taskyard user add queue --role produce --role consume --iproto --users users.toml")]
pub struct AddUserArgs {
    /// The name of the user.
    name: String,
    /// What the user may do; may be repeated.
    #[arg(long, value_name = "ROLE", required = true, value_parser = role)]
    role: Vec<Role>,
    /// The tubes, semaphores and schedules, in which * stands for any text; may be repeated.
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    tube: Vec<String>,
    /// Accept the token also as the password of the user over iproto.
    #[arg(long)]
    iproto: bool,
    #[command(flatten)]
    file: UsersFileArgs,
}

fn role(name: &str) -> Result<Role, String> {
    let known = || format!("the roles are {}", Role::ALL.map(Role::name).join(", "));
    Role::from_name(name).ok_or_else(known)
}

/// Adds the user and prints its token.
pub fn run(args: AddUserArgs) -> anyhow::Result<Exit> {
    let path = &args.file.users;
    let mut change = match Replacement::begin(path) {
        Err(error) if error.is(ErrorKind::NotFound) => Replacement::new_file(path)?,
        begun => begun?,
    };
    let secret = NewSecret::generate()?;
    let roles: Vec<&str> = args.role.iter().map(|role| role.name()).collect();
    let mut entry = format!(
        "[[users]]\nname = {}\ntoken_sha256 = {}\n",
        toml_value(&args.name)?,
        toml_value(&secret.token_sha256)?
    );
    if args.iproto {
        entry.push_str(&format!("password_hash = {}\n", toml_value(&secret.password_hash)?));
    }
    entry.push_str(&format!(
        "roles = {}\ntubes = {}\n",
        toml_value(&roles)?,
        toml_value(&args.tube)?
    ));
    let before = change.text();
    if !before.is_empty() && names_in(path, before)?.contains(&args.name) {
        let (name, path) = (&args.name, path.display());
        return Err(UsageError(format!(
            "user '{name}' exists in {path} already; for a new token remove it first: taskyard user remove {name} --users {path}"
        ))
        .into());
    }
    let gap = if before.is_empty() || before.ends_with("\n\n") { "" } else { "\n" };
    let end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    change.set(format!("{before}{end}{gap}{entry}"));
    change.commit()?;
    line(&secret.token)?;
    note(format!(
        "user '{}' added to {}; the token above is not stored and cannot be shown again",
        args.name,
        path.display()
    ));
    Ok(Exit::Ok)
}

/// A text or a list of texts: TOML writes them as JSON does.
fn toml_value(value: &impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value)
}

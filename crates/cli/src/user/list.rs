//! `user list`.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use taskyard_wire::Exit;

use super::UsersFileArgs;
use crate::output::{json_lines, printable, show, table};
use crate::users_file::{UsersFormat, parse, read_text};

/// The arguments of `user list`.
#[derive(Debug, Args)]
pub struct ListUsersArgs {
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: UsersFileArgs,
}

/// The users of a file, without what only the server needs.
#[derive(Deserialize)]
struct ListedUsers {
    users: Vec<ListedUser>,
}

#[derive(Deserialize)]
struct ListedUser {
    name: String,
    token_sha256: Option<serde::de::IgnoredAny>,
    password: Option<serde::de::IgnoredAny>,
    password_hash: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    roles: Vec<String>,
    tubes: Option<Vec<String>>,
    grants: Option<Value>,
}

/// A user, as it is printed: which secrets there are, but not which.
#[derive(Serialize)]
struct UserRow {
    name: String,
    secrets: Vec<&'static str>,
    roles: Vec<String>,
    tubes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grants: Option<Value>,
}

impl From<ListedUser> for UserRow {
    fn from(user: ListedUser) -> Self {
        let mut secrets = Vec::new();
        if user.token_sha256.is_some() {
            secrets.push("token");
        }
        if user.password.is_some() || user.password_hash.is_some() {
            secrets.push("password");
        }
        let all = if user.roles.is_empty() { Vec::new() } else { vec!["*".into()] };
        let tubes = user.tubes.unwrap_or(all);
        UserRow { name: user.name, secrets, roles: user.roles, tubes, grants: user.grants }
    }
}

/// Prints the users.
pub fn run(args: ListUsersArgs) -> anyhow::Result<Exit> {
    let path = &args.file.users;
    let (text, _) = read_text(path)?;
    let listed: ListedUsers = parse(path, UsersFormat::of(path, UsersFormat::Toml), &text)?;
    let rows = listed.users.into_iter().map(UserRow::from);
    if args.json {
        json_lines(rows)?;
        return Ok(Exit::Ok);
    }
    let mut users = table(&["name", "secret", "roles", "tubes"]);
    for row in rows {
        let roles = match &row.grants {
            Some(grants) => grants.to_string(),
            None => row.roles.join(","),
        };
        let cells = [row.name, row.secrets.join(","), roles, row.tubes.join(",")];
        users.add_row(cells.map(|cell| printable(&cell)));
    }
    show(&users)?;
    Ok(Exit::Ok)
}

//! `user remove`.

use std::collections::BTreeSet;

use clap::Args;
use taskyard_wire::Exit;

use super::UsersFileArgs;
use super::replace::{Replacement, names_in};
use crate::failure::UsageError;
use crate::output::note;

/// The header of a user in the file.
const HEADER: &str = "[[users]]";

/// The arguments of `user remove`.
#[derive(Debug, Args)]
pub struct RemoveUserArgs {
    /// The name of the user.
    name: String,
    #[command(flatten)]
    file: UsersFileArgs,
}

/// Removes the user.
pub fn run(args: RemoveUserArgs) -> anyhow::Result<Exit> {
    let (path, name) = (&args.file.users, &args.name);
    let mut change = Replacement::begin(path)?;
    let before = names_in(path, change.text())?;
    if !before.contains(name) {
        return Err(UsageError(format!("no user '{name}' in {}", path.display())).into());
    }
    let mut wanted = before;
    wanted.remove(name);
    let is_wanted = |text: &String| names_in(path, text).is_ok_and(|names| names == wanted);
    let texts = without_each(change.text());
    let Some(text) = texts.into_iter().find(is_wanted) else {
        let path = path.display();
        return Err(UsageError(format!(
            "cannot find where user '{name}' begins and ends in {path}; remove it with an editor"
        ))
        .into());
    };
    change.set(text);
    if wanted.is_empty() {
        change.commit_without_users()?;
        note("no users are left: a server that runs keeps the previous ones, and none starts");
    } else {
        change.commit()?;
    }
    note(format!("user '{name}' removed from {}", path.display()));
    Ok(Exit::Ok)
}

/// The text without its first user, without its second one, and so on. Comments and all other users
/// stay as they are.
fn without_each(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_header = |line: &str| {
        let line = line.trim_start();
        line.starts_with('[') && !line.starts_with("[[users.") && !line.starts_with("[users.")
    };
    let starts = (0..lines.len()).filter(|at| lines[*at].trim_start().starts_with(HEADER));
    let without = |start: usize| {
        let rest = &lines[start + 1..];
        let length = rest.iter().position(|line| is_header(line)).unwrap_or(rest.len());
        lines[..start].concat() + &lines[start + 1 + length..].concat()
    };
    starts.map(without).collect()
}

/// The names of users.
pub(super) type Names = BTreeSet<String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_removed_with_its_grants_only() {
        let ann = "[[users]]\nname = 'ann'\n[[users.grants]]\nroles = ['read']\n";
        let text = format!("# who\n{ann}\n[[users]] # second\nname = 'bob'\n");
        let texts = without_each(&text);
        assert_eq!(texts[0], "# who\n[[users]] # second\nname = 'bob'\n");
        assert_eq!(texts[1], format!("# who\n{ann}\n"));
        assert_eq!(texts.len(), 2);
        assert!(without_each("users = []\n").is_empty());
    }
}

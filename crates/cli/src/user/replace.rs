//! Replaces the file of users as a whole, so that a server never reads half of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use taskyard_server::Users;

use super::remove::Names;
use crate::failure::UsageError;
use crate::users_file::{UsersFormat, parse, read_text};

/// A change of the file. The new file exists while the change is made, so that two changes cannot
/// lose one of them.
pub struct Replacement {
    path: PathBuf,
    new_path: PathBuf,
    new: File,
    text: String,
    is_done: bool,
}

/// Why a change cannot begin.
#[derive(Debug)]
pub struct BeginError {
    kind: Option<ErrorKind>,
    error: UsageError,
}

impl BeginError {
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.kind == Some(kind)
    }
}

impl From<BeginError> for anyhow::Error {
    fn from(begin: BeginError) -> Self {
        begin.error.into()
    }
}

impl From<UsageError> for BeginError {
    fn from(error: UsageError) -> Self {
        BeginError { kind: None, error }
    }
}

impl Replacement {
    /// Begins to change an existing file.
    pub fn begin(path: &Path) -> Result<Self, BeginError> {
        check_format(path)?;
        // A link stays, and the file that it names is replaced.
        let path = fs::canonicalize(path).map_err(|error| {
            let text = format!("cannot read the users from {}: {error}", path.display());
            BeginError { kind: Some(error.kind()), error: UsageError(text) }
        })?;
        let mut change = Replacement::new_file(&path)?;
        let (text, about) = read_text(&path)?;
        change.text = text;
        // The server may run as another user than the one that changes the file, and must be able to read it.
        fchown(&change.new, Some(about.uid()), Some(about.gid())).map_err(|error| {
            let text = format!("cannot give {} the owner of the old file: {error}", path.display());
            UsageError(text)
        })?;
        Ok(change)
    }

    /// Begins to write a file that does not exist yet.
    pub fn new_file(path: &Path) -> Result<Self, UsageError> {
        check_format(path)?;
        let mut new_path = path.as_os_str().to_owned();
        new_path.push(".new");
        let new_path = PathBuf::from(new_path);
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new_path);
        let new = new.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => UsageError(format!(
                "{0} exists: another change is being made, or was interrupted; remove {0} in the latter case",
                new_path.display()
            )),
            _ => cannot_write(&new_path, &error),
        })?;
        let (path, text) = (path.to_owned(), String::new());
        Ok(Replacement { path, new_path, new, text, is_done: false })
    }

    /// The text of the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Sets the new text.
    pub fn set(&mut self, text: String) {
        self.text = text;
    }

    /// Replaces the file, if a server could use the new one.
    pub fn commit(self) -> Result<(), UsageError> {
        parse::<Users>(&self.path, UsersFormat::Toml, &self.text)?;
        self.commit_without_users()
    }

    /// Replaces the file without checking it.
    pub fn commit_without_users(mut self) -> Result<(), UsageError> {
        let written = self.new.write_all(self.text.as_bytes());
        let written = written.and_then(|()| self.new.sync_all());
        let renamed = written.and_then(|()| fs::rename(&self.new_path, &self.path));
        renamed.map_err(|error: io::Error| cannot_write(&self.path, &error))?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs::remove_file(&self.new_path);
        }
    }
}

/// The names of the users in a text.
pub fn names_in(path: &Path, text: &str) -> Result<Names, UsageError> {
    #[derive(Default, Deserialize)]
    struct NamedUsers {
        #[serde(default)]
        users: Vec<NamedUser>,
    }
    #[derive(Deserialize)]
    struct NamedUser {
        name: String,
    }
    let named: NamedUsers = parse(path, UsersFormat::Toml, text)?;
    Ok(named.users.into_iter().map(|user| user.name).collect())
}

fn check_format(path: &Path) -> Result<(), UsageError> {
    match UsersFormat::of(path, UsersFormat::Toml) {
        UsersFormat::Yaml => Err(UsageError(format!(
            "{} is written in YAML, which is changed with an editor; this command changes TOML files",
            path.display()
        ))),
        UsersFormat::Toml => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> UsageError {
    UsageError(format!("cannot write {}: {error}", path.display()))
}

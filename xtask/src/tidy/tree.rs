//! Reads the files of the repository into memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::source::Source;
use crate::shell;

/// Every file that is or may come under version control, by its path from the root.
pub struct Tree {
    /// The text, or nothing for a file that is not text.
    files: BTreeMap<String, Option<String>>,
    rust: BTreeMap<String, Source>,
}

impl Tree {
    /// Reads the repository.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        for path in list(root)? {
            // A file that is deleted but not yet committed is still listed.
            if let Ok(bytes) = fs::read(root.join(&path)) {
                files.insert(path, String::from_utf8(bytes).ok());
            }
        }
        Ok(Self::new(files))
    }

    fn new(files: BTreeMap<String, Option<String>>) -> Self {
        let rust = files
            .iter()
            .filter(|(path, _)| path.ends_with(".rs"))
            .filter_map(|(path, text)| Some((path.clone(), Source::new(path, text.as_deref()?))))
            .collect();
        Self { files, rust }
    }

    /// A tree for tests of the checks.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let owned = |(path, text): &(&str, &str)| (path.to_string(), Some(text.to_string()));
        Self::new(files.iter().map(owned).collect())
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// The paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Whether there is such a file.
    pub fn is_file(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// The files that are text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The texts of one kind, such as `.md`.
    pub fn ending(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| path.ends_with(ending))
    }

    /// The text of one file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// The Rust sources.
    pub fn rust(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.rust.iter().map(|(path, source)| (path.as_str(), source))
    }

    /// One Rust source.
    pub fn source(&self, path: &str) -> Option<&Source> {
        self.rust.get(path)
    }

    /// Whether there is such a file or folder.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self
                .files
                .range(folder.clone()..)
                .next()
                .is_some_and(|(p, _)| p.starts_with(&folder))
    }
}

fn list(root: &Path) -> Result<Vec<String>, String> {
    let mut git = shell::program("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    if let Ok(listed) = shell::output(git.current_dir(root)) {
        return Ok(listed.split('\0').filter(|path| !path.is_empty()).map(String::from).collect());
    }
    // Without git, as in an unpacked archive, everything counts but what a build leaves behind.
    let mut files = Vec::new();
    walk(root, "", &mut files).map_err(|error| format!("cannot list the files: {error}"))?;
    Ok(files)
}

fn walk(root: &Path, under: &str, files: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(under))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if under.is_empty() { name.clone() } else { format!("{under}/{name}") };
        if !entry.file_type()?.is_dir() {
            files.push(path);
        } else if !["target", ".git", "taskyard-data"].contains(&name.as_str()) {
            walk(root, &path, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_are_there() {
        let tree = Tree::of(&[("docs/a.md", ""), ("docs-old/b.md", "")]);
        for there in ["", "docs", "docs/a.md", "docs-old"] {
            assert!(tree.has(there), "{there}");
        }
        for absent in ["doc", "a.md", "docs/b.md"] {
            assert!(!tree.has(absent), "{absent}");
        }
    }
}

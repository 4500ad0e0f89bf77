//! Packs every crate to publish, and checks that each has what a user of it needs.

use std::fs;
use std::path::Path;

use crate::shell;

/// The packages that are not published.
const PRIVATE: [&str; 6] = [
    "mailer",
    "taskyard-bench",
    "taskyard-conformance",
    "taskyard-simulator",
    "taskyard-testkit",
    "xtask",
];

/// Files that each package has, besides its sources.
const NEEDED: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// A file of one package, and its path there: the program would have no documents without those that its build packs.
const NEEDED_BY: [(&str, &str); 1] = [("taskyard-documents-", "docs/README.md")];

/// The README files of packages that have their own: it is shown where the other files of the repository are not.
const OWN_READMES: [&str; 2] = ["crates/client/README.md", "crates/worker/README.md"];

/// Packs all packages. It needs no network: the steps before it have what it looks for.
pub fn run() -> Result<(), String> {
    for path in OWN_READMES {
        let page = fs::read_to_string(shell::root().join(path));
        let page = page.map_err(|error| format!("cannot read {path}: {error}"))?;
        if let Some(target) = relative_link(&page) {
            return Err(format!("{path} links to '{target}', which is not in the package"));
        }
    }
    let folder = shell::target().join("package");
    for old in packed_in(&folder)? {
        fs::remove_file(folder.join(old)).map_err(|error| error.to_string())?;
    }
    let mut command = shell::cargo();
    command.args(["package", "--workspace", "--no-verify", "--allow-dirty", "--offline", "-q"]);
    command.args(PRIVATE.iter().flat_map(|name| ["--exclude", *name]));
    shell::run(&mut command)?;
    let packed = packed_in(&folder)?;
    if packed.is_empty() {
        return Err(format!("nothing was packed into {}", folder.display()));
    }
    for name in packed {
        let listed = shell::output(shell::program("tar").arg("-tzf").arg(folder.join(&name)))?;
        let missing = missing(&name, &listed);
        if !missing.is_empty() {
            return Err(format!("the package {name} has no {}", missing.join(", no ")));
        }
    }
    Ok(())
}

/// The names of the packages in this folder.
fn packed_in(folder: &Path) -> Result<Vec<String>, String> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Result<Vec<String>, std::io::Error> = names.collect();
    let mut names = names.map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    names.retain(|name| name.ends_with(".crate"));
    Ok(names)
}

/// The needed files that are not among those of a package, each in the folder of its name and version.
fn missing(package: &str, listed: &str) -> Vec<&'static str> {
    let is_listed = |needed: &&str| {
        listed.lines().any(|path| path.split_once('/').is_some_and(|(_, file)| file == *needed))
    };
    let own = NEEDED_BY.into_iter().filter(|(name, _)| package.starts_with(name));
    let needed = NEEDED.into_iter().chain(own.map(|(_, file)| file));
    needed.filter(|needed| !is_listed(needed)).collect()
}

/// The first link of a page to a file beside it.
fn relative_link(page: &str) -> Option<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.into_iter().find(|target| !target.contains("://") && !target.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_beside_a_page_are_found() {
        assert_eq!(relative_link("[a](https://a.example) [b](#b) (c)"), None);
        assert_eq!(relative_link("[a](#a)\n[b](docs/b.md#c)"), Some("docs/b.md#c"));
    }

    #[test]
    fn a_package_without_a_needed_file_is_found() {
        let all = NEEDED.map(|file| format!("a-0.1.0/{file}")).join("\n");
        let package = "a-0.1.0.crate";
        assert!(missing(package, &all).is_empty());
        let nested = all.replace("a-0.1.0/README.md", "a-0.1.0/docs/README.md");
        assert_eq!(missing(package, &nested), ["README.md"]);
        assert_eq!(missing(package, ""), NEEDED);
        // The folder of documents is a link in the repository, which a package follows.
        let documents = "taskyard-documents-0.1.0.crate";
        assert_eq!(missing(documents, &all), ["docs/README.md"]);
        assert!(missing(documents, &format!("{all}\na-0.1.0/docs/README.md")).is_empty());
    }
}

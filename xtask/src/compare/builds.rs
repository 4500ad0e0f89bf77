//! Finds or builds the programs of the two builds.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::options::CompareOptions;
use crate::shell;

/// The programs of a build.
#[derive(Clone, Debug)]
pub struct Build {
    pub benchmark: PathBuf,
    /// `taskyard`, beside it.
    pub product: PathBuf,
}

/// How a build is given.
#[derive(Debug, PartialEq, Eq)]
enum BuildSource {
    /// The working tree.
    Here,
    /// A benchmark that was built before.
    File(PathBuf),
    /// A commit.
    Revision(String),
}

const BENCHMARK: &str = "taskyard-bench";
const PRODUCT: &str = "taskyard";
/// Letters of a commit that name its folder.
const NAME_LETTERS: usize = 12;

/// The programs of OLD and NEW.
pub fn prepare(options: &CompareOptions) -> Result<[Build; 2], String> {
    // The benchmark of NEW measures the servers of both.
    let old = build(&options.old, !options.measures_servers())?;
    let new = build(&options.new, true)?;
    Ok([old, new])
}

fn build(text: &str, needs_benchmark: bool) -> Result<Build, String> {
    match source(text)? {
        BuildSource::File(file) => Ok(beside(&file)),
        BuildSource::Here => {
            cargo_build(&shell::root(), &shell::target(), true)?;
            Ok(beside(&shell::target().join("release").join(BENCHMARK)))
        }
        BuildSource::Revision(commit) => build_revision(text, &commit, needs_benchmark),
    }
}

fn source(text: &str) -> Result<BuildSource, String> {
    if text == "." {
        return Ok(BuildSource::Here);
    }
    if Path::new(text).is_file() {
        let file =
            fs::canonicalize(text).map_err(|error| format!("cannot find {text}: {error}"))?;
        return Ok(BuildSource::File(file));
    }
    let commit = format!("{text}^{{commit}}");
    let mut git = shell::program("git");
    git.args(["rev-parse", "--verify", "--quiet", &commit]);
    match shell::output(&mut git) {
        Ok(hash) => Ok(BuildSource::Revision(hash.trim().to_owned())),
        Err(_) => Err(format!(
            "`{text}` is neither a revision of this repository nor a file; a benchmark that was built before is given as its path"
        )),
    }
}

fn beside(benchmark: &Path) -> Build {
    Build { benchmark: benchmark.to_owned(), product: benchmark.with_file_name(PRODUCT) }
}

/// Builds a commit, unless its programs are kept from an earlier comparison.
fn build_revision(text: &str, commit: &str, needs_benchmark: bool) -> Result<Build, String> {
    let all = shell::target().join("compare");
    let folder = all.join(commit.get(..NAME_LETTERS).unwrap_or(commit));
    let build = beside(&folder.join(BENCHMARK));
    if build.product.exists() && (!needs_benchmark || build.benchmark.exists()) {
        eprintln!("{text}: built before, {}", folder.display());
        return Ok(build);
    }
    eprintln!("{text}: building {commit}; this takes minutes");
    let tree = folder.join("tree");
    check_out(&tree, commit)?;
    // One folder for all revisions, so that external packages are compiled once.
    let target = all.join("target");
    cargo_build(&tree, &target, needs_benchmark)?;
    for (name, place) in [(PRODUCT, &build.product), (BENCHMARK, &build.benchmark)] {
        if name == PRODUCT || needs_benchmark {
            keep(&target.join("release").join(name), place)
                .map_err(|error| format!("cannot keep {name} of {text}: {error}"))?;
        }
    }
    Ok(build)
}

/// Copies a program. Half of a copy, after an interruption, would be taken for a build that is kept.
fn keep(program: &Path, place: &Path) -> io::Result<()> {
    let partial = place.with_extension("partial");
    fs::copy(program, &partial)?;
    fs::rename(&partial, place)
}

/// Checks out a commit in a worktree of its own. A tree that is there is made anew: cargo sees from the times of files what to
/// compile, and in the common folder the crates of all revisions have the same names.
fn check_out(tree: &Path, commit: &str) -> Result<(), String> {
    if tree.exists() {
        fs::remove_dir_all(tree)
            .map_err(|error| format!("cannot remove {}: {error}", tree.display()))?;
    }
    shell::output(shell::program("git").args(["worktree", "prune"]))?;
    let mut add = shell::program("git");
    add.args(["worktree", "add", "--detach", "--force"]).arg(tree).arg(commit);
    shell::output(&mut add).map(drop)
}

fn cargo_build(tree: &Path, target: &Path, needs_benchmark: bool) -> Result<(), String> {
    let mut cargo = shell::cargo();
    cargo.current_dir(tree).args(["build", "--release", "--package", "taskyard-cli"]);
    if needs_benchmark {
        cargo.args(["--package", "taskyard-bench"]);
    }
    // Not through the variable: cargo ran this program with its own.
    shell::run(cargo.arg("--target-dir").arg(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_files_or_revisions() {
        assert_eq!(source("."), Ok(BuildSource::Here));
        let own = std::env::current_exe().unwrap();
        assert_eq!(
            source(own.to_str().unwrap()),
            Ok(BuildSource::File(own.canonicalize().unwrap()))
        );
        assert!(matches!(source("HEAD"), Ok(BuildSource::Revision(hash)) if hash.len() >= 40));
        let error = source("no-such-revision").unwrap_err();
        assert!(error.contains("neither a revision"), "{error}");
    }

    /// An interrupted copy left half of a program, which the next comparison took for a build that is kept.
    #[test]
    fn a_kept_program_is_complete() {
        let folder = std::env::temp_dir().join(format!("taskyard-builds-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (program, place) = (folder.join("made"), folder.join("taskyard"));
        assert!(keep(&program, &place).is_err() && !place.exists());
        fs::write(&program, "whole").unwrap();
        fs::write(place.with_extension("partial"), "ha").unwrap();
        keep(&program, &place).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "whole");
        assert!(!place.with_extension("partial").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}

//! The sample of the README in a new project, with the lines of `Cargo.toml` that the README shows.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A program that opens URLs which its features do not have, and prints the errors.
const OTHER_URLS: &str = r#"
#[tokio::main]
async fn main() {
    for url in ["sqlite:queue", "postgres://a", "redis://a", "tarantool://a", "https://a", "iprotos://a"] {
        println!("{}", taskyard::Client::open(url).await.unwrap_err());
    }
}
"#;

/// The text of the first block of code in this language after a heading line.
fn block<'a>(page: &'a str, language: &str) -> &'a str {
    let (_, rest) = page.split_once("\nFrom Rust").expect("the README has the part");
    let (_, rest) = rest.split_once(&format!("\n```{language}\n")).expect("it has such a block");
    rest.split_once("\n```\n").expect("the block ends").0
}

/// A folder with a project beside the repository, as the README assumes.
fn new_project(folder: &Path, dependencies: &str, main: &str) {
    let repository = fs::canonicalize(REPOSITORY).expect("the repository is here");
    symlink(&repository, folder.join("taskyard")).expect("a link can be made");
    let project = folder.join("project");
    fs::create_dir_all(project.join("src/bin")).expect("a folder can be made");
    let package = "[package]\nname = \"project\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";
    fs::write(project.join("Cargo.toml"), format!("{package}{dependencies}\n")).unwrap();
    fs::write(project.join("src/main.rs"), main).unwrap();
    fs::write(project.join("src/bin/other_urls.rs"), OTHER_URLS).unwrap();
    // The versions that are here already: the test needs no network.
    fs::copy(repository.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
}

fn cargo(folder: &Path, args: &[&str]) -> String {
    let ran = Command::new(env!("CARGO"))
        .args(args)
        .arg("--offline")
        .current_dir(folder.join("project"))
        .env("CARGO_TARGET_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/readme"))
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo starts");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "cargo {args:?}: {errors}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// The sample did not compile with the dependencies that the README named.
#[test]
fn the_sample_compiles_in_a_new_project() {
    let page = fs::read_to_string(format!("{REPOSITORY}/README.md")).expect("the README is here");
    let folder = tempfile::tempdir().expect("a folder");
    new_project(folder.path(), block(&page, "toml"), block(&page, "rust"));
    cargo(folder.path(), &["build", "--bins"]);
    let errors = cargo(folder.path(), &["run", "--bin", "other_urls"]);
    let features = ["sqlite", "postgres", "redis", "tarantool", "tls", "tls"];
    assert_eq!(errors.lines().count(), features.len(), "{errors}");
    for (line, feature) in errors.lines().zip(features) {
        assert!(line.contains(&format!("needs the feature `{feature}`")), "{line}");
    }
}

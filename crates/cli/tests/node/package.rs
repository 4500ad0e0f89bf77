//! Packs the Node package and installs it into a folder of its own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use taskyard_testkit::certificates::write_for_clients;
use taskyard_testkit::recorded_output::{FOLDER_VARIABLE, record};
use taskyard_testkit::skipped::{find_tool, find_tool_with};
use tempfile::TempDir;

/// The source of the package.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/node");
/// The repository, whose licenses and list of changes are part of the package.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The contract with every type, and its test vectors.
const CONTRACT_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../contract/tests");
/// Where the compiler is, unless `TASKYARD_NODE_MODULES` names its folder.
const USUAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/node/node_modules");

/// How many lines of its output say how a run ended in which no test failed.
const LAST_LINES: usize = 30;

/// A folder with nothing but the installed package and its tests.
pub struct NodePackage {
    node: PathBuf,
    /// The folder with the compiler.
    modules: PathBuf,
    folder: TempDir,
}

impl NodePackage {
    /// Packs and installs the package; `None` when the tests run without Node.
    pub fn install() -> Option<Self> {
        let (node, modules) = tools()?;
        let folder = tempfile::tempdir().expect("a folder can be made");
        let package = NodePackage { node, modules, folder };
        package.pack();
        copy(&Path::new(SOURCE).join("test"), &package.path("test"));
        fs::create_dir(package.path("certificates")).expect("a folder can be made");
        write_for_clients(&package.path("certificates"));
        Some(package)
    }

    /// The interpreter.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// The folder with the packages of the tests.
    pub fn modules(&self) -> &Path {
        &self.modules
    }

    /// Checks that the types of the API are those of the OpenAPI document.
    pub fn check_api_types(&self) {
        run(Command::new(&self.node).args(["scripts/api.mjs", "--check"]).current_dir(SOURCE));
    }

    /// Runs the package's tests in files whose name is chosen; all of them must have run.
    pub fn run_tests(&self, is_chosen: impl Fn(&str) -> bool) {
        let mut node = Command::new(&self.node);
        node.args(["--test", "--test-reporter=spec", "--test-concurrency=4"]);
        let files = test_files(&self.path("test"), is_chosen);
        node.args(files).current_dir(self.folder.path());
        node.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default());
        node.env("TASKYARD_BINARY", env!("CARGO_BIN_EXE_taskyard"));
        node.env("TASKYARD_NODE_MODULES", &self.modules);
        node.env("TASKYARD_CONTRACT_TESTS", CONTRACT_TESTS);
        node.env("TASKYARD_TEST_CERTIFICATES", self.path("certificates"));
        for name in ["TASKYARD_SEED", "TASKYARD_RUNS", FOLDER_VARIABLE] {
            node.envs(env::var_os(name).map(|value| (name, value)));
        }
        let (status, output) = output_of(&mut node);
        record("node", &output);
        let all_ran = output.contains("fail 0\n") && output.contains("skipped 0\n");
        assert!(status.success() && all_ran, "{status}\n{}", failed_part(&output));
    }

    fn pack(&self) {
        let mut pack = self.npm();
        pack.args(["pack", "--pack-destination"]).arg(self.folder.path());
        pack.current_dir(copy_source(&self.path("repository")));
        run(pack.env("TASKYARD_NODE_MODULES", &self.modules));
        let files = fs::read_dir(self.folder.path()).expect("the folder is there");
        let files = files.map(|file| file.expect("the folder can be read").path());
        let package =
            files.into_iter().find(|file| file.extension().is_some_and(|end| end == "tgz"));
        let mut install = self.npm();
        install.args(["install", "--offline", "--no-audit", "--no-fund", "--prefix"]);
        run(install.arg(self.folder.path()).arg(package.expect("npm has packed the package")));
    }

    fn npm(&self) -> Command {
        let mut npm = Command::new("npm");
        npm.args(["--loglevel=error", "--update-notifier=false", "--cache"])
            .arg(self.path("cache"));
        npm
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The interpreter and the folder with the compiler; `None` when the tests run without Node.
pub fn tools() -> Option<(PathBuf, PathBuf)> {
    let node = find_tool("TASKYARD_NODE", "/usr/bin/node")?;
    Some((node, find_tool_with("TASKYARD_NODE_MODULES", USUAL, "typescript")?))
}

/// Copies the source into a folder that stands for the repository: tests that run at the same time do not build in one place.
pub fn copy_source(repository: &Path) -> PathBuf {
    let source = repository.join("clients/node");
    for name in ["scripts", "src"] {
        copy(&Path::new(SOURCE).join(name), &source.join(name));
    }
    copy_files(SOURCE, &source, &["README.md", "package.json", "tsconfig.json"]);
    copy_files(REPOSITORY, repository, &["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"]);
    source
}

/// The chosen files with tests, as arguments.
fn test_files(folder: &Path, is_chosen: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("the folder is there");
    let files = files.map(|file| file.expect("the folder can be read").path());
    let has_tests = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".test.mjs") && is_chosen(&name)
    };
    let files: Vec<_> = files.filter(has_tests).collect();
    assert!(!files.is_empty(), "no file is chosen");
    files
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for file in fs::read_dir(from).expect("the folder is there") {
        let file = file.expect("the folder can be read");
        fs::copy(file.path(), to.join(file.file_name())).expect("a file can be copied");
    }
}

/// Copies files of a folder by their names.
fn copy_files(from: &str, to: &Path, names: &[&str]) {
    for name in names {
        fs::copy(Path::new(from).join(name), to.join(name)).expect("a file can be copied");
    }
}

/// Runs a program that must succeed.
fn run(command: &mut Command) {
    let (status, output) = output_of(command);
    assert!(status.success(), "{command:?}: {output}");
}

/// Runs a program; how it ended, and its output.
fn output_of(command: &mut Command) -> (ExitStatus, String) {
    let ended = command.output().expect("the program starts");
    let output = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    (ended.status, output)
}

/// The part of the output of a run that names the failed tests and their assertions; its last lines if no test failed.
pub fn failed_part(output: &str) -> String {
    let lines: Vec<_> = output.lines().filter(|line| !line.contains("node:internal")).collect();
    let begin = lines.iter().position(|line| line.ends_with("failing tests:"));
    lines[begin.unwrap_or(lines.len().saturating_sub(LAST_LINES))..].join("\n")
}

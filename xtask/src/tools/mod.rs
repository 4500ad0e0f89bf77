//! Installs what the tests use and cargo cannot install: a browser with its driver, PostgreSQL with a pooler, Redis, a
//! reverse proxy, systemd's checks of units, Python programs, and existing clients of Tarantool's queue.

mod debian;
mod mdbook;
mod node;
mod pgmq;
mod python;

use std::path::{Path, PathBuf};

use crate::shell;

/// Debian keeps PostgreSQL's programs out of the PATH, by version.
const POSTGRES: &str = "/usr/lib/postgresql/15/bin";
/// Its folder is often not in the PATH.
const PGBOUNCER: &str = "/usr/sbin/pgbouncer";
/// The same.
const NGINX: &str = "/usr/sbin/nginx";

/// The paths of the tools.
pub struct Tools {
    chromium: PathBuf,
    chromedriver: PathBuf,
    node: PathBuf,
    node_modules: PathBuf,
    python: PathBuf,
    redis: PathBuf,
    tarantool: PathBuf,
}

impl Tools {
    /// The variables through which tests find them.
    pub fn env(&self) -> [(&'static str, PathBuf); 12] {
        let bin = self.python.join("bin");
        [
            ("TASKYARD_CHROMIUM", self.chromium.clone()),
            ("TASKYARD_CHROMEDRIVER", self.chromedriver.clone()),
            ("TASKYARD_HADOLINT", bin.join("hadolint")),
            ("TASKYARD_NGINX", NGINX.into()),
            ("TASKYARD_NODE", self.node.clone()),
            ("TASKYARD_NODE_MODULES", self.node_modules.clone()),
            ("TASKYARD_PGBOUNCER", PGBOUNCER.into()),
            ("TASKYARD_POSTGRES", POSTGRES.into()),
            ("TASKYARD_PYTHON", bin.join("python")),
            ("TASKYARD_REDIS", self.redis.clone()),
            ("TASKYARD_SCHEMATHESIS", bin.join("schemathesis")),
            ("TASKYARD_TARANTOOL", self.tarantool.clone()),
        ]
    }
}

/// Installs what `cargo xtask package` uses.
pub fn prepare_packaging() -> Result<(), String> {
    debian::prepare_packaging()
}

/// Installs the program that renders the documents as a site, and returns its path.
pub fn mdbook() -> Result<PathBuf, String> {
    mdbook::prepare()
}

/// Installs what is missing and returns the paths of all tools.
pub fn prepare() -> Result<Tools, String> {
    debian::prepare()?;
    let python = python::TESTS.prepare()?;
    let node = locate("node")?;
    Ok(Tools {
        chromium: locate("chromium")?,
        chromedriver: locate("chromedriver")?,
        node_modules: node::TESTS.prepare(&node)?,
        node,
        python,
        redis: locate("redis-server")?,
        tarantool: locate("tarantool")?,
    })
}

/// Installs the queues that the benchmark measures Taskyard against, and returns the variables that name them.
pub fn peers() -> Result<Vec<(&'static str, PathBuf)>, String> {
    let node = locate("node")?;
    let python = python::PEERS.prepare()?;
    build_node_package(&node)?;
    let mut variables = vec![
        ("TASKYARD_CHROMIUM", locate("chromium")?),
        ("TASKYARD_CHROMEDRIVER", locate("chromedriver")?),
        ("TASKYARD_PEERS", shell::root().join("bench")),
        ("TASKYARD_PEERS_NODE_MODULES", node::PEERS.prepare(&node)?),
        ("TASKYARD_PEERS_PYTHON", python.join("bin/python")),
        ("TASKYARD_NODE", node),
    ];
    match pgmq::prepare() {
        Ok(file) => variables.push(("TASKYARD_PEER_PGMQ", file)),
        // The benchmark reports that it is missing, and measures the others.
        Err(error) => eprintln!("{error}"),
    }
    Ok(variables)
}

/// Builds our Node package, which the benchmark loads from its folder.
fn build_node_package(node: &Path) -> Result<(), String> {
    let mut build = shell::program(node);
    build.arg(shell::root().join("clients/node/scripts/build.mjs"));
    shell::run(build.env("TASKYARD_NODE_MODULES", node::TESTS.prepare(node)?))
}

/// Prepares the tools and prints their variables as lines for a shell.
pub fn print() -> Result<(), String> {
    for (name, path) in prepare()?.env() {
        println!("export {name}='{}'", path.display());
    }
    Ok(())
}

fn locate(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| format!("`{name}` is not in the PATH"))
}

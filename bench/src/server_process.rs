//! Runs the product's server as a process of its own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A server process; it ends with this.
pub struct ServerProcess {
    child: Child,
    /// Kept open: the server may print more.
    _output: BufReader<ChildStdout>,
    /// What it printed when it was ready.
    screen: String,
}

impl ServerProcess {
    /// Starts `serve` on free ports with these arguments in a folder, and waits until it is ready.
    pub fn start(
        program: &Path,
        folder: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        // Settings of this shell would be those of the server.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TASKYARD_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(["serve", "--http", "127.0.0.1:0"])
            .args(args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = BufReader::new(child.stdout.take().context("its output is ours")?);
        let mut server = ServerProcess { child, _output: output, screen: String::new() };
        while !server.screen.contains("Ctrl-C") {
            if server._output.read_line(&mut server.screen)? == 0 {
                bail!("{} ended after {:?}", program.display(), server.screen);
            }
        }
        Ok(server)
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where it answers HTTP.
    pub fn url(&self) -> Result<&str> {
        let mut words = self.screen.split_whitespace();
        words.find(|word| word.starts_with("http://")).context("it has no address")
    }

    /// Where it speaks iproto, if it does.
    pub fn iproto(&self) -> Option<&str> {
        let mut lines = self.screen.lines();
        lines.find_map(|line| line.trim().strip_prefix("iproto "))?.split(' ').next()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

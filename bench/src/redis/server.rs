//! Starts a Redis in a new folder.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Where Redis is, unless `TASKYARD_REDIS` says otherwise.
const USUAL: &str = "/usr/bin/redis-server";

/// Its settings; all others are Redis' defaults.
const SETTINGS: [&str; 6] = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""];

/// What a reader should know of [`SETTINGS`].
pub const SETTINGS_NOTE: &str = "appendonly yes, appendfsync everysec, no snapshots";

/// The program, if it is installed.
pub fn program() -> Option<PathBuf> {
    let program = std::env::var_os("TASKYARD_REDIS").map_or_else(|| USUAL.into(), PathBuf::from);
    program.exists().then_some(program)
}

/// A running server; it ends with this.
pub struct RedisServer {
    client: PathBuf,
    port: u16,
    /// Where the nodes of a cluster reach it, if it is one.
    bus: Option<u16>,
    child: Child,
}

impl RedisServer {
    /// Starts a server in a new folder and waits until it answers.
    pub fn start(program: &Path, folder: &Path) -> Result<Self> {
        Self::start_with(program, folder, None)
    }

    /// Starts a node of a cluster, which has no slots yet.
    pub fn start_node(program: &Path, folder: &Path) -> Result<Self> {
        Self::start_with(program, folder, Some(free_port()?))
    }

    fn start_with(program: &Path, folder: &Path, bus: Option<u16>) -> Result<Self> {
        _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        let port = free_port()?;
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]).arg("--dir").arg(folder);
        if let Some(bus) = bus {
            command.args(["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()]);
        }
        command.args(SETTINGS).stdin(Stdio::null()).stdout(File::create(folder.join("log"))?);
        let child = command.spawn().context("Redis cannot be started")?;
        let client = program.with_file_name("redis-cli");
        let mut server = RedisServer { client, port, bus, child };
        for _ in 0..200 {
            if server.talk(&["PING"]).is_ok_and(|said| said.contains("PONG")) {
                return Ok(server);
            }
            ensure!(server.child.try_wait()?.is_none(), "Redis ended at once");
            sleep(Duration::from_millis(50));
        }
        bail!("Redis does not answer")
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Joins the cluster of another node.
    pub fn meet(&self, other: &RedisServer) -> Result<()> {
        let bus = other.bus.context("it is no node of a cluster")?;
        self.talk(&["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string(), &bus.to_string()])?;
        Ok(())
    }

    /// Removes all data.
    pub fn empty(&self) -> Result<()> {
        self.talk(&["FLUSHALL"]).map(drop)
    }

    /// Runs a command; answers what `redis-cli` prints, errors included.
    pub fn talk(&self, words: &[&str]) -> Result<String> {
        let mut client = Command::new(&self.client);
        client.args(["-p", &self.port.to_string()]).args(words).stdin(Stdio::null());
        Ok(String::from_utf8_lossy(&client.output()?.stdout).into_owned())
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

//! Starts a Tarantool in a new folder.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Where Tarantool is, unless `TASKYARD_TARANTOOL` says otherwise.
const USUAL: &str = "/usr/bin/tarantool";

const SCRIPT: &str = include_str!("server.lua");

/// What a reader should know of the settings.
pub const SETTINGS_NOTE: &str = "wal_mode write, the default";

/// The program, if it is installed.
pub fn program() -> Option<PathBuf> {
    let program =
        std::env::var_os("TASKYARD_TARANTOOL").map_or_else(|| USUAL.into(), PathBuf::from);
    program.exists().then_some(program)
}

/// Starts a server below this folder; `None` with a note if Tarantool is not installed.
pub fn start(folder: &Path) -> Result<Option<TarantoolServer>> {
    let Some(program) = program() else {
        eprintln!("  Tarantool is not measured: it is not installed; set TASKYARD_TARANTOOL");
        return Ok(None);
    };
    TarantoolServer::start(&program, &folder.join("tarantool")).map(Some)
}

/// A running server; it ends with this.
pub struct TarantoolServer {
    port: u16,
    child: Child,
}

impl TarantoolServer {
    /// Starts a server in a new folder and waits until it is ready.
    pub fn start(program: &Path, folder: &Path) -> Result<Self> {
        _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        fs::write(folder.join("server.lua"), SCRIPT)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(program);
        command.arg("server.lua").arg(port.to_string()).current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = TarantoolServer {
            port,
            child: command.spawn().context("Tarantool cannot be started")?,
        };
        for _ in 0..200 {
            if folder.join("ready").exists() {
                return Ok(server);
            }
            ensure!(server.child.try_wait()?.is_none(), "Tarantool ended at once");
            sleep(Duration::from_millis(50));
        }
        bail!("Tarantool does not become ready")
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("tarantool://bench:bench@127.0.0.1:{}", self.port)
    }
}

impl Drop for TarantoolServer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

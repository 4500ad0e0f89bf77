//! Starts a durable PostgreSQL server in a new folder.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Where PostgreSQL's programs are, unless `TASKYARD_POSTGRES` says otherwise.
const USUAL: &str = "/usr/lib/postgresql/15/bin";

/// The settings of the server; all others are PostgreSQL's defaults. A commit is on disk when it is acknowledged.
const SETTINGS: &str = "
listen_addresses = ''
fsync = on
synchronous_commit = on
full_page_writes = on
shared_buffers = 1GB
max_wal_size = 4GB
max_connections = 100
";

/// What a reader should know of [`SETTINGS`].
pub const SETTINGS_NOTE: &str =
    "fsync, synchronous_commit, full_page_writes on; shared_buffers 1GB, max_wal_size 4GB";

/// The folder of PostgreSQL's programs, if it is there.
pub fn programs() -> Option<PathBuf> {
    let folder = std::env::var_os("TASKYARD_POSTGRES").map_or_else(|| USUAL.into(), PathBuf::from);
    folder.join("postgres").exists().then_some(folder)
}

/// A running server; it ends with this.
pub struct Cluster {
    programs: PathBuf,
    folder: PathBuf,
    server: Child,
}

impl Cluster {
    /// Creates a server in a new folder and starts it.
    pub fn start(programs: PathBuf, folder: &Path) -> Result<Self> {
        _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        let folder = folder.canonicalize()?;
        if let Some((uid, gid)) = other_user()? {
            chown(&folder, Some(uid), Some(gid))?;
        }
        let data = folder.join("data");
        let mut initdb = program(&programs, "initdb", &folder)?;
        initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]);
        let made = initdb.arg("--pgdata").arg(&data).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&made.stderr);
        ensure!(made.status.success(), "PostgreSQL cannot be set up: {said}");
        let mut file = File::options().append(true).open(data.join("postgresql.conf"))?;
        file.write_all(SETTINGS.as_bytes())?;
        writeln!(file, "unix_socket_directories = '{}'", folder.display())?;
        let log = File::create(folder.join("log"))?;
        let mut server = program(&programs, "postgres", &folder)?;
        let server = server.arg("-D").arg(&data).stderr(log).spawn()?;
        let mut cluster = Cluster { programs, folder, server };
        cluster.wait()?;
        Ok(cluster)
    }

    /// Waits until it answers.
    fn wait(&mut self) -> Result<()> {
        let mut ready = program(&self.programs, "pg_isready", &self.folder)?;
        ready.arg("-q").arg("-h").arg(&self.folder);
        while !ready.status()?.success() {
            if let Some(ended) = self.server.try_wait()? {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                bail!("PostgreSQL ended ({ended}): {log}");
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Its first process, which starts the others.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// The URL of its database.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of another database.
    pub fn url_of(&self, database: &str) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{folder}/{database}")
    }

    /// The folder of its socket, as PostgreSQL's own clients want it.
    pub fn socket(&self) -> &Path {
        &self.folder
    }

    /// Runs plain SQL; returns its output, columns separated by `|`.
    pub fn sql(&self, text: &str) -> Result<String> {
        let mut psql = program(&self.programs, "psql", &self.folder)?;
        psql.args(["-U", "postgres", "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-h"]);
        psql.arg(&self.folder).args(["-c", text, "postgres"]);
        let output = psql.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{text}: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// A snapshot of the database that stays open until it is dropped, so that nothing deleted
    /// meanwhile can be vacuumed.
    pub fn hold_snapshot(&self) -> Result<Snapshot> {
        let mut psql = program(&self.programs, "psql", &self.folder)?;
        psql.args(["-U", "postgres", "-X", "-q", "-t", "-A", "-h"]).arg(&self.folder);
        psql.arg("postgres").stdin(Stdio::piped()).stdout(Stdio::null());
        let mut looking = psql.spawn()?;
        let input = looking.stdin.as_mut().context("psql has no input")?;
        writeln!(input, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current_snapshot();")?;
        let snapshot = Snapshot { looking };
        let holds = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' \
            AND backend_xmin IS NOT NULL";
        while self.sql(holds)? == "0" {
            sleep(Duration::from_millis(20));
        }
        Ok(snapshot)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Ok(mut stop) = program(&self.programs, "pg_ctl", &self.folder) {
            stop.args(["stop", "-m", "immediate", "--no-wait", "-D"]).arg(self.folder.join("data"));
            _ = stop.status();
        }
        _ = self.server.wait();
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// An open read-only transaction.
pub struct Snapshot {
    looking: Child,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        _ = self.looking.kill();
        _ = self.looking.wait();
    }
}

/// A program of PostgreSQL, as a user it accepts.
fn program(programs: &Path, name: &str, folder: &Path) -> Result<Command> {
    let mut command = Command::new(programs.join(name));
    if let Some((uid, gid)) = other_user()? {
        command.uid(uid).gid(gid);
    }
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

/// The id of the user without privileges on Linux.
const UNPRIVILEGED_UID: &str = "65534";

/// The user of PostgreSQL, which refuses to run as root: that of its package, or the unprivileged one.
fn other_user() -> Result<Option<(u32, u32)>> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let find = |field: usize, value: &str| {
        let line = users.lines().find(|line| line.split(':').nth(field) == Some(value))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let found = find(0, "postgres").or_else(|| find(2, UNPRIVILEGED_UID));
    Ok(Some(found.context("root needs a user `postgres` or the user id 65534 to run PostgreSQL")?))
}

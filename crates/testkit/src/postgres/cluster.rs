//! A PostgreSQL server of our own, in a temporary folder, gone with the test process.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::cleanup::CleanupShell;
use crate::recorded_output::{in_url, keep_log, new_password};
use crate::server_process::send_signal;
use crate::skipped::find_tool_with;

/// Where PostgreSQL's programs are, unless `TASKYARD_POSTGRES` says otherwise.
const USUAL: &str = "/usr/lib/postgresql/15/bin";

/// Stops the server and removes its folder; a server that is still ending may write one more file.
const STOP: &str = r#"
read -r _
"$0" stop -D "$1/data" -m immediate -W >/dev/null 2>&1
for _ in 1 2 3 4 5 6 7 8 9; do rm -rf "$1" && break; sleep 0.2; done
"#;

/// How the server is set: nothing here survives a loss of power, and nothing has to.
const SETTINGS: &str = "
listen_addresses = ''
fsync = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
max_connections = 200
shared_buffers = 256MB
max_wal_size = 4GB
max_locks_per_transaction = 256
";

/// The folder of PostgreSQL's programs; nothing when the tests are to go on without.
pub fn programs() -> Option<PathBuf> {
    find_tool_with("TASKYARD_POSTGRES", USUAL, "postgres")
}

/// The id of the user without privileges on Linux.
const UNPRIVILEGED_UID: &str = "65534";

/// A PostgreSQL server with its data.
pub struct Cluster {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    password: String,
    /// A child of this process, because the process that adopts orphans may leave them as zombies,
    /// and PostgreSQL's programs mistake a zombie for a server.
    server: Mutex<Option<Child>>,
    /// Dropped last, and not at all where the cluster is shared by the whole process.
    _keeper: CleanupShell,
}

impl Cluster {
    /// Creates a server in its own folder and starts it.
    pub fn new(programs: PathBuf) -> Self {
        Self::with(programs, 5432, |_| String::new())
    }

    /// The same with this port and more settings, which `prepare` may prepare in the folder of the data.
    pub fn with(programs: PathBuf, port: u16, prepare: impl FnOnce(&Path) -> String) -> Self {
        keep_log();
        let folder = TempDir::new().expect("a temporary folder can be made").keep();
        if let Some((uid, gid)) = other_user() {
            chown(&folder, Some(uid), Some(gid)).expect("the owner of a folder can be changed");
        }
        let keeper = cleanup(&programs.join("pg_ctl"), &folder);
        let (password, server) = (new_password(), Mutex::default());
        let cluster = Cluster { programs, folder, port, password, server, _keeper: keeper };
        let mut initdb = cluster.program("initdb");
        initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync"]);
        succeed(initdb.arg("--locale=C").arg("--pgdata").arg(cluster.data()));
        let settings = cluster.data().join("postgresql.conf");
        let mut file = File::options().append(true).open(settings).expect("initdb wrote it");
        let sockets = format!("unix_socket_directories = '{}'\n", cluster.folder.display());
        file.write_all(SETTINGS.as_bytes()).expect("settings can be written");
        file.write_all(sockets.as_bytes()).expect("settings can be written");
        let more = format!("port = {port}\n{}", prepare(&cluster.data()));
        file.write_all(more.as_bytes()).expect("settings can be written");
        cluster.change_owner();
        cluster.start();
        cluster
    }

    /// Starts the server and waits until it answers.
    pub fn start(&self) {
        let log = File::options().create(true).append(true).open(self.folder.join("log"));
        let log = log.expect("a log can be written");
        let mut server = self.program("postgres");
        let child = server.arg("-D").arg(self.data()).stderr(log).spawn();
        *self.server() = Some(child.expect("the server can be started"));
        let mut ready = self.program("pg_isready");
        ready.arg("-q").arg("-h").arg(&self.folder).args(["-p", &self.port.to_string()]);
        while !ready.status().expect("the program can be started").success() {
            let ended = self.server().as_mut().and_then(|child| child.try_wait().ok()?);
            assert!(ended.is_none(), "the server at {:?} ended: {ended:?}", self.socket());
        }
    }

    /// Ends the server as a crash would.
    pub fn kill(&self) {
        let mut stop = self.program("pg_ctl");
        succeed(stop.args(["stop", "-m", "immediate", "--no-wait", "-D"]).arg(self.data()));
        if let Some(mut server) = self.server().take() {
            server.wait().expect("the server ends");
        }
    }

    /// Sends all its processes a signal: `STOP`, `CONT`. The first process begins, so that it starts no others.
    pub fn signal(&self, name: &str) {
        let first = self.server().as_ref().map(Child::id).expect("the server runs");
        send_signal(first, name);
        for process in child_processes(first) {
            send_signal(process, name);
        }
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.host())
    }

    /// The same with a password, which the server does not ask for. No program may print it.
    pub fn url_with_password(&self, database: &str) -> String {
        format!("postgres://postgres:{}@{}/{database}", in_url(&self.password), self.host())
    }

    /// A random password for users that a test makes, registered as a secret.
    pub fn password(&self) -> &str {
        &self.password
    }

    fn host(&self) -> String {
        let folder = self.folder.to_str().expect("the folder's name is plain").replace('/', "%2F");
        format!("{folder}:{}", self.port)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!(".s.PGSQL.{}", self.port))
    }

    /// Gives the files in the data folder to the user of the server.
    fn change_owner(&self) {
        let files = fs::read_dir(self.data()).expect("initdb made it");
        for file in files.flatten().filter(|_| other_user().is_some()) {
            let (uid, gid) = other_user().expect("there is one");
            chown(file.path(), Some(uid), Some(gid)).expect("the owner of a file can be changed");
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// A program of PostgreSQL, as a user it accepts.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        as_other_user(&mut command);
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// The processes that a process has started and that run.
fn child_processes(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    let processes = fs::read_dir("/proc").expect("Linux has it").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |id: &u32| {
        // The name of the program, in parentheses, can contain anything; then come the state and the parent.
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        rest.split(' ').nth(1) == Some(&parent)
    };
    ids.filter(is_child).collect()
}

/// Stops the server and removes its folder when this process ends.
fn cleanup(pg_ctl: &Path, folder: &Path) -> CleanupShell {
    let mut shell = Command::new("sh");
    as_other_user(&mut shell);
    CleanupShell::spawn(shell.args(["-c", STOP]).arg(pg_ctl).arg(folder))
}

/// The user of PostgreSQL, which refuses to run as root: that of its package, or the unprivileged one.
pub fn other_user() -> Option<(u32, u32)> {
    let own = fs::metadata("/proc/self").expect("Linux has it").uid();
    if own != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("there are users");
    let find = |field: usize, value: &str| {
        let line = users.lines().find(|line| line.split(':').nth(field) == Some(value))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let found = find(0, "postgres").or_else(|| find(2, UNPRIVILEGED_UID));
    Some(found.expect("there is a user that is not root"))
}

/// Lets a program run as a user that PostgreSQL and its companions accept.
pub fn as_other_user(command: &mut Command) {
    if let Some((uid, gid)) = other_user() {
        command.uid(uid).gid(gid);
    }
}

fn succeed(command: &mut Command) {
    let output = command.stderr(Stdio::piped()).output().expect("the program can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}");
}

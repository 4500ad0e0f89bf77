//! A pooler between servers and their database that gives each transaction another connection.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use super::cluster::{as_other_user, other_user};
use super::database::cluster;
use crate::skipped::find_tool;

/// Where the pooler's program is, unless `TASKYARD_PGBOUNCER` says otherwise.
const USUAL: &str = "/usr/sbin/pgbouncer";

/// Ends the pooler and removes its folder when its input ends: when this process does, however it does.
const KEEPER: &str = r#"
"$0" -q "$1/settings" &
pooler=$!
read -r _
kill "$pooler"
wait "$pooler"
rm -rf "$1"
"#;

/// As few connections as possible, and never the same one twice in a row.
const SETTINGS: &str = "
pool_mode = transaction
default_pool_size = 3
max_client_conn = 500
server_round_robin = 1
auth_type = trust
listen_addr =
listen_port = 6432
";

/// A running pooler.
pub struct Pooler {
    folder: PathBuf,
    _shell: Child,
}

/// The pooler that the tests of this process share, before the cluster that they share.
pub fn pooler() -> &'static Pooler {
    static POOLER: OnceLock<Pooler> = OnceLock::new();
    POOLER.get_or_init(|| {
        let socket = cluster().socket();
        let host = socket.parent().expect("a folder has it").display().to_string();
        Pooler::before(&format!("host={host}"))
    })
}

/// Whether there is one; if not, the tests are to go on without.
pub fn is_there() -> bool {
    program().is_some()
}

fn program() -> Option<PathBuf> {
    find_tool("TASKYARD_PGBOUNCER", USUAL)
}

impl Pooler {
    /// A pooler before the database at this place, as the pooler's settings name it.
    pub fn before(place: &str) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made").keep();
        let own = folder.display();
        let settings = format!(
            "[databases]\n* = {place}\n[pgbouncer]\n{SETTINGS}\
             unix_socket_dir = {own}\nauth_file = {own}/users\n"
        );
        fs::write(folder.join("settings"), settings).expect("settings can be written");
        fs::write(folder.join("users"), "\"postgres\" \"\"\n").expect("users can be written");
        if let Some((uid, gid)) = other_user() {
            chown(&folder, Some(uid), Some(gid)).expect("a folder can be given away");
        }
        let mut shell = Command::new("sh");
        as_other_user(&mut shell);
        shell.args(["-c", KEEPER]).args(program()).arg(&folder).process_group(0).current_dir("/");
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = shell.spawn().expect("a shell can be started");
        let pooler = Pooler { folder, _shell: shell };
        // The socket is there a moment before the pooler listens.
        while UnixStream::connect(pooler.folder.join(".s.PGSQL.6432")).is_err() {
            std::thread::yield_now();
        }
        pooler
    }

    /// The same database by way of the pooler.
    pub fn url(&self, url: &str) -> String {
        let database = url.rsplit('/').next().expect("it has a name");
        let folder = self.folder.to_str().expect("the folder's name is plain").replace('/', "%2F");
        format!("postgres://postgres@{folder}:6432/{database}?pooler=transaction")
    }
}

//! A Redis server of our own, in a temporary folder on a free port, gone with the test process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cleanup::{CleanupShell, memory_folder};
use crate::ports::free_port;
use crate::recorded_output::{in_url, keep_log, new_password};
use crate::server_process::send_signal;
use crate::skipped::find_tool;

/// The default program, unless `TASKYARD_REDIS` is set.
const USUAL: &str = "/usr/bin/redis-server";

/// What is wrong with a tube.
const AUDIT: &str = include_str!("audit.lua");
/// What is wrong with a semaphore.
const AUDIT_SEMAPHORE: &str = include_str!("audit_semaphore.lua");

/// What is acknowledged is on disk, and nothing else is. Tests share a server: one that asks for ten thousand tasks at once on a busy machine
/// must not make it refuse the others.
pub const DURABLE: &[&str] = &[
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--save",
    "",
    "--busy-reply-threshold",
    "60000",
    // The file is removed after the tests.
    "--auto-aof-rewrite-percentage",
    "0",
];

/// The program; `None` when the tests may be skipped.
pub fn program() -> Option<PathBuf> {
    find_tool("TASKYARD_REDIS", USUAL)
}

/// A server.
pub struct RedisInstance {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    settings: Vec<String>,
    /// The password that clients need.
    password: Option<String>,
    server: Mutex<Option<Child>>,
    /// Dropped last, and not at all where the server is shared by the whole process.
    _keeper: CleanupShell,
}

impl RedisInstance {
    /// Starts a server whose acknowledged writes are on disk.
    pub fn new(program: PathBuf) -> Self {
        Self::with(program, DURABLE)
    }

    /// Starts a server with these settings, as on its command line.
    pub fn with(program: PathBuf, settings: &[&str]) -> Self {
        let instance = Self::prepared(program, settings);
        instance.start();
        instance
    }

    /// Prepares a server without starting it.
    pub fn prepared(program: PathBuf, settings: &[&str]) -> Self {
        keep_log();
        let folder = memory_folder("taskyard-redis-");
        let keeper = CleanupShell::kill(&folder);
        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        let (port, server) = (free_port(), Mutex::default());
        RedisInstance { program, folder, port, settings, password: None, server, _keeper: keeper }
    }

    /// Starts a server that requires a random password.
    pub fn with_password(program: PathBuf, settings: &[&str]) -> Self {
        let password = new_password();
        let settings = [settings, &["--requirepass", &password]].concat();
        let mut instance = Self::prepared(program, &settings);
        instance.password = Some(password);
        instance.start();
        instance
    }

    /// Starts the server and waits until it answers.
    pub fn start(&self) {
        match &self.password {
            Some(password) => self.launch(&["--no-auth-warning", "-a", password, "PING"]),
            None => self.launch(&["PING"]),
        }
    }

    fn launch(&self, ping: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.folder.join("log"));
        let mut server = Command::new(&self.program);
        server.args(["--bind", "127.0.0.1", "--port", &self.port.to_string()]);
        server.arg("--dir").arg(&self.folder).arg("--pidfile").arg(self.folder.join("pid"));
        server.args(&self.settings).current_dir(&self.folder);
        server
            .stdin(Stdio::null())
            .stdout(log.expect("a log can be written"))
            .stderr(Stdio::null());
        *self.server() = Some(server.spawn().expect("the server can be started"));
        // A server that loads its data answers an error.
        while !self.talk(ping).contains("PONG") {
            let ended = self.server().as_mut().and_then(|child| child.try_wait().ok()?);
            assert!(ended.is_none(), "the server in {} ended: {ended:?}", self.folder.display());
        }
    }

    /// Ends the server as a crash would.
    pub fn kill(&self) {
        if let Some(mut server) = self.server().take() {
            server.kill().expect("a child can be killed");
            server.wait().expect("the server ends");
        }
    }

    /// Sends the server a signal: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        send_signal(self.server().as_ref().map(Child::id).expect("the server runs"), name);
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, with its password if it has one.
    pub fn url(&self) -> String {
        let password = self.password.as_deref().map(|text| format!(":{}@", in_url(text)));
        self.url_with(&password.unwrap_or_default())
    }

    /// The same for a user and a password, as they are in a URL.
    pub fn url_with(&self, user: &str) -> String {
        format!("redis://{user}127.0.0.1:{}", self.port)
    }

    /// Runs a command and answers what `redis-cli` prints, errors included.
    pub fn talk(&self, words: &[&str]) -> String {
        let mut client = Command::new(self.program.with_file_name("redis-cli"));
        client.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]).args(words);
        let output = client.stdin(Stdio::null()).output().expect("redis-cli is beside the server");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Panics unless the orders of a tube say the same as its tasks.
    pub fn audit(&self, prefix: &str, tube: &str) {
        self.check("audit.lua", AUDIT, &format!("{{{prefix}:{tube}}}"));
    }

    /// The same for the semaphore whose keys begin so.
    pub fn audit_semaphore(&self, base: &str) {
        self.check("audit_semaphore.lua", AUDIT_SEMAPHORE, base);
    }

    fn check(&self, name: &str, script: &str, base: &str) {
        let wrong = self.script(name, script, base);
        assert_eq!(wrong, "", "'{base}' contradicts itself");
    }

    /// Runs a script on the keys that begin so, and answers what it says.
    pub fn script(&self, name: &str, script: &str, base: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, script).expect("a script can be written");
        let path = path.to_str().expect("the folder's name is plain");
        self.talk(&["--eval", path, base])
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RedisInstance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three masters with a replica each.
pub struct RedisCluster {
    /// All six nodes; the cluster decides which are masters.
    pub nodes: Vec<RedisInstance>,
}

/// How long a node may be unreachable before the others choose its replica, in milliseconds; and the timeout while the cluster is formed: a
/// node that is not reached within that time is never added, and a busy machine is slow.
const NODE_TIMEOUT_MS: &str = "1000";
const MEET_TIMEOUT_MS: &str = "30000";

impl RedisCluster {
    /// Starts them and waits until every one knows all slots.
    pub fn new(program: &Path) -> Self {
        let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", MEET_TIMEOUT_MS];
        let nodes: Vec<RedisInstance> = (0..6)
            .map(|_| {
                let bus = free_port().to_string();
                let own = ["--cluster-port", &bus];
                RedisInstance::with(program.into(), &[DURABLE, &settings, &own].concat())
            })
            .collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        let mut create = Command::new(program.with_file_name("redis-cli"));
        create.args(["--cluster", "create"]).args(addresses);
        create.args(["--cluster-replicas", "1", "--cluster-yes"]).stdin(Stdio::null());
        let made = create.output().expect("redis-cli is beside the server");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = RedisCluster { nodes };
        cluster.wait_until_whole();
        for node in &cluster.nodes {
            node.talk(&["CONFIG", "SET", "cluster-node-timeout", NODE_TIMEOUT_MS]);
        }
        cluster
    }

    /// Waits until all nodes that answer have a master for every slot, and those masters a replica in step.
    pub fn wait_until_whole(&self) {
        for node in &self.nodes {
            while !node.talk(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {}
        }
        for node in &self.nodes {
            let settled = |info: &str| {
                info.contains("master_link_status:up")
                    || info.contains("role:master") && info.contains("state=online")
            };
            while !settled(&node.talk(&["INFO", "replication"])) {}
        }
    }

    /// The URL by which a store finds all of them.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.nodes[0].port())
    }

    /// The master that has the slot of this key.
    pub fn master_of(&self, key: &str) -> &RedisInstance {
        loop {
            let port = self.living_master_of(key);
            if let Some(node) = self.nodes.iter().find(|node| Some(node.port()) == port) {
                return node;
            }
        }
    }

    /// Its port, as the living nodes see it; `None` while they do not agree.
    pub fn living_master_of(&self, key: &str) -> Option<u16> {
        let mut seen = self.nodes.iter().filter_map(|node| owner(node, key));
        let first = seen.next()?;
        seen.all(|other| other == first).then_some(first)
    }

    /// A replica of the master of this key.
    pub fn replica_of(&self, key: &str) -> &RedisInstance {
        let port = format!("master_port:{}", self.master_of(key).port());
        let follows = |node: &&RedisInstance| node.talk(&["INFO", "replication"]).contains(&port);
        self.nodes.iter().find(follows).expect("every master has a replica")
    }
}

/// The port of the master of a key, as this node sees it.
fn owner(node: &RedisInstance, key: &str) -> Option<u16> {
    let slot: u16 = node.talk(&["CLUSTER", "KEYSLOT", key]).parse().ok()?;
    let nodes = node.talk(&["CLUSTER", "NODES"]);
    nodes.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let owns = words.iter().skip(8).any(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            matches!((from.parse(), to.parse()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
        });
        let address = words.get(1).filter(|_| owns && !words[2].contains("fail"))?;
        address.split('@').next()?.rsplit(':').next()?.parse().ok()
    })
}

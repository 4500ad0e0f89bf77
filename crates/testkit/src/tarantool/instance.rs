//! A Tarantool of our own, in a temporary folder on a free port, gone with the test process.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use taskyard_tarantool::{Address, Connection, Failure, LuaValue, decode_value};

use crate::cleanup::{CleanupShell, memory_folder};
use crate::ports::free_port;
use crate::recorded_output::{in_url, keep_log, new_password, register_secret};
use crate::server_process::send_signal;
use crate::skipped::find_tool;

/// How long Lua may run: an audit reads every task, and the machine may be busy.
const TALK_MAX: Duration = Duration::from_secs(120);
/// The default program, unless `TASKYARD_TARANTOOL` is set.
const USUAL: &str = "/usr/bin/tarantool";

const SCRIPT: &str = include_str!("instance.lua");

/// Closes all connections, also that of the caller. Tarantool itself has no such call; a listening socket has no peer.
const CLOSE_CONNECTIONS: &str = "
    local ffi = require('ffi')
    pcall(ffi.cdef, 'int getpeername(int, void *, unsigned *); int shutdown(int, int);')
    local peer, size = ffi.new('char[128]'), ffi.new('unsigned[1]')
    for _, name in ipairs(require('fio').listdir('/proc/self/fd')) do
        size[0] = 128
        if ffi.C.getpeername(tonumber(name), peer, size) == 0 then ffi.C.shutdown(tonumber(name), 2) end
    end
";

/// What is wrong with the spaces of a store.
const AUDIT: &str = include_str!("audit.lua");

/// The user of a store, which may create spaces.
const USER: &str = "taskyard";

/// The password of all other users on all servers of this process: a replica has the users of its master.
static PASSWORD: LazyLock<String> = LazyLock::new(new_password);

/// The password of the administrator. Tarantool does not decode its own URIs, so it has no character that URLs encode.
static ADMIN_PASSWORD: LazyLock<String> = LazyLock::new(|| {
    let password = new_password().replace('/', "-");
    register_secret(&password);
    password
});

/// The variables that name the passwords to the script.
const PASSWORD_VARIABLE: &str = "TASKYARD_TEST_PASSWORD";
const ADMIN_PASSWORD_VARIABLE: &str = "TASKYARD_TEST_ADMIN_PASSWORD";

/// The program; `None` when the tests may be skipped.
pub fn program() -> Option<PathBuf> {
    find_tool("TASKYARD_TARANTOOL", USUAL)
}

/// A server.
pub struct TarantoolInstance {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// Whether it begins read-only.
    replica: bool,
    settings: Vec<String>,
    server: Mutex<Option<Child>>,
    /// Dropped last, and not at all where the server is shared by the whole process.
    _keeper: CleanupShell,
}

impl TarantoolInstance {
    /// Starts a server whose acknowledged writes are on disk.
    pub fn new(program: PathBuf) -> Self {
        Self::with(program, &[])
    }

    /// Starts a server with these settings, as pairs of names and values.
    pub fn with(program: PathBuf, settings: &[(&str, &str)]) -> Self {
        let instance = Self::prepared(program, settings);
        instance.start();
        instance
    }

    /// Prepares a server without starting it.
    pub fn prepared(program: PathBuf, settings: &[(&str, &str)]) -> Self {
        keep_log();
        let folder = memory_folder("taskyard-tarantool-");
        let keeper = CleanupShell::kill(&folder);
        fs::write(folder.join("instance.lua"), SCRIPT).expect("a script can be written");
        let settings = settings.iter().flat_map(|(name, value)| [*name, *value]);
        let settings = settings.map(str::to_owned).collect();
        let (server, port) = (Mutex::default(), free_port());
        TarantoolInstance {
            program,
            folder,
            port,
            replica: false,
            settings,
            server,
            _keeper: keeper,
        }
    }

    /// A server and one that follows it and is read-only.
    pub fn pair(program: &Path) -> [TarantoolInstance; 2] {
        let mut pair = [(); 2].map(|()| Self::prepared(program.into(), &[]));
        let uris =
            pair.each_ref().map(|one| format!("admin:{}@127.0.0.1:{}", *ADMIN_PASSWORD, one.port));
        // The first starts alone: the second needs its users.
        pair[0].start();
        pair[1].replica = true;
        for one in &mut pair {
            one.settings.extend(["replication".to_owned(), uris.join(";")]);
        }
        pair[1].start();
        pair[0].talk(&format!("box.cfg{{replication = {{'{}'}}}}", uris.join("', '")));
        pair
    }

    /// Starts the server and waits until it answers.
    pub fn start(&self) {
        self.launch(self.replica);
    }

    /// Starts one that was a master as a replica.
    pub fn start_as_replica(&self) {
        self.launch(true);
    }

    fn launch(&self, read_only: bool) {
        let log = fs::File::options().create(true).append(true).open(self.folder.join("out"));
        let log = log.expect("a log can be written");
        // A failed write is an error, as on a full disk, and not a signal.
        let mut server = Command::new("sh");
        server.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(&self.program);
        server.arg("instance.lua").arg(self.port.to_string());
        server.arg(if read_only { "replica" } else { "master" });
        server.args(&self.settings).current_dir(&self.folder);
        server.env(PASSWORD_VARIABLE, &*PASSWORD).env(ADMIN_PASSWORD_VARIABLE, &*ADMIN_PASSWORD);
        let errors = log.try_clone().expect("a file can be opened twice");
        server.stdin(Stdio::null()).stdout(log).stderr(errors);
        *self.server() = Some(server.spawn().expect("the server can be started"));
        // A server that loads its data answers an error.
        while !matches!(
            self.try_talk("return rawget(_G, 'ready') == true"),
            Ok(LuaValue::Bool(true))
        ) {
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

    /// Removes all that it wrote.
    pub fn forget(&self) {
        for entry in fs::read_dir(&self.folder).expect("the folder is there").flatten() {
            let path = entry.path();
            if path
                .extension()
                .is_some_and(|kind| ["snap", "xlog", "vylog"].iter().any(|k| kind == *k))
            {
                fs::remove_file(path).expect("a file can be removed");
            }
        }
    }

    /// Sends the server a signal: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        send_signal(self.server().as_ref().map(Child::id).expect("the server runs"), name);
    }

    /// Lets no file grow any more, as on a full disk, or lets them grow again.
    pub fn fill_disk(&self, full: bool) {
        let id = self.server().as_ref().map(Child::id).expect("the server runs").to_string();
        let limit = if full { "--fsize=1:" } else { "--fsize=unlimited:" };
        let set = Command::new("prlimit").args(["--pid", &id, limit]).status();
        assert!(set.expect("there is a program that sets limits").success());
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, with the user that a store would be.
    pub fn url(&self) -> String {
        self.url_as(USER)
    }

    /// The same for another user, with the password of this process.
    pub fn url_as(&self, user: &str) -> String {
        self.url_with(&format!("{user}:{}@", in_url(&PASSWORD)))
    }

    /// The same for a user and a password, as they are in a URL.
    pub fn url_with(&self, user: &str) -> String {
        url_at(user, &format!("127.0.0.1:{}", self.port))
    }

    /// A URL through a proxy that answers the first connections like a server that loads its data.
    pub fn loading_url(&self, connections: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let behind = self.port;
        thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                let server = TcpStream::connect(("127.0.0.1", behind)).expect("it is there");
                match number < connections {
                    true => answer_loading(client, server),
                    false => carry(client, server),
                }
            }
        });
        self.url().replace(&format!(":{behind}"), &format!(":{port}"))
    }

    /// Runs Lua and answers its first result.
    pub fn talk(&self, lua: &str) -> LuaValue {
        self.try_talk(lua).unwrap_or_else(|failure| panic!("{lua}: {failure}"))
    }

    /// Panics unless the spaces of a store say the same as each other.
    pub fn audit(&self, prefix: &str) {
        let wrong = self.talk(&format!("local PREFIX = '{prefix}'\n{AUDIT}"));
        assert_eq!(wrong, LuaValue::List(Vec::new()), "what is kept contradicts itself");
    }

    /// Closes all connections to it.
    pub fn close_connections(&self) {
        // The reply is lost with its connection.
        let closed = self.try_talk(CLOSE_CONNECTIONS);
        assert!(matches!(closed, Err(Failure::Lost(_))), "{closed:?}");
    }

    fn try_talk(&self, lua: &str) -> Result<LuaValue, Failure> {
        // The caller may be in a runtime, where it must not block.
        thread::scope(|scope| scope.spawn(|| self.talk_here(lua)).join().expect("it does not fail"))
    }

    fn talk_here(&self, lua: &str) -> Result<LuaValue, Failure> {
        let address = Address { host: "127.0.0.1".into(), port: self.port };
        let user = ("admin".to_owned(), ADMIN_PASSWORD.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut connection = Connection::open(&address, Some(&user)).await?;
            let mut requests = connection.requests();
            requests.eval(lua, |_| {});
            let answer = connection.exchange(requests, TALK_MAX).await?.pop();
            let data = answer.unwrap_or_else(|| Ok(Vec::new())).map_err(Failure::Refused)?;
            decode_value(&data).map_err(|error| Failure::Lost(error.to_string()))
        })
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The URL of a store at this address, with its user.
pub(super) fn url_of_store(address: &str) -> String {
    url_at(&format!("{USER}:{}@", in_url(&PASSWORD)), address)
}

fn url_at(user: &str, address: &str) -> String {
    format!("tarantool://{user}{address}")
}

impl Drop for TarantoolInstance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What Tarantool answers to the first request of a connection while it loads its data: error 116.
const LOADING: &[u8] = b"\xce\x00\x00\x00\x13\x82\x00\xcd\x80\x74\x01\x01\x81\x31\xa9not ready";

/// Greets, refuses the first request and waits until the client has gone.
fn answer_loading(mut client: TcpStream, mut server: TcpStream) {
    let mut greeting = [0; 128];
    server.read_exact(&mut greeting).expect("it greets");
    // The client may be gone before.
    let _ = client.write_all(&greeting).and_then(|()| client.write_all(LOADING));
    let _ = client.read_to_end(&mut Vec::new());
}

/// Forwards bytes in both directions.
fn carry(client: TcpStream, server: TcpStream) {
    let pair = || (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
    let ((mut asks, mut asked), (mut told, mut tells)) = (pair(), pair());
    thread::spawn(move || {
        let _ = io::copy(&mut asks, &mut asked);
        let _ = asked.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let _ = io::copy(&mut tells, &mut told);
        let _ = told.shutdown(Shutdown::Both);
    });
}

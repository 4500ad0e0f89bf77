//! Starts the servers of a storm and creates its tubes, on the database that the including tests choose.

use std::future::Future;

use taskyard::{Http, Iproto};
use taskyard_core::{Command, Execute, Kind, TubeName, TubeOptions};
use tokio::runtime::Builder;

use crate::is_installed;
use crate::process::{Serving, binary};

/// Runs a storm; skips it if its database is not installed and the tests may run without it.
pub fn run(storm: impl Future) {
    if is_installed() {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime starts").block_on(storm);
    }
}

/// A server process and its addresses.
pub struct StormServer {
    pub serving: Serving,
    pub http: Http,
    iproto: String,
}

/// The tubes of a storm: plain tasks, sub-queues, and a small capacity.
pub const PLAIN: &str = "plain";
pub const LANES: &str = "lanes";
pub const ROOM: &str = "room";
pub const CAPACITY: u64 = 30;

pub fn tube(name: &str) -> TubeName {
    TubeName::new(name).expect("a name")
}

/// Starts a server process on the database of this URL.
pub fn start(url: &str) -> Serving {
    let mut command = binary();
    command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0"]);
    Serving::start(command.args(["--store", url]))
}

/// Starts a server on the database of this URL.
pub fn serve(url: &str) -> StormServer {
    connect(start(url))
}

/// Reads the addresses of a server from its output.
pub fn connect(serving: Serving) -> StormServer {
    let line = serving.screen.lines().find_map(|line| line.trim().strip_prefix("iproto "));
    let iproto = line.and_then(|line| line.split(' ').next()).expect("it speaks iproto");
    let (iproto, http) = (iproto.to_owned(), Http::new(&serving.url).expect("an address"));
    StormServer { serving, http, iproto }
}

/// Creates the tubes.
pub async fn create_tubes(server: &StormServer) {
    let room = TubeOptions { capacity: Some(CAPACITY), ..TubeOptions::new(Kind::FifoTtl) };
    let tubes = [
        (PLAIN, TubeOptions::new(Kind::FifoTtl)),
        (LANES, TubeOptions::new(Kind::Utube)),
        (ROOM, room),
    ];
    let creates = tubes.map(|(name, options)| Command::CreateTube {
        tube: tube(name),
        options,
        if_not_exists: false,
    });
    for reply in server.http.execute(creates.to_vec()).await {
        reply.expect("the tube is created");
    }
}

impl StormServer {
    /// Opens a new iproto connection.
    pub fn iproto(&self) -> Iproto {
        Iproto::new(&self.iproto).expect("the server has a valid address")
    }
}

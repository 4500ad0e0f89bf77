//! Servers on one Redis or Tarantool, whichever the tests are about.

use std::future::Future;

use taskyard::{Http, Iproto};
use taskyard_core::{Command, Execute, Kind, TubeName, TubeOptions};
use tokio::runtime::Builder;

use crate::program;
use crate::rig::{Serving, binary};

/// Runs a storm, unless its database is not there and the tests are to go on without.
pub fn run(storm: impl Future) {
    if program().is_some() {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime starts").block_on(storm);
    }
}

/// A server, and how to reach it.
pub struct Server {
    pub serving: Serving,
    pub http: Http,
    iproto: String,
}

/// The tubes of a storm: plain tasks, sub-queues, and little room.
pub const PLAIN: &str = "plain";
pub const LANES: &str = "lanes";
pub const ROOM: &str = "room";
pub const CAPACITY: u64 = 30;

pub fn tube(name: &str) -> TubeName {
    TubeName::new(name).expect("a name")
}

/// Starts the process alone.
pub fn start(url: &str) -> Serving {
    let mut command = binary();
    command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0"]);
    Serving::start(command.args(["--store", url]))
}

/// Starts a server on the database of this URL.
pub fn serve(url: &str) -> Server {
    welcome(start(url))
}

/// Learns how to reach a server.
pub fn welcome(serving: Serving) -> Server {
    let line = serving.screen.lines().find_map(|line| line.trim().strip_prefix("iproto "));
    let iproto = line.and_then(|line| line.split(' ').next()).expect("it speaks iproto");
    let (iproto, http) = (iproto.to_owned(), Http::new(&serving.url).expect("an address"));
    Server { serving, http, iproto }
}

/// Makes the tubes.
pub async fn make_tubes(server: &Server) {
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
        reply.expect("a tube is made");
    }
}

impl Server {
    /// A connection of its own over iproto.
    pub fn iproto(&self) -> Iproto {
        Iproto::new(&self.iproto).expect("a server has a good address")
    }
}

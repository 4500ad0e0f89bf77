//! Servers on one database.

use std::future::Future;

use taskyard::{Http, Iproto};
use taskyard_core::{Command, Execute, Kind, TubeName, TubeOptions};
use tokio::runtime::Builder;

use crate::rig::{Serving, binary};
use taskyard_testkit::postgres::{Cluster, programs};
use taskyard_testkit::postgres::{Database, sql};

/// Runs a storm, unless there is no PostgreSQL and the tests are to go on without.
pub fn run(storm: impl Future) {
    if programs().is_some() {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime starts").block_on(storm);
    }
}

/// A database and the servers on it.
pub struct Yard {
    pub database: Database,
    known: Vec<String>,
}

/// A server, and how to reach it.
pub struct Server {
    pub serving: Serving,
    /// Its identity in the database, in hexadecimal.
    pub id: String,
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

impl Yard {
    /// A database on the cluster that tests share.
    pub fn new() -> Self {
        Yard { database: Database::new(), known: Vec::new() }
    }

    /// One on a cluster of its own, which may be killed.
    pub fn on(cluster: &'static Cluster) -> Self {
        Yard { database: Database::on(cluster), known: Vec::new() }
    }

    /// Starts a server.
    pub fn serve(&mut self) -> Server {
        let url = self.database.url();
        self.serve_by(&url)
    }

    /// Starts a server that reaches the database by this URL.
    pub fn serve_by(&mut self, url: &str) -> Server {
        let serving = self.start(url);
        self.welcome(serving)
    }

    /// Starts the process alone.
    pub fn start(&self, url: &str) -> Serving {
        let mut command = binary();
        command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0"]);
        Serving::start(command.args(["--store", url]))
    }

    /// Learns who a server is that was just started.
    pub fn welcome(&mut self, serving: Serving) -> Server {
        let line = serving.screen.lines().find_map(|line| line.trim().strip_prefix("iproto "));
        let iproto = line.and_then(|line| line.split(' ').next()).expect("it speaks iproto");
        let (iproto, http) = (iproto.to_owned(), Http::new(&serving.url).expect("an address"));
        let known = self.known.join(",");
        let newest = format!(
            "SELECT encode(id, 'hex') FROM taskyard.server
             WHERE encode(id, 'hex') <> ALL (string_to_array('{known}', ','))"
        );
        let id = sql(&self.database.url(), &newest).expect("it says that it lives");
        self.known.push(id.clone());
        Server { serving, id, http, iproto }
    }

    /// Makes the tubes.
    pub async fn make_tubes(&self, server: &Server) {
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
}

impl Server {
    /// A connection of its own over iproto.
    pub fn iproto(&self) -> Iproto {
        Iproto::new(&self.iproto).expect("a server has a good address")
    }
}

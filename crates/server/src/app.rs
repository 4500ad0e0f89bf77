//! What every request needs.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use taskyard_core::service::Service;
use taskyard_core::{Command, Error, Execute, Reply, TubeName};
use taskyard_engine::Engine;
use tokio::sync::Semaphore;

use crate::auth::Token;
use crate::body::Intake;
use crate::config::{Config, Guests};
use crate::guard::Hosts;
use crate::http::Refusal;
use crate::iproto::Face;
use crate::metrics::Requests;
use crate::stalled::Lookout;

/// What every request needs, shared by all connections.
pub(crate) struct App {
    /// Who runs the commands.
    pub engine: Engine,
    /// What callers must show.
    pub token: Option<Token>,
    /// Under which names the server may be called.
    pub hosts: Hosts,
    /// How to call the command line.
    pub program: String,
    /// Whether a put to an unknown tube is refused.
    pub strict_tubes: bool,
    /// Where events of semaphores go.
    pub events_tube: Option<TubeName>,
    /// The longest anybody may wait, in seconds.
    pub wait_seconds_max: f64,
    /// Reads requests within the limits.
    pub intake: Intake,
    /// What was asked so far.
    pub requests: Requests,
    /// One permit for each connection that may still come.
    pub room: Arc<Semaphore>,
    /// How many connections there may be.
    pub connections_max: usize,
    /// When the server started.
    pub started: Instant,
    /// The OpenAPI document, written once.
    pub document: Bytes,
    /// The face for clients of Tarantool's queue, if there is one.
    pub iproto: Option<Arc<Face>>,
    /// What runs beside the queue.
    pub services: Vec<Arc<dyn Service>>,
    /// How semaphores stood when they were last looked at.
    pub lookout: Lookout,
    /// Addresses that somebody else answers.
    pub guests: Option<Guests>,
}

/// How handlers hold it.
pub(crate) type Shared = Arc<App>;

impl App {
    /// Everything that the configuration says; `hosts` are the names of the bound address, `instance`
    /// is who this server is for clients of Tarantool's queue.
    pub fn new(
        config: Config,
        engine: Engine,
        hosts: Hosts,
        document: Bytes,
        instance: [u8; 16],
    ) -> Self {
        // More permits than this the semaphore cannot have.
        let connections_max = config.connections_max.min(Semaphore::MAX_PERMITS);
        let iproto = config.iproto.map(|iproto| Face::new(iproto, engine.clone(), instance));
        App {
            engine,
            token: config.token,
            hosts,
            program: config.program,
            strict_tubes: config.strict_tubes,
            events_tube: config.events_tube,
            wait_seconds_max: config.wait_seconds_max,
            intake: Intake::new(config.body_bytes_max),
            requests: Requests::default(),
            room: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            started: Instant::now(),
            document,
            iproto: iproto.map(Arc::new),
            services: config.services,
            lookout: Lookout::default(),
            guests: config.guests,
        }
    }

    /// Runs one command.
    pub async fn ask(&self, command: Command) -> Result<Reply, Error> {
        let reply = self.engine.execute(vec![command]).await.pop();
        reply.unwrap_or_else(|| Err(Error::Store("the engine did not answer".into())))
    }

    /// How many connections are open, of every kind.
    pub fn connections(&self) -> usize {
        self.connections_max.saturating_sub(self.room.available_permits())
    }
}

/// What to say when a reply is not of the kind that belongs to its command.
pub(crate) fn misfit() -> Refusal {
    Error::Store("the engine answered something else than was asked".into()).into()
}

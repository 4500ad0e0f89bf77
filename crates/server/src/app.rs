//! What every request needs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use taskyard_core::limits::TUBES_MAX;
use taskyard_core::service::Service;
use taskyard_core::{Command, Error, Execute, Reply, TubeName};
use taskyard_engine::{Engine, StoreHealth};
use tokio::sync::Semaphore;

use crate::answers::Answers;
use crate::auth::Token;
use crate::auth_throttle::AuthThrottle;
use crate::body::Intake;
use crate::config::{ADMIN, Config, Guests};
use crate::guard::Hosts;
use crate::http::Refusal;
use crate::iproto::{IprotoConfig, IprotoServer};
use crate::metrics::Requests;
use crate::stalled::Lookout;
use crate::tube_quota::{TubeQuota, User};

/// For whom tubes are created by callers who need no token: the same as of iproto clients that do not log in.
const ANYONE: &str = "guest";

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
    /// Tubes that are known to have sub-queues.
    pub subqueue_tubes: SubqueueTubes,
    /// Where events of semaphores go.
    pub events_tube: Option<TubeName>,
    /// The longest anybody may wait, in seconds.
    pub wait_seconds_max: f64,
    /// Reads requests within the limits.
    pub intake: Intake,
    /// The room for answers.
    pub answers: Answers,
    /// How long a client may accept nothing of its answer.
    pub answer_stall_max: Duration,
    /// Failed logins.
    pub throttle: Arc<AuthThrottle>,
    /// What the store last answered when it was asked for its health.
    health: tokio::sync::Mutex<Option<(Instant, Result<StoreHealth, Error>)>>,
    /// Which users created how many tubes.
    pub tubes: Arc<TubeQuota>,
    /// How many tubes have rows of their own in `/metrics`.
    pub metrics_tubes_max: usize,
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
    pub iproto: Option<Arc<IprotoServer>>,
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
        let tubes_per_user_max = config.tubes_per_user_max;
        let throttle = Arc::new(AuthThrottle::new());
        let iproto = config.iproto.map(|iproto| {
            let iproto = IprotoConfig { tubes_per_user_max, ..iproto };
            Arc::new(IprotoServer::new(iproto, engine.clone(), instance, throttle.clone()))
        });
        // A user is the same one on both faces.
        let tubes = match &iproto {
            Some(face) => face.tubes.clone(),
            None => Arc::new(TubeQuota::new(tubes_per_user_max)),
        };
        App {
            engine,
            token: config.token,
            hosts,
            program: config.program,
            strict_tubes: config.strict_tubes,
            subqueue_tubes: SubqueueTubes::default(),
            events_tube: config.events_tube,
            wait_seconds_max: config.wait_seconds_max,
            intake: Intake::new(
                config.body_bytes_max,
                config.request_bytes_total_max,
                config.request_stall_max,
            ),
            answers: Answers::new(
                config.answer_bytes_total_max,
                config.answer_bytes_max,
                config.answer_wait_max,
            ),
            answer_stall_max: config.answer_stall_max,
            throttle,
            health: tokio::sync::Mutex::new(None),
            tubes,
            metrics_tubes_max: config.metrics_tubes_max,
            requests: Requests::default(),
            room: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            started: Instant::now(),
            document,
            iproto,
            services: config.services,
            lookout: Lookout::default(),
            guests: config.guests,
        }
    }

    /// Runs one command.
    pub async fn ask(&self, command: Command) -> Result<Reply, Error> {
        if let Command::DropTube { tube } | Command::NameTube { tube, .. } = &command {
            self.subqueue_tubes.forget(tube);
        }
        let replies = match TubeQuota::concerns(&command) {
            true => self.tubes.execute(&self.engine, self.user(), vec![command]).await,
            false => self.engine.execute(vec![command]).await,
        };
        let reply = replies.into_iter().next();
        reply.unwrap_or_else(|| Err(Error::Store("the engine did not answer".into())))
    }

    /// Whether the store can do its work. Callers that ask at the same time share one question to the store: it may take
    /// long, and other work waits for it.
    pub async fn store_health(&self) -> Result<StoreHealth, Error> {
        let asked = Instant::now();
        let mut latest = self.health.lock().await;
        if let Some((found, health)) = &*latest
            && *found >= asked
        {
            return health.clone();
        }
        let health = self.engine.health().await;
        *latest = Some((Instant::now(), health.clone()));
        health
    }

    /// For whom tubes are created over HTTP: all who know the token are one administrator.
    fn user(&self) -> User<'static> {
        match self.token {
            Some(_) => User { name: ADMIN, is_admin: true },
            None => User { name: ANYONE, is_admin: false },
        }
    }

    /// How many connections are open, of every kind.
    pub fn connections(&self) -> usize {
        self.connections_max.saturating_sub(self.room.available_permits())
    }
}

/// Tubes that are known to have sub-queues, so that a put need not ask each time. A tube that another server has dropped and
/// made anew may be here in error: then a sub-queue is ignored, as it is over iproto.
#[derive(Debug, Default)]
pub(crate) struct SubqueueTubes(Mutex<HashSet<TubeName>>);

impl SubqueueTubes {
    pub fn knows(&self, tube: &TubeName) -> bool {
        self.lock().contains(tube)
    }

    pub fn note(&self, tube: &TubeName) {
        let mut tubes = self.lock();
        if tubes.len() >= TUBES_MAX {
            tubes.clear();
        }
        tubes.insert(tube.clone());
    }

    fn forget(&self, tube: &TubeName) {
        self.lock().remove(tube);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<TubeName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to say when a reply is not of the kind that belongs to its command.
pub(crate) fn misfit() -> Refusal {
    Error::Store("the engine answered something else than was asked".into()).into()
}

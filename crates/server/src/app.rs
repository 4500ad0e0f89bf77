//! The state that all requests share.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use taskyard_core::limits::TUBES_MAX;
use taskyard_core::service::Service;
use taskyard_core::{Command, Error, Execute, Reply, TubeName};
use taskyard_engine::{Engine, StoreHealth};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::auth_throttle::AuthThrottle;
use crate::config::{ADMIN, Config, ExtraRoutes};
use crate::connections::http_tls;
use crate::guard::AllowedHosts;
use crate::http::Refusal;
use crate::iproto::{IprotoConfig, IprotoServer};
use crate::metrics::Requests;
use crate::page_sessions::PageSessions;
use crate::peer_servers::PeerServers;
use crate::request_reader::RequestReader;
use crate::response_budget::ResponseBudget;
use crate::semaphore_monitor::SemaphoreMonitor;
use crate::session_cookie::SessionCookie;
use crate::tls_listener::TlsListener;
use crate::tube_quota::{OwnerRecords, TubeCreator, TubeQuota};
use crate::users::{GUEST, UsersHandle};
use crate::worker_origins::WorkerOrigins;

/// The state that all requests share.
pub(crate) struct App {
    /// Runs the commands.
    pub engine: Engine,
    /// Encrypts HTTP connections, if they must be.
    pub tls: Option<Arc<TlsListener>>,
    /// The users and their rights.
    pub users: UsersHandle,
    /// The host names under which the server may be called.
    pub hosts: AllowedHosts,
    /// The name of the command line program.
    pub program: String,
    /// Whether the dashboard offers no actions.
    pub read_only_dashboard: bool,
    /// Whether a put to an unknown tube is refused.
    pub strict_tubes: bool,
    /// Tubes that are known to have sub-queues.
    pub subqueue_tubes: SubqueueTubes,
    /// The tube for events of semaphores.
    pub events_tube: Option<TubeName>,
    /// The longest wait of a request, in seconds.
    pub wait_seconds_max: f64,
    /// Reads requests within the limits.
    pub request_reader: RequestReader,
    /// Limits the bytes of unread responses.
    pub response_budget: ResponseBudget,
    /// How long a client may read nothing of its response.
    pub answer_stall_max: Duration,
    /// What operators and administrators did.
    pub audit: Arc<Audit>,
    /// Failed logins.
    pub throttle: Arc<AuthThrottle>,
    /// The sessions of users who signed in on the page.
    pub page_sessions: PageSessions,
    /// The cookie of these sessions.
    pub session_cookie: SessionCookie,
    /// Reads requests of users who are not known yet.
    pub sign_in_reader: RequestReader,
    /// The latest result of the store's health check.
    health: tokio::sync::Mutex<Option<(Instant, Result<StoreHealth, Error>)>>,
    /// The number of tubes that each user created.
    pub tubes: Arc<TubeQuota>,
    /// How many tubes have their own rows in `/metrics`.
    pub metrics_tubes_max: usize,
    /// The requests so far.
    pub requests: Requests,
    /// One permit for each connection that may still be opened.
    pub connection_permits: Arc<Semaphore>,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// When the server started.
    pub started: Instant,
    /// The OpenAPI document, rendered once.
    pub document: Bytes,
    /// The server for clients of Tarantool's queue, if enabled.
    pub iproto: Option<Arc<IprotoServer>>,
    /// The services hosted beside the queue.
    pub services: Vec<Arc<dyn Service>>,
    /// The latest state of semaphores.
    pub semaphore_monitor: SemaphoreMonitor,
    /// Where named workers connect from.
    pub worker_origins: Arc<WorkerOrigins>,
    /// Routes added by a hosted service.
    pub extra_routes: Vec<ExtraRoutes>,
    /// The other servers of the store.
    pub peers: PeerServers,
}

/// The error of a command without a reply.
pub(crate) fn unanswered() -> Error {
    Error::Store("the engine did not reply".into())
}

/// The form in which handlers hold it.
pub(crate) type SharedApp = Arc<App>;

impl App {
    /// Builds the state from the configuration; `hosts` are the names of the bound address,
    /// `instance` identifies this server to clients of Tarantool's queue.
    pub fn new(
        config: Config,
        engine: Engine,
        hosts: AllowedHosts,
        document: Bytes,
        instance: [u8; 16],
    ) -> Self {
        // The semaphore cannot have more permits than this.
        let connections_max = config.connections_max.min(Semaphore::MAX_PERMITS);
        let tubes_per_user_max = config.tubes_per_user_max;
        let throttle = Arc::new(AuthThrottle::new());
        let (request_reader, response_budget) = byte_limits(&config);
        let (tls, handshake_limits) = (http_tls(&config), config.handshake_limits);
        let audit = Arc::new(Audit::new(config.audit));
        let users = UsersHandle::new(config.users, config.token);
        let iproto = config.iproto.map(|iproto| {
            let iproto = IprotoConfig { tubes_per_user_max, handshake_limits, ..iproto };
            let shares_users = iproto.users.is_empty();
            let mut server = IprotoServer::new(iproto, engine.clone(), instance, throttle.clone());
            server.audit = audit.clone();
            if shares_users {
                server.users = users.clone();
            }
            Arc::new(server)
        });
        let tubes = tube_quota(iproto.as_deref(), &engine, tubes_per_user_max);
        // The list of workers shows those of both protocols.
        let worker_origins =
            iproto.as_ref().map_or_else(Arc::default, |server| server.worker_origins.clone());
        App {
            session_cookie: SessionCookie::new(hosts.port, tls.is_some()),
            engine,
            tls,
            users,
            hosts,
            program: config.program,
            read_only_dashboard: config.read_only_dashboard,
            strict_tubes: config.strict_tubes,
            subqueue_tubes: SubqueueTubes::default(),
            events_tube: config.events_tube,
            wait_seconds_max: config.wait_seconds_max,
            request_reader,
            response_budget,
            answer_stall_max: config.answer_stall_max,
            audit,
            throttle,
            page_sessions: PageSessions::new(config.page_sessions),
            sign_in_reader: RequestReader::of_sign_in(config.request_stall_max),
            health: tokio::sync::Mutex::new(None),
            tubes,
            metrics_tubes_max: config.metrics_tubes_max,
            requests: Requests::default(),
            connection_permits: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            started: Instant::now(),
            document,
            iproto,
            services: config.services,
            semaphore_monitor: SemaphoreMonitor::default(),
            worker_origins,
            extra_routes: config.extra_routes,
            peers: PeerServers::new(config.peers, instance),
        }
    }

    /// Runs one command of the server itself, without a check of rights.
    pub async fn run(&self, command: Command) -> Result<Reply, Error> {
        self.run_as(self.server_user(), command).await
    }

    /// Runs one command for this user, whose rights were checked.
    pub async fn run_as(&self, creator: TubeCreator<'_>, command: Command) -> Result<Reply, Error> {
        let lists_tubes = matches!(command, Command::Tubes { tube: None });
        let replies = self.execute_as(creator, vec![command]).await;
        let reply = replies.into_iter().next();
        if let Some(Ok(Reply::Tubes(tubes))) = &reply
            && lists_tubes
        {
            self.tubes.counted(tubes.len());
        }
        reply.unwrap_or_else(|| Err(unanswered()))
    }

    /// Runs a batch for this user, whose rights were checked.
    pub async fn execute_as(
        &self,
        creator: TubeCreator<'_>,
        commands: Vec<Command>,
    ) -> Vec<Result<Reply, Error>> {
        for command in &commands {
            if let Command::DropTube { tube } | Command::NameTube { tube, .. } = command {
                self.subqueue_tubes.forget(tube);
            }
        }
        match commands.iter().any(TubeQuota::concerns) {
            // On the heap, as everything rare: the state of a call is copied with each request.
            true => Box::pin(self.tubes.execute(&self.engine, creator, commands)).await,
            false => self.engine.execute(commands).await,
        }
    }

    /// Checks whether the store works. Concurrent callers share one check: it may take long, and
    /// other work waits for it.
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

    /// The creator of the server's own tubes. On a server without users these count as tubes of
    /// the guest.
    fn server_user(&self) -> TubeCreator<'static> {
        match self.users.is_empty() {
            false => TubeCreator { name: ADMIN, is_admin: true },
            true => TubeCreator { name: GUEST, is_admin: false },
        }
    }

    /// The number of open connections of both protocols.
    pub fn connections(&self) -> usize {
        self.connections_max.saturating_sub(self.connection_permits.available_permits())
    }
}

/// The number of tubes of each user. A user has the same quota over HTTP and iproto.
fn tube_quota(iproto: Option<&IprotoServer>, engine: &Engine, most: usize) -> Arc<TubeQuota> {
    let records = || OwnerRecords::in_store(engine.capabilities());
    iproto.map_or_else(|| Arc::new(TubeQuota::new(most, records())), |iproto| iproto.tubes.clone())
}

/// The limits on the bytes of requests and responses.
fn byte_limits(config: &Config) -> (RequestReader, ResponseBudget) {
    let Config { body_bytes_max, request_bytes_total_max, request_stall_max, .. } = *config;
    let Config { answer_bytes_total_max, answer_bytes_max, answer_wait_max, .. } = *config;
    (
        RequestReader::new(body_bytes_max, request_bytes_total_max, request_stall_max),
        ResponseBudget::new(answer_bytes_total_max, answer_bytes_max, answer_wait_max),
    )
}

/// Tubes that are known to have sub-queues, so that a put does not have to query each time. A tube
/// that another server has dropped and created again may be listed wrongly: then a sub-queue is
/// ignored, as it is over iproto.
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

/// The error for a reply that does not match its command.
pub(crate) fn unexpected_reply() -> Refusal {
    Error::Store("unexpected reply of the engine".into()).into()
}

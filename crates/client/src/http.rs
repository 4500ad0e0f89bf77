//! Sends commands to a server over HTTP.

mod backup;
mod connection_pool;
mod estimates;
mod schedules;
mod semaphores;
mod server_url;
mod stream;

use std::fmt;
#[cfg(feature = "tls")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Command, Error, Execute, Finish, ListedTask, NewTask, Reply, Span, Take, Task, TaskId, TubeName,
};
use taskyard_wire::Code;
use taskyard_wire::http::{
    AlterRequest, AuditAnswer, ConsumerAnswer, ConsumersAnswer, CreateAnswer, CreateRequest,
    DeleteRequest, DeliveriesAnswer, DeliveryAnswer, ErrorAnswer, FinishAnswer, FinishRequest,
    KickAnswer, KickRequest, NameRequest, NothingAnswer, PeekRequest, PositionsAnswer,
    PositionsRequest, PutAnswer, PutRequest, SeriesAnswer, SeriesQuery, TakeRequest, TaskAction,
    TaskActionAnswer, TaskActionRequest, TaskAnswer, TaskPageAnswer, TasksAnswer, TasksQuery,
    TubeAnswer, TubesAnswer, WorkersAnswer, parse_answer,
};

pub use self::backup::BackupDownload;
use self::connection_pool::{ConnectionPool, HttpCall};
use self::server_url::{RequestTarget, ServerUrl};
pub use self::stream::{HttpDialer, HttpStream};
use crate::error::HttpError;
#[cfg(feature = "tls")]
use crate::tls::{Encryption, not_encrypted};
use crate::url::without_password;

/// How long a server may take to respond, in addition to the wait in the request.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The longest wait that servers accept; a longer wait is split into several requests.
const WAIT_MAX: Span = Span::from_secs(300);

/// A connection to a server over HTTP. Cheap to clone: clones share the connections.
///
/// HTTP has no sessions: the lease number identifies a delivery, and commands that name a session are refused
/// here.
#[derive(Clone)]
pub struct Http {
    pool: ConnectionPool,
    /// How long the server may take to respond.
    answer_max: Duration,
}

impl Http {
    /// The server at this address, such as `http://127.0.0.1:7070`, or `https://…` with the feature `tls`. Nothing is sent yet.
    pub fn new(url: &str) -> Result<Self, HttpError> {
        let server = ServerUrl::parse(url).ok_or_else(|| HttpError::Url(without_password(url)))?;
        #[cfg(feature = "tls")]
        if server.is_encrypted() {
            let encryption = Encryption::new();
            let pool = ConnectionPool::new(server).with_encryption(encryption);
            return Ok(Http { pool, answer_max: ANSWER_MAX });
        }
        Ok(Http { pool: ConnectionPool::new(server), answer_max: ANSWER_MAX })
    }

    /// Sets what opens the connections, instead of TCP.
    pub fn with_dialer(self, dialer: Arc<dyn HttpDialer>) -> Self {
        Http { pool: self.pool.with_dialer(dialer), ..self }
    }

    /// Sets a file of root certificates in PEM form that sign the certificate of an `https` server, instead of those that
    /// TASKYARD_CA names or the system trusts. An `http` server is refused.
    #[cfg(feature = "tls")]
    pub fn with_roots(self, path: &Path) -> Result<Self, HttpError> {
        self.change_encryption(|encryption| encryption.with_roots(path))
    }

    /// Sets the certificate that is shown to an `https` server that asks for one, with its key, both in PEM form, instead of
    /// those that TASKYARD_CLIENT_CERT and TASKYARD_CLIENT_KEY name.
    #[cfg(feature = "tls")]
    pub fn with_client_certificate(
        self,
        certificate: &Path,
        key: &Path,
    ) -> Result<Self, HttpError> {
        self.change_encryption(|encryption| encryption.with_certificate(certificate, key))
    }

    #[cfg(feature = "tls")]
    fn change_encryption(
        self,
        change: impl FnOnce(Encryption) -> Result<Encryption, String>,
    ) -> Result<Self, HttpError> {
        let Some(encryption) = self.pool.encryption().cloned() else {
            return Err(HttpError::Certificates(not_encrypted(&self.url(), "https://")));
        };
        let encryption = change(encryption).map_err(HttpError::Certificates)?;
        Ok(Http { pool: self.pool.with_encryption(encryption), ..self })
    }

    /// Sets the access token.
    pub fn with_token(self, token: &str) -> Result<Self, HttpError> {
        let header = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
        let mut header = header.map_err(|_| HttpError::Token)?;
        header.set_sensitive(true);
        Ok(Http { pool: self.pool.with_token(header), ..self })
    }

    /// Sets how long the server may take to respond, in addition to the wait in the request, and the largest response in
    /// bytes. By default it has a minute, and responses have no limit.
    pub fn with_limits(self, answer_max: Duration, bytes_max: usize) -> Self {
        Http { pool: self.pool.with_answer_bytes_max(bytes_max), answer_max }
    }

    /// The URL, without a password.
    pub fn url(&self) -> String {
        self.pool.server().url()
    }

    /// Executes one command.
    pub async fn execute_one(&self, command: Command) -> Result<Reply, HttpError> {
        let verb = command.verb();
        match command {
            Command::Put { .. } | Command::Take(_) | Command::Finish { .. } => {
                self.execute_task_command(command, verb).await
            }
            Command::Kick { tube, count } => {
                let answer: KickAnswer = self.post(&tube, "kick", &KickRequest { count }).await?;
                Ok(Reply::Kicked(answer.kicked))
            }
            Command::KickTasks { tube, ids, reset_attempts } => {
                let request = TaskActionRequest::kick(&ids, reset_attempts);
                let answer = self.act(&tube, TaskAction::Kick, &request).await?;
                Ok(Reply::Finished(answer.into_outcomes().map_err(refused)?))
            }
            Command::Delete { tube, ids, show } => {
                let request = DeleteRequest::new(&ids, show);
                finished(self.post(&tube, "delete", &request).await?)
            }
            Command::Peek { tube, ids } => {
                let request = PeekRequest::new(&ids);
                let answer: TasksAnswer = self.post(&tube, "peek", &request).await?;
                Ok(Reply::Tasks(answer.into_tasks().map_err(refused)?))
            }
            Command::Search(search) => {
                search.check().map_err(refused)?;
                let request = PeekRequest::new(&search.ids().collect::<Vec<_>>());
                let answer: TasksAnswer = self.post(&search.tube, "peek", &request).await?;
                Ok(Reply::Found(search.among(answer.into_tasks().map_err(refused)?)))
            }
            Command::Positions { tube, ids } => {
                let request = PositionsRequest::new(&ids);
                let answer: PositionsAnswer = self.post(&tube, "positions", &request).await?;
                Ok(Reply::Positions(answer.into_positions().map_err(refused)?))
            }
            Command::List(list) => {
                let page = self.tasks(&list.tube, &TasksQuery::new(&list)).await?;
                let listed = |task: &TaskAnswer| ListedTask { id: TaskId(task.id), pri: task.pri };
                Ok(Reply::Listed(page.tasks.iter().map(listed).collect()))
            }
            Command::Deliveries { tube, count } => {
                let deliveries = self.deliveries(&tube, count).await?.into_iter();
                let tasks = deliveries.map(DeliveryAnswer::into_task).collect::<Result<_, _>>();
                Ok(Reply::Tasks(tasks.map_err(refused)?))
            }
            Command::Semaphore(command) => self.execute_semaphore_command(command).await,
            Command::Schedule(command) => self.execute_schedule_command(*command).await,
            other => self.execute_tube_command(other, verb).await,
        }
    }

    /// Executes a command that carries tasks.
    async fn execute_task_command(
        &self,
        command: Command,
        verb: &'static str,
    ) -> Result<Reply, HttpError> {
        match command {
            Command::Put { tube, tasks, wait } => {
                let answer = self.put(&tube, &tasks, wait, false).await?;
                Ok(Reply::Put(answer.into_placed()))
            }
            Command::Take(mut take) => loop {
                let (now, rest) = split_wait(take.wait);
                take.wait = now;
                let tasks = self.take(&take).await?;
                if !tasks.is_empty() || rest.is_zero() || take.count == 0 {
                    return Ok(Reply::Taken(tasks));
                }
                take.wait = rest;
            },
            Command::Finish { tube, items, show } => {
                let request = FinishRequest::new(&items, show).map_err(refused)?;
                let request = self.request(Method::POST, &tube, "finish").json(&request);
                // Of the four finishes only touch is not supported by every kind of tube.
                let touches = items.iter().any(|item| matches!(item.finish, Finish::Touch(_)));
                let verb = if touches { "touch" } else { verb };
                finished(self.send(request, Duration::ZERO, verb).await?)
            }
            _ => Err(refused(not_over_http(verb))),
        }
    }

    async fn put(
        &self,
        tube: &TubeName,
        tasks: &[NewTask],
        mut wait: Span,
        estimate: bool,
    ) -> Result<PutAnswer, HttpError> {
        loop {
            let (now, rest) = split_wait(wait);
            let request = PutRequest { estimate, ..PutRequest::new(tasks, now) };
            let request = self.request(Method::POST, tube, "put").json(&request);
            match self.send(request, now.into(), "put").await {
                Err(HttpError::Refused { error: Error::TubeFull { .. }, .. })
                    if !rest.is_zero() => {}
                done => return done,
            }
            wait = rest;
        }
    }

    async fn take(&self, take: &Take) -> Result<Vec<Task>, HttpError> {
        let request = TakeRequest::new(take).map_err(refused)?;
        check_count(take.count)?;
        if take.count == 0 {
            // Servers refuse a count of 0; the tube must exist all the same.
            self.tubes(Some(&take.tube)).await?;
            return Ok(Vec::new());
        }
        let request = self.request(Method::POST, &take.tube, "take").json(&request);
        let answer: TasksAnswer = self.send(request, take.wait.into(), "take").await?;
        answer.into_tasks().map_err(refused)
    }

    /// Executes a command on a tube; refuses the commands that HTTP does not have.
    async fn execute_tube_command(
        &self,
        command: Command,
        verb: &'static str,
    ) -> Result<Reply, HttpError> {
        match command {
            Command::CreateTube { tube, options, if_not_exists } => {
                let request = CreateRequest::new(&options, if_not_exists);
                let request = self.request(Method::PUT, &tube, "").json(&request);
                let answer: CreateAnswer = self.send(request, Duration::ZERO, verb).await?;
                Ok(Reply::Created(answer.created))
            }
            Command::AlterTube { tube, change } => {
                let request = AlterRequest::new(&change);
                let request = self.request(Method::PATCH, &tube, "").json(&request);
                let answer: TubeAnswer = self.send(request, Duration::ZERO, verb).await?;
                Ok(Reply::Tubes(vec![answer.into_info().map_err(refused)?]))
            }
            Command::NameTube { tube, name, queue_num } => {
                let request = NameRequest::new(&name, queue_num);
                let answer: TubeAnswer = self.post(&tube, "name", &request).await?;
                Ok(Reply::Tubes(vec![answer.into_info().map_err(refused)?]))
            }
            Command::Tubes { tube } => {
                let tubes = self.tubes(tube.as_ref()).await?.into_iter();
                let tubes = tubes.map(TubeAnswer::into_info).collect::<Result<_, _>>();
                Ok(Reply::Tubes(tubes.map_err(refused)?))
            }
            Command::DropTube { tube } => {
                let request = self.request(Method::DELETE, &tube, "").json(&NothingAnswer {});
                self.send::<NothingAnswer>(request, Duration::ZERO, verb).await?;
                Ok(Reply::Nothing)
            }
            Command::Truncate { tube } => self.post_empty(&tube, "truncate").await,
            Command::ReleaseAll { tube } => self.post_empty(&tube, "release-all").await,
            _ => Err(refused(not_over_http(verb))),
        }
    }

    /// One tube or all tubes, internal ones included, as the server shows them: with the number of waiting takes.
    pub async fn tubes(&self, tube: Option<&TubeName>) -> Result<Vec<TubeAnswer>, HttpError> {
        self.tubes_of(tube, false).await
    }

    async fn tubes_of(
        &self,
        tube: Option<&TubeName>,
        estimate: bool,
    ) -> Result<Vec<TubeAnswer>, HttpError> {
        let mut target = match tube {
            Some(tube) => self.tube_target(tube, ""),
            None => self.target(&["tubes"]).with("internal", "true"),
        };
        if estimate {
            target = target.with("estimate", "true");
        }
        let request = HttpCall::new(Method::GET, target);
        if tube.is_some() {
            return Ok(vec![self.send(request, Duration::ZERO, "tubes").await?]);
        }
        let answer: TubesAnswer = self.send(request, Duration::ZERO, "tubes").await?;
        Ok(answer.tubes)
    }

    /// Time series of a tube, or of all tubes together, of this server or of all servers of its store.
    /// A server of a version that cannot tell those of all shows its own.
    pub async fn series(&self, query: &SeriesQuery) -> Result<SeriesAnswer, HttpError> {
        match self.series_of(query).await {
            Err(error) if (query.all || query.passive) && is_invalid(&error) => {
                let older = SeriesQuery { all: false, passive: false, ..query.clone() };
                self.series_of(&older).await
            }
            answer => answer,
        }
    }

    async fn series_of(&self, query: &SeriesQuery) -> Result<SeriesAnswer, HttpError> {
        let parameters = query.parameters().into_iter();
        let target = self.target(&["series"]);
        let target = parameters.fold(target, |target, (name, value)| target.with(name, &value));
        self.send(HttpCall::new(Method::GET, target), Duration::ZERO, "series").await
    }

    /// The workers that took tasks from this server or its peers in the last hour or hold tasks, by name; those that use
    /// nothing but internal tubes only if `internal` is set. A server of a version that cannot tell what its peers saw shows
    /// what it saw itself.
    pub async fn workers(&self, internal: bool) -> Result<WorkersAnswer, HttpError> {
        let (mut all, mut asks_peers) = (WorkersAnswer::default(), true);
        loop {
            let mut target = self.target(&["workers"]).with("internal", &internal.to_string());
            if asks_peers {
                target = target.with("all", "true");
            }
            let page = match self.workers_page(target, all.next.as_deref()).await {
                Err(error) if asks_peers && is_invalid(&error) => {
                    asks_peers = false;
                    continue;
                }
                page => page?,
            };
            all.workers.extend(page.workers);
            all.cut |= page.cut;
            for missing in page.missing {
                if !all.missing.contains(&missing) {
                    all.missing.push(missing);
                }
            }
            (all.time, all.servers, all.next) = (page.time, page.servers, page.next);
            if all.next.is_none() {
                return Ok(all);
            }
        }
    }

    /// A page of the workers that this server saw itself, without the tasks that they hold, but with those that use
    /// nothing but internal tubes: as its peers ask for them.
    pub async fn seen_workers(&self, after: Option<&str>) -> Result<WorkersAnswer, HttpError> {
        let target = self.target(&["workers"]).with("internal", "true").with("running", "false");
        self.workers_page(target, after).await
    }

    async fn workers_page(
        &self,
        mut target: RequestTarget,
        after: Option<&str>,
    ) -> Result<WorkersAnswer, HttpError> {
        if let Some(after) = after {
            target = target.with("after", after);
        }
        self.send(HttpCall::new(Method::GET, target), Duration::ZERO, "workers").await
    }

    /// The latest actions of operators and administrators on this server, the newest first.
    pub async fn audit(&self, limit: usize) -> Result<AuditAnswer, HttpError> {
        let target = self.target(&["audit"]).with("limit", &limit.to_string());
        self.send(HttpCall::new(Method::GET, target), Duration::ZERO, "audit").await
    }

    /// What happens to acknowledged tasks when the machine of the store fails, where this depends on its settings.
    pub async fn durability(&self) -> Result<Option<String>, HttpError> {
        #[derive(serde::Deserialize)]
        struct Stats {
            server: Server,
        }
        #[derive(serde::Deserialize)]
        struct Server {
            #[serde(default)]
            durability: Option<String>,
        }
        let request = HttpCall::new(Method::GET, self.target(&["stats"]));
        let stats: Stats = self.send(request, Duration::ZERO, "stats").await?;
        Ok(stats.server.durability)
    }

    /// A page of the tasks of a tube.
    pub async fn tasks(
        &self,
        tube: &TubeName,
        query: &TasksQuery,
    ) -> Result<TaskPageAnswer, HttpError> {
        let parameters = query.parameters().into_iter();
        let target = self.tube_target(tube, "tasks");
        let target = parameters.fold(target, |target, (name, value)| target.with(name, &value));
        self.send(HttpCall::new(Method::GET, target), Duration::ZERO, "list").await
    }

    /// Kicks, deletes, buries or releases chosen tasks. With a filter this is one step: it continues where the answer says.
    pub async fn act(
        &self,
        tube: &TubeName,
        action: TaskAction,
        request: &TaskActionRequest,
    ) -> Result<TaskActionAnswer, HttpError> {
        let target = self.target(&["tubes", tube.as_str(), "tasks", action.name()]);
        let call = HttpCall::new(Method::POST, target).json(request);
        self.send(call, Duration::ZERO, action.name()).await
    }

    /// The deliveries of a tube, by task id, at most 10,000.
    pub async fn deliveries(
        &self,
        tube: &TubeName,
        count: usize,
    ) -> Result<Vec<DeliveryAnswer>, HttpError> {
        let asked = count.clamp(1, BATCH_TASKS_MAX);
        let target = self.tube_target(tube, "deliveries");
        let target = target.with("count", &asked.to_string()).with("show", "true");
        let request = HttpCall::new(Method::GET, target);
        let answer: DeliveriesAnswer = self.send(request, Duration::ZERO, "deliveries").await?;
        Ok(answer.deliveries.into_iter().take(count).collect())
    }

    /// The takes that wait for a task of a tube on this server, oldest first.
    pub async fn consumers(
        &self,
        tube: &TubeName,
        count: usize,
    ) -> Result<Vec<ConsumerAnswer>, HttpError> {
        let asked = count.clamp(1, BATCH_TASKS_MAX);
        let target = self.tube_target(tube, "consumers");
        let request = HttpCall::new(Method::GET, target.with("count", &asked.to_string()));
        let answer: ConsumersAnswer = self.send(request, Duration::ZERO, "consumers").await?;
        Ok(answer.consumers.into_iter().take(count).collect())
    }

    /// Requests a path that is not part of the API of the queue, such as `/pool/status`.
    pub async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, HttpError> {
        let request = HttpCall::new(Method::GET, self.pool.server().page(path));
        self.send(request, Duration::ZERO, "get").await
    }

    async fn post_empty(&self, tube: &TubeName, verb: &'static str) -> Result<Reply, HttpError> {
        self.post::<_, NothingAnswer>(tube, verb, &NothingAnswer {}).await?;
        Ok(Reply::Nothing)
    }

    async fn post<Q: Serialize, A: DeserializeOwned>(
        &self,
        tube: &TubeName,
        verb: &'static str,
        body: &Q,
    ) -> Result<A, HttpError> {
        let request = self.request(Method::POST, tube, verb).json(body);
        self.send(request, Duration::ZERO, verb).await
    }

    fn request(&self, method: Method, tube: &TubeName, verb: &str) -> HttpCall {
        HttpCall::new(method, self.tube_target(tube, verb))
    }

    /// The target of a verb of a tube; an empty verb is the tube itself.
    fn tube_target(&self, tube: &TubeName, verb: &str) -> RequestTarget {
        let mut path = vec!["tubes", tube.as_str()];
        path.extend(Some(verb).filter(|verb| !verb.is_empty()));
        self.target(&path)
    }

    fn target(&self, path: &[&str]) -> RequestTarget {
        self.pool.server().call(path)
    }

    async fn send<A: DeserializeOwned>(
        &self,
        request: HttpCall,
        wait: Duration,
        verb: &'static str,
    ) -> Result<A, HttpError> {
        let response = self.pool.send(request, wait.saturating_add(self.answer_max)).await;
        let (status, body) = response.map_err(|error| error.of_server(self.url()))?;
        if status.is_success() {
            let unreadable = |_| self.not_taskyard("its answer is not the expected JSON".into());
            return parse_answer(&body).map_err(unreadable);
        }
        Err(self.refusal(status, &body, verb))
    }

    /// The error that a response is.
    fn refusal(&self, status: StatusCode, body: &[u8], verb: &'static str) -> HttpError {
        match parse_answer::<ErrorAnswer>(body) {
            Ok(refusal) => error_of(refusal, verb),
            Err(_) if is_of_proxy(status) => {
                let why = format!("a proxy answers in its place with status {status}");
                HttpError::Unreachable { url: self.url(), why }
            }
            Err(_) => self.not_taskyard(format!("status {status}")),
        }
    }

    fn not_taskyard(&self, what: String) -> HttpError {
        HttpError::NotTaskyard { url: self.url(), what }
    }
}

impl Execute for Http {
    /// Sends one request after the other over a connection that is kept open.
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut replies = Vec::with_capacity(commands.len());
        for command in commands {
            replies.push(self.execute_one(command).await.map_err(Error::from));
        }
        replies
    }

    fn may_lose_replies(&self) -> bool {
        true
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("url", &self.url()).finish_non_exhaustive()
    }
}

fn finished(answer: FinishAnswer) -> Result<Reply, HttpError> {
    Ok(Reply::Finished(answer.into_outcomes().map_err(refused)?))
}

/// Whether a proxy answers with this status while it does not reach the server behind it.
fn is_of_proxy(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Refuses a count that is larger than a response may have.
fn check_count(count: usize) -> Result<(), HttpError> {
    if count <= BATCH_TASKS_MAX {
        return Ok(());
    }
    Err(refused(Error::TooLarge {
        what: "the number of tasks in one take",
        size: count,
        limit: BATCH_TASKS_MAX,
        advice: "take them in several batches",
    }))
}

/// The wait of the next request, and the rest for later ones.
fn split_wait(wait: Span) -> (Span, Span) {
    let now = wait.min(WAIT_MAX);
    (now, Span::from_micros(wait.as_micros() - now.as_micros()))
}

fn refused(error: Error) -> HttpError {
    HttpError::Refused { message: error.to_string(), error }
}

fn error_of(answer: ErrorAnswer, verb: &'static str) -> HttpError {
    let message = answer.error.message.clone();
    match answer.code() {
        Some(Code::Unauthorized) => HttpError::Unauthorized(message),
        Some(Code::Forbidden) => HttpError::Forbidden(message),
        _ => HttpError::Refused { error: answer.into_error(verb), message },
    }
}

/// Whether the server refused the request itself: one of an older version does not know a parameter of it.
fn is_invalid(error: &HttpError) -> bool {
    matches!(error, HttpError::Refused { error: Error::Invalid(_), .. })
}

fn not_over_http(verb: &str) -> Error {
    Error::Invalid(format!(
        "{verb} is not available over HTTP: sessions and ticks are internal to the server, and so is firing schedules"
    ))
}

//! A gateway of a pool over Redis: submits tasks, renews their leases and passes messages to them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;
use taskyard_core::classes::RunRequest;
use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture};
use taskyard_redis::Failure;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::backend_connection::{BackendConnection, BackendTrust};
use super::client::{Notification, RedisClient, subscribe, texts};
use super::status::read_status;
use super::task::{RedisTask, TaskMessage, requested_micros};
use super::{PoolAddress, REFRESHES_PER_LEASE, RedisError, millis, random_token};
use crate::backend::TaskSpec;
use crate::config::Config;
use crate::gateway::{BoxFuture, Gateway, PoolHandle, TaskHandle, Unavailable};
use crate::protocol::OutgoingFrame;
use crate::scheduler::Status;
use crate::service::metrics_of;

/// How many tasks one call renews.
const TASKS_PER_REFRESH: usize = 500;
/// For how many tasks messages are buffered before their number is known.
const EARLY_TASKS_MAX: usize = 10_000;
/// Longest frame of a backend without output or result, in bytes.
const FRAME_HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a backend may be silent about a run that is over: this many of its leases, plus the time to kill a
/// program and a margin.
const END_REPORT_LEASES: u32 = 4;
const END_REPORT_SPARE: Duration = Duration::from_secs(3);
/// How often the status is read for the metrics.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// The error for clients while Redis cannot be reached.
const UNREACHABLE: &str = "the pool cannot reach its database; try again later";
/// How long clients may take to receive their last frame when the gateway stops.
const STOP_MAX: Duration = Duration::from_secs(3);

/// A gateway of a pool over Redis.
#[derive(Clone, Debug)]
pub struct RedisGateway {
    shared: Arc<GatewayShared>,
    gateway: Gateway,
    status: Arc<Mutex<Option<Status>>>,
}

/// State shared by all tasks of a gateway.
#[derive(Debug)]
pub(super) struct GatewayShared {
    pub redis: RedisClient,
    /// Which backends it trusts, and how long their messages may be.
    trust: BackendTrust,
    message_bytes_max: usize,
    name: String,
    queue_max: usize,
    /// Lease of tasks.
    pub lease: Duration,
    /// How long an ended program may take to send its last frames.
    pub end_report_max: Duration,
    tasks: Mutex<GatewayTasks>,
    /// The known incarnation of Redis.
    incarnation: Mutex<String>,
    /// Notified when Redis may have lost its data.
    recheck: Arc<Notify>,
    stopping: AtomicBool,
}

/// The tasks of a gateway, by their ids in Redis.
#[derive(Debug, Default)]
struct GatewayTasks {
    active: BTreeMap<String, mpsc::UnboundedSender<TaskMessage>>,
    /// Messages for tasks whose id is not known yet: a backend may be faster than the reply of Redis.
    early: HashMap<String, (Instant, Vec<TaskMessage>)>,
}

impl RedisGateway {
    /// Starts a gateway on the current runtime.
    pub fn start(config: &Config, address: &PoolAddress) -> Result<Self, RedisError> {
        Self::with_trust(config, address, BackendTrust::default())
    }

    /// Starts a gateway that connects only to these backends.
    pub fn with_trust(
        config: &Config,
        address: &PoolAddress,
        trust: BackendTrust,
    ) -> Result<Self, RedisError> {
        config.rules()?;
        let name = random_token();
        let notifications = subscribe(address, &format!("gateway:{name}"));
        let shared = Arc::new(GatewayShared {
            redis: RedisClient::open(address),
            trust,
            message_bytes_max: message_bytes_max(config),
            name,
            queue_max: config.queue_max,
            lease: config.leases.task(),
            end_report_max: config.leases.backend() * END_REPORT_LEASES
                + config.kill_after()
                + END_REPORT_SPARE,
            tasks: Mutex::default(),
            incarnation: Mutex::default(),
            recheck: Arc::default(),
            stopping: AtomicBool::new(false),
        });
        let handle = RedisPoolHandle { shared: shared.clone() };
        let gateway = Gateway::new(config, Arc::new(handle));
        let status = Arc::new(Mutex::new(None));
        tokio::spawn(maintain(Arc::downgrade(&shared), shared.recheck.clone(), notifications));
        tokio::spawn(poll_status(Arc::downgrade(&shared), Arc::downgrade(&status)));
        Ok(RedisGateway { shared, gateway, status })
    }

    /// The gateway for clients.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }
}

#[derive(Debug)]
struct RedisPoolHandle {
    shared: Arc<GatewayShared>,
}

impl PoolHandle for RedisPoolHandle {
    fn submit(&self, spec: TaskSpec) -> BoxFuture<'_, Result<Box<dyn TaskHandle>, Unavailable>> {
        Box::pin(async move {
            if self.shared.stopping.load(Ordering::Acquire) {
                return Err(Unavailable("the pool is stopping".into()));
            }
            let args = self.shared.submit_args(&spec, "", true, false, requested_micros(&spec.ask));
            let response = self.shared.redis.call("submit", args).await;
            let response =
                response.map_err(|failure| Unavailable(client_error(&failure).into()))?;
            let response = texts(response);
            let id = response.first().cloned().unwrap_or_default();
            if id == "full" {
                return Err(Unavailable("the queue is full; try again later".into()));
            }
            let incarnation = response.get(1).cloned().unwrap_or_default();
            {
                let mut known = self.shared.incarnation();
                if known.is_empty() {
                    known.clone_from(&incarnation);
                }
            }
            let (sender, messages) = mpsc::unbounded_channel();
            self.shared.register(&id, sender.clone());
            // A data loss that was noticed before that was reported to registered tasks only.
            let known = self.shared.incarnation().clone();
            if known != incarnation {
                let _ = sender.send(TaskMessage::DataLost(known));
            }
            let (task, driver) =
                RedisTask::new(self.shared.clone(), id, incarnation, spec, messages);
            tokio::spawn(driver.run());
            Ok(Box::new(task) as Box<dyn TaskHandle>)
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<Json, Unavailable>> {
        let unreachable = |error: &RedisError| {
            tracing::warn!(%error, "cannot read the status");
            UNREACHABLE.to_owned()
        };
        Box::pin(async move {
            read_status(&self.shared.redis).await.map_err(|error| Unavailable(unreachable(&error)))
        })
    }
}

impl GatewayShared {
    /// Connects to a backend.
    pub async fn connect(&self, address: &str) -> Option<BackendConnection> {
        self.trust.connect(address, self.message_bytes_max).await
    }

    /// The arguments of the function `submit`.
    pub fn submit_args(
        &self,
        spec: &TaskSpec,
        id: &str,
        waits: bool,
        seen: bool,
        requested: u64,
    ) -> Vec<Vec<u8>> {
        let flag = |flag: bool| u8::from(flag).to_string();
        let ask = match spec.ask {
            RunRequest::Timed(_) => "timed",
            RunRequest::Default => "default",
            RunRequest::Interactive => "interactive",
        };
        let options = serde_json::to_string(&spec.source.options).unwrap_or_default();
        let texts = [
            self.name.clone(),
            millis(self.lease),
            id.to_owned(),
            flag(waits),
            flag(seen),
            "0".into(),
            ask.into(),
            requested.to_string(),
            self.queue_max.max(1).to_string(),
            spec.program.name.clone(),
            options,
            spec.source.start.main.clone().unwrap_or_default(),
        ];
        let mut args: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
        args.push(spec.stdin.clone());
        for (name, bytes) in &spec.files {
            args.push(name.clone().into_bytes());
            args.push(bytes.clone());
        }
        args
    }

    /// Registers a task and delivers the messages that came early.
    fn register(&self, id: &str, sender: mpsc::UnboundedSender<TaskMessage>) {
        let mut tasks = self.tasks();
        let (_, early) = tasks.early.remove(id).unzip();
        early.into_iter().flatten().for_each(|message| _ = sender.send(message));
        tasks.active.insert(id.to_owned(), sender);
    }

    /// Removes an ended task.
    pub fn unregister(&self, id: &str) {
        self.tasks().active.remove(id);
    }

    /// Checks for state whose messages may have been missed.
    async fn check_missed(&self, ids: &[String]) {
        for part in ids.chunks(TASKS_PER_REFRESH) {
            let Ok(response) = self.redis.call("peek", part.to_vec()).await else { return };
            for one in response.list().unwrap_or_default() {
                let one = texts(one);
                let [id, backend, end, _, control, over, known, holder] = &one[..] else {
                    continue;
                };
                let end = end.split_once(' ').and_then(|(how, why)| final_frame(how, why));
                let backend = backend.split_once(' ');
                match (end, backend) {
                    _ if known.is_empty() => continue,
                    (Some(last), _) => self.send(id, TaskMessage::End(last)),
                    (None, Some((attempt, address))) => {
                        self.send(id, TaskMessage::Backend(attempt.into(), address.into()));
                        if attempt == over {
                            self.send(id, TaskMessage::RunOver(over.clone()));
                        }
                    }
                    (None, None) if !over.is_empty() => {
                        self.send(id, TaskMessage::RunOver(over.clone()))
                    }
                    (None, None) if holder.is_empty() => self.send(id, TaskMessage::Unclaimed),
                    // The address of its backend was lost, or the backend may still have to report.
                    (None, None) => {}
                }
                if let Some((attempt, text)) = control.split_once(' ') {
                    self.send(id, TaskMessage::Control(attempt.into(), text.into()));
                }
            }
        }
    }

    fn tasks(&self) -> MutexGuard<'_, GatewayTasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn incarnation(&self) -> MutexGuard<'_, String> {
        self.incarnation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, id: &str, message: TaskMessage) {
        let mut tasks = self.tasks();
        match tasks.active.get(id) {
            Some(task) => _ = task.send(message),
            None if tasks.early.len() < EARLY_TASKS_MAX => {
                let early = tasks.early.entry(id.to_owned());
                early.or_insert_with(|| (Instant::now(), Vec::new())).1.push(message);
            }
            // The next check finds it.
            None => {}
        }
    }

    fn send_all(&self, message: &TaskMessage) {
        self.tasks().active.values().for_each(|task| _ = task.send(message.clone()));
    }

    /// Passes a message to its task.
    fn handle_message(&self, response: &str) {
        let Some((verb, rest)) = response.split_once(' ') else { return };
        let (id, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let message = match verb {
            "backend" => rest
                .split_once(' ')
                .map(|(attempt, address)| TaskMessage::Backend(attempt.into(), address.into())),
            "queue" => serde_json::from_str(rest).ok().map(TaskMessage::Queue),
            "end" => rest
                .split_once(' ')
                .and_then(|(how, why)| final_frame(how, why))
                .map(TaskMessage::End),
            "waits" => Some(TaskMessage::Requeued(rest.into())),
            "control" => rest
                .split_once(' ')
                .map(|(attempt, text)| TaskMessage::Control(attempt.into(), text.into())),
            _ => None,
        };
        match message {
            Some(message) => self.send(id, message),
            None => tracing::warn!(verb, "unknown message from Redis"),
        }
    }

    /// Renews the leases of all tasks. Returns whether Redis received it.
    async fn refresh(&self) -> bool {
        let ids: Vec<String> = {
            let mut tasks = self.tasks();
            tasks.early.retain(|_, (since, _)| since.elapsed() < self.lease);
            tasks.active.keys().cloned().collect()
        };
        let mut incarnations = Vec::new();
        // Also without tasks, to learn the incarnation of Redis.
        let parts: Vec<&[String]> = match ids.is_empty() {
            true => vec![&[]],
            false => ids.chunks(TASKS_PER_REFRESH).collect(),
        };
        for part in parts {
            let mut args = vec![millis(self.lease), self.incarnation().clone()];
            args.extend_from_slice(part);
            let Ok(response) = self.redis.call("refresh", args).await else { return false };
            let mut response = texts(response).into_iter();
            let incarnation = response.next().unwrap_or_default();
            let known = self.incarnation().clone();
            if known.is_empty() || known == incarnation {
                response.for_each(|id| self.send(&id, TaskMessage::Gone));
            }
            incarnations.push(incarnation);
        }
        if let Some(incarnation) = incarnations.pop() {
            let known = std::mem::replace(&mut *self.incarnation(), incarnation.clone());
            if !known.is_empty() && known != incarnation {
                tracing::warn!("Redis lost its data; submitting all tasks again");
                self.send_all(&TaskMessage::DataLost(incarnation));
                return true;
            }
        }
        self.check_missed(&ids).await;
        true
    }
}

/// The longer of a result and a piece of output, plus a frame head.
fn message_bytes_max(config: &Config) -> usize {
    let result = usize::try_from(config.limits.result_bytes_max).unwrap_or(usize::MAX);
    result.max(config.limits.output_bytes_max).saturating_add(FRAME_HEAD_BYTES_MAX)
}

/// The error for the client when Redis fails. Details are logged only.
pub(super) fn client_error(failure: &Failure) -> &'static str {
    tracing::warn!(why = failure.text(), "a call to Redis failed");
    match failure {
        Failure::Refused(_) => "the database of the pool refused the task; contact the operator",
        _ => UNREACHABLE,
    }
}

fn final_frame(how: &str, why: &str) -> Option<OutgoingFrame> {
    match how {
        "deny" => Some(OutgoingFrame::Deny(why.into())),
        "lost" => Some(OutgoingFrame::Complete(Some(why.into()))),
        _ => None,
    }
}

async fn maintain(
    shared: std::sync::Weak<GatewayShared>,
    recheck: Arc<Notify>,
    mut notifications: mpsc::Receiver<Notification>,
) {
    let mut next = Instant::now();
    loop {
        tokio::select! {
            // Many messages must not delay the renewal of leases.
            biased;
            () = sleep_until(next) => {
                let Some(shared) = shared.upgrade() else { return };
                let renewed = shared.refresh().await;
                let usual = shared.lease / REFRESHES_PER_LEASE;
                next = Instant::now() + if renewed { usual } else { STATUS_INTERVAL.min(usual) };
            }
            () = recheck.notified() => next = Instant::now(),
            response = notifications.recv() => match (response, shared.upgrade()) {
                (Some(Notification::Message(response)), Some(shared)) => shared.handle_message(&response),
                // Messages may have been missed, possibly all.
                (Some(Notification::Resubscribed), Some(_)) => next = Instant::now(),
                _ => return,
            },
        }
    }
}

/// Reads the status periodically, so that metrics do not wait for Redis. It also detects a data loss of Redis before
/// the next renewal.
async fn poll_status(
    shared: std::sync::Weak<GatewayShared>,
    status: std::sync::Weak<Mutex<Option<Status>>>,
) {
    loop {
        let Some(redis) = shared.upgrade().map(|shared| shared.redis.clone()) else { return };
        let read = read_status(&redis).await.ok();
        let (Some(shared), Some(status)) = (shared.upgrade(), status.upgrade()) else { return };
        let incarnation = read.as_ref().and_then(|read| read["in_redis"]["incarnation"].as_str());
        if incarnation.is_some_and(|incarnation| incarnation != *shared.incarnation()) {
            shared.recheck.notify_one();
        }
        let read = read.and_then(|read| serde_json::from_value(read).ok());
        *status.lock().unwrap_or_else(PoisonError::into_inner) = read;
        drop((shared, status, redis));
        sleep(STATUS_INTERVAL).await;
    }
}

impl RedisGateway {
    fn status_now(&self) -> Option<Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Service for RedisGateway {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn health(&self) -> Health {
        match self.status_now() {
            None => Health::Unhealthy("no active scheduler, or Redis cannot be reached".into()),
            Some(status) => match status.inconsistency {
                Some(inconsistency) => Health::Unhealthy(inconsistency),
                None if status.backends == 0 => Health::Unhealthy("no backend is alive".into()),
                None => Health::Healthy,
            },
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        self.status_now().as_ref().map(metrics_of).unwrap_or_default()
    }

    fn status(&self) -> Vec<PartStatus> {
        self.status_now().as_ref().map(crate::service::lines_of).unwrap_or_default()
    }

    fn stop(&self) -> StopFuture<'_> {
        Box::pin(async move {
            self.shared.stopping.store(true, Ordering::Release);
            self.shared.send_all(&TaskMessage::Stop);
            let gone = async {
                while self.gateway.clients() > 0 || !self.shared.tasks().active.is_empty() {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let _ = timeout(STOP_MAX, gone).await;
        })
    }
}

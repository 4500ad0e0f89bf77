//! Runs the backends of one process: they claim tasks, run them and report how they ended.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use taskyard_core::classes::Ticket;
use taskyard_redis::{Failure, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{Notification, RedisClient, subscribe, text, texts};
use super::events::limit_of;
use super::session::{GatewaySession, JobEvent};
use super::tls::Identity;
use super::token_listener::{OneTimeToken, TokenListener};
use super::{
    GATEWAY_CONNECT_MAX, POLL_INTERVAL, PoolAddress, REFRESHES_PER_LEASE, RedisError, millis,
};
use crate::backend::{Runner, RunningProgram, TaskSpec, add_file};
use crate::config::Config;
use crate::protocol::{Options, OutgoingFrame, StartHead};
use crate::scheduler::{Allocation, Control, Release, Run, RunOutcome};

/// Delay before Redis is called again after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// How often a stopping process checks whether all sessions have ended.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Options of a process with backends.
#[derive(Clone, Debug)]
pub struct BackendHostOptions {
    /// Where to listen for gateways.
    pub listen: SocketAddr,
    /// The address that gateways use instead, as `HOST:PORT`.
    pub advertise: Option<String>,
    /// Certificate and key, if connections of gateways are encrypted.
    pub identity: Option<Identity>,
    /// How long tasks may continue when the process is asked to stop.
    pub grace: Duration,
}

/// The backends of one process.
#[derive(Debug)]
pub struct BackendHost {
    shared: Arc<BackendShared>,
    options: BackendHostOptions,
    address: SocketAddr,
    serving: JoinHandle<()>,
    wake: mpsc::Receiver<Notification>,
}

#[derive(Debug)]
struct BackendShared {
    config: Config,
    redis: RedisClient,
    runner: Arc<dyn Runner>,
    listener: TokenListener,
    /// Scheme and address for gateways.
    scheme: &'static str,
    advertise: String,
    /// Notified when a task may be offered.
    offers: Notify,
    /// One more reference for each session with a gateway.
    open_sessions: Arc<()>,
}

/// One task, as stored in `queue.executing`.
#[derive(Clone, Debug)]
struct AllocationRecord {
    id: String,
    /// Attempt, class, kind, limit, start, whether it may run again, requested duration.
    fields: [String; 7],
}

impl AllocationRecord {
    /// Notes a lower limit in microseconds, and the class that it belongs to: after a data loss of Redis a task that was lowered must
    /// not be reported in the class in which it started.
    fn lower(&mut self, limit: &str, config: &Config) {
        let [_, class, _, old_limit, ..] = &mut self.fields;
        limit.clone_into(old_limit);
        let lowered = limit_of(limit).flatten().zip(config.rules().ok());
        let lowered = lowered.map(|(limit, rules)| rules.class_for(limit.into()));
        if let (Some(lowered), Ok(old)) = (lowered, class.parse::<u8>()) {
            *class = lowered.min(old).to_string();
        }
    }
}

/// A task that this backend runs.
#[derive(Debug)]
struct ClaimedJob {
    record: AllocationRecord,
    control: mpsc::UnboundedSender<Control>,
    abort: AbortHandle,
    /// Whether no gateway connected for it.
    without_gateway: bool,
    /// Whether it was halted: it holds no slot any more, and its program is being killed.
    halted: bool,
}

/// A run that ended: its outcome, how long it took, and how long beyond its limit.
#[derive(Debug)]
struct FinishedJob {
    record: AllocationRecord,
    outcome: [String; 3],
}

impl BackendHost {
    /// Starts to listen; no task is claimed before [`BackendHost::run`].
    pub async fn open(
        config: Config,
        address: &PoolAddress,
        runner: Arc<dyn Runner>,
        options: BackendHostOptions,
    ) -> Result<Self, RedisError> {
        let identity = options.identity.as_ref();
        let opened = TokenListener::open(options.listen, identity).await?;
        Ok(Self::serve(config, address, runner, options, opened))
    }

    /// The same for connections that this listener accepts instead of TCP.
    pub fn with_listener<L: Listener<Addr: Debug>>(
        config: Config,
        address: &PoolAddress,
        runner: Arc<dyn Runner>,
        options: BackendHostOptions,
        listener: L,
    ) -> Self {
        let (listener, serving) = TokenListener::serve(listener);
        let opened = (listener, options.listen, serving);
        Self::serve(config, address, runner, options, opened)
    }

    fn serve(
        config: Config,
        address: &PoolAddress,
        runner: Arc<dyn Runner>,
        options: BackendHostOptions,
        (listener, local_address, serving): (TokenListener, SocketAddr, JoinHandle<()>),
    ) -> Self {
        let advertise = options.advertise.clone().unwrap_or_else(|| local_address.to_string());
        let scheme = if options.identity.is_some() { "wss" } else { "ws" };
        let (redis, wake) = (RedisClient::open(address), subscribe(address, "backend.wake"));
        let offers = Notify::new();
        let open_sessions = Arc::new(());
        let shared = BackendShared {
            config,
            redis,
            runner,
            listener,
            scheme,
            advertise,
            offers,
            open_sessions,
        };
        let shared = Arc::new(shared);
        BackendHost { shared, options, address: local_address, serving, wake }
    }

    /// Where it listens for gateways.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Claims and runs tasks until `stop`; then running tasks may continue for the grace period.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        let mut backends = JoinSet::new();
        for _ in 0..self.shared.config.backends {
            let backend =
                RedisBackend::new(self.shared.clone(), self.options.grace, stopped.clone());
            backends.spawn(backend.run());
        }
        let shared = self.shared.clone();
        let waking = async move {
            while let Some(notification) = self.wake.recv().await {
                match notification {
                    Notification::Message(_) => shared.offers.notify_one(),
                    Notification::Resubscribed => shared.offers.notify_waiters(),
                }
            }
        };
        tokio::select! {
            biased;
            () = stop => {}
            () = waking => tracing::error!("the subscription to Redis ended"),
        }
        let _ = stopping.send(true);
        self.shared.runner.close();
        while backends.join_next().await.is_some() {}
        // The last frames of ended tasks are still being sent, and folders are being removed.
        let closed = async {
            while Arc::strong_count(&self.shared.open_sessions) > 1
                || !self.shared.runner.is_empty()
            {
                sleep(CLOSE_POLL_INTERVAL).await;
            }
        };
        let _ = timeout(GATEWAY_CONNECT_MAX, closed).await;
        self.serving.abort();
    }
}

/// One backend: it has a number in Redis and runs one task at a time.
struct RedisBackend {
    shared: Arc<BackendShared>,
    grace: Duration,
    stopped: watch::Receiver<bool>,
    number: String,
    /// The incarnation of Redis that it knows.
    incarnation: String,
    /// Its jobs by task and attempt: one, and possibly halted ones that are still being killed.
    jobs: BTreeMap<(String, String), ClaimedJob>,
    /// The job that occupies it.
    busy: Option<(String, String)>,
    events: mpsc::UnboundedReceiver<JobEvent>,
    event_sender: mpsc::UnboundedSender<JobEvent>,
    /// Ends that Redis does not know yet.
    ends: Vec<FinishedJob>,
    /// Whether one of its programs cannot be killed: then it is out of service.
    stuck: bool,
}

impl RedisBackend {
    fn new(shared: Arc<BackendShared>, grace: Duration, stopped: watch::Receiver<bool>) -> Self {
        let (event_sender, events) = mpsc::unbounded_channel();
        let (jobs, busy, ends) = (BTreeMap::new(), None, Vec::new());
        let (number, incarnation) = (String::new(), String::new());
        RedisBackend {
            shared,
            grace,
            stopped,
            number,
            incarnation,
            jobs,
            busy,
            events,
            event_sender,
            ends,
            stuck: false,
        }
    }

    async fn run(mut self) {
        let mut token = self.shared.listener.token();
        let mut heartbeat = Instant::now();
        // Offers made while it was busy are found by claiming once more.
        let mut may_claim = true;
        loop {
            self.report_ends().await;
            // A run whose end is not recorded yet would look lost.
            if heartbeat <= Instant::now() && self.ends.is_empty() {
                let reached = self.heartbeat().await;
                heartbeat = Instant::now() + if reached { self.refresh() } else { RETRY_DELAY };
            }
            if self.busy.is_none()
                && may_claim
                && !self.number.is_empty()
                && !*self.stopped.borrow()
            {
                match self.claim(&mut token).await {
                    Ok(taken) => may_claim = taken,
                    Err(()) => {
                        heartbeat = Instant::now();
                        sleep(RETRY_DELAY).await;
                    }
                }
                if self.busy.is_some() {
                    // There may be more offers.
                    self.shared.offers.notify_one();
                }
                continue;
            }
            let idle = self.busy.is_none();
            // In this order, so that a run of the simulator can be repeated. Heartbeats are checked above.
            tokio::select! {
                biased;
                event = self.events.recv() => {
                    if let Some(event) = event {
                        self.handle_event(event);
                    }
                    if self.stuck {
                        tracing::error!(backend = self.number, "a program cannot be killed; this backend is out of service");
                        return self.shut_down().await;
                    }
                    may_claim = true;
                }
                () = self.shared.offers.notified(), if idle => may_claim = true,
                () = sleep(POLL_INTERVAL), if idle => may_claim = true,
                () = sleep_until(heartbeat) => {}
                _ = self.stopped.changed() => return self.shut_down().await,
            }
        }
    }

    /// Interval of heartbeats.
    fn refresh(&self) -> Duration {
        self.shared.config.leases.backend() / REFRESHES_PER_LEASE
    }

    /// Records ended runs in Redis; those that cannot be recorded now are kept for later.
    async fn report_ends(&mut self) {
        while let Some(FinishedJob { record, outcome }) = self.ends.first() {
            let mut args = vec![record.id.clone(), record.fields[0].clone()];
            args.extend(outcome.iter().cloned());
            let known = match self.shared.redis.call("finish", args).await {
                Ok(response) => texts(response).get(1) == Some(&self.incarnation),
                Err(Failure::Refused(_)) => true,
                Err(_) => return sleep(RETRY_DELAY).await,
            };
            if known {
                self.ends.remove(0);
            } else if !self.heartbeat().await {
                // A new incarnation has to learn of the run first.
                return sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Sends a heartbeat with the list of its runs. Returns whether Redis received it.
    async fn heartbeat(&mut self) -> bool {
        let about = serde_json::json!({
            "address": self.shared.advertise,
            "encrypted": self.shared.scheme == "wss",
            "process": std::process::id(),
            "not_isolated": self.shared.runner.gaps(),
            "memory_accounting": self.shared.runner.memory_accounting(),
        });
        let mut args = vec![
            self.number.clone(),
            millis(self.shared.config.leases.backend()),
            about.to_string(),
            self.incarnation.clone(),
        ];
        let held = self.jobs.iter().filter(|(_, job)| !job.halted);
        let jobs: Vec<(String, String)> = held.map(|(name, _)| name.clone()).collect();
        let ended = self.ends.iter().map(|end| &end.record);
        for record in jobs.iter().map(|job| &self.jobs[job].record).chain(ended) {
            args.push(record.id.clone());
            args.extend(record.fields.iter().cloned());
        }
        let response = match self.shared.redis.call("heartbeat", args).await {
            Ok(response) => texts(response),
            Err(failure) => {
                tracing::debug!(why = failure.text(), "Redis did not receive the heartbeat");
                return false;
            }
        };
        let [number, incarnation, limits @ ..] = &response[..] else { return false };
        if !self.incarnation.is_empty() && self.incarnation != *incarnation {
            tracing::warn!(number, "Redis lost its data; this backend has reported its runs again");
        }
        self.number.clone_from(number);
        self.incarnation.clone_from(incarnation);
        for (name, limit) in jobs.iter().zip(limits) {
            let Some(job) = self.jobs.get_mut(name) else { continue };
            let control = match (limit_of(limit), limit.strip_prefix("halt ")) {
                // Its gateway is gone, or it is assigned to another backend by now.
                _ if limit.is_empty() => Control::Halt("the task was withdrawn".into()),
                // The command of its gateway comes later.
                (_, Some(why)) => {
                    job.halted = true;
                    self.busy.take_if(|busy| *busy == *name);
                    Control::Halt(why.into())
                }
                (Some(Some(lower)), _) if *limit != job.record.fields[3] => Control::Limit(lower),
                _ => continue,
            };
            if let Control::Limit(_) = control {
                job.record.lower(limit, &self.shared.config);
            }
            let _ = job.control.send(control);
        }
        true
    }

    /// Claims the next offer. Returns whether there was one; fails if Redis does not know this backend.
    async fn claim(&mut self, token: &mut OneTimeToken) -> Result<bool, ()> {
        let BackendShared { scheme, advertise, .. } = &*self.shared;
        let address = format!("{scheme}://{advertise}/pool/backend/{}", token.text);
        let args = vec![self.number.clone(), address];
        let response = self.shared.redis.call("claim", args).await.map_err(|failure| {
            tracing::debug!(why = failure.text(), "cannot claim a task");
            // The claim may have been executed: the gateway of a task that this backend does not know may use the
            // token, which must not be valid for the next task.
            *token = self.shared.listener.token();
        })?;
        let mut parts = response.list().unwrap_or_default();
        match parts.len() {
            0 => return Ok(false),
            13 => {}
            _ => return Err(()),
        }
        let files = files(parts.pop());
        let stdin = parts.pop().and_then(Value::text).unwrap_or_default();
        let parts: Vec<String> = parts.into_iter().map(text).collect();
        let record = AllocationRecord {
            id: parts[0].clone(),
            fields: std::array::from_fn(|at| parts[at + 1].clone()),
        };
        let used = std::mem::replace(token, self.shared.listener.token());
        let fields = TaskFields { program: &parts[8], options: &parts[9], main: &parts[10] };
        let spec = self.shared.spec(&fields, &record, files, stdin);
        self.start(record, spec, used);
        Ok(true)
    }

    fn start(
        &mut self,
        record: AllocationRecord,
        spec: Result<TaskSpec, String>,
        token: OneTimeToken,
    ) {
        let (id, attempt) = (record.id.clone(), record.fields[0].clone());
        let limit = limit_of(&record.fields[3]).flatten();
        let ticket = Ticket(id.parse().unwrap_or_default());
        let run = Run { ticket, attempt: 0, limit, may_rerun: record.fields[5] == "1" };
        let (event_sender, name) = (self.event_sender.clone(), (id.clone(), attempt.clone()));
        let release = Release::new(move |finished| {
            let (id, attempt) = name;
            let _ = event_sender.send(JobEvent::Finished { id, attempt, finished });
        });
        let (allocation, control) = Allocation::new(run, 0, Arc::default(), release);
        let (running, abort) = match spec {
            Ok(spec) => self.shared.runner.run(allocation, Arc::new(spec)),
            Err(why) => reject(allocation, why),
        };
        let session = GatewaySession {
            running,
            control: control.clone(),
            events: self.event_sender.clone(),
            id: id.clone(),
            attempt: attempt.clone(),
        };
        let open_sessions = self.shared.open_sessions.clone();
        tokio::spawn(async move {
            session.run(token).await;
            drop(open_sessions);
        });
        self.busy = Some((id.clone(), attempt.clone()));
        let job = ClaimedJob { record, control, abort, without_gateway: false, halted: false };
        self.jobs.insert((id, attempt), job);
    }

    fn handle_event(&mut self, event: JobEvent) {
        match event {
            JobEvent::Halted { id, attempt } => {
                let name = (id, attempt);
                if let Some(job) = self.jobs.get_mut(&name) {
                    job.halted = true;
                }
                self.busy.take_if(|busy| *busy == name);
            }
            JobEvent::Lowered { id, attempt, limit } => {
                if let Some(job) = self.jobs.get_mut(&(id, attempt)) {
                    job.record.lower(&limit, &self.shared.config);
                }
            }
            JobEvent::NoGateway { id, attempt } => {
                if let Some(job) = self.jobs.get_mut(&(id, attempt)) {
                    job.without_gateway = true;
                }
            }
            JobEvent::Finished { id, attempt, finished } => {
                let job = (id, attempt);
                let Some(ClaimedJob { record, without_gateway, .. }) = self.jobs.remove(&job)
                else {
                    return;
                };
                let outcome = match finished.outcome {
                    RunOutcome::Done if without_gateway => "lost",
                    RunOutcome::Done => "done",
                    RunOutcome::Lost => "lost",
                    RunOutcome::Stuck => "stuck",
                };
                let micros = |time: Duration| time.as_micros().to_string();
                let stopping = finished.stopping.map_or("-".into(), micros);
                let outcome = [outcome.into(), micros(finished.took), stopping];
                self.ends.push(FinishedJob { record, outcome });
                self.busy.take_if(|busy| *busy == job);
                self.stuck |= finished.outcome == RunOutcome::Stuck;
            }
        }
    }

    /// Claims nothing new; running tasks may continue for the grace period, then they are halted.
    async fn shut_down(mut self) {
        let until = Instant::now() + self.grace;
        let mut heartbeat = Instant::now() + self.refresh();
        let mut halted_all = false;
        while !self.jobs.is_empty() {
            tokio::select! {
                biased;
                event = self.events.recv() => if let Some(event) = event {
                    self.handle_event(event);
                },
                () = sleep_until(until), if !halted_all => {
                    halted_all = true;
                    for job in self.jobs.values() {
                        let _ = job.control.send(Control::Halt("the backend is stopping".into()));
                    }
                }
                // A program that cannot be killed is left behind.
                () = sleep_until(until + GATEWAY_CONNECT_MAX) => break,
                () = sleep_until(heartbeat) => {
                    self.heartbeat().await;
                    heartbeat = Instant::now() + self.refresh();
                }
            }
            self.report_ends().await;
        }
        self.report_ends().await;
        let _ = self.shared.redis.call("deregister", vec![self.number.clone()]).await;
        self.jobs.values().for_each(|job| job.abort.abort());
    }
}

/// The fields of a task, as stored in Redis.
struct TaskFields<'a> {
    program: &'a str,
    options: &'a str,
    main: &'a str,
}

impl BackendShared {
    /// Builds the task with all checks for input of a client: Redis is not trusted more.
    fn spec(
        &self,
        fields: &TaskFields<'_>,
        record: &AllocationRecord,
        files: Vec<(String, Vec<u8>)>,
        stdin: Vec<u8>,
    ) -> Result<TaskSpec, String> {
        let program = self.config.programs.get(fields.program);
        let program = program.ok_or("the program is not configured on this backend")?;
        let options: Options =
            serde_json::from_str(fields.options).map_err(|error| error.to_string())?;
        let main = Some(fields.main).filter(|main| !main.is_empty()).map(String::from);
        let interactive = record.fields[2] == "interactive";
        let mut checked = Vec::new();
        for file in files {
            add_file(&mut checked, program, &self.config.limits, file)
                .map_err(|error| error.to_string())?;
        }
        let start = StartHead { main };
        let program = Arc::new(program.clone());
        let spec = TaskSpec::new(program, checked, &options, &start, interactive);
        Ok(TaskSpec { stdin, ..spec.map_err(|error| error.to_string())? })
    }
}

fn files(value: Option<Value>) -> Vec<(String, Vec<u8>)> {
    let parts = value.and_then(Value::list).unwrap_or_default();
    let mut parts = parts.into_iter();
    let mut files = Vec::new();
    while let (Some(name), Some(bytes)) = (parts.next(), parts.next()) {
        files.push((text(name), bytes.text().unwrap_or_default()));
    }
    // Redis returns them in any order.
    files.sort();
    files
}

/// Ends a task that cannot run here, with an error for its client.
fn reject(allocation: Allocation, why: String) -> (RunningProgram, AbortHandle) {
    let (sender, frames) = mpsc::channel(1);
    let (input, _) = mpsc::channel(1);
    let job = tokio::spawn(async move {
        allocation.finish(RunOutcome::Done);
        let _ = sender.send(OutgoingFrame::Complete(Some(why))).await;
    });
    (RunningProgram { frames, input }, job.abort_handle())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A task that was lowered to a shorter class was reported in its old class after a data loss of Redis, and more tasks than the
    // limit of that class allows held a backend.
    #[test]
    fn a_lowered_task_is_reported_in_its_new_class() {
        let config = Config::default();
        let fields = |class: &str, limit: &str| {
            ["1-1", class, "default", limit, "0", "1", "0"].map(String::from)
        };
        let cases = [("2", "3000000", "0"), ("2", "10000000", "1"), ("0", "10000000", "0")];
        for (old, limit, new) in cases {
            let mut record = AllocationRecord { id: "7".into(), fields: fields(old, "30000000") };
            record.lower(limit, &config);
            assert_eq!(record.fields, fields(new, limit));
        }
    }
}

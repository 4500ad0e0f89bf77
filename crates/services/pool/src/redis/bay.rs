//! A backend: takes tasks that are offered, runs them, and tells how they ended.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::classes::Ticket;
use taskyard_redis::{Failure, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::door::{Door, Token};
use super::events::limit_of;
use super::session::{Session, Told};
use super::tls::Identity;
use super::wire::{Heard, Wire, listen, text, texts};
use super::{LOOK, MEET_MAX, RedisError, Site, WORDS_IN_LEASE, millis};
use crate::backend::{Plan, Runner, Running, add_file};
use crate::config::Config;
use crate::protocol::{Options, Outgoing, StartHead};
use crate::scheduler::{Allocation, Control, Ended, Release, Run};

/// How long to wait before Redis is asked again after it could not be.
const PAUSE: Duration = Duration::from_millis(200);

/// How often a process that stops looks whether all has been said.
const LAST_WORDS_LOOK: Duration = Duration::from_millis(20);

/// How a process with backends is set up.
#[derive(Clone, Debug)]
pub struct BayOptions {
    /// Where gateways come to.
    pub listen: SocketAddr,
    /// What gateways are told instead, where they see this machine under another name: `HOST:PORT`.
    pub advertise: Option<String>,
    /// What gateways are shown, where their connections are encrypted.
    pub identity: Option<Identity>,
    /// How long tasks may go on when the process is told to stop.
    pub grace: Duration,
}

/// The backends of one process.
#[derive(Debug)]
pub struct Bay {
    shared: Arc<Shared>,
    options: BayOptions,
    address: SocketAddr,
    serving: JoinHandle<()>,
    wake: mpsc::Receiver<Heard>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    wire: Wire,
    runner: Arc<dyn Runner>,
    door: Door,
    /// How gateways come, and where to, as they are told.
    scheme: &'static str,
    advertise: String,
    /// Something may be offered.
    offered: Notify,
    /// One more handle for each gateway that still hears something.
    heard: Arc<()>,
}

/// One task, as it stands in `queue.executing`.
#[derive(Clone, Debug)]
struct Record {
    id: String,
    /// Attempt, class, kind, limit, start, whether it may run again, wish.
    fields: [String; 7],
}

/// A task that this backend runs.
#[derive(Debug)]
struct Job {
    record: Record,
    control: mpsc::UnboundedSender<Control>,
    abort: AbortHandle,
    /// Whether no gateway came for it.
    unmet: bool,
    /// Whether it was halted: it holds no place any more, and its program is being killed.
    halted: bool,
}

/// A run that ended: how, how long it took, and how much longer than it might.
#[derive(Debug)]
struct End {
    record: Record,
    how: [String; 3],
}

impl Bay {
    /// Opens the door and sees what can be run; nothing is taken before [`Bay::run`].
    pub async fn open(
        config: Config,
        site: &Site,
        runner: Arc<dyn Runner>,
        options: BayOptions,
    ) -> Result<Self, RedisError> {
        let identity = options.identity.as_ref();
        let (door, address, serving) = Door::open(options.listen, identity).await?;
        let advertise = options.advertise.clone().unwrap_or_else(|| address.to_string());
        let scheme = if identity.is_some() { "wss" } else { "ws" };
        let (wire, wake) = (Wire::open(site), listen(site, "backend.wake"));
        let offered = Notify::new();
        let heard = Arc::new(());
        let shared = Shared { config, wire, runner, door, scheme, advertise, offered, heard };
        let shared = Arc::new(shared);
        Ok(Bay { shared, options, address, serving, wake })
    }

    /// Where gateways come to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes tasks until told to stop; then what runs may go on for a while.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        let mut backends = JoinSet::new();
        for _ in 0..self.shared.config.backends {
            let backend = Backend::new(self.shared.clone(), self.options.grace, stopped.clone());
            backends.spawn(backend.run());
        }
        let shared = self.shared.clone();
        let waking = async move {
            while let Some(heard) = self.wake.recv().await {
                match heard {
                    Heard::Said(_) => shared.offered.notify_one(),
                    Heard::Again => shared.offered.notify_waiters(),
                }
            }
        };
        tokio::select! {
            () = waking => tracing::error!("nothing is heard from Redis any more"),
            () = stop => {}
        }
        let _ = stopping.send(true);
        self.shared.runner.close();
        while backends.join_next().await.is_some() {}
        // The last words of what has ended are still on their way, and folders are being removed.
        let said = async {
            while Arc::strong_count(&self.shared.heard) > 1 || !self.shared.runner.is_clear() {
                sleep(LAST_WORDS_LOOK).await;
            }
        };
        let _ = timeout(MEET_MAX, said).await;
        self.serving.abort();
    }
}

/// One backend: it has a number in Redis and one task at a time.
struct Backend {
    shared: Arc<Shared>,
    grace: Duration,
    stopped: watch::Receiver<bool>,
    number: String,
    /// Which memory of Redis it knows.
    life: String,
    /// What it runs, by task and attempt: one, and perhaps halted ones that are still being killed.
    jobs: HashMap<(String, String), Job>,
    /// The one of them that it is busy with.
    busy: Option<(String, String)>,
    told: mpsc::UnboundedReceiver<Told>,
    tell: mpsc::UnboundedSender<Told>,
    /// Ends that Redis does not know yet.
    ends: Vec<End>,
    /// Whether it has a program that cannot be killed: then it is of no use any more.
    stuck: bool,
}

impl Backend {
    fn new(shared: Arc<Shared>, grace: Duration, stopped: watch::Receiver<bool>) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let (jobs, busy, ends) = (HashMap::new(), None, Vec::new());
        let (number, life) = (String::new(), String::new());
        Backend { shared, grace, stopped, number, life, jobs, busy, told, tell, ends, stuck: false }
    }

    async fn run(mut self) {
        let mut token = self.shared.door.token();
        let mut beat = Instant::now();
        // Offers that came while it was busy are found by asking once more.
        let mut ask = true;
        loop {
            self.report().await;
            // What has ended and is not known yet would look as if it had been lost.
            if beat <= Instant::now() && self.ends.is_empty() {
                let lives = self.beat().await;
                beat = Instant::now() + if lives { self.refresh() } else { PAUSE };
            }
            if self.busy.is_none() && ask && !self.number.is_empty() && !*self.stopped.borrow() {
                match self.claim(&mut token).await {
                    Ok(taken) => ask = taken,
                    Err(()) => {
                        beat = Instant::now();
                        sleep(PAUSE).await;
                    }
                }
                if self.busy.is_some() {
                    // Perhaps there is more than this one.
                    self.shared.offered.notify_one();
                }
                continue;
            }
            let idle = self.busy.is_none();
            tokio::select! {
                told = self.told.recv() => {
                    if let Some(told) = told {
                        self.hear(told);
                    }
                    if self.stuck {
                        tracing::error!(backend = self.number, "a program cannot be killed");
                        return self.leave().await;
                    }
                    ask = true;
                }
                () = self.shared.offered.notified(), if idle => ask = true,
                () = sleep(LOOK), if idle => ask = true,
                () = sleep_until(beat) => {}
                _ = self.stopped.changed() => return self.leave().await,
            }
        }
    }

    /// How often it says that it lives.
    fn refresh(&self) -> Duration {
        self.shared.config.leases.backend() / WORDS_IN_LEASE
    }

    /// Tells Redis how tasks ended; what it cannot be told now it is told later.
    async fn report(&mut self) {
        while let Some(End { record, how }) = self.ends.first() {
            let mut args = vec![record.id.clone(), record.fields[0].clone()];
            args.extend(how.iter().cloned());
            let known = match self.shared.wire.call("finish", args).await {
                Ok(said) => texts(said).get(1) == Some(&self.life),
                Err(Failure::Refused(_)) => true,
                Err(_) => return sleep(PAUSE).await,
            };
            if known {
                self.ends.remove(0);
            } else if !self.beat().await {
                // A memory that has never heard of the run has to hear of it first.
                return sleep(PAUSE).await;
            }
        }
    }

    /// Says that it lives, and what it runs. Answers whether Redis heard it.
    async fn beat(&mut self) -> bool {
        let about = serde_json::json!({
            "address": self.shared.advertise,
            "encrypted": self.shared.scheme == "wss",
            "process": std::process::id(),
            "not_isolated": self.shared.runner.gaps(),
        });
        let mut args = vec![
            self.number.clone(),
            millis(self.shared.config.leases.backend()),
            about.to_string(),
            self.life.clone(),
        ];
        let hold = self.jobs.iter().filter(|(_, job)| !job.halted);
        let jobs: Vec<(String, String)> = hold.map(|(name, _)| name.clone()).collect();
        let ended = self.ends.iter().map(|end| &end.record);
        for record in jobs.iter().map(|job| &self.jobs[job].record).chain(ended) {
            args.push(record.id.clone());
            args.extend(record.fields.iter().cloned());
        }
        let said = match self.shared.wire.call("beat", args).await {
            Ok(said) => texts(said),
            Err(failure) => {
                tracing::debug!(why = failure.text(), "Redis does not hear this backend");
                return false;
            }
        };
        let [number, life, limits @ ..] = &said[..] else { return false };
        if !self.life.is_empty() && self.life != *life {
            tracing::warn!(number, "Redis has lost everything; it was told what this backend runs");
        }
        self.number.clone_from(number);
        self.life.clone_from(life);
        for (job, limit) in jobs.iter().zip(limits) {
            let Some(job) = self.jobs.get_mut(job) else { continue };
            let control = match limit_of(limit) {
                // Its gateway is gone, or it is somebody else's by now.
                _ if limit.is_empty() => Control::Halt("nobody waits for it any more".into()),
                Some(Some(lower)) if *limit != job.record.fields[3] => Control::Limit(lower),
                _ => continue,
            };
            job.record.fields[3].clone_from(limit);
            let _ = job.control.send(control);
        }
        true
    }

    /// Takes what is offered next. Answers whether there was something; fails where Redis does not know this backend.
    async fn claim(&mut self, token: &mut Token) -> Result<bool, ()> {
        let Shared { scheme, advertise, .. } = &*self.shared;
        let address = format!("{scheme}://{advertise}/pool/backend/{}", token.text);
        let args = vec![self.number.clone(), address];
        let said = self.shared.wire.call("claim", args).await.map_err(|failure| {
            tracing::debug!(why = failure.text(), "nothing can be claimed");
            // Perhaps it was done all the same: the gateway of a task that this backend has never heard of may come with
            // the token, which must not open for the next.
            *token = self.shared.door.token();
        })?;
        let mut parts = said.list().unwrap_or_default();
        match parts.len() {
            0 => return Ok(false),
            13 => {}
            _ => return Err(()),
        }
        let files = files(parts.pop());
        let words = parts.pop().and_then(Value::text).unwrap_or_default();
        let parts: Vec<String> = parts.into_iter().map(text).collect();
        let record = Record {
            id: parts[0].clone(),
            fields: std::array::from_fn(|at| parts[at + 1].clone()),
        };
        let used = std::mem::replace(token, self.shared.door.token());
        let brought = Brought { program: &parts[8], options: &parts[9], main: &parts[10] };
        let plan = self.shared.plan(&brought, &record, files, words);
        self.start(record, plan, used);
        Ok(true)
    }

    fn start(&mut self, record: Record, plan: Result<Plan, String>, token: Token) {
        let (id, attempt) = (record.id.clone(), record.fields[0].clone());
        let limit = limit_of(&record.fields[3]).flatten();
        let ticket = Ticket(id.parse().unwrap_or_default());
        let run = Run { ticket, attempt: 0, limit, again: record.fields[5] == "1" };
        let (tell, name) = (self.tell.clone(), (id.clone(), attempt.clone()));
        let release = Release::new(move |freed| {
            let (id, attempt) = name;
            let _ = tell.send(Told::Freed { id, attempt, freed });
        });
        let (allocation, control) = Allocation::new(run, 0, Arc::default(), release);
        let (running, abort) = match plan {
            Ok(plan) => self.shared.runner.run(allocation, Arc::new(plan)),
            Err(why) => refuse(allocation, why),
        };
        let halted = Told::Halted { id: id.clone(), attempt: attempt.clone() };
        let unmet = Told::Unmet { id: id.clone(), attempt: attempt.clone() };
        let session = Session { running, control: control.clone(), tell: self.tell.clone() };
        let heard = self.shared.heard.clone();
        tokio::spawn(async move {
            session.run(token, halted, unmet).await;
            drop(heard);
        });
        self.busy = Some((id.clone(), attempt.clone()));
        let job = Job { record, control, abort, unmet: false, halted: false };
        self.jobs.insert((id, attempt), job);
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Halted { id, attempt } => {
                let name = (id, attempt);
                if let Some(job) = self.jobs.get_mut(&name) {
                    job.halted = true;
                }
                self.busy.take_if(|busy| *busy == name);
            }
            Told::Unmet { id, attempt } => {
                if let Some(job) = self.jobs.get_mut(&(id, attempt)) {
                    job.unmet = true;
                }
            }
            Told::Freed { id, attempt, freed } => {
                let job = (id, attempt);
                let Some(Job { record, unmet, .. }) = self.jobs.remove(&job) else { return };
                let how = match freed.ended {
                    Ended::Done if unmet => "lost",
                    Ended::Done => "done",
                    Ended::Lost => "lost",
                    Ended::Stuck => "stuck",
                };
                let micros = |time: Duration| time.as_micros().to_string();
                let stopping = freed.stopping.map_or("-".into(), micros);
                let how = [how.into(), micros(freed.took), stopping];
                self.ends.push(End { record, how });
                self.busy.take_if(|busy| *busy == job);
                self.stuck |= freed.ended == Ended::Stuck;
            }
        }
    }

    /// Takes nothing new; what runs may go on for the grace, then it is stopped with a word.
    async fn leave(mut self) {
        let until = Instant::now() + self.grace;
        let mut beat = Instant::now() + self.refresh();
        let mut asked = false;
        while !self.jobs.is_empty() {
            tokio::select! {
                told = self.told.recv() => if let Some(told) = told {
                    self.hear(told);
                },
                () = sleep_until(until), if !asked => {
                    asked = true;
                    for job in self.jobs.values() {
                        let _ = job.control.send(Control::Halt("the backend is stopping".into()));
                    }
                }
                // What cannot be killed is left.
                () = sleep_until(until + MEET_MAX) => break,
                () = sleep_until(beat) => {
                    self.beat().await;
                    beat = Instant::now() + self.refresh();
                }
            }
            self.report().await;
        }
        self.report().await;
        let _ = self.shared.wire.call("depart", vec![self.number.clone()]).await;
        self.jobs.values().for_each(|job| job.abort.abort());
    }
}

/// What a client said about its task, as Redis has it.
struct Brought<'a> {
    program: &'a str,
    options: &'a str,
    main: &'a str,
}

impl Shared {
    /// The task, checked as if its client stood before us: Redis is no reason to believe it.
    fn plan(
        &self,
        brought: &Brought<'_>,
        record: &Record,
        files: Vec<(String, Vec<u8>)>,
        words: Vec<u8>,
    ) -> Result<Plan, String> {
        let program = self.config.programs.get(brought.program);
        let program = program.ok_or("this backend has no such program")?;
        let options: Options =
            serde_json::from_str(brought.options).map_err(|error| error.to_string())?;
        let main = Some(brought.main).filter(|main| !main.is_empty()).map(String::from);
        let interactive = record.fields[2] == "interactive";
        let mut checked = Vec::new();
        for file in files {
            add_file(&mut checked, program, &self.config.limits, file)
                .map_err(|error| error.to_string())?;
        }
        let start = StartHead { main };
        let program = Arc::new(program.clone());
        let plan = Plan::new(program, checked, &options, &start, interactive);
        Ok(Plan { words, ..plan.map_err(|error| error.to_string())? })
    }
}

fn files(value: Option<Value>) -> Vec<(String, Vec<u8>)> {
    let parts = value.and_then(Value::list).unwrap_or_default();
    let mut parts = parts.into_iter();
    let mut files = Vec::new();
    while let (Some(name), Some(bytes)) = (parts.next(), parts.next()) {
        files.push((text(name), bytes.text().unwrap_or_default()));
    }
    // Redis has them in any order.
    files.sort();
    files
}

/// A task that cannot run here ends at once, with a word.
fn refuse(allocation: Allocation, why: String) -> (Running, AbortHandle) {
    let (sender, frames) = mpsc::channel(1);
    let (input, _) = mpsc::channel(1);
    let job = tokio::spawn(async move {
        allocation.end(Ended::Done);
        let _ = sender.send(Outgoing::Complete(Some(why))).await;
    });
    (Running { frames, input }, job.abort_handle())
}

//! A gateway of a pool over Redis: brings tasks, keeps their leases, and hands on what they are told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;
use taskyard_core::classes::Ask;
use taskyard_core::service::{Health, Line, Metric, Service, Stopping};
use taskyard_redis::Failure;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::dial::{Talk, Trust};
use super::look::look;
use super::stay::{RedisStay, Word, wish_of};
use super::wire::{Heard, Wire, listen, texts};
use super::{RedisError, Site, WORDS_IN_LEASE, millis, secret};
use crate::backend::Plan;
use crate::config::Config;
use crate::gateway::{Away, Gate, Soon, Stay, Yard};
use crate::protocol::Outgoing;
use crate::scheduler::Status;
use crate::service::metrics_of;

/// Most tasks whose leases one call keeps.
const REFRESHED_AT_ONCE: usize = 500;
/// Most tasks for which words are kept before their number has come.
const EARLY_MAX: usize = 10_000;
/// Most bytes of a backend's words that are no output.
const WORDS_BYTES_MAX: usize = 64 << 10;
/// How long a backend may be silent about a run that is over: in its leases, and beyond them and the time in which a
/// program is killed.
const LAST_WORDS_LEASES: u32 = 4;
const LAST_WORDS_SPARE: Duration = Duration::from_secs(3);
/// How often the status is read for those who ask for metrics.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// What a client is told while Redis cannot be reached.
const UNREACHABLE: &str = "the pool cannot reach its database; try again later";
/// How long clients may take to hear that the gateway stops.
const STOP_MAX: Duration = Duration::from_secs(3);

/// A gateway.
#[derive(Clone, Debug)]
pub struct RedisGateway {
    shared: Arc<Shared>,
    gate: Gate,
    status: Arc<Mutex<Option<Status>>>,
}

/// What all tasks of a gateway share.
#[derive(Debug)]
pub(super) struct Shared {
    pub wire: Wire,
    /// Which backends it goes to, and how many bytes they may send at once.
    trust: Trust,
    message_bytes_max: usize,
    name: String,
    queue_max: usize,
    /// How long tasks live without a word of ours.
    lease: Duration,
    /// How long a program that has ended may take to say its last words.
    pub last_words_max: Duration,
    tasks: Mutex<Tasks>,
    /// Which memory of Redis is known.
    life: Mutex<String>,
    /// Redis may have lost everything.
    doubt: Arc<Notify>,
    stopping: AtomicBool,
}

/// The tasks of a gateway, by their numbers in Redis.
#[derive(Debug, Default)]
struct Tasks {
    here: HashMap<String, mpsc::UnboundedSender<Word>>,
    /// What came for tasks whose number has not come yet: a backend may be quicker than Redis' answer to us.
    early: HashMap<String, (Instant, Vec<Word>)>,
}

impl RedisGateway {
    /// Starts a gateway on the runtime this is called on.
    pub fn start(config: &Config, site: &Site) -> Result<Self, RedisError> {
        Self::trusting(config, site, Trust::default())
    }

    /// The same for one that goes to these backends only.
    pub fn trusting(config: &Config, site: &Site, trust: Trust) -> Result<Self, RedisError> {
        config.rules()?;
        let name = secret();
        let heard = listen(site, &format!("gateway:{name}"));
        let shared = Arc::new(Shared {
            wire: Wire::open(site),
            trust,
            message_bytes_max: message_bytes_max(config),
            name,
            queue_max: config.queue_max,
            lease: config.leases.task(),
            last_words_max: config.leases.backend() * LAST_WORDS_LEASES
                + config.kill_after()
                + LAST_WORDS_SPARE,
            tasks: Mutex::default(),
            life: Mutex::default(),
            doubt: Arc::default(),
            stopping: AtomicBool::new(false),
        });
        let yard = RedisYard { shared: shared.clone() };
        let gate = Gate::new(config, Arc::new(yard));
        let status = Arc::new(Mutex::new(None));
        tokio::spawn(keep(Arc::downgrade(&shared), shared.doubt.clone(), heard));
        tokio::spawn(read_status(Arc::downgrade(&shared), Arc::downgrade(&status)));
        Ok(RedisGateway { shared, gate, status })
    }

    /// What clients come through.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }
}

#[derive(Debug)]
struct RedisYard {
    shared: Arc<Shared>,
}

impl Yard for RedisYard {
    fn arrive(&self, plan: Plan) -> Soon<'_, Result<Box<dyn Stay>, Away>> {
        Box::pin(async move {
            if self.shared.stopping.load(Ordering::Acquire) {
                return Err(Away("the pool is stopping".into()));
            }
            let args = self.shared.arrival(&plan, "", true, false, wish_of(&plan.ask));
            let said = self.shared.wire.call("arrive", args).await;
            let said = said.map_err(|failure| Away(for_client(&failure).into()))?;
            let said = texts(said);
            let id = said.first().cloned().unwrap_or_default();
            if id == "full" {
                return Err(Away("too many tasks wait already; try again later".into()));
            }
            let life = said.get(1).cloned().unwrap_or_default();
            {
                let mut known = self.shared.life();
                if known.is_empty() {
                    known.clone_from(&life);
                }
            }
            let (sender, words) = mpsc::unbounded_channel();
            self.shared.welcome(&id, sender);
            let (stay, inside) = RedisStay::new(self.shared.clone(), id, life, plan, words);
            tokio::spawn(inside.run());
            Ok(Box::new(stay) as Box<dyn Stay>)
        })
    }

    fn status(&self) -> Soon<'_, Result<Json, Away>> {
        let unreachable = |error: &RedisError| {
            tracing::warn!(%error, "the status cannot be read");
            UNREACHABLE.to_owned()
        };
        Box::pin(
            async move { look(&self.shared.wire).await.map_err(|error| Away(unreachable(&error))) },
        )
    }
}

impl Shared {
    /// Goes to a backend.
    pub async fn dial(&self, address: &str) -> Option<Talk> {
        self.trust.dial(address, self.message_bytes_max).await
    }

    /// What Redis is told of a task.
    pub fn arrival(
        &self,
        plan: &Plan,
        id: &str,
        waits: bool,
        seen: bool,
        wish: u64,
    ) -> Vec<Vec<u8>> {
        let flag = |flag: bool| u8::from(flag).to_string();
        let ask = match plan.ask {
            Ask::Timed(_) => "timed",
            Ask::Default => "default",
            Ask::Interactive => "interactive",
        };
        let options = serde_json::to_string(&plan.source.options).unwrap_or_default();
        let texts = [
            self.name.clone(),
            millis(self.lease),
            id.to_owned(),
            flag(waits),
            flag(seen),
            "0".into(),
            ask.into(),
            wish.to_string(),
            self.queue_max.max(1).to_string(),
            plan.program.name.clone(),
            options,
            plan.source.start.main.clone().unwrap_or_default(),
        ];
        let mut args: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
        args.push(plan.words.clone());
        for (name, bytes) in &plan.files {
            args.push(name.clone().into_bytes());
            args.push(bytes.clone());
        }
        args
    }

    /// The task is here; what came for it before it now gets.
    fn welcome(&self, id: &str, sender: mpsc::UnboundedSender<Word>) {
        let mut tasks = self.tasks();
        let (_, early) = tasks.early.remove(id).unzip();
        early.into_iter().flatten().for_each(|word| _ = sender.send(word));
        tasks.here.insert(id.to_owned(), sender);
    }

    /// The task has ended.
    pub fn forget(&self, id: &str) {
        self.tasks().here.remove(id);
    }

    /// Looks what messages may have been missed.
    async fn look(&self, ids: &[String]) {
        for part in ids.chunks(REFRESHED_AT_ONCE) {
            let Ok(said) = self.wire.call("peek", part.to_vec()).await else { return };
            for one in said.list().unwrap_or_default() {
                let one = texts(one);
                let [id, backend, end, _, control, over, known, held] = &one[..] else { continue };
                let end = end.split_once(' ').and_then(|(how, why)| ending(how, why));
                let backend = backend.split_once(' ');
                match (end, backend) {
                    _ if known.is_empty() => continue,
                    (Some(last), _) => self.tell(id, Word::End(last)),
                    (None, Some((attempt, address))) => {
                        self.tell(id, Word::Backend(attempt.into(), address.into()));
                        if attempt == over {
                            self.tell(id, Word::Over(over.clone()));
                        }
                    }
                    (None, None) if !over.is_empty() => self.tell(id, Word::Over(over.clone())),
                    (None, None) if held.is_empty() => self.tell(id, Word::Unclaimed),
                    // It is held by one whose address was lost, or that may still have to come back.
                    (None, None) => {}
                }
                if let Some((attempt, text)) = control.split_once(' ') {
                    self.tell(id, Word::Control(attempt.into(), text.into()));
                }
            }
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn life(&self) -> MutexGuard<'_, String> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, id: &str, word: Word) {
        let mut tasks = self.tasks();
        match tasks.here.get(id) {
            Some(task) => _ = task.send(word),
            None if tasks.early.len() < EARLY_MAX => {
                let early = tasks.early.entry(id.to_owned());
                early.or_insert_with(|| (Instant::now(), Vec::new())).1.push(word);
            }
            // It is found by looking.
            None => {}
        }
    }

    fn tell_all(&self, word: &Word) {
        self.tasks().here.values().for_each(|task| _ = task.send(word.clone()));
    }

    /// Hands a message on to its task.
    fn hear(&self, said: &str) {
        let Some((verb, rest)) = said.split_once(' ') else { return };
        let (id, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let word = match verb {
            "backend" => rest
                .split_once(' ')
                .map(|(attempt, address)| Word::Backend(attempt.into(), address.into())),
            "queue" => serde_json::from_str(rest).ok().map(Word::Queue),
            "end" => rest.split_once(' ').and_then(|(how, why)| ending(how, why)).map(Word::End),
            "waits" => Some(Word::Waits(rest.into())),
            "control" => rest
                .split_once(' ')
                .map(|(attempt, text)| Word::Control(attempt.into(), text.into())),
            _ => None,
        };
        match word {
            Some(word) => self.tell(id, word),
            None => tracing::warn!(verb, "not understood"),
        }
    }

    /// Keeps the leases of all tasks. Answers whether Redis heard it.
    async fn refresh(&self) -> bool {
        let ids: Vec<String> = {
            let mut tasks = self.tasks();
            tasks.early.retain(|_, (since, _)| since.elapsed() < self.lease);
            tasks.here.keys().cloned().collect()
        };
        let mut lives = Vec::new();
        // Without tasks too, so that it is known which memory Redis has.
        let parts: Vec<&[String]> = match ids.is_empty() {
            true => vec![&[]],
            false => ids.chunks(REFRESHED_AT_ONCE).collect(),
        };
        for part in parts {
            let mut args = vec![millis(self.lease), self.life().clone()];
            args.extend_from_slice(part);
            let Ok(said) = self.wire.call("refresh", args).await else { return false };
            let mut said = texts(said).into_iter();
            let life = said.next().unwrap_or_default();
            let known = self.life().clone();
            if known.is_empty() || known == life {
                said.for_each(|id| self.tell(&id, Word::Gone));
            }
            lives.push(life);
        }
        if let Some(life) = lives.pop() {
            let known = std::mem::replace(&mut *self.life(), life.clone());
            if !known.is_empty() && known != life {
                tracing::warn!("Redis has lost everything; tasks are brought back");
                self.tell_all(&Word::Reborn(life));
                return true;
            }
        }
        self.look(&ids).await;
        true
    }
}

/// A result or a piece of output, whichever may be longer, and something for words.
fn message_bytes_max(config: &Config) -> usize {
    let result = usize::try_from(config.limits.result_bytes_max).unwrap_or(usize::MAX);
    result.max(config.limits.output_bytes_max).saturating_add(WORDS_BYTES_MAX)
}

/// What a client is told of a Redis that does not do what is asked. Where that is, and what it said, is for the log.
pub(super) fn for_client(failure: &Failure) -> &'static str {
    tracing::warn!(why = failure.text(), "Redis does not do what a client asked for");
    match failure {
        Failure::Refused(_) => "the pool's database refused the task; tell the operator",
        _ => UNREACHABLE,
    }
}

fn ending(how: &str, why: &str) -> Option<Outgoing> {
    match how {
        "deny" => Some(Outgoing::Deny(why.into())),
        "lost" => Some(Outgoing::Complete(Some(why.into()))),
        _ => None,
    }
}

async fn keep(
    shared: std::sync::Weak<Shared>,
    doubt: Arc<Notify>,
    mut heard: mpsc::Receiver<Heard>,
) {
    let mut next = Instant::now();
    loop {
        tokio::select! {
            said = heard.recv() => match (said, shared.upgrade()) {
                (Some(Heard::Said(said)), Some(shared)) => shared.hear(&said),
                // Something may have been missed, all of it perhaps.
                (Some(Heard::Again), Some(_)) => next = Instant::now(),
                _ => return,
            },
            () = doubt.notified() => next = Instant::now(),
            () = sleep_until(next) => {
                let Some(shared) = shared.upgrade() else { return };
                let kept = shared.refresh().await;
                let usual = shared.lease / WORDS_IN_LEASE;
                next = Instant::now() + if kept { usual } else { STATUS_EVERY.min(usual) };
            }
        }
    }
}

/// Reads the status again and again: whoever asks for metrics does not wait for Redis. It also shows, before any lease
/// is to be kept, that Redis lost everything.
async fn read_status(
    shared: std::sync::Weak<Shared>,
    status: std::sync::Weak<Mutex<Option<Status>>>,
) {
    loop {
        let Some(wire) = shared.upgrade().map(|shared| shared.wire.clone()) else { return };
        let read = look(&wire).await.ok();
        let (Some(shared), Some(status)) = (shared.upgrade(), status.upgrade()) else { return };
        let life = read.as_ref().and_then(|read| read["in_redis"]["life"].as_str());
        if life.is_some_and(|life| life != *shared.life()) {
            shared.doubt.notify_one();
        }
        let read = read.and_then(|read| serde_json::from_value(read).ok());
        *status.lock().unwrap_or_else(PoisonError::into_inner) = read;
        drop((shared, status, wire));
        sleep(STATUS_EVERY).await;
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
            None => Health::Troubled("no scheduler leads, or Redis cannot be reached".into()),
            Some(status) => match status.wrong {
                Some(wrong) => Health::Troubled(wrong),
                None if status.backends == 0 => Health::Troubled("no backend is alive".into()),
                None => Health::Well,
            },
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        self.status_now().as_ref().map(metrics_of).unwrap_or_default()
    }

    fn status(&self) -> Vec<Line> {
        self.status_now().as_ref().map(crate::service::lines_of).unwrap_or_default()
    }

    fn stop(&self) -> Stopping<'_> {
        Box::pin(async move {
            self.shared.stopping.store(true, Ordering::Release);
            self.shared.tell_all(&Word::Stop);
            let gone = async {
                while self.gate.clients() > 0 || !self.shared.tasks().here.is_empty() {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let _ = timeout(STOP_MAX, gone).await;
        })
    }
}

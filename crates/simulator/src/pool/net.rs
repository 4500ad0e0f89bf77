//! The network of a pool: processes dial Redis and each other, stall, and die.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::serve::Listener;
use fastrand::Rng;
use taskyard_pool::gateway::BoxFuture;
use taskyard_pool::redis::{BackendDialer, BackendStream};
use taskyard_redis::{Address, DialedStream, Dialing, RedisDialer};
use tokio::sync::mpsc;

use super::pipe::{Pipe, PipeEnd, pipe};
use crate::effects::{FaultName, count_effects};

/// A process; one that is started again has another number.
pub type ProcessNumber = usize;

/// All connections of a run.
#[derive(Clone)]
pub struct PoolNetwork(Arc<Mutex<PoolNetworkState>>);

struct PoolNetworkState {
    rng: Rng,
    latency_max: Duration,
    pipes: Vec<PipeEntry>,
    stalled: BTreeMap<ProcessNumber, u32>,
    dead: Vec<ProcessNumber>,
    /// Where connections to Redis arrive while it runs.
    redis: Option<mpsc::UnboundedSender<PipeEnd>>,
    /// Where connections to backends arrive.
    listeners: BTreeMap<ProcessNumber, mpsc::UnboundedSender<PipeEnd>>,
    /// How many faults refuse connections to backends.
    refusing: u32,
}

struct PipeEntry {
    from: ProcessNumber,
    /// The backend process; `None` is Redis.
    to: Option<ProcessNumber>,
    pipe: Weak<Pipe>,
}

impl PipeEntry {
    fn is_of(&self, process: ProcessNumber) -> bool {
        self.from == process || self.to == Some(process)
    }
}

impl PoolNetwork {
    /// A network without connections.
    pub fn new(rng: Rng, latency_max: Duration) -> Self {
        PoolNetwork(Arc::new(Mutex::new(PoolNetworkState {
            rng,
            latency_max,
            pipes: Vec::new(),
            stalled: BTreeMap::new(),
            dead: Vec::new(),
            redis: None,
            listeners: BTreeMap::new(),
            refusing: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, PoolNetworkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections to Redis arrive here from now on; `None` refuses them.
    pub fn set_redis(&self, accepts: Option<mpsc::UnboundedSender<PipeEnd>>) {
        self.state().redis = accepts;
    }

    /// How a process reaches the others.
    pub fn of(&self, process: ProcessNumber) -> Arc<ProcessNetwork> {
        Arc::new(ProcessNetwork { network: self.clone(), process })
    }

    /// Accepts connections for a process with backends.
    pub fn listen(&self, process: ProcessNumber) -> PipeListener {
        let (sender, ends) = mpsc::unbounded_channel();
        self.state().listeners.insert(process, sender);
        PipeListener(ends)
    }

    /// The process is gone: its connections end, and it cannot open new ones.
    pub fn kill(&self, process: ProcessNumber) {
        let state = &mut *self.state();
        state.dead.push(process);
        state.listeners.remove(&process);
        state.select(|entry| entry.is_of(process)).iter().for_each(|pipe| pipe.cut());
    }

    /// Nothing reaches or leaves a process, until it continues.
    pub fn stall(&self, process: ProcessNumber, stalls: bool) {
        let state = &mut *self.state();
        let count = state.stalled.entry(process).or_default();
        *count = if stalls { *count + 1 } else { count.saturating_sub(1) };
        state.select(|entry| entry.is_of(process)).iter().for_each(|pipe| pipe.hold(stalls));
    }

    /// Cuts the connections to Redis, or those to backends.
    pub fn cut(&self, to_redis: bool) {
        let pipes = self.state().select(|entry| entry.to.is_none() == to_redis);
        let fault = if to_redis { FaultName::CutRedis } else { FaultName::CutBackends };
        count_effects(fault, pipes.len());
        pipes.iter().for_each(|pipe| pipe.cut());
    }

    /// Connections to backends lose everything without a notice, until the end.
    pub fn silence_backends(&self, begins: bool) {
        let pipes = self.state().select(|entry| entry.to.is_some());
        for pipe in pipes {
            if begins { pipe.silence() } else { pipe.end_silence() }
        }
    }

    /// Refuses new connections to backends.
    pub fn refuse_backends(&self, begins: bool) {
        let count = &mut self.state().refusing;
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
    }

    fn way(&self) -> Duration {
        let state = &mut *self.state();
        let most = state.latency_max.as_micros() as u64;
        Duration::from_micros(state.rng.u64(0..=2 * most))
    }

    fn connect(&self, from: ProcessNumber, to: Option<ProcessNumber>) -> io::Result<PipeEnd> {
        let state = &mut *self.state();
        let listener = match to {
            _ if state.dead.contains(&from) => None,
            None => state.redis.clone(),
            Some(_) if state.refusing > 0 => {
                count_effects(FaultName::RefuseBackends, 1);
                None
            }
            Some(process) => state.listeners.get(&process).cloned(),
        };
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = listener.ok_or_else(refused)?;
        let stalled = |process| state.stalled.get(&process).copied().unwrap_or_default();
        let held = stalled(from) + to.map_or(0, stalled);
        let (own, other) = pipe(state.rng.u64(..), state.latency_max, held);
        state.pipes.retain(|entry| entry.pipe.strong_count() > 0);
        state.pipes.push(PipeEntry { from, to, pipe: own.pipe() });
        listener.send(other).map_err(|_| refused())?;
        Ok(own)
    }
}

impl PoolNetworkState {
    fn select(&self, is_meant: impl Fn(&PipeEntry) -> bool) -> Vec<Arc<Pipe>> {
        let entries = self.pipes.iter().filter(|entry| is_meant(entry));
        entries.filter_map(|entry| entry.pipe.upgrade()).collect()
    }
}

/// The network as one process sees it.
pub struct ProcessNetwork {
    network: PoolNetwork,
    process: ProcessNumber,
}

impl fmt::Debug for ProcessNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessNetwork({})", self.process)
    }
}

impl RedisDialer for ProcessNetwork {
    fn dial<'a>(&'a self, _: &'a Address) -> Dialing<'a> {
        Box::pin(async move {
            tokio::time::sleep(self.network.way()).await;
            let end = self.network.connect(self.process, None)?;
            let has_ended = Box::new(end.end_probe());
            Ok(DialedStream { stream: Box::new(end), has_ended })
        })
    }
}

/// The address of a process with backends.
pub fn backend_address(process: ProcessNumber) -> String {
    format!("process-{process}:1")
}

/// The process with this address.
pub fn process_of(address: &str) -> Option<ProcessNumber> {
    address.strip_prefix("process-")?.strip_suffix(":1")?.parse().ok()
}

impl BackendDialer for ProcessNetwork {
    fn dial<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Box<dyn BackendStream>>> {
        Box::pin(async move {
            tokio::time::sleep(self.network.way()).await;
            let to = process_of(host_port).ok_or(io::ErrorKind::NotFound)?;
            let end = self.network.connect(self.process, Some(to))?;
            Ok(Box::new(end) as Box<dyn BackendStream>)
        })
    }
}

/// Accepts connections of gateways.
pub struct PipeListener(mpsc::UnboundedReceiver<PipeEnd>);

impl Listener for PipeListener {
    type Io = PipeEnd;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (PipeEnd, SocketAddr) {
        match self.0.recv().await {
            Some(end) => (end, (Ipv4Addr::LOCALHOST, 1).into()),
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, 1).into())
    }
}

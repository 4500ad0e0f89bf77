//! Simulates the network between clients and servers: streams of bytes with delays, cuts, silence and slow readers.
//!
//! `link` is one connection with a direction each way; `ends` gives its ends to the client and the session of the server.

mod ends;
mod link;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fastrand::Rng;
use taskyard::{BoxFuture, HttpDialer, HttpStream, IprotoDialer, IprotoSocket};
use tokio::sync::mpsc;

use crate::effects::{FaultName, count_effect};
use crate::faults::FaultKind;
use crate::plan::{Plan, stream};
use crate::planted::PlantedFault;
use crate::workers::Freezer;

use ends::ClientEnd;
pub use ends::StreamEnd;
use link::{Link, Side};

/// A cut happens within so many bytes.
const CUT_BYTES_MAX: usize = 400;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Sessions of iproto.
    Iproto,
    /// Requests over HTTP.
    Http,
}

/// All connections of a run.
#[derive(Clone)]
pub struct Network(Arc<Mutex<NetworkState>>);

struct NetworkState {
    rng: Rng,
    /// Draws which sides hear nothing, in runs where connections can be half-open.
    rng_of_sides: Option<Rng>,
    latency_max: Duration,
    planted: Option<PlantedFault>,
    /// Where the connections of the running servers arrive.
    listeners: BTreeMap<(usize, Protocol), mpsc::UnboundedSender<StreamEnd>>,
    links: Vec<(usize, Weak<Link>)>,
    refused: BTreeMap<usize, u32>,
    slow: BTreeMap<usize, u32>,
}

impl Network {
    /// A network without connections.
    pub fn new(plan: &Plan, planted: Option<PlantedFault>) -> Self {
        Network(Arc::new(Mutex::new(NetworkState {
            rng: stream(plan.seed, u64::MAX, 3),
            // The others keep the histories that they had before.
            rng_of_sides: (plan.seed % 4 == 3).then(|| stream(plan.seed, u64::MAX, 13)),
            latency_max: plan.latency_max,
            planted,
            listeners: BTreeMap::new(),
            links: Vec::new(),
            refused: BTreeMap::new(),
            slow: BTreeMap::new(),
        })))
    }

    /// Accepts connections for a process of a server.
    pub fn listen(&self, server: usize, protocol: Protocol) -> mpsc::UnboundedReceiver<StreamEnd> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state().listeners.insert((server, protocol), sender);
        receiver
    }

    /// Refuses connections to a server that has crashed.
    pub fn stop_listening(&self, server: usize) {
        self.state().listeners.retain(|(of, _), _| *of != server);
    }

    /// Lets a fault of the network begin or end.
    pub fn apply_fault(&self, kind: FaultKind, begins: bool) {
        let state = &mut *self.state();
        match kind {
            FaultKind::CutConnections(server) => {
                for link in state.links_of(server) {
                    let after = state.rng.usize(0..CUT_BYTES_MAX);
                    let to_server = state.rng.bool();
                    if begins { link.cut_after(to_server, after) } else { link.finish_cut() }
                }
            }
            FaultKind::SilenceConnections(server) => {
                let silent = match state.rng_of_sides.as_mut().map(|rng| rng.u8(0..3)) {
                    Some(0) => [true, false],
                    Some(1) => [false, true],
                    _ => [true, true],
                };
                for link in state.links_of(server) {
                    // When the other side can be reached again, it answers that it does not know the connection.
                    if begins { link.silence(silent) } else { link.end_silence() }
                }
            }
            FaultKind::SlowConnections(server) => {
                let count = state.slow.entry(server).or_default();
                *count = if begins { *count + 1 } else { *count - 1 };
                let is_slow = *count > 0;
                state.links_of(server).iter().for_each(|link| link.set_slow(is_slow));
            }
            FaultKind::RefuseConnections(server) => {
                let count = state.refused.entry(server).or_default();
                *count = if begins { *count + 1 } else { *count - 1 };
            }
            _ => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to a host of this name, if it accepts connections; that takes a while.
    async fn connect(
        &self,
        host: &str,
        protocol: Protocol,
        freezer: Option<Arc<Freezer>>,
    ) -> io::Result<Arc<Link>> {
        let number = host.strip_prefix("server-").and_then(|number| number.parse().ok());
        let server: usize = number.ok_or(io::ErrorKind::NotFound)?;
        let way = {
            let state = &mut *self.state();
            let most = state.latency_max.as_millis() as u64;
            Duration::from_millis(state.rng.u64(0..=2 * most))
        };
        tokio::time::sleep(way).await;
        if let Some(freezer) = &freezer {
            freezer.pass().await;
        }
        self.open(server, protocol, freezer)
    }

    fn open(
        &self,
        server: usize,
        protocol: Protocol,
        freezer: Option<Arc<Freezer>>,
    ) -> io::Result<Arc<Link>> {
        let state = &mut *self.state();
        let is_on = |counts: &BTreeMap<usize, u32>| counts.get(&server).is_some_and(|on| *on > 0);
        if is_on(&state.refused) {
            count_effect(FaultName::RefuseConnections);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let listener = state.listeners.get(&(server, protocol));
        let listener = listener.cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
        let seed = state.rng.u64(..);
        let link = Arc::new(Link::new(seed, state.latency_max, state.planted, freezer));
        link.set_slow(is_on(&state.slow));
        state.links.retain(|(_, link)| link.strong_count() > 0);
        state.links.push((server, Arc::downgrade(&link)));
        let refused = |_| io::ErrorKind::ConnectionRefused;
        listener.send(StreamEnd::new(link.clone(), Side::Server)).map_err(refused)?;
        Ok(link)
    }
}

impl NetworkState {
    fn links_of(&self, server: usize) -> Vec<Arc<Link>> {
        let links = self.links.iter().filter(|(of, _)| *of == server);
        links.filter_map(|(_, link)| link.upgrade()).collect()
    }
}

/// The name of a server in addresses.
pub fn host(server: usize) -> String {
    format!("server-{server}")
}

/// The network as one process of a client sees it.
pub struct ClientNetwork {
    pub network: Network,
    /// What freezes the process.
    pub freezer: Option<Arc<Freezer>>,
}

impl IprotoDialer for ClientNetwork {
    fn dial<'a>(
        &'a self,
        host: &'a str,
        _port: u16,
    ) -> BoxFuture<'a, io::Result<Box<dyn IprotoSocket>>> {
        Box::pin(async move {
            let link = self.network.connect(host, Protocol::Iproto, self.freezer.clone()).await?;
            let socket: Box<dyn IprotoSocket> = Box::new(ClientEnd::new(link));
            Ok(socket)
        })
    }
}

impl HttpDialer for ClientNetwork {
    fn dial<'a>(
        &'a self,
        host: &'a str,
        _port: u16,
    ) -> BoxFuture<'a, io::Result<Box<dyn HttpStream>>> {
        Box::pin(async move {
            let link = self.network.connect(host, Protocol::Http, self.freezer.clone()).await?;
            let stream: Box<dyn HttpStream> = Box::new(StreamEnd::new(link, Side::Client));
            Ok(stream)
        })
    }
}

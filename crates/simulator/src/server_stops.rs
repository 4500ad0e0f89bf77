//! Stops servers gracefully, and records how they ended.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::effects::{FaultName, count_effects};
use crate::faults::FaultKind;
use crate::history::Moment;
use crate::planted::PlantedFault;
use crate::world::World;

/// How long connections may finish their requests, as in the product.
const CONNECTIONS_MAX: Duration = Duration::from_secs(10);
/// For how long the effects of other faults may last.
const AFTER_EFFECT: Duration = Duration::from_secs(10);

/// A graceful stop of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerStop {
    /// The server.
    pub server: usize,
    /// When it was asked to stop.
    pub begun: Moment,
    /// When it had stopped; `None` if it was killed before.
    pub ended: Option<Moment>,
    /// How long that took.
    pub lasted: Duration,
    /// Whether nothing else was broken meanwhile.
    pub is_alone: bool,
}

/// The stops of a run, and which other faults can disturb them.
#[derive(Default)]
pub struct ServerStops {
    stopping: RefCell<BTreeMap<usize, Stopping>>,
    ended: RefCell<Vec<ServerStop>>,
    disturbances: RefCell<BTreeMap<usize, Disturbance>>,
}

/// The faults that can disturb the stop of a server.
#[derive(Clone, Copy, Default)]
struct Disturbance {
    active: u32,
    /// How many faults began or ended, and when the latest one ended.
    changes: u64,
    latest_end: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Stopping {
    incarnation: u64,
    begun: Moment,
    at: Instant,
    /// The number of changes of faults, if nothing else was broken at the begin.
    quiet: Option<u64>,
}

impl ServerStops {
    /// Notes that a fault begins or ends.
    pub fn note_fault(&self, kind: FaultKind, servers: usize, begins: bool) {
        let mut all = self.disturbances.borrow_mut();
        for server in (0..servers).filter(|server| kind.disturbs(*server)) {
            let of_server = all.entry(server).or_default();
            of_server.changes += 1;
            match begins {
                true => of_server.active += 1,
                false => {
                    of_server.active -= 1;
                    of_server.latest_end = Some(Instant::now());
                }
            }
        }
    }

    fn disturbance(&self, server: usize) -> Disturbance {
        self.disturbances.borrow().get(&server).copied().unwrap_or_default()
    }

    /// Whether a server is asked to stop.
    pub fn contains(&self, server: usize) -> bool {
        self.stopping.borrow().contains_key(&server)
    }

    /// The stops so far.
    pub fn take(&self) -> Vec<ServerStop> {
        self.ended.take()
    }

    /// The number of changes, if the stop that has just begun is the only fault.
    fn quiet(&self, server: usize) -> Option<u64> {
        let Disturbance { active, changes, latest_end } = self.disturbance(server);
        let is_over = latest_end.is_none_or(|end| end.elapsed() > AFTER_EFFECT);
        (active == 1 && is_over).then_some(changes)
    }

    fn record(&self, server: usize, stopping: Stopping, ended: Option<Moment>) {
        let Stopping { begun, at, quiet, .. } = stopping;
        let is_alone = quiet == Some(self.disturbance(server).changes);
        let stop = ServerStop { server, begun, ended, lasted: at.elapsed(), is_alone };
        self.ended.borrow_mut().push(stop);
    }
}

impl World {
    /// Asks a server to stop, as the product does at its end: it accepts nothing more, and finishes what is under way.
    pub fn begin_stop(self: &Rc<Self>, server: usize) {
        count_effects(FaultName::StopServer, self.calls_under_way(server));
        let stopping = Stopping {
            incarnation: self.servers[server].incarnation(),
            begun: self.history.borrow_mut().moment(),
            at: Instant::now(),
            quiet: self.stops.quiet(server),
        };
        self.stops.stopping.borrow_mut().insert(server, stopping);
        let world = self.clone();
        tokio::task::spawn_local(async move { world.stop_server(server, stopping).await });
    }

    async fn stop_server(&self, server: usize, stopping: Stopping) {
        let host = &self.servers[server];
        if let Some(network) = &self.network {
            network.stop_listening(server);
        }
        if self.planted == Some(PlantedFault::EndlessServerStop) {
            return;
        }
        if self.planted != Some(PlantedFault::HastyServerStop) {
            let engine = host.engine();
            let connections = timeout(CONNECTIONS_MAX, host.connections_ended());
            if let (Err(error), _) = tokio::join!(engine.stop(), connections) {
                self.history.borrow_mut().note(format!("a stop of server {server}: {error}"));
            }
        }
        if self.is_running_since(server, stopping) {
            let ended = self.history.borrow_mut().moment();
            self.stops.record(server, stopping, Some(ended));
            self.storage.end_stopped_process();
            self.crash_server(server);
        }
    }

    /// Ends a stop: a process that has not ended yet is killed.
    pub fn end_stop(&self, server: usize) {
        let stopping = self.stops.stopping.borrow_mut().remove(&server);
        if let Some(stopping) = stopping.filter(|stop| self.is_running_since(server, *stop)) {
            self.stops.record(server, stopping, None);
            self.storage.end_process();
            self.crash_server(server);
        }
    }

    /// Whether the process that was asked to stop is still there.
    fn is_running_since(&self, server: usize, stopping: Stopping) -> bool {
        let host = &self.servers[server];
        host.is_up() && host.incarnation() == stopping.incarnation
    }
}

//! Server processes on one store that fail at random moments: killed and replaced, or cut off from their database.

use fastrand::Rng;
use taskyard::{Client, Task};
use taskyard_conformance::random::new_seed;
use taskyard_core::TubeName;
use taskyard_core::limits::LIST_TASKS_MAX;

use super::judge::task_ids;
use super::live_servers::LiveServers;
use super::server::http;
use crate::faulty_proxy::FaultyProxy;
use crate::server_process::ServerProcess;

/// How many connections are cut in one fault.
const CUTS: usize = 8;

/// The servers of a storm, and what goes wrong with them.
pub trait FaultyServers {
    /// The servers, and the source of all that is random.
    fn parts(&mut self) -> (&LiveServers, &mut Rng);

    /// One fault.
    fn fail(&mut self) -> impl Future<Output = ()>;
}

/// Servers that are killed and replaced.
pub struct KilledServers<S> {
    start: S,
    running: Vec<ServerProcess>,
    live: LiveServers,
    /// The source of all that is random in the storm.
    pub rng: Rng,
}

impl<S: Fn() -> ServerProcess> KilledServers<S> {
    /// Starts so many servers.
    pub fn new(count: usize, start: S) -> Self {
        let rng = Rng::with_seed(new_seed());
        let running: Vec<ServerProcess> = (0..count).map(|_| start()).collect();
        let live = LiveServers::new(running.iter().map(http).collect());
        KilledServers { start, running, live, rng }
    }

    /// A client that uses any of them and repeats what failed.
    pub fn client(&self) -> Client {
        Client::new(self.live.clone())
    }

    /// Kills one of them, or all, and starts as many.
    pub fn kill(&mut self) {
        let all = 0..self.running.len();
        let one = self.rng.usize(all.clone());
        let killed = if self.rng.u8(..3) == 0 { all } else { one..one + 1 };
        for process in &self.running[killed.clone()] {
            process.signal("KILL");
        }
        for _ in killed.clone() {
            // Dropping waits for its end: a folder has one server at a time.
            drop(self.running.remove(killed.start));
        }
        for position in killed {
            let process = (self.start)();
            self.live.replace(position, http(&process));
            self.running.insert(position, process);
        }
    }
}

impl<S: Fn() -> ServerProcess> FaultyServers for KilledServers<S> {
    fn parts(&mut self) -> (&LiveServers, &mut Rng) {
        (&self.live, &mut self.rng)
    }

    async fn fail(&mut self) {
        self.kill();
    }
}

/// Two servers; a proxy cuts the connections of one of them to their database.
pub struct CutServers {
    /// They run until the end of the storm.
    _running: [ServerProcess; 2],
    live: LiveServers,
    rng: Rng,
    proxy: FaultyProxy,
}

impl CutServers {
    /// These servers, of which one uses this proxy.
    pub fn new(running: [ServerProcess; 2], proxy: FaultyProxy) -> Self {
        let live = LiveServers::new(running.iter().map(http).collect());
        CutServers { _running: running, live, rng: Rng::with_seed(new_seed()), proxy }
    }
}

impl FaultyServers for CutServers {
    fn parts(&mut self) -> (&LiveServers, &mut Rng) {
        (&self.live, &mut self.rng)
    }

    async fn fail(&mut self) {
        self.proxy.cut(CUTS).await;
    }
}

/// All tasks of a tube, whatever their state.
pub async fn all_tasks(client: &Client, tube: &str) -> Vec<Task> {
    let name = TubeName::new(tube).expect("a name");
    let mut tasks = Vec::new();
    for ids in task_ids(client, &name).await.chunks(LIST_TASKS_MAX) {
        let shown = client.peek_many(tube, ids).await.expect("tasks are shown");
        assert_eq!(shown.len(), ids.len(), "nothing removes tasks");
        tasks.extend(shown);
    }
    tasks
}

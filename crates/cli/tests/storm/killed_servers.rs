//! Server processes on one store that are killed at random moments and replaced.

use fastrand::Rng;
use taskyard::{Client, Http, Task};
use taskyard_conformance::random::new_seed;
use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{Command, Execute, List, ListOrder, Reply, StateSet, TaskId, TubeName};

use crate::live_servers::LiveServers;
use crate::process::Serving;

/// The servers of a storm.
pub struct KilledServers<S> {
    start: S,
    running: Vec<Serving>,
    pub live: LiveServers,
    pub rng: Rng,
}

impl<S: Fn() -> Serving> KilledServers<S> {
    /// Starts so many servers.
    pub fn new(count: usize, start: S) -> Self {
        let rng = Rng::with_seed(new_seed());
        let running: Vec<Serving> = (0..count).map(|_| start()).collect();
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
        for serving in &self.running[killed.clone()] {
            serving.signal("KILL");
        }
        for _ in killed.clone() {
            // Dropping waits for its end: a folder has one server at a time.
            drop(self.running.remove(killed.start));
        }
        for position in killed {
            let serving = (self.start)();
            self.live.replace(position, http(&serving));
            self.running.insert(position, serving);
        }
    }
}

/// A client of this server.
pub fn http(serving: &Serving) -> Http {
    Http::new(&serving.url).expect("a server has a good address")
}

/// All tasks of a tube, whatever their state.
pub async fn all_tasks(client: &Client, tube: &str) -> Vec<Task> {
    let name = TubeName::new(tube).expect("a name");
    let (mut tasks, mut after) = (Vec::new(), None);
    loop {
        let order = ListOrder::Id { states: StateSet::ALL, after };
        let list = List { tube: name.clone(), order, limit: LIST_TASKS_MAX, key: None };
        let page = match client.execute(vec![Command::List(list)]).await.remove(0) {
            Ok(Reply::Listed(page)) => page,
            other => panic!("a list shows tasks, not {other:?}"),
        };
        let ids: Vec<TaskId> = page.iter().map(|task| task.id).collect();
        let Some(last) = ids.last() else { return tasks };
        after = Some(*last);
        let shown = client.peek_many(tube, &ids).await.expect("tasks are shown");
        assert_eq!(shown.len(), ids.len(), "nothing removes tasks");
        tasks.extend(shown);
    }
}

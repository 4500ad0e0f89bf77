//! Random commands on a queue and on the core's machine: every answer must be the same.
//!
//! A run is its seed. A failure prints it, and `TASKYARD_SEED=… cargo test model` runs it again.

mod script;
mod twin;

use std::collections::VecDeque;

use taskyard_core::{
    Command, Kind, List, ListOrder, Reply, SemaphoreCommand, Span, StateSet, TaskId, TubeOptions,
};

use super::Harness;
use super::ask::brief;
use script::{Script, Step};
use twin::Twin;

/// How many of the latest commands a failure shows.
const SHOWN: usize = 15;

/// The seeds of a test: as many as wanted, or those from `TASKYARD_SEED` on, one or as many as `TASKYARD_RUNS` asks for.
pub fn seeds(count: u64) -> Vec<u64> {
    let number =
        |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("TASKYARD_SEED") {
        Some(first) => (first..first + number("TASKYARD_RUNS").unwrap_or(1)).collect(),
        None => (0..count).collect(),
    }
}

/// Replays the commands of a seed on the queue and on the machine, and compares every answer; at
/// the end everything that can be seen, now and after time has ended whatever it ends.
pub async fn replay<H: Harness>(queue: H, seed: u64, commands: usize) {
    let durable = queue.capabilities().durable;
    let mut run = Run { seed, asked: 0, latest: VecDeque::new(), twin: Twin::new(queue) };
    let mut script = Script::new(seed, durable);
    for (tube, options) in script.first_tubes() {
        run.ask(vec![Command::CreateTube { tube, options, if_not_exists: false }]).await;
    }
    run.play(script, commands).await;
}

/// The same for tubes that each have a semaphore before them, which others ask as well.
pub async fn replay_gated<H: Harness>(queue: H, seed: u64, commands: usize) {
    let durable = queue.capabilities().durable;
    let mut run = Run { seed, asked: 0, latest: VecDeque::new(), twin: Twin::new(queue) };
    let mut script = Script::gated(seed, durable);
    run.ask(script.first_semaphores()).await;
    for (tube, options) in script.first_tubes() {
        run.ask(vec![Command::CreateTube { tube, options, if_not_exists: false }]).await;
    }
    run.play(script, commands).await;
}

/// One run: where it stands and what led there.
struct Run<H> {
    seed: u64,
    asked: usize,
    latest: VecDeque<String>,
    twin: Twin<H>,
}

impl<H: Harness> Run<H> {
    /// Follows the script to its end.
    async fn play(mut self, mut script: Script, commands: usize) {
        while self.asked < commands {
            match script.step(self.twin.now()) {
                Step::Ask(commands) => {
                    for (command, reply) in self.ask(commands).await {
                        script.learn(&command, &reply);
                    }
                }
                Step::Advance(span) => self.advance(span).await,
                Step::Restart => self = self.restart().await,
            }
        }
        self.compare_all().await;
        self.advance(Span::from_secs(24 * 3600)).await;
        self.compare_all().await;
    }

    /// Asks both, compares, and hands back what was asked with the machine's answers.
    async fn ask(&mut self, commands: Vec<Command>) -> Vec<(Command, Reply)> {
        for command in &commands {
            self.remember(brief(command));
        }
        self.asked += commands.len();
        match self.twin.ask(&commands).await {
            Ok(replies) => {
                let answered = commands.into_iter().zip(replies);
                answered.filter_map(|(command, reply)| Some((command, reply.ok()?))).collect()
            }
            Err(difference) => self.fail(&difference),
        }
    }

    async fn advance(&mut self, span: Span) {
        self.remember(format!("time moves by {} s", span.as_secs_f64()));
        self.twin.advance(span);
        // A session that ends by its time gives its tasks back when that is seen, and since then they are ready: a server may
        // see it before the next command, so both look now.
        if let Err(difference) = self.twin.ask(&[Command::Tubes { tube: None }]).await {
            self.fail(&difference);
        }
    }

    async fn restart(mut self) -> Self {
        // What is due happens before: a server may or may not have done it by itself, and its counters
        // begin anew.
        self.ask(vec![Command::Tubes { tube: None }]).await;
        self.remember("restart".into());
        let Run { seed, asked, latest, twin } = self;
        let mut run = Run { seed, asked, latest, twin: twin.restart().await };
        run.compare_all().await;
        run.renew_temporary().await;
        run
    }

    /// Where ids go on in a temporary tube after a restart is left to the store, so these tubes
    /// begin anew on both sides.
    async fn renew_temporary(&mut self) {
        let all = self.ask(vec![Command::Tubes { tube: None }]).await;
        let Some((_, Reply::Tubes(tubes))) = all.into_iter().next() else { return };
        for info in tubes.into_iter().filter(|info| info.options.temporary) {
            let drop = Command::DropTube { tube: info.name.clone() };
            let semaphore = info.options.semaphore;
            let fresh = TubeOptions::new(Kind::UtubeTtl);
            let options = TubeOptions { temporary: true, semaphore, ..fresh };
            let create = Command::CreateTube { tube: info.name, options, if_not_exists: false };
            self.ask(vec![drop, create]).await;
        }
    }

    /// Compares everything that can be seen.
    async fn compare_all(&mut self) {
        let all = self.ask(vec![Command::Tubes { tube: None }]).await;
        let list = SemaphoreCommand::List { key: None };
        self.ask(vec![Command::Semaphore(list)]).await;
        let Some((_, Reply::Tubes(tubes))) = all.into_iter().next() else { return };
        for info in tubes {
            let tube = info.name;
            let ids: Vec<TaskId> = (0..self.twin.next_id(&tube) + 2).map(TaskId).collect();
            for ids in ids.chunks(1000) {
                self.ask(vec![Command::Peek { tube: tube.clone(), ids: ids.to_vec() }]).await;
            }
            let page = |order| Command::List(List { tube: tube.clone(), order, limit: 1000 });
            let by_id = ListOrder::Id { states: StateSet::ALL, after: None };
            let queue = ListOrder::Queue { after: None };
            self.ask(vec![page(by_id), page(queue)]).await;
            self.ask(vec![Command::Deliveries { tube, count: 1000 }]).await;
        }
    }

    fn remember(&mut self, line: String) {
        if self.latest.len() == SHOWN {
            self.latest.pop_front();
        }
        self.latest.push_back(line);
    }

    fn fail(&self, difference: &str) -> ! {
        let latest: Vec<&str> = self.latest.iter().map(String::as_str).collect();
        panic!(
            "seed {seed}, after {asked} commands: {difference}\nthe latest:\n  {latest}\n\
             run it again with TASKYARD_SEED={seed}",
            seed = self.seed,
            asked = self.asked,
            latest = latest.join("\n  "),
        )
    }
}

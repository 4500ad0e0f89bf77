//! Runs random commands on a queue and on the core's machine: every reply must be the same.
//!
//! A seed determines a run. A failure prints it, and `TASKYARD_SEED=… cargo test model` runs it again.

mod comparison;
mod pace;
mod script;

use std::collections::VecDeque;

use taskyard_core::limits::{POSITIONS_MAX, SCHEDULES_LISTED_MAX};
use taskyard_core::{
    Command, Kind, List, ListOrder, Reply, ScheduleCommand, SemaphoreCommand, Span, StateSet,
    TaskId, TubeOptions,
};
use taskyard_store::Capabilities;

use super::Harness;
use super::commands::brief;
use comparison::Comparison;
use script::{Step, TubeScript};

pub use super::random::{amount, seeds};

/// How many of the latest commands a failure shows.
const SHOWN: usize = 15;

/// Runs the commands of a seed on the queue and on the machine, and compares every reply; at the
/// end the whole visible state, now and after all deadlines.
pub async fn replay<H: Harness>(queue: H, seed: u64, commands: usize) {
    let mut run = TubeRun::new(queue, seed);
    let mut script = run.script(TubeScript::new);
    for (tube, options) in script.first_tubes() {
        run.execute(vec![Command::CreateTube { tube, options, if_not_exists: false }]).await;
    }
    run.run_script(script, commands).await;
}

/// The same for tubes with a semaphore each, which other clients use as well.
pub async fn replay_gated<H: Harness>(queue: H, seed: u64, commands: usize) {
    let mut run = TubeRun::new(queue, seed);
    let mut script = run.script(TubeScript::gated);
    run.execute(script.first_semaphores()).await;
    for (tube, options) in script.first_tubes() {
        run.execute(vec![Command::CreateTube { tube, options, if_not_exists: false }]).await;
    }
    run.run_script(script, commands).await;
}

/// One run: its progress and its latest commands.
struct TubeRun<H> {
    seed: u64,
    executed: usize,
    latest: VecDeque<String>,
    comparison: Comparison<H>,
}

impl<H: Harness> TubeRun<H> {
    fn new(queue: H, seed: u64) -> Self {
        let comparison = Comparison::new(queue, seed as u32);
        TubeRun { seed, executed: 0, latest: VecDeque::new(), comparison }
    }

    /// A script of this seed for the queue.
    fn script(&self, new: fn(u64, Capabilities, bool) -> TubeScript) -> TubeScript {
        new(self.seed, self.comparison.capabilities(), self.comparison.shares_tick_seed())
    }

    /// Runs the script to its end.
    async fn run_script(mut self, mut script: TubeScript, commands: usize) {
        while self.executed < commands {
            match script.step(self.comparison.now()) {
                Step::Execute(commands) => {
                    for (command, reply) in self.execute(commands).await {
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

    /// Runs the commands on both, compares, and returns them with the machine's replies.
    async fn execute(&mut self, commands: Vec<Command>) -> Vec<(Command, Reply)> {
        for command in &commands {
            self.remember(brief(command));
        }
        self.executed += commands.len();
        match self.comparison.execute(&commands).await {
            Ok(replies) => {
                let answered = commands.into_iter().zip(replies);
                answered.filter_map(|(command, reply)| Some((command, reply.ok()?))).collect()
            }
            Err(difference) => self.fail(&difference),
        }
    }

    async fn advance(&mut self, span: Span) {
        self.remember(format!("the clock advances by {} s", span.as_secs_f64()));
        self.comparison.advance(span);
        // A session that times out releases its tasks when the timeout is processed, and since then they are ready: a server may
        // process it before the next command, so both do it now.
        if let Err(difference) = self.comparison.execute(&[Command::Tubes { tube: None }]).await {
            self.fail(&difference);
        }
    }

    async fn restart(mut self) -> Self {
        // Due changes happen before the restart: a server may or may not have made them by itself, and
        // its counters restart at zero.
        self.execute(vec![Command::Tubes { tube: None }]).await;
        self.remember("restart".into());
        let TubeRun { seed, executed, latest, comparison } = self;
        let mut run = TubeRun { seed, executed, latest, comparison: comparison.restart().await };
        run.compare_all().await;
        run.renew_temporary().await;
        run
    }

    /// After a restart a store chooses the next id of a temporary tube, so these tubes are created
    /// again on both sides.
    async fn renew_temporary(&mut self) {
        let all = self.execute(vec![Command::Tubes { tube: None }]).await;
        let Some((_, Reply::Tubes(tubes))) = all.into_iter().next() else { return };
        for info in tubes.into_iter().filter(|info| info.options.temporary) {
            let drop = Command::DropTube { tube: info.name.clone() };
            let semaphore = info.options.semaphore;
            let fresh = TubeOptions::new(Kind::UtubeTtl);
            let options = TubeOptions { temporary: true, semaphore, ..fresh };
            let create = Command::CreateTube { tube: info.name, options, if_not_exists: false };
            self.execute(vec![drop, create]).await;
        }
    }

    /// Compares the whole visible state.
    async fn compare_all(&mut self) {
        let all = self.execute(vec![Command::Tubes { tube: None }]).await;
        let list = SemaphoreCommand::List { key: None };
        self.execute(vec![Command::Semaphore(list)]).await;
        if self.comparison.capabilities().schedules {
            let list = ScheduleCommand::List { after: None, limit: SCHEDULES_LISTED_MAX };
            self.execute(vec![Command::Schedule(Box::new(list))]).await;
        }
        let Some((_, Reply::Tubes(tubes))) = all.into_iter().next() else { return };
        for info in tubes {
            let tube = info.name;
            let ids: Vec<TaskId> = (0..self.comparison.next_id(&tube) + 2).map(TaskId).collect();
            for ids in ids.chunks(1000) {
                self.execute(vec![Command::Peek { tube: tube.clone(), ids: ids.to_vec() }]).await;
            }
            for ids in ids.chunks(POSITIONS_MAX) {
                let ids = ids.to_vec();
                self.execute(vec![Command::Positions { tube: tube.clone(), ids }]).await;
            }
            let page =
                |order| Command::List(List { tube: tube.clone(), order, limit: 1000, key: None });
            let by_id = ListOrder::Id { states: StateSet::ALL, after: None };
            let queue = ListOrder::Queue { after: None };
            self.execute(vec![page(by_id), page(queue)]).await;
            self.execute(vec![Command::Deliveries { tube, count: 1000 }]).await;
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
            "seed {seed}, after {executed} commands: {difference}\nthe latest:\n  {latest}\n\
             run it again with TASKYARD_SEED={seed}",
            seed = self.seed,
            executed = self.executed,
            latest = latest.join("\n  "),
        )
    }
}

//! Handlers and functions that take virtual time, fail, panic and run too long, as the seed says.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::TubeName;
use taskyard_worker::{
    BatchOutcome, CancelReason, Context, Handler, HandlerResult, RawTask, RunningTask, Store,
};
use tokio::time::Instant;

use super::WorkerSpec;
use super::run_log::{Belief, ProcessId, RunEnd, RunLog};
use super::timer::SimulatedTimer;
use crate::operations::read_payload;
use crate::plan::stream;

/// From this number of attempts on every run succeeds, so that every task is done in the end.
const ATTEMPTS_MAX: u32 = 3;
/// How long a handler that ignores that it is cancelled runs on.
const STUBBORN: Duration = Duration::from_millis(700);

/// What the handlers of one process have in common.
#[derive(Clone)]
pub struct Runner {
    pub seed: u64,
    pub spec: WorkerSpec,
    pub process: ProcessId,
    pub log: Arc<RunLog>,
    pub timer: Arc<SimulatedTimer>,
}

/// What a run does.
struct Behaviour {
    takes: Duration,
    end: RunEnd,
    /// Whether it does not end at once when it is cancelled.
    is_stubborn: bool,
}

impl Runner {
    /// What a run does: it follows from the payload and the attempts of its task.
    fn behaviour(&self, payload: u64, attempts: u32) -> Behaviour {
        let mut rng = stream(self.seed, payload, u64::from(attempts) + (1 << 40));
        let lease = self.spec.lease;
        let upto = |rng: &mut Rng, most: Duration| {
            Duration::from_millis(rng.u64(0..=most.as_millis() as u64))
        };
        let takes = match rng.u8(0..20) {
            0..12 => upto(&mut rng, Duration::from_millis(50)),
            12..17 => upto(&mut rng, lease / 2),
            _ => lease + upto(&mut rng, lease),
        };
        let is_stubborn = rng.u8(0..8) == 0;
        if attempts >= ATTEMPTS_MAX {
            return Behaviour { takes, end: RunEnd::Succeeded, is_stubborn };
        }
        match rng.u8(0..50) {
            0..4 => Behaviour { takes, end: RunEnd::Failed, is_stubborn },
            4..7 => Behaviour { takes, end: RunEnd::Panicked, is_stubborn },
            7..9 => Behaviour { takes: self.spec.run_max * 2, end: RunEnd::Failed, is_stubborn },
            _ => Behaviour { takes, end: RunEnd::Succeeded, is_stubborn },
        }
    }

    /// A handler of the batches of a tube.
    pub fn handler(&self, tube: TubeName) -> Handler {
        let runner = self.clone();
        Handler::raw(move |ctx, store, tasks| {
            let (runner, tube) = (runner.clone(), tube.clone());
            async move { runner.handle(&tube, ctx, store, tasks).await }
        })
    }

    async fn handle(
        &self,
        tube: &TubeName,
        ctx: Context,
        store: Store,
        tasks: Vec<RawTask>,
    ) -> HandlerResult {
        let began = Instant::now();
        let begin = |task: &RawTask| {
            let (number, id) = (task.delivery.task_id, task.delivery.id());
            let belief = Belief::Batch(ctx.clone(), number, self.timer.clone());
            let payload = read_payload(&task.body).unwrap_or_default();
            let behaviour = self.behaviour(payload, task.delivery.attempts);
            let run = self.log.begin(&self.process, tube, id, belief);
            (behaviour, number, task.delivery.attempts, run)
        };
        let mut runs: Vec<_> = tasks.iter().map(begin).collect();
        runs.sort_by_key(|(behaviour, number, ..)| (behaviour.takes, *number));
        let mut outcome = BatchOutcome::new(&store);
        let mut runs = runs.into_iter();
        while let Some((behaviour, number, attempts, mut run)) = runs.next() {
            if self.wait(&ctx, began + behaviour.takes, behaviour.is_stubborn).await.is_some() {
                // The others are cancelled, too.
                break;
            }
            run.end(behaviour.end);
            match behaviour.end {
                RunEnd::Succeeded if self.spec.settles_singly => {
                    if let Err(error) = store.done(&[number]).await {
                        runs.for_each(|(.., mut run)| run.end(RunEnd::Failed));
                        return Err(error.into());
                    }
                }
                RunEnd::Succeeded => outcome.done(number),
                RunEnd::Panicked => {
                    runs.for_each(|(.., mut run)| run.end(RunEnd::Panicked));
                    panic_quietly();
                }
                _ => outcome.retry(number, attempts, "failed on purpose"),
            }
        }
        drop(runs);
        outcome.commit().await
    }

    /// A function of a task.
    pub async fn call(self, payload: u64, task: RunningTask) -> Result<(), &'static str> {
        let behaviour = self.behaviour(payload, task.attempts());
        let belief = Belief::Function(task.clone(), self.timer.clone());
        let mut run = self.log.begin(&self.process, task.tube(), task.id(), belief);
        self.timer.wait_until(Instant::now() + behaviour.takes).await;
        run.end(behaviour.end);
        match behaviour.end {
            RunEnd::Succeeded => Ok(()),
            RunEnd::Panicked => panic_quietly(),
            _ => Err("failed on purpose"),
        }
    }

    /// Waits until a moment, or until the handler is cancelled; why it is.
    async fn wait(&self, ctx: &Context, until: Instant, is_stubborn: bool) -> Option<CancelReason> {
        tokio::select! {
            biased;
            () = ctx.cancelled() => {}
            () = self.timer.wait_until(until) => return None,
        }
        if is_stubborn {
            self.timer.wait_until(until.min(Instant::now() + STUBBORN)).await;
        }
        ctx.cancel_reason()
    }
}

/// Panics without a message on the console.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("panicked on purpose"))
}

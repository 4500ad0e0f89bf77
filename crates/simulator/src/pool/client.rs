//! A client of a simulated pool: submits tasks one after the other, reads their frames, and sometimes leaves.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::Span;
use taskyard_pool::backend::TaskSpec;
use taskyard_pool::gateway::{ClientTask, NextFrame};
use taskyard_pool::protocol::{Options, OutgoingFrame, StartHead};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::runner::{KILLED, ProgramScript, TIME_LIMIT};
use super::world::PoolWorld;
use crate::history::OperationNumber;
use crate::plan::Mask;
use crate::planted::PlantedFault;

/// How long a task may take after the faults, and for each client besides.
const ANSWER_MAX: Duration = Duration::from_secs(240);
const ANSWER_MAX_EACH: Duration = Duration::from_secs(40);

/// How long a client waits for something after the last frame.
const TRAILING_MAX: Duration = Duration::from_secs(10);
/// A planted fault happens to every n-th task of a client.
const EVERY: u32 = 5;

/// A task as its client reads it.
struct FrameReader {
    task: ClientTask,
    /// Whether the last frame comes twice, as if its gateway had not noted that the task has ended.
    repeats_end: bool,
    /// The last frame, if it is repeated.
    repeated: Option<OutgoingFrame>,
}

impl FrameReader {
    async fn next_frame(&mut self) -> NextFrame {
        if let Some(frame) = self.repeated.take() {
            return NextFrame::Frame(frame);
        }
        let next = self.task.next_frame().await;
        if let NextFrame::Frame(frame) = &next {
            self.repeated = (self.repeats_end && frame.is_last()).then(|| frame.clone());
        }
        next
    }
}

/// What one operation does.
struct Operation {
    number: OperationNumber,
    gateway: usize,
    script: ProgramScript,
    duration: Option<f64>,
    is_interactive: bool,
    /// When the client leaves, if it does.
    leaves: Option<Duration>,
    /// When the client wants less time, and how much.
    lowers: Option<(Duration, Span)>,
}

/// Runs all operations of a client.
pub async fn run(world: Rc<PoolWorld>, client: u32, mask: Rc<Mask>) {
    for index in 0..world.plan.operations {
        let number = (client, index);
        let mut rng = world.plan.operation_rng(number);
        let pause = rng.u64(0..=world.plan.pause_max.as_millis() as u64);
        sleep(Duration::from_millis(pause)).await;
        let operation = Operation::draw(&world, number, &mut rng);
        if !mask.operations.contains(&number) {
            operation.run(&world).await;
        }
    }
}

impl Operation {
    fn draw(world: &PoolWorld, number: OperationNumber, rng: &mut Rng) -> Self {
        let most = [200, 2_000, 9_000, 40_000][rng.usize(0..4)];
        let takes_ms = rng.u64(0..most);
        let script = ProgramScript {
            task: number,
            output_ms: rng.u64(0..=takes_ms),
            takes_ms,
            stop_ms: rng.u64(0..500),
            killed_ms: (rng.u8(0..30) == 0).then(|| rng.u64(0..=takes_ms)),
        };
        let is_interactive = rng.u8(0..8) == 0;
        let durations = [None, Some(3.0), Some(10.0), Some(30.0), Some(1.5)];
        let duration = durations[rng.usize(0..durations.len())].filter(|_| !is_interactive);
        let leaves = (rng.u8(0..12) == 0).then(|| Duration::from_millis(rng.u64(0..20_000)));
        let lowers = (rng.u8(0..10) == 0)
            .then(|| (Duration::from_millis(rng.u64(0..5_000)), Span::from_secs(rng.u64(1..10))));
        let gateway = rng.usize(0..world.pool.gateways);
        Operation { number, gateway, script, duration, is_interactive, leaves, lowers }
    }

    fn spec(&self, world: &PoolWorld) -> TaskSpec {
        let program = Arc::new(world.config.programs["sh"].clone());
        let files = vec![("a.sh".to_owned(), self.script.text().into_bytes())];
        let options = Options { duration: self.duration, ..Options::default() };
        let spec =
            TaskSpec::new(program, files, &options, &StartHead::default(), self.is_interactive);
        spec.expect("the task is good")
    }

    async fn run(&self, world: &Rc<PoolWorld>) {
        let Some((gateway, mut gone)) = world.gateway(self.gateway) else { return };
        let note = |text: String| world.record.lock().history.note(text);
        let number = self.number;
        note(format!(
            "task {number:?} is submitted at gateway {}: {:?}, duration {:?}, interactive {}",
            self.gateway, self.script, self.duration, self.is_interactive
        ));
        let begun = Instant::now();
        let submitting = ClientTask::submit(gateway.gateway(), self.spec(world));
        let submitted = tokio::select! {
            biased;
            _ = gone.wait_for(|gone| *gone) => return note(format!("task {number:?} loses its gateway")),
            submitted = submitting => submitted,
            () = late(world, begun) => return self.report_late(world),
        };
        match submitted {
            Ok(task) => {
                let is_planted = world.planted == Some(PlantedFault::RepeatLastFrame);
                let repeats_end = is_planted && number.1.is_multiple_of(EVERY);
                let frames = FrameReader { task, repeats_end, repeated: None };
                self.follow(world, frames, gone, begun).await;
            }
            Err(error) => {
                note(format!("task {number:?} is refused: {error}"));
                if !world.is_faulty.get() {
                    self.check_error(world, &error.to_string(), begun);
                }
            }
        }
    }

    /// Reads frames until the last one.
    async fn follow(
        &self,
        world: &Rc<PoolWorld>,
        mut frames: FrameReader,
        mut gone: watch::Receiver<bool>,
        begun: Instant,
    ) {
        let number = self.number;
        let note = |text: String| world.record.lock().history.note(text);
        let mut lowers = self.lowers;
        loop {
            let leaves = self.leaves.map_or(Duration::MAX / 4, |leaves| leaves);
            let lowers_at = lowers.map(|(at, _)| begun + at);
            let next = tokio::select! {
                biased;
                _ = gone.wait_for(|gone| *gone) => return note(format!("task {number:?} loses its gateway")),
                () = sleep_until(begun + leaves.min(Duration::from_secs(1 << 30))) => {
                    return note(format!("the client of task {number:?} leaves"));
                }
                () = sleep_until(lowers_at.unwrap_or(begun)), if lowers_at.is_some() => None,
                frame = frames.next_frame() => Some(frame),
                () = late(world, begun) => return self.report_late(world),
            };
            match next {
                None => {
                    if let Some((_, span)) = lowers.take() {
                        let lowered = tokio::select! {
                            biased;
                            _ = gone.wait_for(|gone| *gone) => continue,
                            lowered = frames.task.lower(span) => lowered,
                            () = late(world, begun) => return self.report_late(world),
                        };
                        note(format!("task {number:?} wants {span:?}: {lowered:?}"));
                    }
                }
                Some(NextFrame::End) => return world.record.lock().end_early(number),
                Some(NextFrame::Frame(frame)) => {
                    world.record.lock().receive(number, &frame);
                    if let OutgoingFrame::Complete(Some(error)) = &frame {
                        self.check_error(world, error, begun);
                    }
                    if frame.is_last() {
                        // Only the end may follow.
                        let trailing = timeout(TRAILING_MAX, frames.next_frame()).await;
                        if let Ok(NextFrame::Frame(frame)) = trailing {
                            world.record.lock().receive(number, &frame);
                        }
                        return;
                    }
                }
            }
        }
    }

    /// No task fails because of the pool, where only Redis loses data or messages.
    fn check_error(&self, world: &PoolWorld, error: &str, begun: Instant) {
        let mut record = world.record.lock();
        // A session cannot run again if Redis lost where it ran and its gateway did not know that yet.
        let is_lost = record.latest_loss.is_some_and(|loss| loss >= begun);
        let is_own = [TIME_LIMIT, KILLED].contains(&error)
            || error.starts_with("halted")
            || self.is_interactive && is_lost;
        if record.keeps_programs && !is_own {
            let text = format!("task {:?} failed although its program ran: {error}", self.number);
            record.violate("errors", text);
        }
    }

    fn report_late(&self, world: &PoolWorld) {
        let text = format!("task {:?} did not end in time after the faults", self.number);
        world.record.lock().violate("liveness", text);
    }
}

/// Ready when a task that began then should have ended.
async fn late(world: &PoolWorld, begun: Instant) {
    let most = ANSWER_MAX + ANSWER_MAX_EACH * world.plan.clients;
    loop {
        let quiet_since = world.record.lock().quiet_since;
        let until = begun.max(quiet_since) + most;
        sleep_until(until).await;
        let quiet_since = world.record.lock().quiet_since;
        if world.is_quiet() && begun.max(quiet_since) + most <= Instant::now() {
            return;
        }
        if !world.is_quiet() {
            sleep(Duration::from_secs(10)).await;
        }
    }
}

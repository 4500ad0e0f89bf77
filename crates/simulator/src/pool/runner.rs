//! Programs of a simulated pool: they take as long as their file says, and are killed with their process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_pool::backend::{Runner, RunningProgram, TaskSpec};
use taskyard_pool::protocol::{OutgoingFrame, Stream};
use taskyard_pool::scheduler::{Allocation, Control, RunOutcome};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::net::ProcessNumber;
use super::record::{ProgramRecord, SharedRecord};
use crate::history::OperationNumber;

/// The error of a program that used up its time.
pub const TIME_LIMIT: &str = "time limit";
/// The error of a program that was killed and may not run again.
pub const KILLED: &str = "the program was killed";

/// What a program does, in milliseconds after its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramScript {
    /// The operation of the client.
    pub task: OperationNumber,
    /// When it writes its first output.
    pub output_ms: u64,
    /// When it ends.
    pub takes_ms: u64,
    /// How long it takes to stop it.
    pub stop_ms: u64,
    /// When it is killed, if it is.
    pub killed_ms: Option<u64>,
}

impl ProgramScript {
    /// The text of its file.
    pub fn text(&self) -> String {
        let ProgramScript { task, output_ms, takes_ms, stop_ms, killed_ms } = self;
        let killed_ms = killed_ms.map_or(-1, |at| at as i64);
        format!("{} {} {output_ms} {takes_ms} {stop_ms} {killed_ms}", task.0, task.1)
    }

    fn read(text: &str) -> Option<Self> {
        let numbers: Vec<i64> = text.split(' ').filter_map(|part| part.parse().ok()).collect();
        let [client, index, output_ms, takes_ms, stop_ms, killed_ms] = numbers[..] else {
            return None;
        };
        Some(ProgramScript {
            task: (u32::try_from(client).ok()?, u32::try_from(index).ok()?),
            output_ms: output_ms.unsigned_abs(),
            takes_ms: takes_ms.unsigned_abs(),
            stop_ms: stop_ms.unsigned_abs(),
            killed_ms: u64::try_from(killed_ms).ok(),
        })
    }
}

/// Runs the programs of one process.
pub struct SimulatedRunner {
    record: SharedRecord,
    process: ProcessNumber,
    jobs: Mutex<Vec<AbortHandle>>,
}

impl fmt::Debug for SimulatedRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedRunner({})", self.process)
    }
}

impl SimulatedRunner {
    /// The runner of a process.
    pub fn new(record: SharedRecord, process: ProcessNumber) -> Arc<Self> {
        Arc::new(SimulatedRunner { record, process, jobs: Mutex::default() })
    }

    /// Kills all programs.
    pub fn kill(&self) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.drain(..).for_each(|job| job.abort());
    }
}

impl Runner for SimulatedRunner {
    fn run(&self, allocation: Allocation, spec: Arc<TaskSpec>) -> (RunningProgram, AbortHandle) {
        let (sender, frames) = mpsc::channel(8);
        let (input, stdin) = mpsc::channel(1);
        let file = spec.files.first().and_then(|(_, bytes)| std::str::from_utf8(bytes).ok());
        let script = file.and_then(ProgramScript::read).unwrap_or_default();
        let program = ProgramRecord {
            task: script.task,
            ticket: allocation.ticket.to_string(),
            process: self.process,
            is_interactive: spec.interactive,
            is_stopping: false,
            has_ended: false,
            is_complete: false,
        };
        let number = self.record.lock().start_program(program);
        let guard = ProgramGuard { record: self.record.clone(), number };
        let job = tokio::spawn(act(guard, allocation, script, sender, stdin)).abort_handle();
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job.clone());
        (RunningProgram { frames, input }, job)
    }

    fn gaps(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Records the end of a program, however it ends.
struct ProgramGuard {
    record: SharedRecord,
    number: usize,
}

impl Drop for ProgramGuard {
    fn drop(&mut self) {
        let mut record = self.record.lock();
        record.runs[self.number].has_ended = true;
        record.history.note(format!("run {} has ended", self.number));
    }
}

/// Why a program ends.
enum ProgramEnd {
    Complete,
    Killed,
    Stopped(String),
}

async fn act(
    guard: ProgramGuard,
    mut allocation: Allocation,
    script: ProgramScript,
    sender: mpsc::Sender<OutgoingFrame>,
    _stdin: mpsc::Receiver<Vec<u8>>,
) {
    let number = guard.number;
    let output = |text: &str| OutgoingFrame::Output(Stream::Stdout, text.as_bytes().to_vec());
    let _ = sender.send(output("")).await;
    let end = run_program(number, &mut allocation, script, &sender).await;
    if let ProgramEnd::Stopped(_) = &end {
        guard.record.lock().runs[number].is_stopping = true;
        sleep(Duration::from_millis(script.stop_ms)).await;
    }
    let error = match end {
        ProgramEnd::Complete => None,
        ProgramEnd::Stopped(why) => Some(why),
        ProgramEnd::Killed if allocation.may_rerun() => {
            drop(guard);
            return allocation.finish(RunOutcome::Lost);
        }
        ProgramEnd::Killed => Some(KILLED.into()),
    };
    guard.record.lock().runs[number].is_complete = error.is_none();
    drop(guard);
    allocation.finish(RunOutcome::Done);
    let _ = sender.send(output(&format!("end {number}"))).await;
    let _ = sender.send(OutgoingFrame::Complete(error)).await;
}

/// Runs until its end, or until it has to stop.
async fn run_program(
    number: usize,
    allocation: &mut Allocation,
    script: ProgramScript,
    sender: &mpsc::Sender<OutgoingFrame>,
) -> ProgramEnd {
    let begun = Instant::now();
    let at = |millis: u64| begun + Duration::from_millis(millis);
    let mut output_at = Some(at(script.output_ms));
    loop {
        let limit = allocation.limit.map(|limit| begun + limit);
        let killed = script.killed_ms.map(at);
        let next = [Some(at(script.takes_ms)), limit, killed, output_at];
        let next = next.into_iter().flatten().min().unwrap_or(begun);
        tokio::select! {
            biased;
            () = sender.closed() => return ProgramEnd::Stopped("the client left".into()),
            control = allocation.control.recv() => match control {
                Some(Control::Limit(limit)) => allocation.limit = Some(limit),
                Some(Control::Halt(why)) => return ProgramEnd::Stopped(why),
                None => return ProgramEnd::Stopped("the pool is stopping".into()),
            },
            () = sleep_until(next) => {
                let now = Instant::now();
                if limit.is_some_and(|limit| limit <= now) {
                    allocation.note_time_limit(allocation.limit.unwrap_or_default(), None);
                    return ProgramEnd::Stopped(TIME_LIMIT.into());
                } else if killed.is_some_and(|killed| killed <= now) {
                    return ProgramEnd::Killed;
                } else if at(script.takes_ms) <= now {
                    return ProgramEnd::Complete;
                }
                output_at = None;
                allocation.mark_seen();
                let text = format!("begin {number}").into_bytes();
                let _ = sender.try_send(OutgoingFrame::Output(Stream::Stdout, text));
            }
        }
    }
}

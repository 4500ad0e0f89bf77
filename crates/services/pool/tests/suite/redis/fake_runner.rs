//! A runner without programs, whose tasks take as long as their file says.

use std::sync::Arc;
use std::time::Duration;

use taskyard_pool::backend::{Runner, RunningProgram, TaskSpec};
use taskyard_pool::protocol::{OutgoingFrame, Stream};
use taskyard_pool::scheduler::{Allocation, Control, RunOutcome};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// A session lasts until it is ended.
const SESSION: Duration = Duration::from_secs(1_000);

/// A task takes as many milliseconds as its file says, within its limit.
#[derive(Clone, Copy, Debug)]
pub struct FakeRunner;

impl Runner for FakeRunner {
    fn run(&self, allocation: Allocation, plan: Arc<TaskSpec>) -> (RunningProgram, AbortHandle) {
        let (sender, frames) = mpsc::channel(8);
        let (input, _) = mpsc::channel(1);
        let file = plan.files.first().and_then(|(_, bytes)| std::str::from_utf8(bytes).ok());
        let takes = file.and_then(|text| text.parse().ok()).map(Duration::from_millis);
        let job = tokio::spawn(act(allocation, takes.unwrap_or(SESSION), sender));
        (RunningProgram { frames, input }, job.abort_handle())
    }

    fn gaps(&self) -> Vec<String> {
        Vec::new()
    }
}

async fn act(mut allocation: Allocation, takes: Duration, sender: mpsc::Sender<OutgoingFrame>) {
    let begun = Instant::now();
    let _ = sender.send(OutgoingFrame::Output(Stream::Stdout, Vec::new())).await;
    let mut until = begun + allocation.limit.unwrap_or(takes).min(takes);
    let error = loop {
        tokio::select! {
            () = sender.closed() => break Some("the client left".into()),
            control = timeout_at(until, allocation.control.recv()) => match control {
                Err(_) => break None,
                Ok(Some(Control::Limit(limit))) => until = until.min(begun + limit),
                Ok(Some(Control::Halt(why))) => break Some(why),
                Ok(None) => break Some("the pool is stopping".into()),
            },
        }
    };
    allocation.finish(RunOutcome::Done);
    let _ = sender.send(OutgoingFrame::Output(Stream::Stdout, b"done\n".to_vec())).await;
    let _ = sender.send(OutgoingFrame::Complete(error)).await;
}

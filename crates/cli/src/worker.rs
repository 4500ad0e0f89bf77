//! `worker`: a small worker for trying things out and for shell scripts.

use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use taskyard::Http;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Outcome, Reply, Span, Take, Task, TubeName,
};
use taskyard_wire::Exit;
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::connect::{ConnectArgs, block_on, misfit};
use crate::{data, output, units};

/// What to work on.
#[derive(Debug, Args)]
#[command(after_help = "\
With --exec each task runs the command with the payload on its standard input: a text as it is, the
rest as JSON. TASKYARD_TUBE, TASKYARD_ID, TASKYARD_LEASE and TASKYARD_ATTEMPTS are set. Exit code 0
acks the task, any other releases it; a long command keeps its task, the lease is prolonged.

Examples:
  taskyard worker mail                             print and ack
  taskyard worker mail --exec 'jq -r .to'
  taskyard worker mail --exec ./send.sh --retry 30s
  taskyard worker mail --drain                     stop when nothing is left")]
pub struct WorkerArgs {
    /// The tube.
    tube: String,
    /// Run this for each task, by `sh -c`.
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// How long a task is ours before it must be prolonged.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    lease: Span,
    /// How long a task rests after the command failed.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "5s")]
    retry: Span,
    /// Stop when there is nothing to take.
    #[arg(long)]
    drain: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// How long one take waits; Ctrl-C ends it at any time.
const WAIT: Span = Span::from_secs(60);

/// How the work on a task ended.
enum Ended {
    Done,
    Failed(String),
    Interrupted,
    Lost,
}

/// Works until Ctrl-C.
pub fn run(args: WorkerArgs) -> anyhow::Result<Exit> {
    let worker =
        Worker { http: args.connect.http()?, tube: TubeName::new(&args.tube)?, args: &args };
    block_on(worker.run())
}

struct Worker<'a> {
    http: Http,
    tube: TubeName,
    args: &'a WorkerArgs,
}

impl Worker<'_> {
    async fn run(&self) -> anyhow::Result<Exit> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        loop {
            let taken = tokio::select! {
                taken = self.take() => taken?,
                _ = interrupt.recv() => return Ok(Exit::Ok),
                _ = terminate.recv() => return Ok(Exit::Ok),
            };
            let Some(task) = taken else {
                if self.args.drain {
                    return Ok(Exit::Ok);
                }
                continue;
            };
            let ended = self.work(&task, [&mut interrupt, &mut terminate]).await?;
            let interrupted = matches!(ended, Ended::Interrupted);
            self.finish(&task, ended).await?;
            if interrupted {
                return Ok(Exit::Ok);
            }
        }
    }

    async fn take(&self) -> anyhow::Result<Option<Task>> {
        let take = Take {
            tube: self.tube.clone(),
            count: 1,
            session: None,
            lease: Some(self.args.lease),
            wait: if self.args.drain { Span::ZERO } else { WAIT },
        };
        match self.http.ask(Command::Take(take)).await? {
            Reply::Taken(mut tasks) => Ok(tasks.pop()),
            _ => Err(misfit("take")),
        }
    }

    /// Prints the task, or runs the command for it while keeping it ours.
    async fn work(&self, task: &Task, signals: [&mut Signal; 2]) -> anyhow::Result<Ended> {
        let Some(command) = &self.args.exec else {
            output::line(format!("{} {}", task.id, data::show(task.body.as_ref())))?;
            return Ok(Ended::Done);
        };
        let mut child = self.start(command, task)?;
        // Whether the command reads its input or not is its own affair.
        let input = child.stdin.take();
        let payload = data::plain(task.body.as_ref());
        let feeding = tokio::spawn(async move {
            if let Some(mut input) = input {
                let _ = input.write_all(&payload).await;
            }
        });
        let [interrupt, terminate] = signals;
        let ended = tokio::select! {
            status = child.wait() => match status? {
                status if status.success() => Ended::Done,
                status => Ended::Failed(status.to_string()),
            },
            lost = self.keep(task) => lost?,
            _ = interrupt.recv() => Ended::Interrupted,
            _ = terminate.recv() => Ended::Interrupted,
        };
        feeding.abort();
        if matches!(ended, Ended::Interrupted | Ended::Lost) {
            child.kill().await?;
        }
        Ok(ended)
    }

    fn start(&self, command: &str, task: &Task) -> anyhow::Result<Child> {
        let lease = task.lease.map(|lease| lease.to_string()).unwrap_or_default();
        let child = tokio::process::Command::new("sh")
            .args(["-c", command])
            .env("TASKYARD_TUBE", self.tube.as_str())
            .env("TASKYARD_ID", task.id.to_string())
            .env("TASKYARD_LEASE", lease)
            .env("TASKYARD_ATTEMPTS", task.attempts.to_string())
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(child)
    }

    /// Prolongs the lease again and again; answers only when the task is no longer ours.
    async fn keep(&self, task: &Task) -> anyhow::Result<Ended> {
        let third = Duration::from(self.args.lease) / 3;
        loop {
            tokio::time::sleep(third.max(Duration::from_millis(10))).await;
            match self.end(task, Finish::Touch(third.into())).await? {
                Outcome::Done(_) => {}
                Outcome::Stale | Outcome::Missing => return Ok(Ended::Lost),
            }
        }
    }

    async fn finish(&self, task: &Task, ended: Ended) -> anyhow::Result<()> {
        let finish = match ended {
            Ended::Done => Finish::Ack,
            Ended::Failed(why) => {
                output::note(format!("task {}: {why}; released", task.id));
                Finish::Release { delay: self.args.retry, counted: true }
            }
            Ended::Interrupted => Finish::Release { delay: Span::ZERO, counted: false },
            Ended::Lost => {
                output::note(format!("task {} is no longer ours; left alone", task.id));
                return Ok(());
            }
        };
        if !matches!(self.end(task, finish).await?, Outcome::Done(_)) {
            output::note(format!("task {} was no longer ours when it ended", task.id));
        }
        Ok(())
    }

    async fn end(&self, task: &Task, finish: Finish) -> anyhow::Result<Outcome> {
        let holder = task.lease.map_or(Holder::Any, Holder::Lease);
        let items = vec![FinishItem { id: task.id, holder, finish }];
        match self.http.ask(Command::Finish { tube: self.tube.clone(), items }).await? {
            Reply::Finished(mut outcomes) => outcomes.pop().ok_or_else(|| misfit("finish")),
            _ => Err(misfit("finish")),
        }
    }
}

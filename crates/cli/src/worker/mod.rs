//! `worker`: a small worker for trying things out and for shell scripts.

mod command;
mod fields;
mod server;
mod stop;
mod typed;

use std::pin::{Pin, pin};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Outcome, Reply, Span, Take, Task, TubeName,
};
use taskyard_wire::Exit;
use tokio::time::{Instant, sleep_until};

use crate::connect::{ConnectArgs, block_on, misfit};
use crate::{data, output, units};

use command::Running;
use server::{Answered, Server};
use stop::Stop;

/// What to work on.
#[derive(Debug, Args)]
#[command(after_help = "\
With --exec each task runs the command with the payload on its standard input: a text as it is, the
rest as JSON. TASKYARD_TUBE, TASKYARD_ID, TASKYARD_LEASE and TASKYARD_ATTEMPTS are set. Exit code 0
acks the task, any other releases it; a long command keeps its task, the lease is prolonged.

Ctrl-C or SIGTERM lets the command that runs finish and takes no more; a second one kills it, with
everything it started, and gives its task back. A server that is away is waited for, except that
--drain does not wait for one that never answered.

Examples:
  taskyard worker mail                             print and ack
  taskyard worker mail --exec 'jq -r .to'
  taskyard worker mail --exec ./send.sh --retry 30s
  taskyard worker mail --drain                     stop when nothing is left
  taskyard worker --contract queues.yaml -- ./send --fast

With --contract the program after -- runs for each task of the contract's queues, without a shell, with the
task's fields as JSON on its standard input. TASKYARD_QUEUE, TASKYARD_ID, TASKYARD_TASK_ID (unique in the store)
and TASKYARD_ATTEMPTS are set. A task whose program fails is tried again after one second, then two, four, up to an hour.")]
pub struct WorkerArgs {
    /// The tube.
    #[arg(required_unless_present = "contract", conflicts_with = "contract")]
    tube: Option<String>,
    /// Run this for each task, by `sh -c`.
    #[arg(long, value_name = "CMD", conflicts_with = "contract")]
    exec: Option<String>,
    #[command(flatten)]
    typed: typed::TypedArgs,
    /// How long a task is ours before it must be prolonged.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    lease: Span,
    /// How long a task rests after the command failed.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "5s", conflicts_with = "contract")]
    retry: Span,
    /// Stop when there is nothing to take.
    #[arg(long, conflicts_with = "contract")]
    drain: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// How long one take waits. A worker that stops waits for its last take, because what the server gave it
/// meanwhile would stay taken until its lease is over: so this is also how long a stop may take.
const WAIT: Span = Span::from_secs(1);
/// How long a stop waits for a server that does not answer.
const FAREWELL: Duration = Duration::from_secs(5);
/// The shortest pause between two requests for more time.
const KEEP_MIN: Duration = Duration::from_millis(10);

/// How the work on a task ended.
enum Ended {
    Done,
    Failed(String),
    Interrupted,
    Lost,
}

/// Works until told to stop.
pub fn run(args: WorkerArgs) -> anyhow::Result<Exit> {
    args.typed.check()?;
    if args.typed.is_asked() {
        return typed::run(&args.typed, args.connect.http()?, args.lease);
    }
    let tube = TubeName::new(args.tube.as_deref().unwrap_or_default())?;
    let server = Server::new(args.connect.http()?, !args.drain);
    block_on(async {
        let stop = Stop::listen()?;
        Worker { server, stop, tube, args: &args }.run().await
    })
}

struct Worker<'a> {
    server: Server,
    stop: Stop,
    tube: TubeName,
    args: &'a WorkerArgs,
}

impl Worker<'_> {
    async fn run(&self) -> anyhow::Result<Exit> {
        while !self.stop.is_asked() {
            let mut taking = pin!(self.take());
            let taken = tokio::select! {
                biased;
                () = self.stop.asked() => return self.leave(taking).await,
                taken = taking.as_mut() => taken?,
            };
            match taken {
                Some(task) => {
                    let ended = self.work(&task).await?;
                    self.finish(&task, ended).await?;
                }
                None if self.args.drain => return Ok(Exit::Ok),
                None => {}
            }
        }
        Ok(Exit::Ok)
    }

    /// Gives back what the take under way brings, if it brings something.
    async fn leave(
        &self,
        taking: Pin<&mut impl Future<Output = anyhow::Result<Option<Task>>>>,
    ) -> anyhow::Result<Exit> {
        let taken = tokio::select! {
            taken = taking, if !self.server.is_away() => taken?,
            () = self.stop.insisted() => None,
            () = tokio::time::sleep(FAREWELL) => None,
            else => None,
        };
        if let Some(task) = taken {
            let release = Finish::Release { delay: Span::ZERO, counted: false };
            self.end_once(&task, release).await?;
        }
        Ok(Exit::Ok)
    }

    async fn take(&self) -> anyhow::Result<Option<Task>> {
        let take = Take {
            tube: self.tube.clone(),
            count: 1,
            session: None,
            lease: Some(self.args.lease),
            wait: if self.args.drain { Span::ZERO } else { WAIT },
        };
        match self.server.ask(Command::Take(take)).await?.reply {
            Reply::Taken(mut tasks) => Ok(tasks.pop()),
            _ => Err(misfit("take")),
        }
    }

    /// Prints the task, or runs the command for it while keeping it ours.
    async fn work(&self, task: &Task) -> anyhow::Result<Ended> {
        let Some(command) = &self.args.exec else {
            output::line(format!("{} {}", task.id, data::show(task.body.as_ref())))?;
            return Ok(Ended::Done);
        };
        let mut running = Running::start(command, &self.tube, task)?;
        let ended = tokio::select! {
            status = running.wait() => match status? {
                status if status.success() => return Ok(Ended::Done),
                status => return Ok(Ended::Failed(status.to_string())),
            },
            lost = self.keep(task) => lost?,
            () = self.insisted(task) => Ended::Interrupted,
        };
        running.kill().await?;
        Ok(ended)
    }

    /// Ready when somebody wants the command to end at once; says how after the first signal.
    async fn insisted(&self, task: &Task) {
        self.stop.asked().await;
        output::note(format!(
            "stopping when task {} is done; once more to kill it and give it back",
            task.id
        ));
        self.stop.insisted().await;
    }

    /// Prolongs the lease again and again; answers only when the task is no longer ours.
    async fn keep(&self, task: &Task) -> anyhow::Result<Ended> {
        let pause = (Duration::from(self.args.lease) / 3).max(KEEP_MIN);
        let mut paid = Instant::now();
        loop {
            sleep_until(paid + pause).await;
            // The time that has really passed: the server may have been away meanwhile.
            let passed = paid.elapsed();
            match self.end(task, Finish::Touch(passed.into())).await?.0 {
                Outcome::Done(_) => paid += passed,
                Outcome::Stale | Outcome::Missing => return Ok(Ended::Lost),
            }
        }
    }

    async fn finish(&self, task: &Task, ended: Ended) -> anyhow::Result<()> {
        let (finish, news) = match ended {
            Ended::Done => (Finish::Ack, None),
            Ended::Failed(why) => {
                let release = Finish::Release { delay: self.args.retry, counted: true };
                (release, Some(format!("{why}; released")))
            }
            Ended::Interrupted => {
                let release = Finish::Release { delay: Span::ZERO, counted: false };
                (release, Some("killed; given back".into()))
            }
            Ended::Lost => {
                output::note(format!("task {} is no longer ours; left alone", task.id));
                return Ok(());
            }
        };
        let (outcome, again) = tokio::select! {
            biased;
            // Who wants to be gone does not wait for a server.
            () = self.stop.insisted() => self.end_once(task, finish).await?,
            ended = self.end(task, finish) => ended?,
        };
        // Asked twice, the first may have done it and only its answer got lost.
        let done_before = again && finish == Finish::Ack && outcome == Outcome::Missing;
        if !matches!(outcome, Outcome::Done(_)) && !done_before {
            output::note(format!("task {} was no longer ours when it ended", task.id));
        } else if let Some(news) = news {
            output::note(format!("task {}: {news}", task.id));
        }
        Ok(())
    }

    /// Ends or prolongs the delivery; also says whether that was asked more than once.
    async fn end(&self, task: &Task, finish: Finish) -> anyhow::Result<(Outcome, bool)> {
        let Answered { reply, again } = self.server.ask(self.ending(task, finish)).await?;
        Ok((outcome_of(reply)?, again))
    }

    /// The same without patience. It may have been asked before.
    async fn end_once(&self, task: &Task, finish: Finish) -> anyhow::Result<(Outcome, bool)> {
        let reply = self.server.ask_once(self.ending(task, finish)).await;
        let unsaid = || format!("task {} stays taken until its lease is over", task.id);
        Ok((outcome_of(reply.with_context(unsaid)?)?, true))
    }

    fn ending(&self, task: &Task, finish: Finish) -> Command {
        let holder = task.lease.map_or(Holder::Any, Holder::Lease);
        let items = vec![FinishItem { id: task.id, holder, finish }];
        Command::Finish { tube: self.tube.clone(), items, show: false }
    }
}

fn outcome_of(reply: Reply) -> anyhow::Result<Outcome> {
    match reply {
        Reply::Finished(mut outcomes) => outcomes.pop().ok_or_else(|| misfit("finish")),
        _ => Err(misfit("finish")),
    }
}

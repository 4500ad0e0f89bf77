//! `worker`: a small worker for trying things out and for shell scripts.

mod command;
mod fields;
mod metrics;
mod server;
mod stop;
mod typed;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use taskyard::Http;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Outcome, Reply, Span, Take, Task, TubeName,
};
use taskyard_wire::Exit;
use taskyard_worker::{BoxFuture, Metrics, Settings, SystemTimer, TaskEnd, Timer, TubeMetrics};
use tokio::time::{Instant, sleep_until};

use crate::connect::{ConnectArgs, block_on, misfit};
use crate::failure::Wrong;
use crate::{data, output, units};

use command::Running;
use metrics::MetricsArgs;
use server::{Answered, Server};
use stop::Stop;

/// What to work on.
#[derive(Debug, Args)]
#[command(after_help = "\
With --exec each task runs the command with the payload on its standard input: a text as it is, the
rest as JSON. TASKYARD_TUBE, TASKYARD_ID, TASKYARD_LEASE and TASKYARD_ATTEMPTS are set. Exit code 0
acks the task, any other releases it. A long command keeps its task, the lease is prolonged, until
--run-max is over: then it is killed and its task released.

With --contract the program after -- runs for each task of the contract's queues, without a shell, with the
task's fields as JSON on its standard input. TASKYARD_QUEUE, TASKYARD_ID, TASKYARD_TASK_ID (unique in the store)
and TASKYARD_ATTEMPTS are set. A task whose program fails is tried again after one second, then two, four, up to an hour.

Ctrl-C or SIGTERM lets the command that runs finish and takes no more; a second one kills it, with
everything it started, and gives its task back. A server that is away is waited for, except that
--drain does not wait for one that never answered.

Examples:
  taskyard worker mail                             print and ack
  taskyard worker mail --exec 'jq -r .to'
  taskyard worker mail --exec ./send.sh --retry 30s --run-max 5m
  taskyard worker mail --drain                     stop when nothing is left
  taskyard worker mail --exec ./send.sh --metrics 9100
  taskyard worker --contract queues.yaml -- ./send --fast")]
pub struct WorkerArgs {
    /// The tube.
    #[arg(required_unless_present = "contract", conflicts_with = "contract")]
    tube: Option<String>,
    /// How long a task is ours before it must be prolonged.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    lease: Span,
    /// How long the work on a task may take, however often it is prolonged; then it has failed. Ten times --lease unless set.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    run_max: Option<Span>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Run this for each task, by `sh -c`.
    #[arg(long, value_name = "CMD", conflicts_with = "contract", help_heading = FOR_TUBE)]
    exec: Option<String>,
    /// How long a task rests after the command failed.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "5s")]
    #[arg(conflicts_with = "contract", help_heading = FOR_TUBE)]
    retry: Span,
    /// Stop when there is nothing to take.
    #[arg(long, conflicts_with = "contract", help_heading = FOR_TUBE)]
    drain: bool,
    #[command(flatten)]
    typed: typed::TypedArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What belongs to a worker of one tube.
const FOR_TUBE: &str = "With a tube";

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
    /// It took longer than it may.
    Overrun,
    Interrupted,
    Lost,
}

/// Works until told to stop.
pub fn run(args: WorkerArgs) -> anyhow::Result<Exit> {
    args.typed.check()?;
    args.metrics.check()?;
    let settings = Settings {
        visibility_timeout: args.lease.into(),
        run_max: args.run_max.map(Into::into),
        ..Settings::default()
    };
    if args.typed.is_asked() {
        return typed::run(&args.typed, args.connect.http()?, settings, &args.metrics);
    }
    if args.run_max == Some(Span::ZERO) {
        return Err(Wrong("--run-max must be longer than nothing".into()).into());
    }
    let run_max = settings.run_max_of(args.lease.into());
    let tube = TubeName::new(args.tube.as_deref().unwrap_or_default())?;
    let http = args.connect.http()?;
    let metrics = Arc::new(Metrics::default().tube(tube.clone()));
    block_on(async {
        let stop = Stop::listen()?;
        let (asked, counted, of) = (http.clone(), metrics.clone(), tube.clone());
        let text = move || -> BoxFuture<'static, String> {
            Box::pin(metrics_text(asked.clone(), counted.clone(), of.clone()))
        };
        args.metrics.serve(Arc::new(text)).await?;
        let server = Server::new(http, !args.drain, metrics.clone());
        Worker { server, stop, tube, run_max, metrics, args: &args }.run().await
    })
}

/// All that is counted, and what the server says about the tube; without an answer what it said last.
async fn metrics_text(http: Http, metrics: Arc<TubeMetrics>, tube: TubeName) -> String {
    let asked = http.ask(Command::Tubes { tube: Some(tube) });
    if let Ok(Ok(Reply::Tubes(tubes))) = tokio::time::timeout(FAREWELL, asked).await {
        tubes.iter().for_each(|tube| metrics.observe(tube, SystemTimer.now()));
    }
    metrics.text()
}

struct Worker<'a> {
    server: Server,
    stop: Stop,
    tube: TubeName,
    /// How long the work on a task may take.
    run_max: Duration,
    metrics: Arc<TubeMetrics>,
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
                    let began = Instant::now();
                    self.metrics.begin();
                    let ended = self.work(&task).await?;
                    let end = self.finish(&task, ended).await?;
                    self.metrics.end(end, began.elapsed());
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
            () = tokio::time::sleep(self.run_max) => Ended::Overrun,
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

    async fn finish(&self, task: &Task, ended: Ended) -> anyhow::Result<TaskEnd> {
        let failed = Finish::Release { delay: self.args.retry, counted: true };
        let (finish, end, news) = match ended {
            Ended::Done => (Finish::Ack, TaskEnd::Done, None),
            Ended::Failed(why) => (failed, TaskEnd::Failed, Some(format!("{why}; released"))),
            Ended::Overrun => {
                let seconds = self.run_max.as_secs_f64();
                let news = format!("ran longer than {seconds} s (--run-max); killed and released");
                (failed, TaskEnd::TimedOut, Some(news))
            }
            Ended::Interrupted => {
                let release = Finish::Release { delay: Span::ZERO, counted: false };
                (release, TaskEnd::GivenBack, Some("killed; given back".into()))
            }
            Ended::Lost => {
                output::note(format!("task {} is no longer ours; left alone", task.id));
                return Ok(TaskEnd::Lost);
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
            return Ok(TaskEnd::Lost);
        }
        if let Some(news) = news {
            output::note(format!("task {}: {news}", task.id));
        }
        Ok(end)
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

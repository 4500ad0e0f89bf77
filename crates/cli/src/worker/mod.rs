//! `worker`: a worker for tests and shell scripts.

mod command;
mod metrics;
mod server;
mod signals;
mod typed;

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use taskyard::Http;
use taskyard::worker_name;
use taskyard_core::limits::RESULT_BYTES_MAX;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Outcome, Reply, Span, Take, Task, TubeName,
};
use taskyard_wire::{Exit, fail_by_policy};
use taskyard_worker::{
    BoxFuture, Metrics, Settings, SystemTimer, TaskEnd, Timer, TubeMetrics, serve_metrics,
};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until};

use crate::connect::{ConnectArgs, block_on, unexpected_reply};
use crate::failure::UsageError;
use crate::{output, payload, units};

use command::RunningCommand;
use metrics::MetricsArgs;
use server::{RetriedReply, Server};
use signals::StopRequests;

/// The arguments of `worker`.
#[derive(Debug, Args)]
#[command(override_usage = "\
taskyard worker [OPTIONS] <TUBE> [--exec <CMD>]
       taskyard worker [OPTIONS] --contract <FILE> -- <PROGRAM>...")]
#[command(after_help = "\
With --exec the command runs for each task, for as many at a time as --concurrency says, with the
payload on its standard input: texts unchanged, anything else as JSON. TASKYARD_TUBE, TASKYARD_ID,
TASKYARD_LEASE and TASKYARD_ATTEMPTS are set. Exit code 0 acks the task, any other fails it, with
the last errors as the reason. While the command runs the lease is extended, up to --run-max: then
the command is killed and its task fails.

With --contract the program after -- runs for each task of the contract's queues, without a shell,
with the task's fields as JSON on its standard input. TASKYARD_QUEUE, TASKYARD_ID,
TASKYARD_TASK_ID (unique in the store) and TASKYARD_ATTEMPTS are set. A failed task is tried again
as the retry policy of its tube says; without one after one second, then two, four, up to an hour.

After Ctrl-C or SIGTERM the worker takes no more tasks and waits for the running commands; a second
signal kills them with all their children and returns their tasks. A worker that is killed with
SIGKILL cannot end its commands: they run on, and their tasks are delivered again when the leases
end. The worker retries while the server is unreachable; with --drain it fails if the server has
never answered.

Examples:
  taskyard worker mail                             print and ack each task
  taskyard worker mail --exec 'jq -r .to'
  taskyard worker mail --exec ./send.sh --concurrency 10
  taskyard worker mail --exec ./send.sh --retry 30s --run-max 5m
  taskyard worker mail --drain                     exit when the tube is empty
  taskyard worker mail --exec ./send.sh --metrics 9100
  taskyard worker --contract queues.yaml -- ./send --fast")]
pub struct WorkerArgs {
    /// The tube.
    #[arg(conflicts_with = "contract", help_heading = FOR_TUBE)]
    tube: Option<String>,
    /// The lease of a task, which the worker extends while it works on it.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    lease: Span,
    /// Maximum time of the work on a task, after which it has failed; default ten times --lease.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    run_max: Option<Span>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Run this command for each task, with `sh -c`.
    #[arg(long, value_name = "CMD", conflicts_with = "contract", help_heading = FOR_TUBE)]
    exec: Option<String>,
    /// How many tasks run at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "contract")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=CONCURRENCY_MAX), help_heading = FOR_TUBE)]
    concurrency: u32,
    /// Delay before a task whose command failed is delivered again; default the retry policy of the tube, or 5s without one.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    #[arg(conflicts_with = "contract", help_heading = FOR_TUBE)]
    retry: Option<Span>,
    /// Keep the standard output of the command as the result of the task: JSON or text, the first 64 KiB. The tube needs
    /// keep_done.
    #[arg(long, requires = "exec", conflicts_with = "contract", help_heading = FOR_TUBE)]
    keep_output: bool,
    /// Exit when there is no task to take.
    #[arg(long, conflicts_with = "contract", help_heading = FOR_TUBE)]
    drain: bool,
    #[command(flatten)]
    typed: typed::TypedArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The heading of options for a worker of one tube.
const FOR_TUBE: &str = "With a tube";

/// The most commands at the same time.
const CONCURRENCY_MAX: i64 = 1024;
/// How many files each command needs: its input and outputs, and a connection that extends its lease.
const COMMAND_FILES: u64 = 8;
/// How many files the worker needs for anything else.
const OWN_FILES: u64 = 64;
/// The delay of a failed task without `--retry`, if its tube has no retry policy.
const RETRY: Span = Span::from_secs(5);
/// How long one take waits. A stopping worker waits for its last take, because a task that the server delivers meanwhile
/// would stay taken until its lease ends: so this is also how long a stop may take.
const WAIT: Span = Span::from_secs(1);
/// How long a stop waits for a server that does not answer.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// The shortest pause between two extensions of a lease.
const EXTEND_MIN: Duration = Duration::from_millis(10);
/// How many bytes of the output of a command are kept; with the header of the text they fit into a result.
const OUTPUT_KEPT: usize = RESULT_BYTES_MAX - 16;

/// How the work on a task ended.
enum WorkResult {
    /// With the output to keep, if any.
    Done(Option<String>),
    Failed {
        /// The error to keep.
        why: String,
        /// What is printed: without the errors of the command, which are in the output already.
        shown: String,
    },
    /// It took longer than `--run-max`.
    TimedOut,
    Interrupted,
    Lost,
}

/// Works until a signal stops the worker.
pub fn run(args: WorkerArgs) -> anyhow::Result<Exit> {
    args.typed.check()?;
    args.metrics.check()?;
    let settings = Settings {
        visibility_timeout: args.lease.into(),
        run_max: args.run_max.map(Into::into),
        ..Settings::default()
    };
    if args.typed.has_contract() {
        return typed::run(&args.typed, args.connect.http()?, settings, &args.metrics);
    }
    if args.run_max == Some(Span::ZERO) {
        return Err(UsageError("--run-max must be greater than 0".into()).into());
    }
    let run_max = settings.run_max_of(args.lease.into());
    let Some(tube) = args.tube.as_deref() else {
        let missing = "no tube given; name one, as in taskyard worker mail, or use --contract FILE -- PROGRAM";
        return Err(UsageError(missing.into()).into());
    };
    let tube = TubeName::new(tube)?;
    let http = args.connect.http()?;
    let metrics = Arc::new(Metrics::default().tube(tube.clone()));
    block_on(async {
        let stop = StopRequests::listen()?;
        let (asked, counted, of) = (http.clone(), metrics.clone(), tube.clone());
        let text = move || -> BoxFuture<'static, String> {
            Box::pin(metrics_text(asked.clone(), counted.clone(), of.clone()))
        };
        if let Some(listener) = args.metrics.listen().await? {
            tokio::spawn(serve_metrics(listener, Arc::new(text)));
        }
        raise_file_limit(args.concurrency);
        let server = Server::new(http, !args.drain, metrics.clone());
        let worker = Rc::new(Worker { server, stop, tube, run_max, metrics, args });
        LocalSet::new().run_until(worker.run()).await
    })
}

/// Allows as many open files as the commands need. Not more: the commands inherit the limit.
fn raise_file_limit(concurrency: u32) {
    let needed = OWN_FILES + COMMAND_FILES * u64::from(concurrency);
    let raised = rlimit::increase_nofile_limit(needed);
    if let Err(error) = raised {
        output::note(format!("cannot raise the limit on open files to {needed}: {error}"));
    }
}

/// The metrics of the worker and of the tube; if the server does not answer, with the last values of the tube.
async fn metrics_text(http: Http, metrics: Arc<TubeMetrics>, tube: TubeName) -> String {
    let asked = http.execute_one(Command::Tubes { tube: Some(tube) });
    if let Ok(Ok(Reply::Tubes(tubes))) = tokio::time::timeout(STOP_WAIT, asked).await {
        tubes.iter().for_each(|tube| metrics.observe(tube, SystemTimer.now()));
    }
    metrics.text()
}

struct Worker {
    server: Server,
    stop: StopRequests,
    tube: TubeName,
    /// How long the work on a task may take.
    run_max: Duration,
    metrics: Arc<TubeMetrics>,
    args: WorkerArgs,
}

/// The tasks that are being worked on.
type RunningTasks = JoinSet<anyhow::Result<()>>;

impl Worker {
    /// Works on as many tasks at a time as `--concurrency` says. After an error it ends when the tasks that run have ended.
    async fn run(self: &Rc<Self>) -> anyhow::Result<Exit> {
        let mut running = RunningTasks::new();
        let mut ended = self.take_tasks(&mut running).await;
        while let Some(work) = running.join_next().await {
            if let (true, Err(error)) = (ended.is_ok(), work?) {
                ended = Err(error);
            }
        }
        ended.map(|()| Exit::Ok)
    }

    /// Takes tasks and begins to work on them until the worker is stopped or the tube is drained. One take waits for the tasks
    /// of all free places.
    async fn take_tasks(self: &Rc<Self>, running: &mut RunningTasks) -> anyhow::Result<()> {
        while !self.stop.is_requested() {
            let free = self.args.concurrency as usize - running.len();
            if free == 0 {
                tokio::select! {
                    biased;
                    () = self.stop.requested() => return Ok(()),
                    Some(work) = running.join_next() => work??,
                }
                continue;
            }
            let Some(taken) = self.take_while_running(free, running).await? else { return Ok(()) };
            let is_empty = taken.is_empty();
            for task in taken {
                let worker = self.clone();
                running.spawn_local(async move { worker.work_and_finish(&task).await });
            }
            if is_empty && self.args.drain {
                // A command that runs may put more tasks.
                tokio::select! {
                    biased;
                    () = self.stop.requested() => return Ok(()),
                    work = running.join_next() => match work {
                        Some(work) => work??,
                        None => return Ok(()),
                    },
                }
            }
        }
        Ok(())
    }

    /// Takes up to `count` tasks while others run; `None` if the worker is stopped meanwhile.
    async fn take_while_running(
        &self,
        count: usize,
        running: &mut RunningTasks,
    ) -> anyhow::Result<Option<Vec<Task>>> {
        let is_unanswered = Cell::new(false);
        let mut taking = pin!(self.take(count, &is_unanswered));
        let stopped = tokio::select! {
            biased;
            () = self.stop.requested() => Ok(()),
            error = first_error(running) => Err(error),
            taken = taking.as_mut() => return taken.map(Some),
        };
        self.finish_take(taking, &is_unanswered).await?;
        stopped.map(|()| None)
    }

    /// Works on one task and ends its delivery.
    async fn work_and_finish(&self, task: &Task) -> anyhow::Result<()> {
        let began = Instant::now();
        self.metrics.begin();
        let ended = self.work(task).await?;
        let end = self.finish(task, ended).await?;
        self.metrics.end(end, began.elapsed());
        Ok(())
    }

    /// Returns the tasks that the pending take delivers, if there are any. A take that the server did not answer is not
    /// waited for.
    async fn finish_take(
        &self,
        taking: Pin<&mut impl Future<Output = anyhow::Result<Vec<Task>>>>,
        is_unanswered: &Cell<bool>,
    ) -> anyhow::Result<()> {
        if is_unanswered.get() {
            return Ok(());
        }
        let taken = tokio::select! {
            taken = taking => taken?,
            () = self.stop.repeated() => Vec::new(),
            () = tokio::time::sleep(STOP_WAIT) => Vec::new(),
        };
        for task in taken {
            let release = Finish::Release { delay: Span::ZERO, counted: false };
            self.end_once(&task, release).await?;
        }
        Ok(())
    }

    async fn take(&self, count: usize, is_unanswered: &Cell<bool>) -> anyhow::Result<Vec<Task>> {
        let take = Take {
            tube: self.tube.clone(),
            count,
            session: None,
            lease: Some(self.args.lease),
            worker: Some(worker_name()),
            wait: if self.args.drain { Span::ZERO } else { WAIT },
        };
        match self.server.execute_watched(Command::Take(take), is_unanswered).await?.reply {
            Reply::Taken(tasks) => Ok(tasks),
            _ => Err(unexpected_reply("take")),
        }
    }

    /// Prints the task, or runs the command for it while extending its lease.
    async fn work(&self, task: &Task) -> anyhow::Result<WorkResult> {
        let Some(command) = &self.args.exec else {
            output::line(format!("{} {}", task.id, payload::show(task.body.as_ref())))?;
            return Ok(WorkResult::Done(None));
        };
        let kept = self.args.keep_output.then_some(OUTPUT_KEPT);
        let mut running = match RunningCommand::start(command, &self.tube, task, kept) {
            Ok(running) => running,
            // Too many processes or open files: a later attempt may start it.
            Err(error) => {
                let why = format!("cannot start the command: {error}");
                return Ok(WorkResult::Failed { shown: why.clone(), why });
            }
        };
        let ended = tokio::select! {
            status = running.wait() => return Ok(self.ended(&mut running, status?).await),
            lost = self.extend_lease(task) => lost?,
            () = tokio::time::sleep(self.run_max) => WorkResult::TimedOut,
            () = self.stop_repeated(task) => WorkResult::Interrupted,
        };
        running.kill().await?;
        Ok(ended)
    }

    /// The result of a command that has ended. All that it wrote is passed on before the next task.
    async fn ended(&self, running: &mut RunningCommand, status: ExitStatus) -> WorkResult {
        let (errors, output) = (running.last_errors().await, running.output().await);
        match (status.success(), errors.is_empty()) {
            (true, _) => WorkResult::Done(self.args.keep_output.then_some(output)),
            (false, is_silent) => {
                let shown = status.to_string();
                let why = if is_silent { shown.clone() } else { format!("{shown}: {errors}") };
                WorkResult::Failed { why, shown }
            }
        }
    }

    /// Ready at the second stop signal; after the first one it prints how to kill the command.
    async fn stop_repeated(&self, task: &Task) {
        self.stop.requested().await;
        output::note(format!(
            "stopping when task {} is done; press Ctrl-C again to kill its command and return the task",
            task.id
        ));
        self.stop.repeated().await;
    }

    /// Extends the lease repeatedly; returns only when the lease is lost.
    async fn extend_lease(&self, task: &Task) -> anyhow::Result<WorkResult> {
        let pause = (Duration::from(self.args.lease) / 3).max(EXTEND_MIN);
        let mut extended = Instant::now();
        loop {
            sleep_until(extended + pause).await;
            // The time that has really passed: the server may have been unreachable meanwhile.
            let passed = extended.elapsed();
            match self.end(task, Finish::Touch(passed.into())).await?.0 {
                Outcome::Done(_) => extended += passed,
                Outcome::Stale | Outcome::Missing => return Ok(WorkResult::Lost),
            }
        }
    }

    async fn finish(&self, task: &Task, ended: WorkResult) -> anyhow::Result<TaskEnd> {
        // A delay of the command line replaces the retry policy of the tube.
        let failed = |error: &str| match self.args.retry {
            Some(delay) => Finish::fail(error, Some(delay)),
            None => fail_by_policy(error, RETRY),
        };
        let (finish, end, message) = match ended {
            WorkResult::Done(None) => (Finish::Ack, TaskEnd::Done, None),
            WorkResult::Done(Some(output)) => (ack_with(&output), TaskEnd::Done, None),
            WorkResult::Failed { why, shown } => {
                (failed(&why), TaskEnd::Failed, Some(format!("{shown}; will be tried again")))
            }
            WorkResult::TimedOut => {
                let seconds = self.run_max.as_secs_f64();
                let why = format!("ran longer than {seconds} s (--run-max)");
                let text = format!("{why}; killed, will be tried again");
                (failed(&why), TaskEnd::TimedOut, Some(text))
            }
            WorkResult::Interrupted => {
                let release = Finish::Release { delay: Span::ZERO, counted: false };
                (release, TaskEnd::GivenBack, Some("killed and returned".into()))
            }
            WorkResult::Lost => {
                output::note(format!(
                    "task {}: the lease was lost; its command was killed",
                    task.id
                ));
                return Ok(TaskEnd::Lost);
            }
        };
        let (outcome, retried) = tokio::select! {
            biased;
            // After a second stop signal the worker does not wait for the server.
            () = self.stop.repeated() => self.end_once(task, finish.clone()).await?,
            ended = self.end(task, finish.clone()) => ended?,
        };
        // After a retry the first request may have succeeded and only its reply was lost.
        let is_ack = matches!(finish, Finish::Ack | Finish::AckWithResult(_));
        let done_before = retried && is_ack && outcome == Outcome::Missing;
        if !matches!(outcome, Outcome::Done(_)) && !done_before {
            output::note(format!("task {}: the lease was lost before it ended", task.id));
            return Ok(TaskEnd::Lost);
        }
        if let Some(message) = message {
            output::note(format!("task {}: {message}", task.id));
        }
        Ok(end)
    }

    /// Ends or extends the delivery; also returns whether the request was retried.
    async fn end(&self, task: &Task, finish: Finish) -> anyhow::Result<(Outcome, bool)> {
        let RetriedReply { reply, retried } =
            self.server.execute(self.ending(task, finish)).await?;
        Ok((outcome_of(reply)?, retried))
    }

    /// Ends the delivery without retries. The request may have been sent before.
    async fn end_once(&self, task: &Task, finish: Finish) -> anyhow::Result<(Outcome, bool)> {
        let reply = self.server.execute_once(self.ending(task, finish)).await;
        let failed = || format!("task {} stays taken until its lease ends", task.id);
        Ok((outcome_of(reply.with_context(failed)?)?, true))
    }

    fn ending(&self, task: &Task, finish: Finish) -> Command {
        let holder = task.lease.map_or(Holder::Any, Holder::Lease);
        let items = vec![FinishItem { id: task.id, holder, finish }];
        Command::Finish { tube: self.tube.clone(), items, show: false }
    }
}

/// The first error of a task that ends.
async fn first_error(running: &mut RunningTasks) -> anyhow::Error {
    while let Some(work) = running.join_next().await {
        if let Err(error) = work.map_err(Into::into).and_then(|ended| ended) {
            return error;
        }
    }
    std::future::pending().await
}

/// An ack with the output of a command as its result: as JSON, or as text if it is none or too large as such.
fn ack_with(output: &str) -> Finish {
    let read = |text: &str, form| payload::from_text(text, form).ok().map(|(result, _)| result);
    let fits = |result: &Vec<u8>| result.len() <= RESULT_BYTES_MAX;
    let cut = || &output[..output.floor_char_boundary(OUTPUT_KEPT)];
    let result = read(output, None).filter(fits).or_else(|| read(cut(), Some(payload::Form::Text)));
    result.map_or(Finish::Ack, |result| Finish::ack_with(&result))
}

fn outcome_of(reply: Reply) -> anyhow::Result<Outcome> {
    match reply {
        Reply::Finished(mut outcomes) => outcomes.pop().ok_or_else(|| unexpected_reply("finish")),
        _ => Err(unexpected_reply("finish")),
    }
}

//! A worker for the queues of a contract that runs a program for each task.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use taskyard::Http;
use taskyard_contract::Queue;
use taskyard_core::TaskId;
use taskyard_wire::Exit;
use taskyard_worker::{
    BatchOutcome, BoxFuture, CancelReason, ConfigFile, Context, Dispatcher, Handler, HandlerResult,
    InitError, RawTask, Settings, Store, Worker,
};
use tokio::process::Command;

use crate::connect::block_on;
use crate::failure::Wrong;
use crate::log;
use crate::{contract, output};

use super::command::Running;
use super::fields::Fields;
use super::metrics::MetricsArgs;
use super::stop::Stop;

/// The first pause before a server that is not there is asked again; each one is twice as long as the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// How long the metrics wait for what the server says about the queues.
const METRICS_TIME: Duration = Duration::from_secs(5);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What belongs to a worker of a contract.
const FOR_CONTRACT: &str = "With a contract";

/// A contract and the program for its tasks.
#[derive(Debug, Args)]
pub struct TypedArgs {
    /// Work on the queues of this contract.
    #[arg(long, value_name = "FILE", requires = "program", help_heading = FOR_CONTRACT)]
    contract: Option<PathBuf>,
    /// How many tasks may be worked on at once.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "contract", help_heading = FOR_CONTRACT)]
    processors: usize,
    /// Read settings from this file, again whenever it changes.
    #[arg(long, value_name = "FILE", requires = "contract", help_heading = FOR_CONTRACT)]
    config: Option<PathBuf>,
    /// Do not report to the server's manager: go round robin over the queues.
    #[arg(long, requires = "contract", help_heading = FOR_CONTRACT)]
    unmanaged: bool,
    /// The worker's name in the settings, {service}/{name}.
    #[arg(long, value_name = "NAME", default_value = "taskyard/worker", requires = "contract", help_heading = FOR_CONTRACT)]
    name: String,
    /// The program and its arguments.
    #[arg(last = true, value_name = "PROGRAM", help_heading = FOR_CONTRACT)]
    program: Vec<String>,
}

impl TypedArgs {
    /// Whether there is a contract to work by.
    pub fn is_asked(&self) -> bool {
        self.contract.is_some()
    }

    /// That what is given goes together. The parser does not ask for a contract where the name of a tube, which excludes it,
    /// stands beside a program.
    pub fn check(&self) -> Result<(), Wrong> {
        match self.program.first() {
            Some(_) if !self.is_asked() => Err(Wrong(
                "a program after -- is for the tasks of a contract: name it with --contract FILE, or \
                 run something for each task of a tube with --exec 'CMD'"
                    .into(),
            )),
            Some(program) if !is_found(program) => Err(Wrong(format!(
                "there is no program {program:?} that can be run; it is looked for as the shell does"
            ))),
            _ => Ok(()),
        }
    }

    fn dispatcher(&self) -> anyhow::Result<Dispatcher> {
        let contract = contract::read(self.contract.as_deref().unwrap_or("".as_ref()))?;
        let program: Arc<[String]> = self.program.clone().into();
        let mut dispatcher = Dispatcher::new([]);
        for queue in &contract.queues {
            let handler = handler(queue, program.clone());
            dispatcher = dispatcher.with_renamed_queue(queue.id, &queue.name, &queue.was, handler);
        }
        Ok(dispatcher)
    }
}

/// Whether there is such a program: a typing error must not use up the attempts of every task.
fn is_found(program: &str) -> bool {
    let can_run = |path: PathBuf| {
        path.metadata()
            .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return can_run(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| can_run(folder.join(program)))
}

/// Works until told to stop.
pub fn run(
    args: &TypedArgs,
    http: Http,
    settings: Settings,
    metrics: &MetricsArgs,
) -> anyhow::Result<Exit> {
    let (service, name) = args.name.split_once('/').unwrap_or(("taskyard", &args.name));
    // A program runs for each task alone, so a batch is one task: the others are free for others.
    let settings = Settings { max_processors: args.processors, batch_size: 1, ..settings };
    let mut worker = Worker::builder(name, http, args.dispatcher()?).settings(settings);
    if !args.unmanaged {
        worker = worker.managed();
    }
    let worker = worker.build().map_err(|error| Wrong(error.to_string()))?;
    // All that a worker has to say about its queues and tasks goes to the log.
    log::start();
    block_on(async {
        let stop = Stop::listen()?;
        if !begun(&worker, &stop).await? {
            return Ok(Exit::Ok);
        }
        let counted = worker.clone();
        let text =
            move || -> BoxFuture<'static, String> { Box::pin(metrics_text(counted.clone())) };
        metrics.serve(Arc::new(text)).await?;
        if let Some(path) = &args.config {
            let mut config = ConfigFile::new(path, service);
            let wrong = config.load(&worker);
            if !wrong.is_empty() {
                let wrong = format!("{}: {}", path.display(), wrong.join("; "));
                return Err(Wrong(wrong).into());
            }
            tokio::spawn(config.follow(worker.clone()));
        }
        let stopping = async {
            stop.asked().await;
            output::note("stopping when the programs that run are done; once more to kill them");
            drop(worker.graceful_stop());
            tokio::select! {
                () = worker.ended() => Ok(()),
                () = stop.insisted() => worker.shutdown(Duration::ZERO).await,
            }
        };
        let (ran, stopped) = tokio::join!(worker.run(), stopping);
        ran.map_err(begin_failed)?;
        stopped?;
        Ok(Exit::Ok)
    })
}

/// All that is counted, and what the server says about the queues; without an answer what it said last.
async fn metrics_text(worker: Worker) -> String {
    let asked = tokio::time::timeout(METRICS_TIME, worker.metrics_text()).await;
    asked.unwrap_or_else(|_| worker.metrics().text())
}

/// Begins, as soon as the server is there; `false` when somebody wants to stop before.
async fn begun(worker: &Worker, stop: &Stop) -> anyhow::Result<bool> {
    let mut pause = PAUSE_FIRST;
    loop {
        match worker.init().await {
            Ok(()) => {
                if pause > PAUSE_FIRST {
                    output::note("the server is there");
                }
                return Ok(true);
            }
            Err(InitError::Refused(refusal)) if refusal.is_passing() => {
                if pause == PAUSE_FIRST {
                    output::note(format!("{refusal}; trying again until the server is there"));
                }
            }
            Err(error) => return Err(begin_failed(error)),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
            () = stop.asked() => return Ok(false),
        }
    }
}

fn begin_failed(error: InitError) -> anyhow::Error {
    match error {
        InitError::Refused(refusal) => refusal.into(),
        other => Wrong(other.to_string()).into(),
    }
}

/// A task as its program gets it.
struct Letter {
    task: RawTask,
    json: Vec<u8>,
}

fn handler(queue: &Queue, program: Arc<[String]>) -> Handler {
    let fields = Fields::of(queue);
    let name: Arc<str> = queue.name.as_str().into();
    let read = move |task: &RawTask| {
        let mut json = fields.json(task.body.payload())?.to_string().into_bytes();
        json.push(b'\n');
        Ok(Letter { task: task.clone(), json })
    };
    Handler::with_decoder(read, move |ctx, store, letters: Vec<Letter>| {
        let (name, program) = (name.clone(), program.clone());
        async move { handle(&ctx, &store, letters, &name, &program).await }
    })
}

async fn handle(
    ctx: &Context,
    store: &Store,
    letters: Vec<Letter>,
    queue: &str,
    program: &[String],
) -> HandlerResult {
    let mut outcome = BatchOutcome::new(store);
    for Letter { task, json } in letters {
        let (task_id, attempts) = (task.delivery.task_id, task.delivery.attempts);
        let id = task.delivery.id();
        if ctx.is_lost(task_id) {
            continue;
        }
        if ctx.is_cancelled() {
            outcome.give_back(task_id);
            continue;
        }
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .env("TASKYARD_QUEUE", queue)
            .env("TASKYARD_ID", id.to_string())
            .env("TASKYARD_TASK_ID", task_id.to_string())
            .env("TASKYARD_ATTEMPTS", attempts.to_string());
        let mut running = match Running::spawn(command, json) {
            Ok(running) => running,
            Err(error) => {
                note(queue, id, &format!("cannot run {}: {error}", program[0]));
                outcome.retry(task_id, attempts, error);
                continue;
            }
        };
        let status = tokio::select! {
            status = running.wait() => Some(status?),
            () = ctx.cancelled() => None,
            () = ctx.lost(task_id) => None,
        };
        match status {
            Some(status) if status.success() => outcome.done(task_id),
            Some(status) => {
                note(queue, id, &format!("{status}; tried again later"));
                outcome.retry(task_id, attempts, status);
            }
            None => {
                running.kill().await?;
                if ctx.is_lost(task_id) {
                    note(queue, id, "no longer ours; killed");
                } else if ctx.cancel_reason() == Some(CancelReason::RunMax) {
                    note(queue, id, "ran longer than run_max; killed, tried again later");
                    outcome.retry(task_id, attempts, "ran longer than run_max");
                } else {
                    note(queue, id, "killed; given back");
                    outcome.give_back(task_id);
                }
            }
        }
    }
    outcome.commit().await
}

fn note(queue: &str, id: TaskId, news: &str) {
    output::note(format!("{queue} {id}: {news}"));
}

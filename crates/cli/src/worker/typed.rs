//! Runs a program for each task of the queues of a contract.

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
    BatchOutcome, CancelReason, ConfigFile, Context, Dispatcher, Handler, HandlerResult, InitError,
    RawTask, Settings, Store, Worker,
};
use tokio::process::Command;

use crate::connect::block_on;
use crate::failure::UsageError;
use crate::fields::Fields;
use crate::log;
use crate::{contract, output};

use super::command::RunningCommand;
use super::metrics::MetricsArgs;
use super::signals::StopRequests;

/// The first pause before an unreachable server is contacted again; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The heading of options for a worker of a contract.
const FOR_CONTRACT: &str = "With a contract";

/// The options for a worker of a contract.
#[derive(Debug, Args)]
pub struct TypedArgs {
    /// Work on the queues of this contract, a YAML file.
    #[arg(long, value_name = "FILE", requires = "program", help_heading = FOR_CONTRACT)]
    contract: Option<PathBuf>,
    /// How many tasks run at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "contract", help_heading = FOR_CONTRACT)]
    processors: usize,
    /// Read settings from this file, and again when it changes.
    #[arg(long, value_name = "FILE", requires = "contract", help_heading = FOR_CONTRACT)]
    config: Option<PathBuf>,
    /// Do not report to the manager of the server; take from the queues in turn.
    #[arg(long, requires = "contract", help_heading = FOR_CONTRACT)]
    unmanaged: bool,
    /// The name of the worker in the settings, {service}/{name}.
    #[arg(long, value_name = "NAME", default_value = "taskyard/worker", requires = "contract", help_heading = FOR_CONTRACT)]
    name: String,
    /// The program to run for each task, and its arguments.
    #[arg(last = true, value_name = "PROGRAM", help_heading = FOR_CONTRACT)]
    program: Vec<String>,
}

impl TypedArgs {
    /// Whether a contract is given.
    pub fn has_contract(&self) -> bool {
        self.contract.is_some()
    }

    /// Checks that the options fit together. The parser does not require a contract for a program if a tube, which
    /// excludes a contract, is given.
    pub fn check(&self) -> Result<(), UsageError> {
        match self.program.first() {
            Some(_) if !self.has_contract() => Err(UsageError(
                "a program after -- needs a contract: give --contract FILE, or use --exec 'CMD' to run a \
                 command for each task of a tube"
                    .into(),
            )),
            Some(program) if !is_found(program) => Err(UsageError(format!(
                "program {program:?} was not found or is not executable; give its path, or a name in PATH"
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

/// Whether the program exists: a typing error must not use up the attempts of every task.
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

/// Works until a signal stops the worker.
pub fn run(
    args: &TypedArgs,
    http: Http,
    settings: Settings,
    metrics: &MetricsArgs,
) -> anyhow::Result<Exit> {
    let (service, name) = args.name.split_once('/').unwrap_or(("taskyard", &args.name));
    // A program runs for a single task, so a batch is one task: other tasks stay available to other workers.
    let settings = Settings { max_processors: args.processors, batch_size: 1, ..settings };
    let mut worker = Worker::builder(name, http, args.dispatcher()?).settings(settings);
    if !args.unmanaged {
        worker = worker.managed();
    }
    let worker = worker.build().map_err(|error| UsageError(error.to_string()))?;
    // The worker logs what concerns its queues and tasks.
    log::start();
    block_on(async {
        let stop = StopRequests::listen()?;
        if !started(&worker, &stop).await? {
            return Ok(Exit::Ok);
        }
        if let Some(listener) = metrics.listen().await? {
            tokio::spawn(worker.clone().serve_metrics(listener));
        }
        if let Some(path) = &args.config {
            let mut config = ConfigFile::new(path, service);
            let wrong = config.load(&worker);
            if !wrong.is_empty() {
                let wrong = format!("{}: {}", path.display(), wrong.join("; "));
                return Err(UsageError(wrong).into());
            }
            tokio::spawn(config.follow(worker.clone()));
        }
        let stopping = async {
            stop.requested().await;
            output::note(
                "stopping when the running programs are done; press Ctrl-C again to kill them",
            );
            drop(worker.graceful_stop());
            tokio::select! {
                () = worker.ended() => Ok(()),
                () = stop.repeated() => worker.shutdown(Duration::ZERO).await,
            }
        };
        let (ran, stopped) = tokio::join!(worker.run(), stopping);
        ran.map_err(init_failed)?;
        stopped?;
        Ok(Exit::Ok)
    })
}

/// Initializes the worker, when the server answers; returns `false` if a stop was requested before.
async fn started(worker: &Worker, stop: &StopRequests) -> anyhow::Result<bool> {
    let mut pause = PAUSE_FIRST;
    loop {
        let initialized = tokio::select! {
            biased;
            () = stop.requested() => return Ok(false),
            initialized = worker.init() => initialized,
        };
        match initialized {
            Ok(()) => {
                if pause > PAUSE_FIRST {
                    output::note("connected to the server");
                }
                return Ok(true);
            }
            Err(InitError::Refused(refusal)) if refusal.is_temporary() => {
                if pause == PAUSE_FIRST {
                    output::note(format!("{refusal}; retrying until the server answers"));
                }
            }
            Err(error) => return Err(init_failed(error)),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
            () = stop.requested() => return Ok(false),
        }
    }
}

fn init_failed(error: InitError) -> anyhow::Error {
    match error {
        InitError::Refused(refusal) => refusal.into(),
        other => UsageError(other.to_string()).into(),
    }
}

/// A task and its fields as JSON.
struct ProgramTask {
    task: RawTask,
    json: Vec<u8>,
}

fn handler(queue: &Queue, program: Arc<[String]>) -> Handler {
    let fields = Fields::of(queue);
    let name: Arc<str> = queue.name.as_str().into();
    let read = move |task: &RawTask| {
        let mut json = fields.json(task.body.payload())?.to_string().into_bytes();
        json.push(b'\n');
        Ok(ProgramTask { task: task.clone(), json })
    };
    Handler::with_decoder(read, move |ctx, store, tasks: Vec<ProgramTask>| {
        let (name, program) = (name.clone(), program.clone());
        async move { handle(&ctx, &store, tasks, &name, &program).await }
    })
}

async fn handle(
    ctx: &Context,
    store: &Store,
    tasks: Vec<ProgramTask>,
    queue: &str,
    program: &[String],
) -> HandlerResult {
    let mut outcome = BatchOutcome::new(store);
    for ProgramTask { task, json } in tasks {
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
        let mut running = match RunningCommand::spawn(command, json) {
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
                note(queue, id, &format!("{status}; will be tried again"));
                outcome.retry(task_id, attempts, status);
            }
            None => {
                running.kill().await?;
                if ctx.is_lost(task_id) {
                    note(queue, id, "the lease was lost; killed");
                } else if ctx.cancel_reason() == Some(CancelReason::RunMax) {
                    note(queue, id, "ran longer than run_max; killed; will be tried again");
                    outcome.retry(task_id, attempts, "ran longer than run_max");
                } else {
                    note(queue, id, "killed and returned");
                    outcome.give_back(task_id);
                }
            }
        }
    }
    outcome.commit().await
}

fn note(queue: &str, id: TaskId, message: &str) {
    output::note(format!("{queue} {id}: {message}"));
}

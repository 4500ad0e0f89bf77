//! Parses a call by name: which function it is, and which command its arguments mean.

use std::sync::Arc;

use taskyard_core::failure::is_worker_name;
use taskyard_core::limits::{BATCH_TASKS_MAX, WORKER_BYTES_MAX};
use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, List, NewTask, ScheduleName, SessionId, Span,
    Take, TaskId, TubeName,
};

use super::args::{ArgumentReader, list, task_id};
use super::call_names::{is_function, method_named};
use super::faults::{MALFORMED, lua, no_statistics, not_defined, shortened, wrong_key};
use super::native::{EXECUTE, RUN_SCHEDULE, decode_commands};
use super::options::{
    read_cfg, read_create, read_failure, read_list, read_put, read_release, read_result,
    read_worker_version,
};
use super::reader::Value;
use super::reply::Fault;
use super::schema::is_system_space;
use super::semaphores;

/// The number of parts of the key by which upstream finds a delivery: tube and id.
const TAKEN_KEY_PARTS: u32 = 2;
/// The number of parts of the key by which upstream finds a task.
const TASK_KEY_PARTS: u32 = 1;

/// The function with which connection pools ask for the state of the server.
pub const BOX_INFO: &str = "box.info";

/// A parsed call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The name of the function, without the prefix and the tube. Grants, metrics and messages use it.
    pub function: &'static str,
    /// What to do.
    pub action: CallAction,
}

/// What the server does for a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallAction {
    /// Runs one command and answers with its reply in this form.
    Command(Command, ReplyForm),
    /// Runs these commands as one batch and answers with all replies: [`EXECUTE`].
    Batch(Vec<Command>),
    /// Puts the task of a schedule and answers as a batch with that put: [`RUN_SCHEDULE`].
    RunSchedule {
        /// Its name.
        name: ScheduleName,
    },
    /// Answers with the session of the connection.
    Identify {
        /// The session that the connection joins first.
        session: Option<SessionId>,
    },
    /// Answers with the name under which the session takes tasks.
    Worker {
        /// The name that it gets first.
        name: Option<Arc<str>>,
        /// The version of its client.
        version: Option<Box<str>>,
    },
    /// Answers whether a tube of this name exists. The name need not be a valid one.
    TubeExists {
        /// The name.
        name: String,
    },
    /// Answers that the queue is running.
    State,
    /// Answers what is known of the server. Connection pools ask whether it runs and can be written to.
    BoxInfo,
    /// Changes nothing and answers without a result: `cfg` without a setting that exists here.
    NoSettings,
    /// Parses the arguments again with [`parse_method_of`] once the kind of the tube is known. They are wrong at
    /// least for some kinds; what the call means, or why it is refused, depends on whether the tube exists and on
    /// its kind.
    DependsOnKind {
        /// Which tube.
        tube: TubeName,
        /// The arguments, a MessagePack list.
        args: Vec<u8>,
    },
}

/// How the reply to a command is presented to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForm {
    /// No result.
    Empty,
    /// True.
    True,
    /// The task that was put or taken; no result if none was taken.
    Task,
    /// A list of the tasks that were put, taken or finished.
    Tasks,
    /// A list of tasks, and where the next page begins.
    TaskPage,
    /// The task that was finished. An error if the session does not hold it.
    HeldTask,
    /// The task with this id. An error if there is none.
    ExistingTask(TaskId),
    /// How many tasks were kicked. If the call named a negative number, that number.
    Kicked(i64),
    /// The statistics of one tube.
    Statistics,
    /// The statistics of all tubes.
    AllStatistics,
    /// The names of all tubes.
    TubeNames,
    /// The reply of a semaphore.
    Semaphore,
}

impl Call {
    pub(super) const fn new(function: &'static str, action: CallAction) -> Self {
        Call { function, action }
    }

    /// A call that runs one command.
    const fn command(function: &'static str, command: Command, form: ReplyForm) -> Self {
        Call::new(function, CallAction::Command(command, form))
    }

    /// A request for the statistics of one tube, or of all.
    pub(super) const fn statistics(tube: Option<TubeName>) -> Self {
        let form = if tube.is_some() { ReplyForm::Statistics } else { ReplyForm::AllStatistics };
        Call::command("statistics", Command::Tubes { tube }, form)
    }

    /// A request whether a tube of this name exists.
    pub(super) const fn tube_exists(name: String) -> Self {
        Call::new("tube", CallAction::TubeExists { name })
    }

    /// The tube that the call is about, if it is about one.
    pub fn tube(&self) -> Option<&TubeName> {
        match &self.action {
            CallAction::DependsOnKind { tube, .. } => Some(tube),
            CallAction::Command(command, _) => match command {
                Command::Take(take) => Some(&take.tube),
                Command::Put { tube, .. }
                | Command::Finish { tube, .. }
                | Command::Kick { tube, .. }
                | Command::Delete { tube, .. }
                | Command::Peek { tube, .. }
                | Command::Truncate { tube }
                | Command::ReleaseAll { tube }
                | Command::DropTube { tube }
                | Command::CreateTube { tube, .. } => Some(tube),
                Command::List(list) => Some(&list.tube),
                Command::Search(search) => Some(&search.tube),
                Command::Tubes { tube } => tube.as_ref(),
                _ => None,
            },
            _ => None,
        }
    }
}

/// What the meaning of a call depends on, besides its name and arguments.
#[derive(Clone, Copy, Debug)]
pub struct CallContext<'a> {
    /// The name of the queue, with which the names of all functions begin: `queue` unless the operator
    /// chose otherwise.
    pub prefix: &'a str,
    /// The session of the connection: it takes and finishes tasks.
    pub session: SessionId,
}

/// Caches the tube names that a connection used last, so that a call need not allocate its name
/// again.
#[derive(Clone, Debug, Default)]
pub struct RecentTubes {
    names: [Option<TubeName>; 4],
    next: usize,
}

impl RecentTubes {
    /// The name, if it is valid.
    fn name(&mut self, name: &str) -> Option<TubeName> {
        let known = self.names.iter().flatten().find(|known| known.as_str() == name);
        if let Some(known) = known {
            return Some(known.clone());
        }
        let new = TubeName::new(name).ok()?;
        self.names[self.next] = Some(new.clone());
        self.next = (self.next + 1) % self.names.len();
        Some(new)
    }
}

/// Parses a call of the function `name` with these arguments.
pub fn parse_call(context: CallContext<'_>, name: &str, args: &[u8]) -> Result<Call, Fault> {
    parse_call_with(&mut RecentTubes::default(), context, name, args)
}

/// Parses a call of a connection that caches the names of its tubes.
pub fn parse_call_with(
    recent: &mut RecentTubes,
    context: CallContext<'_>,
    name: &str,
    args: &[u8],
) -> Result<Call, Fault> {
    let undefined = || not_defined(name);
    let inside = name.strip_prefix(context.prefix).and_then(|rest| rest.strip_prefix('.'));
    if let Some(method) = inside.and_then(|rest| rest.strip_prefix("tube.")) {
        let (tube_name, method) = method.rsplit_once(':').ok_or_else(undefined)?;
        let method = method_named(method).ok_or_else(undefined)?;
        let tube = recent.name(tube_name).ok_or_else(undefined)?;
        let parsed =
            Method { tube, name: method, session: context.session, kind: None }.parse(args);
        return parsed.or_else(|fault| {
            let tube = recent.name(tube_name).ok_or_else(undefined)?;
            depends_on_kind(tube, method, args, fault)
        });
    }
    match name {
        EXECUTE => execute(args),
        RUN_SCHEDULE => run_schedule(args),
        BOX_INFO => Ok(Call::new("info", CallAction::BoxInfo)),
        _ => parse_function(context.prefix, inside.ok_or_else(undefined)?, args),
    }
}

/// Parses a call of a method of this tube.
pub fn parse_method(
    context: CallContext<'_>,
    tube: TubeName,
    method: &str,
    args: &[u8],
) -> Result<Call, Fault> {
    let undefined =
        || not_defined(&format!("{}.tube.{tube}:{}", context.prefix, shortened(method)));
    let name = method_named(method).ok_or_else(undefined)?;
    let method = Method { tube: tube.clone(), name, session: context.session, kind: None };
    method.parse(args).or_else(|fault| depends_on_kind(tube, name, args, fault))
}

/// Parses a call again whose meaning depends on the kind of its tube, which is known now.
pub fn parse_method_of(
    session: SessionId,
    kind: Kind,
    tube: TubeName,
    method: &'static str,
    args: &[u8],
) -> Result<Call, Fault> {
    Method { tube, name: method, session, kind: Some(kind) }.parse(args)
}

/// Whether a wrong call is refused for its arguments depends on the tube; malformed bytes are
/// refused at once.
fn depends_on_kind(
    tube: TubeName,
    method: &'static str,
    args: &[u8],
    fault: Fault,
) -> Result<Call, Fault> {
    if fault.code == MALFORMED {
        return Err(fault);
    }
    Ok(Call::new(method, CallAction::DependsOnKind { tube, args: args.into() }))
}

/// Parses a call of a function of the queue: the name without the prefix.
pub(super) fn parse_function(prefix: &str, function: &str, args: &[u8]) -> Result<Call, Fault> {
    let undefined = || not_defined(&format!("{prefix}.{}", shortened(function)));
    on_queue(function, ArgumentReader::new(args)?).unwrap_or_else(|| Err(undefined()))
}

/// A method of a tube that is called.
struct Method {
    tube: TubeName,
    name: &'static str,
    /// The session that calls it.
    session: SessionId,
    /// The kind of the tube, if it is known.
    kind: Option<Kind>,
}

impl Method {
    fn parse(self, args: &[u8]) -> Result<Call, Fault> {
        let mut args = ArgumentReader::new(args)?;
        let args = &mut args;
        let name = self.name;
        let (command, form) = match name {
            "put" => self.put(args)?,
            "take" => {
                let wait = args.seconds()?;
                (self.take(1, wait), ReplyForm::Task)
            }
            "ack" => {
                let id = args.id(TAKEN_KEY_PARTS)?;
                let result = read_result(args.raw()?);
                self.finish(id, result.map_or(Finish::Ack, Finish::ack_with))
            }
            "release" => self.release(args)?,
            "touch" => self.touch(args)?,
            "bury" => {
                let id = args.id(TASK_KEY_PARTS)?;
                let error = read_failure(args.raw()?)?.0;
                let finish = error.map_or(Finish::Bury, |error| Finish::fail(&error, None));
                let item = FinishItem { id, holder: Holder::Any, finish };
                (self.finish_items(vec![item]), ReplyForm::ExistingTask(id))
            }
            "kick" => self.kick(args)?,
            "peek" => {
                let id = args.id(TASK_KEY_PARTS)?;
                (Command::Peek { tube: self.tube, ids: vec![id] }, ReplyForm::ExistingTask(id))
            }
            "delete" => {
                let id = args.id(TASK_KEY_PARTS)?;
                let command = Command::Delete { tube: self.tube, ids: vec![id], show: true };
                (command, ReplyForm::ExistingTask(id))
            }
            "truncate" => (Command::Truncate { tube: self.tube }, ReplyForm::Empty),
            "release_all" => (Command::ReleaseAll { tube: self.tube }, ReplyForm::Empty),
            "drop" => (Command::DropTube { tube: self.tube }, ReplyForm::True),
            "put_many" => self.put_many(args)?,
            "take_many" => self.take_many(args)?,
            "ack_many" => self.ack_many(args)?,
            "fail" => {
                let id = args.id(TAKEN_KEY_PARTS)?;
                let (error, delay) = read_failure(args.raw()?)?;
                let error = error.unwrap_or_default();
                self.finish(
                    id,
                    match delay {
                        Some(delay) => Finish::fail(&error, Some(delay)),
                        // The server draws the random number.
                        None => Finish::fail_by_policy(&error, 0),
                    },
                )
            }
            "list" => {
                let (order, limit) = read_list(args.raw()?)?;
                let list = List { tube: self.tube, order, limit, key: None };
                list.check().map_err(|error| lua(error.to_string()))?;
                (Command::List(list), ReplyForm::TaskPage)
            }
            _ => return Err(not_defined(name)),
        };
        Ok(Call::command(name, command, form))
    }

    fn put(self, args: &mut ArgumentReader<'_>) -> Result<(Command, ReplyForm), Fault> {
        let (task, wait) = new_task(self.kind, args)?;
        let command = Command::Put { tube: self.tube, tasks: vec![task], wait };
        Ok((command, ReplyForm::Task))
    }

    fn put_many(self, args: &mut ArgumentReader<'_>) -> Result<(Command, ReplyForm), Fault> {
        let (mut items, count) =
            list(args.raw()?.unwrap_or_default(), "the argument of put_many", BATCH_TASKS_MAX)?;
        let mut tasks = Vec::with_capacity(count);
        let mut longest = Span::ZERO;
        while let Some(item) = items.raw()? {
            let (mut item, _) = list(item, "each task of put_many", usize::MAX)?;
            let (task, wait) = new_task(self.kind, &mut item)?;
            tasks.push(task);
            longest = longest.max(wait);
        }
        Ok((Command::Put { tube: self.tube, tasks, wait: longest }, ReplyForm::Tasks))
    }

    /// Without a timeout a take waits for ever.
    fn take(self, count: usize, wait: Option<Span>) -> Command {
        let (tube, session) = (self.tube, Some(self.session));
        let wait = wait.unwrap_or(Span::FOREVER);
        Command::Take(Take { tube, count, session, lease: None, worker: None, wait })
    }

    fn take_many(self, args: &mut ArgumentReader<'_>) -> Result<(Command, ReplyForm), Fault> {
        let count = args.value()?.unsigned().and_then(|count| usize::try_from(count).ok());
        let count = count.ok_or_else(|| lua("take_many needs the number of tasks to take"))?;
        let wait = args.seconds()?;
        Ok((self.take(count, wait), ReplyForm::Tasks))
    }

    fn ack_many(self, args: &mut ArgumentReader<'_>) -> Result<(Command, ReplyForm), Fault> {
        let (mut items, count) =
            list(args.raw()?.unwrap_or_default(), "the argument of ack_many", BATCH_TASKS_MAX)?;
        let holder = Holder::Session(self.session);
        let item = |_| {
            let id = task_id(&items.value()?, TAKEN_KEY_PARTS)?;
            Ok(FinishItem { id, holder, finish: Finish::Ack })
        };
        let items = (0..count).map(item).collect::<Result<_, Fault>>()?;
        Ok((self.finish_items(items), ReplyForm::Tasks))
    }

    /// Finishes a task that the session must hold.
    fn finish(self, id: TaskId, finish: Finish) -> (Command, ReplyForm) {
        let item = FinishItem { id, holder: Holder::Session(self.session), finish };
        (self.finish_items(vec![item]), ReplyForm::HeldTask)
    }

    fn finish_items(self, items: Vec<FinishItem>) -> Command {
        Command::Finish { tube: self.tube, items, show: true }
    }

    fn release(self, args: &mut ArgumentReader<'_>) -> Result<(Command, ReplyForm), Fault> {
        let id = args.id(TAKEN_KEY_PARTS)?;
        let delay = read_release(args.raw()?, self.kind)?;
        Ok(self.finish(id, Finish::Release { delay, counted: true }))
    }

    /// A touch by no time has no effect, but the tube must exist.
    fn touch(self, args: &mut ArgumentReader<'_>) -> Result<(Command, ReplyForm), Fault> {
        let id = args.value()?;
        let more = args.seconds()?.filter(|more| !more.is_zero());
        let Some(more) = more else {
            return Ok((Command::Tubes { tube: Some(self.tube) }, ReplyForm::Empty));
        };
        let id = task_id(&id, TAKEN_KEY_PARTS)?;
        Ok(self.finish(id, Finish::Touch(more)))
    }

    fn kick(self, args: &mut ArgumentReader<'_>) -> Result<(Command, ReplyForm), Fault> {
        let count = kick_count(args)?;
        let command = Command::Kick { tube: self.tube, count: u64::try_from(count).unwrap_or(0) };
        Ok((command, ReplyForm::Kicked(count)))
    }
}

/// Parses a function of the queue; `None` if there is no such function.
fn on_queue(function: &str, mut args: ArgumentReader<'_>) -> Option<Result<Call, Fault>> {
    if !is_function(function) {
        return None;
    }
    if let Some(function) = function.strip_prefix("semaphore.") {
        let command = semaphores::parse(function, args)?;
        return Some(command.map(|command| {
            Call::command("semaphore", Command::Semaphore(command), ReplyForm::Semaphore)
        }));
    }
    Some(match function {
        "statistics" | "stats" => statistics(&mut args),
        "identify" => identify(&mut args),
        "worker" => worker(&mut args),
        "state" => Ok(Call::new("state", CallAction::State)),
        "cfg" => cfg(&mut args),
        "create_tube" | "schema.create_tube" => create_tube(&mut args),
        "tube" => tube(&mut args),
        _ => return None,
    })
}

/// The data and options of a task, and how long its put may wait.
fn new_task(kind: Option<Kind>, args: &mut ArgumentReader<'_>) -> Result<(NewTask, Span), Fault> {
    let mut task = NewTask::new(args.body(kind.unwrap_or(Kind::Fifo))?);
    let wait = read_put(args.raw()?, kind, &mut task)?;
    Ok((task, wait))
}

fn kick_count(args: &mut ArgumentReader<'_>) -> Result<i64, Fault> {
    if args.is_empty() {
        return Ok(1);
    }
    Ok(match args.value()? {
        Value::Uint(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Value::Int(count) => count,
        // The cast saturates, and turns NaN into zero.
        Value::Float(count) => count as i64,
        // Lua also counts up to a text that is a number.
        value => {
            let number = text(&value).and_then(|text| text.trim().parse::<f64>().ok());
            number.ok_or_else(|| lua("'for' limit must be a number"))? as i64
        }
    })
}

fn statistics(args: &mut ArgumentReader<'_>) -> Result<Call, Fault> {
    let tube = match args.value()? {
        Value::Nil => None,
        value => {
            Some(text(&value).and_then(|name| TubeName::new(name).ok()).ok_or_else(no_statistics)?)
        }
    };
    Ok(Call::statistics(tube))
}

fn cfg(args: &mut ArgumentReader<'_>) -> Result<Call, Fault> {
    Ok(match args.raw().and_then(read_cfg)? {
        Some(ttr) => Call::command("cfg", Command::ConfigureSessions { ttr }, ReplyForm::Empty),
        None => Call::new("cfg", CallAction::NoSettings),
    })
}

fn identify(args: &mut ArgumentReader<'_>) -> Result<Call, Fault> {
    let session = match args.value()? {
        Value::Nil => None,
        Value::Str(bytes) | Value::Bin(bytes) if bytes.len() == 16 => bytes.try_into().ok(),
        _ => return Err(lua("Invalid UUID format.")),
    };
    let session = session.map(SessionId);
    Ok(Call::new("identify", CallAction::Identify { session }))
}

fn worker(args: &mut ArgumentReader<'_>) -> Result<Call, Fault> {
    let name = match args.value()? {
        Value::Nil => None,
        value => {
            let name = text(&value).filter(|name| is_worker_name(name)).ok_or_else(|| {
                lua(format!(
                    "the name of a worker is a text of 1 to {WORKER_BYTES_MAX} bytes without \
                     control characters"
                ))
            })?;
            Some(name.into())
        }
    };
    let version = read_worker_version(args.raw()?)?;
    Ok(Call::new("worker", CallAction::Worker { name, version }))
}

fn create_tube(args: &mut ArgumentReader<'_>) -> Result<Call, Fault> {
    let (name, kind) = (args.value()?, args.value()?);
    let kind_name = text(&kind).unwrap_or(kind.lua_type());
    let known = Kind::from_name(kind_name);
    let kind = known.ok_or_else(|| lua(format!("Unknown tube type {}", shortened(kind_name))))?;
    let name = text(&name).ok_or_else(|| wrong_key(0, "string"))?;
    let tube = TubeName::new(name).map_err(|error| bad_name(name, &error))?;
    let (options, if_not_exists) = read_create(args.raw()?, kind, name)?;
    if is_system_space(name) {
        return Err(lua(if if_not_exists {
            format!("space \"{name}\" does not have \"task_id\" index")
        } else {
            format!("Space '{name}' already exists")
        }));
    }
    let command = Command::CreateTube { tube, options, if_not_exists };
    Ok(Call::command("create_tube", command, ReplyForm::Empty))
}

/// The error for an invalid tube name, with the text of upstream and the reason.
fn bad_name(name: &str, error: &Error) -> Fault {
    let name = shortened(name);
    let text = format!(
        "Invalid identifier '{name}' (expected printable symbols only or it is too long): {error}"
    );
    Fault::new(70, text)
}

fn tube(args: &mut ArgumentReader<'_>) -> Result<Call, Fault> {
    match args.value()? {
        Value::Nil => {
            Ok(Call::command("tube", Command::Tubes { tube: None }, ReplyForm::TubeNames))
        }
        Value::Str(name) | Value::Bin(name) => {
            Ok(Call::tube_exists(String::from_utf8_lossy(name).into_owned()))
        }
        _ => Err(lua("argument #1 should be string or nil")),
    }
}

fn execute(args: &[u8]) -> Result<Call, Fault> {
    let batch = ArgumentReader::new(args)?
        .raw()?
        .ok_or_else(|| lua("execute needs a batch of commands"))?;
    decode_commands(batch).map(|commands| Call::new("execute", CallAction::Batch(commands)))
}

fn run_schedule(args: &[u8]) -> Result<Call, Fault> {
    let name = ArgumentReader::new(args)?.value()?;
    let name = text(&name).ok_or_else(|| lua("run_schedule needs the name of a schedule"))?;
    let name = ScheduleName::new(name).map_err(|error| lua(error.to_string()))?;
    Ok(Call::new("run_schedule", CallAction::RunSchedule { name }))
}

fn text<'a>(value: &Value<'a>) -> Option<&'a str> {
    match value {
        Value::Str(bytes) | Value::Bin(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

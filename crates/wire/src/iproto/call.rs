//! Calls by name: which function, and what its arguments say.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Command, Error, Finish, Kind, NewTask, SemaphoreCommand, SessionId, Span, TaskId, TubeName,
    TubeOptions,
};

use super::args::{Args, list, task_id};
use super::faults::{MALFORMED, lua, no_statistics, not_defined, shown, wrong_key};
use super::native::{EXECUTE, decode_commands};
use super::options::{read_cfg, read_create, read_put, read_release};
use super::reader::Value;
use super::reply::Fault;
use super::schema::is_system_space;
use super::semaphores;

/// How many parts the key has by which upstream finds who took a task: tube and id.
const TAKEN_KEY_PARTS: u32 = 2;
/// How many parts the key has by which upstream finds a task.
const TASK_KEY_PARTS: u32 = 1;

/// What the server says of itself to connection pools.
pub const BOX_INFO: &str = "box.info";

/// What is asked of the queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Add a task.
    Put {
        /// Where to.
        tube: TubeName,
        /// What to add.
        task: NewTask,
        /// How long to wait for room in a full tube.
        wait: Span,
    },
    /// Add tasks, all or none.
    PutMany {
        /// Where to.
        tube: TubeName,
        /// What to add.
        tasks: Vec<NewTask>,
        /// How long to wait for room: the longest that any of them names.
        wait: Span,
    },
    /// Deliver a task.
    Take {
        /// From where.
        tube: TubeName,
        /// How long to wait: `None` is for ever.
        timeout: Option<Span>,
    },
    /// Deliver tasks.
    TakeMany {
        /// From where.
        tube: TubeName,
        /// At most how many.
        count: usize,
        /// How long to wait for the first: `None` is for ever.
        timeout: Option<Span>,
    },
    /// End or prolong a delivery: ack, release, touch and bury.
    Finish {
        /// Which tube.
        tube: TubeName,
        /// Which task.
        id: TaskId,
        /// What to do.
        finish: Finish,
    },
    /// Acknowledge tasks; those that are not this session's are left out of the answer.
    AckMany {
        /// Which tube.
        tube: TubeName,
        /// Which tasks.
        ids: Vec<TaskId>,
    },
    /// Answer nothing, if there is such a tube: a touch by no time.
    Nothing {
        /// Which tube.
        tube: TubeName,
    },
    /// Bring buried tasks back.
    Kick {
        /// Which tube.
        tube: TubeName,
        /// At most how many; a negative number is answered as it is.
        count: i64,
    },
    /// Show a task.
    Peek {
        /// Which tube.
        tube: TubeName,
        /// Which task.
        id: TaskId,
    },
    /// Remove a task.
    Delete {
        /// Which tube.
        tube: TubeName,
        /// Which task.
        id: TaskId,
    },
    /// Remove all tasks.
    Truncate {
        /// Which tube.
        tube: TubeName,
    },
    /// Give back all taken tasks.
    ReleaseAll {
        /// Which tube.
        tube: TubeName,
    },
    /// Remove the tube.
    Drop {
        /// Which tube.
        tube: TubeName,
    },
    /// What tubes have and what was done to them.
    Statistics {
        /// Which tube; `None` is all.
        tube: Option<TubeName>,
    },
    /// Who am I, or: I am this session.
    Identify {
        /// The session to join.
        session: Option<SessionId>,
    },
    /// Does the queue run?
    State,
    /// What is known of the server: connection pools ask whether it runs and can be written to.
    BoxInfo,
    /// A method of a tube with arguments that are wrong, at least for some kinds. What it asks, or why it is refused,
    /// depends on whether the tube is there and on its kind: see [`parse_method_of`].
    Unclear {
        /// Which tube.
        tube: TubeName,
        /// The method.
        method: &'static str,
        /// Its arguments, a MessagePack list.
        args: Vec<u8>,
    },
    /// Settings of the queue.
    Cfg {
        /// How long a session without connections keeps its tasks, if that is to change.
        ttr: Option<Span>,
    },
    /// Make a tube.
    CreateTube {
        /// Its name.
        tube: TubeName,
        /// What it does.
        options: TubeOptions,
        /// Whether an existing one may stay.
        if_not_exists: bool,
    },
    /// The names of all tubes.
    TubeNames,
    /// Is there such a tube?
    TubeExists {
        /// Its name, which need not be a good one.
        name: String,
    },
    /// Ask a semaphore.
    Semaphore(SemaphoreCommand),
    /// Our own call: any commands, in one batch.
    Execute(Vec<Command>),
}

impl Ask {
    /// The verb's name: what grants name.
    pub const fn verb(&self) -> &'static str {
        match self {
            Ask::Put { .. } => "put",
            Ask::PutMany { .. } => "put_many",
            Ask::Take { .. } => "take",
            Ask::TakeMany { .. } => "take_many",
            Ask::Finish { finish: Finish::Ack, .. } => "ack",
            Ask::Finish { finish: Finish::Release { .. }, .. } => "release",
            Ask::Finish { finish: Finish::Bury, .. } => "bury",
            Ask::Finish { finish: Finish::Touch(_), .. } | Ask::Nothing { .. } => "touch",
            Ask::AckMany { .. } => "ack_many",
            Ask::Kick { .. } => "kick",
            Ask::Peek { .. } => "peek",
            Ask::Delete { .. } => "delete",
            Ask::Truncate { .. } => "truncate",
            Ask::ReleaseAll { .. } => "release_all",
            Ask::Drop { .. } => "drop",
            Ask::Statistics { .. } => "statistics",
            Ask::Identify { .. } => "identify",
            Ask::State => "state",
            Ask::BoxInfo => "info",
            Ask::Unclear { method, .. } => method,
            Ask::Cfg { .. } => "cfg",
            Ask::CreateTube { .. } => "create_tube",
            Ask::TubeNames | Ask::TubeExists { .. } => "tube",
            Ask::Semaphore(_) => "semaphore",
            Ask::Execute(_) => "execute",
        }
    }

    /// The tube it is about, if it is about one.
    pub const fn tube(&self) -> Option<&TubeName> {
        match self {
            Ask::Put { tube, .. }
            | Ask::PutMany { tube, .. }
            | Ask::Take { tube, .. }
            | Ask::TakeMany { tube, .. }
            | Ask::Finish { tube, .. }
            | Ask::AckMany { tube, .. }
            | Ask::Nothing { tube }
            | Ask::Kick { tube, .. }
            | Ask::Peek { tube, .. }
            | Ask::Delete { tube, .. }
            | Ask::Truncate { tube }
            | Ask::ReleaseAll { tube }
            | Ask::Drop { tube }
            | Ask::Unclear { tube, .. }
            | Ask::CreateTube { tube, .. } => Some(tube),
            Ask::Statistics { tube } => tube.as_ref(),
            Ask::Identify { .. }
            | Ask::State
            | Ask::BoxInfo
            | Ask::Cfg { .. }
            | Ask::TubeNames
            | Ask::TubeExists { .. }
            | Ask::Semaphore(_)
            | Ask::Execute(_) => None,
        }
    }
}

/// The tube names a connection used last, so that a call need not make its name anew.
#[derive(Clone, Debug, Default)]
pub struct RecentTubes {
    names: [Option<TubeName>; 4],
    next: usize,
}

impl RecentTubes {
    /// The name, if it may be one.
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

/// What a call of `name` with these arguments asks; `prefix` is what the queue is called, `queue`
/// unless the operator chose otherwise.
pub fn parse_call(prefix: &str, name: &str, args: &[u8]) -> Result<Ask, Fault> {
    parse_call_with(&mut RecentTubes::default(), prefix, name, args)
}

/// The same for a connection that remembers the names of its tubes.
pub fn parse_call_with(
    recent: &mut RecentTubes,
    prefix: &str,
    name: &str,
    args: &[u8],
) -> Result<Ask, Fault> {
    let undefined = || not_defined(name);
    let inside = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
    if let Some(method) = inside.and_then(|rest| rest.strip_prefix("tube.")) {
        let (tube_name, method) = method.rsplit_once(':').ok_or_else(undefined)?;
        let method = method_named(method).ok_or_else(undefined)?;
        let tube = recent.name(tube_name).ok_or_else(undefined)?;
        return on_tube(tube, method, None, Args::new(args)?).or_else(|fault| {
            let tube = recent.name(tube_name).ok_or_else(undefined)?;
            unclear(tube, method, args, fault)
        });
    }
    match name {
        EXECUTE => execute(args),
        BOX_INFO => Ok(Ask::BoxInfo),
        _ => parse_function(prefix, inside.ok_or_else(undefined)?, args),
    }
}

/// What a call of a tube's method with these arguments asks.
pub fn parse_method(prefix: &str, tube: TubeName, method: &str, args: &[u8]) -> Result<Ask, Fault> {
    let undefined = || not_defined(&format!("{prefix}.tube.{tube}:{}", shown(method)));
    let method = method_named(method).ok_or_else(undefined)?;
    on_tube(tube.clone(), method, None, Args::new(args)?)
        .or_else(|fault| unclear(tube, method, args, fault))
}

/// What a call asks that was unclear as long as the kind of its tube was not known.
pub fn parse_method_of(
    kind: Kind,
    tube: TubeName,
    method: &'static str,
    args: &[u8],
) -> Result<Ask, Fault> {
    on_tube(tube, method, Some(kind), Args::new(args)?)
}

/// Whether a wrong call is refused for what it says depends on the tube; bytes that cannot be read are refused at once.
fn unclear(tube: TubeName, method: &'static str, args: &[u8], fault: Fault) -> Result<Ask, Fault> {
    if fault.code == MALFORMED {
        return Err(fault);
    }
    Ok(Ask::Unclear { tube, method, args: args.into() })
}

/// What a call of a function of the queue asks: the name without the prefix.
pub(super) fn parse_function(prefix: &str, function: &str, args: &[u8]) -> Result<Ask, Fault> {
    let undefined = || not_defined(&format!("{prefix}.{}", shown(function)));
    on_queue(function, Args::new(args)?).unwrap_or_else(|| Err(undefined()))
}

/// The methods of a tube.
const METHODS: [&str; 15] = [
    "put",
    "take",
    "ack",
    "release",
    "touch",
    "bury",
    "kick",
    "peek",
    "delete",
    "truncate",
    "release_all",
    "drop",
    "put_many",
    "take_many",
    "ack_many",
];

/// The method of this name, if tubes have it.
fn method_named(name: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|method| *method == name)
}

/// What a method asks of a tube of this kind, or of any while that is not known.
fn on_tube(
    tube: TubeName,
    method: &'static str,
    kind: Option<Kind>,
    mut args: Args<'_>,
) -> Result<Ask, Fault> {
    match method {
        "put" => put(tube, kind, &mut args),
        "take" => args.seconds().map(|timeout| Ask::Take { tube, timeout }),
        "ack" => finish(tube, &mut args, Finish::Ack),
        "release" => release(tube, kind, &mut args),
        "touch" => touch(tube, &mut args),
        "bury" => {
            let id = args.id(TASK_KEY_PARTS)?;
            Ok(Ask::Finish { tube, id, finish: Finish::Bury })
        }
        "kick" => kick(tube, &mut args),
        "peek" => args.id(TASK_KEY_PARTS).map(|id| Ask::Peek { tube, id }),
        "delete" => args.id(TASK_KEY_PARTS).map(|id| Ask::Delete { tube, id }),
        "truncate" => Ok(Ask::Truncate { tube }),
        "release_all" => Ok(Ask::ReleaseAll { tube }),
        "drop" => Ok(Ask::Drop { tube }),
        "put_many" => put_many(tube, kind, &mut args),
        "take_many" => take_many(tube, &mut args),
        "ack_many" => ack_many(tube, &mut args),
        _ => Err(not_defined(method)),
    }
}

/// The functions of the queue; `None` for one that it does not have.
fn on_queue(function: &str, mut args: Args<'_>) -> Option<Result<Ask, Fault>> {
    if let Some(function) = function.strip_prefix("semaphore.") {
        return semaphores::parse(function, args);
    }
    Some(match function {
        "statistics" | "stats" => statistics(&mut args),
        "identify" => identify(&mut args),
        "state" => Ok(Ask::State),
        "cfg" => args.raw().and_then(read_cfg).map(|ttr| Ask::Cfg { ttr }),
        "create_tube" | "schema.create_tube" => create_tube(&mut args),
        "tube" => tube(&mut args),
        _ => return None,
    })
}

fn put(tube: TubeName, kind: Option<Kind>, args: &mut Args<'_>) -> Result<Ask, Fault> {
    let (task, wait) = new_task(kind, args)?;
    Ok(Ask::Put { tube, task, wait })
}

fn put_many(tube: TubeName, kind: Option<Kind>, args: &mut Args<'_>) -> Result<Ask, Fault> {
    let (mut items, count) =
        list(args.raw()?.unwrap_or_default(), "the argument of put_many", BATCH_TASKS_MAX)?;
    let mut tasks = Vec::with_capacity(count);
    let mut longest = Span::ZERO;
    while let Some(item) = items.raw()? {
        let (mut item, _) = list(item, "each task of put_many", usize::MAX)?;
        let (task, wait) = new_task(kind, &mut item)?;
        tasks.push(task);
        longest = longest.max(wait);
    }
    Ok(Ask::PutMany { tube, tasks, wait: longest })
}

/// The data of a task and its options, and how long its put may wait.
fn new_task(kind: Option<Kind>, args: &mut Args<'_>) -> Result<(NewTask, Span), Fault> {
    let mut task = NewTask::new(args.body(kind.unwrap_or(Kind::Fifo))?);
    let wait = read_put(args.raw()?, kind, &mut task)?;
    Ok((task, wait))
}

fn take_many(tube: TubeName, args: &mut Args<'_>) -> Result<Ask, Fault> {
    let count = args.value()?.unsigned().and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or_else(|| lua("take_many needs the number of tasks to take"))?;
    let timeout = args.seconds()?;
    Ok(Ask::TakeMany { tube, count, timeout })
}

fn ack_many(tube: TubeName, args: &mut Args<'_>) -> Result<Ask, Fault> {
    let (mut items, count) =
        list(args.raw()?.unwrap_or_default(), "the argument of ack_many", BATCH_TASKS_MAX)?;
    let ids =
        (0..count).map(|_| task_id(&items.value()?, TAKEN_KEY_PARTS)).collect::<Result<_, _>>()?;
    Ok(Ask::AckMany { tube, ids })
}

fn finish(tube: TubeName, args: &mut Args<'_>, finish: Finish) -> Result<Ask, Fault> {
    Ok(Ask::Finish { tube, id: args.id(TAKEN_KEY_PARTS)?, finish })
}

fn release(tube: TubeName, kind: Option<Kind>, args: &mut Args<'_>) -> Result<Ask, Fault> {
    let id = args.id(TAKEN_KEY_PARTS)?;
    let delay = read_release(args.raw()?, kind)?;
    Ok(Ask::Finish { tube, id, finish: Finish::Release { delay, counted: true } })
}

fn touch(tube: TubeName, args: &mut Args<'_>) -> Result<Ask, Fault> {
    let id = args.value()?;
    let more = args.seconds()?.filter(|more| !more.is_zero());
    let Some(more) = more else { return Ok(Ask::Nothing { tube }) };
    let id = task_id(&id, TAKEN_KEY_PARTS)?;
    Ok(Ask::Finish { tube, id, finish: Finish::Touch(more) })
}

fn kick(tube: TubeName, args: &mut Args<'_>) -> Result<Ask, Fault> {
    if args.is_empty() {
        return Ok(Ask::Kick { tube, count: 1 });
    }
    let count = match args.value()? {
        Value::Uint(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Value::Int(count) => count,
        // The cast cuts to what fits, and makes zero of what is not a number.
        Value::Float(count) => count as i64,
        // Lua counts up to a text that is a number.
        value => {
            let number = text(&value).and_then(|text| text.trim().parse::<f64>().ok());
            number.ok_or_else(|| lua("'for' limit must be a number"))? as i64
        }
    };
    Ok(Ask::Kick { tube, count })
}

fn statistics(args: &mut Args<'_>) -> Result<Ask, Fault> {
    let tube = match args.value()? {
        Value::Nil => None,
        value => {
            Some(text(&value).and_then(|name| TubeName::new(name).ok()).ok_or_else(no_statistics)?)
        }
    };
    Ok(Ask::Statistics { tube })
}

fn identify(args: &mut Args<'_>) -> Result<Ask, Fault> {
    let session = match args.value()? {
        Value::Nil => None,
        Value::Str(bytes) | Value::Bin(bytes) if bytes.len() == 16 => bytes.try_into().ok(),
        _ => return Err(lua("Invalid UUID format.")),
    };
    Ok(Ask::Identify { session: session.map(SessionId) })
}

fn create_tube(args: &mut Args<'_>) -> Result<Ask, Fault> {
    let (name, kind) = (args.value()?, args.value()?);
    let kind_name = text(&kind).unwrap_or(kind.lua_type());
    let known = Kind::from_name(kind_name);
    let kind = known.ok_or_else(|| lua(format!("Unknown tube type {}", shown(kind_name))))?;
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
    Ok(Ask::CreateTube { tube, options, if_not_exists })
}

/// A name that cannot be a tube's, as the original says it, and what is wrong with it.
fn bad_name(name: &str, error: &Error) -> Fault {
    let name = shown(name);
    let text = format!(
        "Invalid identifier '{name}' (expected printable symbols only or it is too long): {error}"
    );
    Fault::new(70, text)
}

fn tube(args: &mut Args<'_>) -> Result<Ask, Fault> {
    match args.value()? {
        Value::Nil => Ok(Ask::TubeNames),
        Value::Str(name) | Value::Bin(name) => {
            Ok(Ask::TubeExists { name: String::from_utf8_lossy(name).into_owned() })
        }
        _ => Err(lua("argument #1 should be string or nil")),
    }
}

fn execute(args: &[u8]) -> Result<Ask, Fault> {
    let batch = Args::new(args)?.raw()?.ok_or_else(|| lua("execute needs a batch of commands"))?;
    decode_commands(batch).map(Ask::Execute)
}

fn text<'a>(value: &Value<'a>) -> Option<&'a str> {
    match value {
        Value::Str(bytes) | Value::Bin(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

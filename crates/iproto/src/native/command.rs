//! Encodes and decodes commands.

use taskyard_core::failure::stored_error;
use taskyard_core::{
    AfterFailure, Command, Fail, Finish, FinishItem, Holder, Lease, List, ListOrder, Search,
    StateSet, Take, TaskId,
};

use super::row::{
    RowError, RowReader, RowResult, RowWriter, session_of, write_session, write_span,
};
use super::{schedule, semaphore, task, tube};
use crate::msgpack::check_msgpack;
use crate::pack::{self, Out};
use crate::reader::Value;

const CREATE: u64 = 0;
const ALTER: u64 = 1;
const DROP: u64 = 2;
const TUBES: u64 = 3;
const PUT: u64 = 4;
const TAKE: u64 = 5;
const FINISH: u64 = 6;
const KICK: u64 = 7;
const DELETE: u64 = 8;
const PEEK: u64 = 9;
const DELIVERIES: u64 = 10;
const TRUNCATE: u64 = 11;
const RELEASE_ALL: u64 = 12;
const JOIN: u64 = 13;
const LEAVE: u64 = 14;
const CONFIGURE: u64 = 15;
const TICK: u64 = 16;
const SEMAPHORE: u64 = 17;
const NAME: u64 = 18;
const LIST: u64 = 19;
const KICK_TASKS: u64 = 20;
const SCHEDULE: u64 = 21;
const POSITIONS: u64 = 22;
const SEARCH: u64 = 23;

pub(super) fn write(out: &mut Out, command: &Command) {
    let number = number(command);
    let mut row = RowWriter::variant(out, number);
    match command {
        Command::CreateTube { tube, options, if_not_exists } => {
            row.tube(tube).field(|out| tube::write_options(out, options)).bool(*if_not_exists);
        }
        Command::AlterTube { tube, change } => {
            row.tube(tube).field(|out| tube::write_change(out, change));
        }
        Command::NameTube { tube, name, queue_num } => {
            row.tube(tube).tube(name).optional(queue_num.map(u64::from), pack::uint);
        }
        Command::DropTube { tube } | Command::Truncate { tube } | Command::ReleaseAll { tube } => {
            row.tube(tube);
        }
        Command::Tubes { tube } => {
            row.optional(tube.as_ref(), |out, tube| pack::str(out, tube.as_str()));
        }
        Command::Put { tube, tasks, wait } => {
            row.tube(tube).list(tasks, task::write_new).span(*wait);
        }
        Command::Take(take) => write_take(&mut row, take),
        Command::Finish { tube, items, show } => {
            row.tube(tube).list(items, write_item).bool(*show);
        }
        Command::Kick { tube, count } => {
            row.tube(tube).uint(*count);
        }
        Command::KickTasks { tube, ids, reset_attempts } => {
            row.tube(tube).list(ids, write_id).bool(*reset_attempts);
        }
        Command::Delete { tube, ids, show } => {
            row.tube(tube).list(ids, write_id).bool(*show);
        }
        Command::Peek { tube, ids } | Command::Positions { tube, ids } => {
            row.tube(tube).list(ids, write_id);
        }
        Command::Deliveries { tube, count } => {
            row.tube(tube).uint(*count as u64);
        }
        Command::List(list) => write_list(&mut row, list),
        Command::Search(search) => write_search(&mut row, search),
        Command::JoinSession { session, create } => {
            row.session(*session).bool(*create);
        }
        Command::LeaveSession { session } => {
            row.session(*session);
        }
        Command::ConfigureSessions { ttr } => {
            row.span(*ttr);
        }
        Command::Tick { limit, seed } => {
            row.uint(*limit as u64).uint((*seed).into());
        }
        Command::Schedule(command) => {
            row.field(|out| schedule::write(out, command));
        }
        Command::Semaphore(command) => {
            row.field(|out| semaphore::write(out, command));
        }
    }
    row.end();
}

const fn number(command: &Command) -> u64 {
    match command {
        Command::CreateTube { .. } => CREATE,
        Command::AlterTube { .. } => ALTER,
        Command::NameTube { .. } => NAME,
        Command::DropTube { .. } => DROP,
        Command::Tubes { .. } => TUBES,
        Command::Put { .. } => PUT,
        Command::Take(_) => TAKE,
        Command::Finish { .. } => FINISH,
        Command::Kick { .. } => KICK,
        Command::KickTasks { .. } => KICK_TASKS,
        Command::Delete { .. } => DELETE,
        Command::Peek { .. } => PEEK,
        Command::Deliveries { .. } => DELIVERIES,
        Command::List(_) => LIST,
        Command::Search(_) => SEARCH,
        Command::Positions { .. } => POSITIONS,
        Command::Truncate { .. } => TRUNCATE,
        Command::ReleaseAll { .. } => RELEASE_ALL,
        Command::JoinSession { .. } => JOIN,
        Command::LeaveSession { .. } => LEAVE,
        Command::ConfigureSessions { .. } => CONFIGURE,
        Command::Schedule(_) => SCHEDULE,
        Command::Tick { .. } => TICK,
        Command::Semaphore(_) => SEMAPHORE,
    }
}

pub(super) fn read(row: &mut RowReader<'_, '_>) -> RowResult<Command> {
    Ok(match row.uint()? {
        CREATE => Command::CreateTube {
            tube: row.tube()?,
            options: row.row(tube::read_options)?,
            if_not_exists: row.bool()?,
        },
        ALTER => Command::AlterTube { tube: row.tube()?, change: row.row(tube::read_change)? },
        NAME => Command::NameTube {
            tube: row.tube()?,
            name: row.tube()?,
            queue_num: row.optional_uint()?.map(tube::queue_num).transpose()?,
        },
        DROP => Command::DropTube { tube: row.tube()? },
        TUBES => Command::Tubes { tube: row.optional_tube()? },
        PUT => {
            Command::Put { tube: row.tube()?, tasks: row.rows(task::read_new)?, wait: row.span()? }
        }
        TAKE => Command::Take(read_take(row)?),
        FINISH => {
            Command::Finish { tube: row.tube()?, items: row.rows(read_item)?, show: row.bool()? }
        }
        KICK => Command::Kick { tube: row.tube()?, count: row.uint()? },
        KICK_TASKS => Command::KickTasks {
            tube: row.tube()?,
            ids: row.values(read_id)?,
            reset_attempts: row.bool()?,
        },
        DELETE => {
            Command::Delete { tube: row.tube()?, ids: row.values(read_id)?, show: row.bool()? }
        }
        PEEK => Command::Peek { tube: row.tube()?, ids: row.values(read_id)? },
        DELIVERIES => Command::Deliveries { tube: row.tube()?, count: row.usize()? },
        LIST => Command::List(read_list(row)?),
        SEARCH => Command::Search(read_search(row)?),
        POSITIONS => Command::Positions { tube: row.tube()?, ids: row.values(read_id)? },
        TRUNCATE => Command::Truncate { tube: row.tube()? },
        RELEASE_ALL => Command::ReleaseAll { tube: row.tube()? },
        JOIN => Command::JoinSession { session: row.session()?, create: row.bool()? },
        LEAVE => Command::LeaveSession { session: row.session()? },
        CONFIGURE => Command::ConfigureSessions { ttr: row.span()? },
        TICK => Command::Tick {
            limit: row.usize()?,
            // Programs of earlier versions send none.
            seed: row.optional_uint()?.map_or(Ok(0), random_number)?,
        },
        SEMAPHORE => Command::Semaphore(row.row(semaphore::read)?),
        SCHEDULE => Command::Schedule(Box::new(row.row(schedule::read)?)),
        _ => return Err(RowError("a command that this version does not know")),
    })
}

fn write_take(row: &mut RowWriter<'_>, take: &Take) {
    row.tube(&take.tube)
        .uint(take.count as u64)
        .span(take.wait)
        .optional(take.lease, write_span)
        .optional(take.session, write_session)
        .optional(take.worker.as_deref(), pack::str);
}

fn read_take(row: &mut RowReader<'_, '_>) -> RowResult<Take> {
    Ok(Take {
        tube: row.tube()?,
        count: row.usize()?,
        wait: row.span()?,
        lease: row.optional_span()?,
        session: row.optional_session()?,
        worker: row.optional_key()?,
    })
}

/// The states in the order of ids, nil in the order of the queue; then the priority (nil in the order of
/// ids) and the id after which the page begins.
fn write_list(row: &mut RowWriter<'_>, list: &List) {
    let (states, pri, id) = match list.order {
        ListOrder::Id { states, after } => (Some(states.bits()), None, after),
        ListOrder::Queue { after } => {
            (None, after.map(|after| after.0), after.map(|after| after.1))
        }
    };
    row.tube(&list.tube)
        .uint(list.limit as u64)
        .optional(states.map(u64::from), pack::uint)
        .optional(pri, pack::uint)
        .optional(id.map(|id| id.0), pack::uint)
        .optional(list.key.as_ref(), |out, key| pack::str(out, key.as_str()));
}

fn read_list(row: &mut RowReader<'_, '_>) -> RowResult<List> {
    let (tube, limit) = (row.tube()?, row.usize()?);
    let (states, pri) = (row.optional_uint()?, row.optional_uint()?);
    let id = row.optional_uint()?.map(TaskId);
    let order = match (states, pri) {
        (Some(bits), None) => ListOrder::Id { states: states_of(bits)?, after: id },
        (None, pri) if pri.is_some() == id.is_some() => ListOrder::Queue { after: pri.zip(id) },
        _ => return Err(RowError("a list that begins nowhere")),
    };
    let key = row.optional_text()?.map(task::key_of).transpose()?;
    Ok(List { tube, order, limit, key })
}

fn states_of(bits: u64) -> RowResult<StateSet> {
    let states = u8::try_from(bits).ok().and_then(StateSet::from_bits);
    states.ok_or(RowError("a state that this version does not know"))
}

fn write_search(row: &mut RowWriter<'_>, search: &Search) {
    row.tube(&search.tube)
        .uint(search.first.0)
        .uint(search.count as u64)
        .uint(search.states.bits().into())
        .field(|out| pack::bin(out, &search.run));
}

fn read_search(row: &mut RowReader<'_, '_>) -> RowResult<Search> {
    Ok(Search {
        tube: row.tube()?,
        first: TaskId(row.uint()?),
        count: row.usize()?,
        states: states_of(row.uint()?)?,
        run: match row.value()? {
            Value::Bin(run) => run.into(),
            _ => return Err(RowError("the bytes of a search are binary")),
        },
    })
}

fn write_id(out: &mut Out, id: &TaskId) {
    pack::uint(out, id.0);
}

fn read_id(row: &mut RowReader<'_, '_>) -> RowResult<TaskId> {
    row.uint().map(TaskId)
}

const ACK: u64 = 0;
const RELEASE: u64 = 1;
const BURY: u64 = 2;
const TOUCH: u64 = 3;
const FAIL: u64 = 4;

/// An item: its id, the finish, the holder, and the parameters of the finish.
fn write_item(out: &mut Out, item: &FinishItem) {
    let mut row = RowWriter::begin(out);
    row.uint(item.id.0);
    row.uint(match &item.finish {
        Finish::Ack | Finish::AckWithResult(_) => ACK,
        Finish::Release { .. } => RELEASE,
        Finish::Bury => BURY,
        Finish::Touch(_) => TOUCH,
        Finish::Fail(_) => FAIL,
    });
    // A lease is a number, a session is binary, any holder is nil.
    match item.holder {
        Holder::Lease(lease) => row.uint(lease.0),
        Holder::Session(session) => row.session(session),
        Holder::Any => row.optional(None::<u64>, pack::uint),
    };
    match &item.finish {
        Finish::Release { delay, counted } => row.span(*delay).bool(*counted),
        Finish::Touch(more) => row.span(*more),
        // The delay is nil for a task that is buried. The random number is nil unless the retry policy
        // decides; then the delay is the one without a policy.
        Finish::Fail(fail) => {
            let seed = match fail.then {
                AfterFailure::Policy { seed, .. } => Some(u64::from(seed)),
                _ => None,
            };
            row.text(&fail.error).optional(fail.then.delay(), write_span).optional(seed, pack::uint)
        }
        // The result is nil for a task without one.
        Finish::AckWithResult(result) => row.field(|out| pack::bin(out, result.payload())),
        Finish::Ack | Finish::Bury => &mut row,
    };
    row.end();
}

fn read_item(row: &mut RowReader<'_, '_>) -> RowResult<FinishItem> {
    let id = read_id(row)?;
    let finish = row.uint()?;
    let holder = read_holder(row)?;
    let finish = match finish {
        ACK => read_ack(row)?,
        RELEASE => Finish::Release { delay: row.span()?, counted: row.bool()? },
        BURY => Finish::Bury,
        TOUCH => Finish::Touch(row.span()?),
        FAIL => read_fail(row)?,
        _ => return Err(RowError("a way to finish that this version does not know")),
    };
    Ok(FinishItem { id, holder, finish })
}

fn read_fail(row: &mut RowReader<'_, '_>) -> RowResult<Finish> {
    let (error, delay, seed) = (row.text()?, row.optional_span()?, row.optional_uint()?);
    let then = match (delay, seed.map(random_number).transpose()?) {
        (None, None) => AfterFailure::Bury,
        (Some(delay), None) => AfterFailure::Retry(delay),
        (delay, Some(seed)) => {
            AfterFailure::Policy { seed, default_delay: delay.unwrap_or_default() }
        }
    };
    Ok(Finish::Fail(Box::new(Fail { error: stored_error(error), then })))
}

fn random_number(number: u64) -> RowResult<u32> {
    u32::try_from(number).map_err(|_| RowError("a random number is too large"))
}

fn read_ack(row: &mut RowReader<'_, '_>) -> RowResult<Finish> {
    match row.value()? {
        Value::Nil => Ok(Finish::Ack),
        Value::Bin(result) if check_msgpack(result).is_ok() => Ok(Finish::ack_with(result)),
        _ => Err(RowError("a result is one MessagePack value, as binary")),
    }
}

fn read_holder(row: &mut RowReader<'_, '_>) -> RowResult<Holder> {
    match row.value()? {
        Value::Nil => Ok(Holder::Any),
        Value::Uint(lease) => Ok(Holder::Lease(Lease(lease))),
        value => session_of(value).map(Holder::Session),
    }
}

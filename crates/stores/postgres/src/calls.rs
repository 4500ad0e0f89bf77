//! Encodes commands as calls of SQL functions.

use std::collections::{HashMap, HashSet};

use taskyard_core::limits::{BATCH_BYTES_MAX, TUBES_MAX};
use taskyard_core::{
    AfterFailure, Command, Finish, FinishItem, Holder, KeyRequest, List, ListOrder, NewTask,
    OnConflict, Priority, RateLimit, RetryPolicy, Search, Span, State, Take, TaskId, Timestamp,
    TubeChange, TubeName, TubeOptions,
};

use super::codec::{
    Meta, Payload, count_to_sql, id_to_sql, pri_to_sql, session_to_sql, span_to_sql,
};
use super::head_hints::TakeStart;
use super::plan::PlanContext;
use super::statements::{self as sql, Call, Param, param};
use super::{schedules, semaphores};

/// The puts of several callers into one tube.
pub(super) fn put(tube: &TubeName, commands: &[Command], now: Option<i64>) -> Call {
    let puts = commands.iter().filter_map(|command| match command {
        Command::Put { tasks, .. } => Some(tasks),
        _ => None,
    });
    let sizes = puts.clone().map(|tasks| tasks.len() as i32).collect();
    put_call(tube, now, sizes, &puts.flatten().collect::<Vec<_>>())
}

/// Whether a task needs the functions for tasks with keys: it has one, or its own number of attempts.
pub(super) fn is_special(task: &NewTask) -> bool {
    task.key.is_some() || task.attempts_max.is_some()
}

/// Whether no task of these puts names a priority.
pub(super) fn have_default_priorities(commands: &[Command]) -> bool {
    commands.iter().all(|command| match command {
        Command::Put { tasks, .. } => tasks.iter().all(|task| task.pri.is_none()),
        _ => false,
    })
}

/// One call that puts all these tasks, for callers with this many each.
pub(super) fn put_call(
    tube: &TubeName,
    now: Option<i64>,
    sizes: Vec<i32>,
    tasks: &[&NewTask],
) -> Call {
    let mut params = vec![param(tube.as_str().to_owned()), param(now), param(sizes)];
    params.extend(task_columns(tasks));
    if !tasks.iter().any(|task| is_special(task)) {
        params.extend([param(None::<i32>), param(None::<Vec<i64>>)]);
        return Call { statement: &sql::PUT, params };
    }
    params.extend(key_columns(tasks));
    Call { statement: &sql::PUT_KEYED, params }
}

/// The columns of new tasks that any of them may have.
pub(super) fn task_columns(tasks: &[&NewTask]) -> [Param; 9] {
    let spans =
        |of: fn(&NewTask) -> Option<Span>| column(tasks, |task| of(task).map(Span::as_micros));
    let metas = tasks.iter().any(|task| task.body.meta().is_some());
    let metas: Option<Vec<Meta>> =
        metas.then(|| tasks.iter().map(|task| Meta(task.body.clone())).collect());
    [
        param(tasks.iter().map(|task| Payload(task.body.clone())).collect::<Vec<_>>()),
        param(metas),
        column(tasks, |task| task.pri.map(pri_to_sql)),
        spans(|task| task.ttl),
        spans(|task| task.ttr),
        spans(|task| task.delay),
        column(tasks, |task| task.at.map(Timestamp::as_micros)),
        column(tasks, |task| task.subqueue.as_deref().map(|name| name.replace('\0', ""))),
        column(tasks, |task| task.semaphore_priority.map(Priority::value)),
    ]
}

/// The keys of tasks, for how long they stay held, whether a waiting holder is replaced, the tasks' own numbers of attempts, and the
/// sizes of the parts.
pub(super) fn key_columns(tasks: &[&NewTask]) -> [Param; 5] {
    let key =
        |task: &NewTask| task.key.as_ref().map(|request| request.held.key.as_str().to_owned());
    [
        column(tasks, key),
        column(tasks, |task| task.key.as_ref().map(|request| request.held.unique_for.as_micros())),
        column(tasks, |task| {
            task.key.as_ref().map(|request| request.on_conflict == OnConflict::Replace)
        }),
        column(tasks, |task| task.attempts_max.map(i64::from)),
        param(key_parts(tasks)),
    ]
}

/// The sizes of the parts in which no key occurs twice; `None` if no key occurs twice at all. Tasks count that decide what becomes of a
/// key: the first one, and the last one that replaces. A put of one key a thousand times has two parts.
fn key_parts(tasks: &[&NewTask]) -> Option<Vec<i32>> {
    let requests = || tasks.iter().map(|task| task.key.as_deref());
    let mut last_replacing = HashMap::with_capacity(tasks.len());
    for (place, request) in requests().enumerate() {
        let Some(KeyRequest { held, on_conflict }) = request else { continue };
        let last = last_replacing.entry(&held.key).or_insert(place);
        if *on_conflict == OnConflict::Replace {
            *last = place;
        }
    }
    if last_replacing.len() == requests().flatten().count() {
        return None;
    }
    let mut parts = vec![0];
    let (mut seen, mut of_part) = (HashSet::new(), HashSet::new());
    for (place, request) in requests().enumerate() {
        if let Some(KeyRequest { held, .. }) = request {
            let decides = seen.insert(&held.key) || last_replacing[&held.key] == place;
            if decides && !of_part.insert(&held.key) {
                of_part = HashSet::from([&held.key]);
                parts.push(0);
            }
        }
        *parts.last_mut().expect("it has one from the beginning") += 1;
    }
    Some(parts)
}

/// A column of optional values; NULL as a whole where none has one.
fn column<T>(tasks: &[&NewTask], of: impl Fn(&NewTask) -> Option<T>) -> Param
where
    Vec<Option<T>>: tokio_postgres::types::ToSql + Sync + Send + 'static,
{
    let any = tasks.iter().any(|task| of(task).is_some());
    param(any.then(|| tasks.iter().map(|task| of(task)).collect::<Vec<Option<T>>>()))
}

/// The names of the workers of these takes: NULL where none has one, and one name where all have the same.
fn workers(commands: &[Command]) -> Option<Vec<Option<String>>> {
    let names = commands.iter().map(worker);
    let first = names.clone().next().flatten();
    if names.clone().all(|name| name == first) {
        return first.map(|name| vec![Some(name.to_owned())]);
    }
    Some(names.map(|name| name.map(str::to_owned)).collect())
}

/// The name of the worker of a take.
pub(super) fn worker(command: &Command) -> Option<&str> {
    match command {
        Command::Take(take) => take.worker.as_deref(),
        _ => None,
    }
}

/// The takes of several callers from one tube, all for the session and time of the first.
pub(super) fn take(
    first: &Take,
    commands: &[Command],
    now: Option<i64>,
    start: &TakeStart,
) -> Call {
    let count: usize = commands.iter().map(task_count).sum();
    let params = [
        text(&first.tube),
        param(now),
        param(count as i64),
        param(first.session.map(session_to_sql)),
        param(span_to_sql(first.lease)),
        param(BATCH_BYTES_MAX as i64),
        param(start.from.map(|place| place.0)),
        param(start.from.map(|place| place.1)),
        param(start.may_sweep),
        param(workers(commands)),
    ];
    Call::new(&sql::TAKE, params)
}

/// How many tasks a put, a take or the end of deliveries names.
pub(super) fn task_count(command: &Command) -> usize {
    match command {
        Command::Put { tasks, .. } => tasks.len(),
        Command::Take(take) => take.count,
        Command::Finish { items, .. } => items.len(),
        _ => 0,
    }
}

/// The holders of deliveries as three columns: the kind of proof, the lease, the session. Where all are by lease the
/// others are NULL.
fn holders(items: &[FinishItem]) -> [Param; 3] {
    let others = items.iter().any(|item| !matches!(item.holder, Holder::Lease(_)));
    let kind = |item: &FinishItem| match item.holder {
        Holder::Lease(_) => 0,
        Holder::Session(_) => 1,
        Holder::Any => 2,
    };
    let lease = |item: &FinishItem| match item.holder {
        Holder::Lease(lease) => Some(count_to_sql(lease.0)),
        _ => None,
    };
    let session = |item: &FinishItem| match item.holder {
        Holder::Session(session) => Some(session_to_sql(session)),
        _ => None,
    };
    [
        param(others.then(|| items.iter().map(kind).collect::<Vec<i16>>())),
        param(items.iter().map(lease).collect::<Vec<_>>()),
        param(others.then(|| items.iter().map(session).collect::<Vec<_>>())),
    ]
}

fn ids(items: &[FinishItem]) -> Param {
    param(items.iter().map(|item| id_to_sql(item.id)).collect::<Vec<_>>())
}

/// The acks of several callers in one tube, each of another task, and the place of each item of the call among theirs.
pub(super) fn ack(
    tube: &TubeName,
    show: bool,
    commands: &[Command],
    context: &PlanContext<'_>,
) -> (Vec<usize>, Call) {
    let items = commands.iter().filter_map(|command| match command {
        Command::Finish { items, .. } => Some(items),
        _ => None,
    });
    let mut all: Vec<FinishItem> = items.flatten().cloned().collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_unstable_by_key(|place| all[*place].id);
    all.sort_unstable_by_key(|item| item.id);
    let [kinds, leases, sessions] = holders(&all);
    let result = |item: &FinishItem| match &item.finish {
        Finish::AckWithResult(result) => Some(Payload((**result).clone())),
        _ => None,
    };
    let results = all.iter().any(|item| item.finish.result().is_some());
    let params = [
        text(tube),
        param(context.now),
        ids(&all),
        kinds,
        leases,
        sessions,
        param(show),
        param(BATCH_BYTES_MAX as i64),
        param(context.row_locations.of(&all)),
        param(results.then(|| all.iter().map(result).collect::<Vec<_>>())),
    ];
    (order, Call::new(&sql::ACK, params))
}

fn finish(tube: &TubeName, items: &[FinishItem], show: bool, now: Option<i64>) -> Call {
    // A failed delivery is released or buried, with an error. An ack may have a result in its place.
    let verb = |item: &FinishItem| match &item.finish {
        Finish::Ack | Finish::AckWithResult(_) => 0,
        Finish::Release { .. } => 1,
        Finish::Bury => 2,
        Finish::Touch(_) => 3,
        Finish::Fail(fail) => match fail.then {
            AfterFailure::Retry(_) | AfterFailure::Policy { .. } => 1,
            AfterFailure::Bury => 2,
        },
    };
    let span = |item: &FinishItem| match &item.finish {
        Finish::Release { delay: span, .. } | Finish::Touch(span) => span.as_micros(),
        Finish::Ack | Finish::AckWithResult(_) | Finish::Bury => 0,
        Finish::Fail(fail) => fail.then.delay().map_or(0, Span::as_micros),
    };
    let seed = |item: &FinishItem| match &item.finish {
        Finish::Fail(fail) => match fail.then {
            AfterFailure::Policy { seed, .. } => Some(i64::from(seed)),
            AfterFailure::Retry(_) | AfterFailure::Bury => None,
        },
        _ => None,
    };
    let seeds: Vec<_> = items.iter().map(seed).collect();
    let counted = |item: &FinishItem| match &item.finish {
        Finish::Release { counted, .. } => *counted,
        finish => matches!(finish, Finish::Fail(_)),
    };
    let text_of = |item: &FinishItem| match &item.finish {
        Finish::Fail(fail) => Some(fail.error.as_bytes().to_vec()),
        finish => finish.result().map(<[u8]>::to_vec),
    };
    let texts: Vec<_> = items.iter().map(text_of).collect();
    let [kinds, leases, sessions] = holders(items);
    let params = [
        text(tube),
        param(now),
        ids(items),
        kinds,
        leases,
        sessions,
        param(items.iter().map(verb).collect::<Vec<i16>>()),
        param(items.iter().map(span).collect::<Vec<_>>()),
        param(items.iter().map(counted).collect::<Vec<_>>()),
        param(show),
        param(BATCH_BYTES_MAX as i64),
        param(texts.iter().any(Option::is_some).then_some(texts)),
        param(seeds.iter().any(Option::is_some).then_some(seeds)),
    ];
    Call::new(&sql::FINISH, params)
}

/// A command that has a call of its own.
pub(super) fn single(command: &Command, context: &PlanContext<'_>) -> Call {
    let now = context.now;
    let limit = || param(BATCH_BYTES_MAX as i64);
    match command {
        Command::CreateTube { tube, options, .. } => create(tube, options),
        Command::AlterTube { tube, change } => alter(tube, change, now),
        Command::NameTube { tube, name, queue_num } => {
            let params = [text(tube), text(name), param(queue_num.map(i64::from)), param(now)];
            Call::new(&sql::NAME_TUBE, params)
        }
        Command::DropTube { tube } => Call::new(&sql::DROP_TUBE, [text(tube), param(now)]),
        Command::Tubes { tube } => {
            let name = tube.as_ref().map(|tube| tube.as_str().to_owned());
            Call::new(&sql::SHOW_TUBES, [param(name), param(now)])
        }
        Command::Kick { tube, count } => {
            Call::new(&sql::KICK, [text(tube), param(count_to_sql(*count)), param(now)])
        }
        Command::KickTasks { tube, ids, reset_attempts } => {
            let params = [text(tube), param(now), id_column(ids), param(*reset_attempts)];
            Call::new(&sql::KICK_TASKS, params)
        }
        Command::Delete { tube, ids, show } => {
            let params = [text(tube), param(now), id_column(ids), param(*show), limit()];
            Call::new(&sql::DELETE, params)
        }
        Command::Peek { tube, ids } => peek(tube, ids, now),
        Command::Deliveries { tube, count } => {
            let count = param(count_to_sql(*count as u64));
            Call::new(&sql::DELIVERIES, [text(tube), count])
        }
        Command::List(list) => self::list(list, now),
        Command::Search(search) => self::search(search, now),
        Command::Positions { tube, ids } => {
            Call::new(&sql::POSITIONS, [text(tube), param(now), id_column(ids)])
        }
        Command::Truncate { tube } => Call::new(&sql::TRUNCATE_TUBE, [text(tube), param(now)]),
        Command::ReleaseAll { tube } => Call::new(&sql::RELEASE_ALL, [text(tube), param(now)]),
        Command::Finish { tube, items, show } => finish(tube, items, *show, now),
        Command::Semaphore(command) => semaphores::call(command, now),
        Command::Schedule(command) => schedules::call(command, now),
        other => session(other, context),
    }
}

/// Fewer ids than this are looked up one by one.
const RANGE_MIN: usize = 16;
/// So many numbers for each id may a range of ids have.
const RANGE_SHARE: u64 = 4;

fn peek(tube: &TubeName, ids: &[TaskId], now: Option<i64>) -> Call {
    let limit = param(BATCH_BYTES_MAX as i64);
    match id_range(ids) {
        Some((first, last, wanted)) => {
            let (first, last) = (param(id_to_sql(first)), param(id_to_sql(last)));
            let params = [text(tube), param(now), first, last, param(wanted), limit];
            Call::new(&sql::PEEK_RANGE, params)
        }
        None => Call::new(&sql::PEEK, [text(tube), param(now), id_column(ids), limit]),
    }
}

/// The call of a search. Done tasks are all shown: they are in a table of their own.
fn search(search: &Search, now: Option<i64>) -> Call {
    if search.states.contains(State::Done) {
        return peek(&search.tube, &search.ids().collect::<Vec<_>>(), now);
    }
    let last = TaskId(search.first.0.saturating_add(search.count as u64 - 1));
    let params = [
        text(&search.tube),
        param(now),
        param(id_to_sql(search.first)),
        param(id_to_sql(last)),
        param(i32::from(search.states.bits())),
        param(search.run.to_vec()),
        param(BATCH_BYTES_MAX as i64),
    ];
    Call::new(&sql::SEARCH, params)
}

/// The first and the last of these ids, and a bit for each number from the one to the other that is among them, or `None` if all are.
/// Ids have no range if they are few, not in order, or far apart.
fn id_range(ids: &[TaskId]) -> Option<(TaskId, TaskId, Option<Vec<u8>>)> {
    let (first, last) = (*ids.first()?, *ids.last()?);
    let ordered = ids.windows(2).all(|pair| pair[0] < pair[1]);
    if !ordered || ids.len() < RANGE_MIN {
        return None;
    }
    let count = ids.len() as u64;
    if last.0 - first.0 >= count * RANGE_SHARE {
        return None;
    }
    let numbers = last.0 - first.0 + 1;
    let wanted = (numbers > count).then(|| {
        let mut bits = vec![0_u8; numbers.div_ceil(8) as usize];
        for id in ids {
            let place = (id.0 - first.0) as usize;
            bits[place / 8] |= 1 << (place % 8);
        }
        bits
    });
    Some((first, last, wanted))
}

/// The call of a page of a list. Without states it is in the order of the queue.
fn list(list: &List, now: Option<i64>) -> Call {
    let (states, pri, id) = match list.order {
        ListOrder::Id { states, after } => (Some(i32::from(states.bits())), None, after),
        ListOrder::Queue { after } => {
            (None, after.map(|after| after.0), after.map(|after| after.1))
        }
    };
    let (pri, id) = (param(pri.map(pri_to_sql)), param(id.map(id_to_sql)));
    let limit = param(count_to_sql(list.limit as u64));
    let key = param(list.key.as_ref().map(|key| key.as_str().to_owned()));
    Call::new(&sql::LIST, [text(&list.tube), param(now), param(states), pri, id, limit, key])
}

/// The call of a command about sessions.
fn session(command: &Command, context: &PlanContext<'_>) -> Call {
    let now = context.now;
    let server = || param(context.server.to_vec());
    match command {
        Command::JoinSession { session, create } => {
            let params = [param(session_to_sql(*session)), param(*create), server(), param(now)];
            Call::new(&sql::JOIN_SESSION, params)
        }
        Command::LeaveSession { session } => {
            let params = [param(session_to_sql(*session)), server(), param(now)];
            Call::new(&sql::LEAVE_SESSION, params)
        }
        Command::ConfigureSessions { ttr } => {
            Call::new(&sql::CONFIGURE_SESSIONS, [param(ttr.as_micros())])
        }
        other => {
            unreachable!("the command {} shares its call or has a planner of its own", other.verb())
        }
    }
}

/// A tick that does not look at moments before `from`.
pub(super) fn tick(limit: usize, seed: u32, from: Option<i64>, now: Option<i64>) -> Call {
    let limit = param(count_to_sql(limit as u64));
    Call::new(&sql::TICK, [param(now), limit, param(from), param(i64::from(seed))])
}

fn text(tube: &TubeName) -> Param {
    param(tube.as_str().to_owned())
}

fn id_column(ids: &[TaskId]) -> Param {
    param(ids.iter().copied().map(id_to_sql).collect::<Vec<_>>())
}

fn create(tube: &TubeName, options: &TubeOptions) -> Call {
    let params = [
        text(tube),
        param(options.kind.name()),
        param(options.temporary),
        param(options.capacity.map(count_to_sql)),
        param(span_to_sql(options.ttl)),
        param(span_to_sql(options.ttr)),
        param(span_to_sql(options.delay)),
        param(pri_to_sql(options.pri)),
        param(options.attempts_max.map(i64::from)),
        param(options.ttl_kills_taken),
        param(options.paused),
        param(TUBES_MAX as i64),
        param(options.semaphore.as_ref().map(|key| key.as_str().to_owned())),
        param(options.queue_num.map(i64::from)),
        param(span_to_sql(options.keep_done)),
        param(count_to_sql(options.keep_done_max)),
    ];
    let pace = retry_columns(options.retry.as_deref()).into_iter();
    let pace = pace.chain(rate_columns(options.rate.as_deref()));
    Call { statement: &sql::CREATE_TUBE, params: params.into_iter().chain(pace).collect() }
}

/// A retry policy as five columns.
pub(super) fn retry_columns(retry: Option<&RetryPolicy>) -> [Param; 5] {
    [
        param(retry.map(|retry| retry.delay.as_micros())),
        param(retry.map(|retry| i64::from(retry.factor_permille))),
        param(retry.map(|retry| retry.delay_max.as_micros())),
        param(retry.map(|retry| i64::from(retry.jitter_permille))),
        param(retry.map(|retry| retry.retry_lost)),
    ]
}

/// A rate limit as three columns.
pub(super) fn rate_columns(rate: Option<&RateLimit>) -> [Param; 3] {
    [
        param(rate.map(|rate| i64::from(rate.count))),
        param(rate.map(|rate| rate.per.as_micros())),
        param(rate.map(|rate| i64::from(rate.burst))),
    ]
}

fn alter(tube: &TubeName, change: &TubeChange, now: Option<i64>) -> Call {
    let span = |change: Option<Option<Span>>| param(span_to_sql(change.flatten()));
    let mut params = vec![
        text(tube),
        param(change.paused),
        param(change.capacity.is_some()),
        param(change.capacity.flatten().map(count_to_sql)),
        param(change.ttl.is_some()),
        span(change.ttl),
        param(change.ttr.is_some()),
        span(change.ttr),
        param(change.delay.is_some()),
        span(change.delay),
        param(change.pri.map(pri_to_sql)),
        param(change.attempts_max.is_some()),
        param(change.attempts_max.flatten().map(i64::from)),
        param(change.keep_done.is_some()),
        span(change.keep_done),
        param(change.keep_done_max.map(count_to_sql)),
    ];
    params.push(param(change.retry.is_some()));
    params.extend(retry_columns(change.retry.as_ref().and_then(Option::as_deref)));
    params.push(param(change.rate.is_some()));
    params.extend(rate_columns(change.rate.as_ref().and_then(Option::as_deref)));
    params.push(param(now));
    Call { statement: &sql::ALTER_TUBE, params }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_core::{Body, Key};

    /// The parts of a put of tasks with these keys, of which capital ones replace.
    fn parts(keys: &str) -> Option<Vec<i32>> {
        let task = |key: char| {
            let mut request = KeyRequest::new(Key::new(&key.to_lowercase().to_string()).unwrap());
            if key.is_uppercase() {
                request.on_conflict = OnConflict::Replace;
            }
            NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(b"")) }
        };
        let tasks: Vec<NewTask> = keys.chars().map(task).collect();
        key_parts(&tasks.iter().collect::<Vec<_>>())
    }

    /// Each part is a round of statements: with one for every task, a put of one key four thousand times took 11 seconds.
    #[test]
    fn a_key_is_in_two_parts_at_most() {
        assert_eq!(parts("abC"), None);
        assert_eq!(parts("aba"), Some(vec![3]));
        assert_eq!(parts("aAbAaA"), Some(vec![5, 1]));
        assert_eq!(parts("AbAB"), Some(vec![2, 2]));
        assert_eq!(parts("AaAAbAbBB"), Some(vec![5, 4]));
        assert_eq!(parts(&"A".repeat(10_000)), Some(vec![9_999, 1]));
        assert_eq!(parts(&"AB".repeat(5_000)), Some(vec![9_998, 2]));
    }

    fn range(ids: impl Iterator<Item = u64>) -> Option<(u64, u64, Option<Vec<u8>>)> {
        let ids: Vec<TaskId> = ids.map(TaskId).collect();
        id_range(&ids).map(|(first, last, wanted)| (first.0, last.0, wanted))
    }

    #[test]
    fn ids_that_are_close_together_are_a_range() {
        assert_eq!(range(0..0), None);
        assert_eq!(range(5..5 + RANGE_MIN as u64 - 1), None, "too few");
        assert_eq!(range(5..21), Some((5, 20, None)));
        assert_eq!(range((5..21).rev()), None, "not in order");
        assert_eq!(range((5..21).chain([20])), None, "one is named twice");
        let gap = range((5..21).filter(|id| *id != 14).chain([22]));
        assert_eq!(gap, Some((5, 22, Some(vec![0b1111_1111, 0b1111_1101, 0b10]))));
        assert_eq!(range((0..16).map(|id| id * 5)), None, "far apart");
        assert_eq!(range((0..16).chain([u64::MAX])), None);
    }
}

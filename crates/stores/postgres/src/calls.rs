//! The calls themselves: commands as parameters.

use taskyard_core::limits::{BATCH_BYTES_MAX, TUBES_MAX};
use taskyard_core::{
    Command, Finish, FinishItem, Holder, NewTask, Priority, Span, Take, TaskId, Timestamp,
    TubeChange, TubeName, TubeOptions,
};

use super::codec::{
    Meta, Payload, count_to_sql, id_to_sql, pri_to_sql, session_to_sql, span_to_sql,
};
use super::heads::Start;
use super::places::Places;
use super::plan::{Ask, Context};
use super::semaphores;
use super::statements::{self as sql, Call, Param, param};

/// The puts of several callers into one tube.
pub(super) fn put(commands: Vec<Command>, now: Option<i64>) -> (Ask, Call) {
    let (mut sizes, mut all, mut into) = (Vec::new(), Vec::new(), None);
    let usual = are_usual(&commands);
    for command in commands {
        let Command::Put { tube, tasks, .. } = command else { continue };
        sizes.push(tasks.len());
        all.extend(tasks);
        into = Some(tube);
    }
    let tube = into.expect("a put names its tube");
    let counts = sizes.iter().map(|size| *size as i32).collect();
    let call = put_call(&tube, now, counts, all);
    (Ask::Put { tube, sizes, usual }, call)
}

/// Whether these puts name no priorities.
pub(super) fn are_usual(commands: &[Command]) -> bool {
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
    tasks: Vec<NewTask>,
) -> Call {
    let spans =
        |of: fn(&NewTask) -> Option<Span>| column(&tasks, |task| of(task).map(Span::as_micros));
    let metas = tasks.iter().any(|task| task.body.meta().is_some());
    let metas: Option<Vec<Meta>> =
        metas.then(|| tasks.iter().map(|task| Meta(task.body.clone())).collect());
    let params = [
        param(tube.as_str().to_owned()),
        param(now),
        param(sizes),
        param(tasks.iter().map(|task| Payload(task.body.clone())).collect::<Vec<_>>()),
        param(metas),
        column(&tasks, |task| task.pri.map(pri_to_sql)),
        spans(|task| task.ttl),
        spans(|task| task.ttr),
        spans(|task| task.delay),
        column(&tasks, |task| task.at.map(Timestamp::as_micros)),
        column(&tasks, |task| task.subqueue.as_deref().map(str::to_owned)),
        column(&tasks, |task| task.semaphore_priority.map(Priority::value)),
        param(None::<i32>),
        param(None::<Vec<i64>>),
    ];
    Call::new(&sql::PUT, params)
}

/// A column of optional values; NULL as a whole where none has one.
fn column<T>(tasks: &[NewTask], of: impl Fn(&NewTask) -> Option<T>) -> Param
where
    Vec<Option<T>>: tokio_postgres::types::ToSql + Sync + Send + 'static,
{
    let any = tasks.iter().any(|task| of(task).is_some());
    param(any.then(|| tasks.iter().map(of).collect::<Vec<Option<T>>>()))
}

/// The takes of several callers from one tube, for the same session and time.
pub(super) fn take(commands: Vec<Command>, now: Option<i64>, start: Start) -> (Ask, Call) {
    let (mut counts, mut first) = (Vec::new(), None);
    for command in commands {
        let Command::Take(take) = command else { continue };
        counts.push(take.count);
        first.get_or_insert(take);
    }
    let Take { tube, session, lease, .. } = first.expect("a take names its tube");
    let params = [
        text(&tube),
        param(now),
        param(counts.iter().sum::<usize>() as i64),
        param(session.map(session_to_sql)),
        param(span_to_sql(lease)),
        param(BATCH_BYTES_MAX as i64),
        param(start.from.map(|place| place.0)),
        param(start.from.map(|place| place.1)),
        param(start.may_sweep),
    ];
    (Ask::Take { tube, session, lease, counts, start }, Call::new(&sql::TAKE, params))
}

/// Who holds deliveries, as three columns: how it is shown, the lease, the session. Where all are by lease
/// the others are NULL.
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

/// The acks of several callers in one tube, each of another task.
pub(super) fn ack(commands: Vec<Command>, now: Option<i64>, places: &Places) -> (Ask, Call) {
    let (mut sizes, mut all, mut of) = (Vec::new(), Vec::new(), None);
    for command in commands {
        let Command::Finish { tube, items, show } = command else { continue };
        sizes.push(items.len());
        all.extend(items);
        of = Some((tube, show));
    }
    let (tube, show) = of.expect("an ack names its tube");
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_unstable_by_key(|place| all[*place].id);
    all.sort_unstable_by_key(|item| item.id);
    let [kinds, leases, sessions] = holders(&all);
    let params = [
        text(&tube),
        param(now),
        ids(&all),
        kinds,
        leases,
        sessions,
        param(show),
        param(BATCH_BYTES_MAX as i64),
        param(places.of(&all)),
    ];
    (Ask::Ack { tube, sizes, order, show }, Call::new(&sql::ACK, params))
}

fn finish(tube: TubeName, items: &[FinishItem], show: bool, now: Option<i64>) -> (Ask, Call) {
    let verb = |item: &FinishItem| match item.finish {
        Finish::Ack => 0,
        Finish::Release { .. } => 1,
        Finish::Bury => 2,
        Finish::Touch(_) => 3,
    };
    let span = |item: &FinishItem| match item.finish {
        Finish::Release { delay: span, .. } | Finish::Touch(span) => span.as_micros(),
        Finish::Ack | Finish::Bury => 0,
    };
    let counted = |item: &FinishItem| matches!(item.finish, Finish::Release { counted: true, .. });
    let [kinds, leases, sessions] = holders(items);
    let params = [
        param(tube.as_str().to_owned()),
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
    ];
    (Ask::Finish { tube, size: items.len(), show }, Call::new(&sql::FINISH, params))
}

/// A command that has a call of its own.
pub(super) fn single(command: Command, context: &Context<'_>) -> (Ask, Call) {
    let now = context.now;
    match command {
        Command::CreateTube { tube, options, if_not_exists } => {
            let call = create(&tube, &options);
            let TubeOptions { semaphore, queue_num, .. } = options;
            (Ask::Create { tube, if_not_exists, semaphore, queue_num }, call)
        }
        Command::AlterTube { tube, change } => {
            let call = alter(&tube, &change);
            (Ask::Alter { tube, change }, call)
        }
        Command::NameTube { tube, name, queue_num } => {
            let params = [text(&tube), text(&name), param(queue_num.map(i64::from))];
            (Ask::Name { tube, name, queue_num }, Call::new(&sql::NAME_TUBE, params))
        }
        Command::DropTube { tube } => {
            let call = Call::new(&sql::DROP_TUBE, [text(&tube), param(now)]);
            (Ask::Drop { tube }, call)
        }
        Command::Tubes { tube } => {
            let name = tube.as_ref().map(|tube| tube.as_str().to_owned());
            (Ask::Tubes { tube }, Call::new(&sql::SHOW_TUBES, [param(name)]))
        }
        Command::Kick { tube, count } => {
            let call = Call::new(&sql::KICK, [text(&tube), param(count_to_sql(count)), param(now)]);
            (Ask::Kick { tube }, call)
        }
        Command::Delete { tube, ids, show } => delete(tube, &ids, show, now),
        Command::Peek { tube, ids } => {
            let limit = param(BATCH_BYTES_MAX as i64);
            let call = Call::new(&sql::PEEK, [text(&tube), param(now), id_column(&ids), limit]);
            (Ask::Peek { tube }, call)
        }
        Command::Deliveries { tube, count } => {
            let count = param(count_to_sql(count as u64));
            let call = Call::new(&sql::DELIVERIES, [text(&tube), count]);
            (Ask::Deliveries { tube }, call)
        }
        Command::Truncate { tube } => {
            let call = Call::new(&sql::TRUNCATE_TUBE, [text(&tube), param(now)]);
            (Ask::Truncate { tube }, call)
        }
        Command::ReleaseAll { tube } => {
            let call = Call::new(&sql::RELEASE_ALL, [text(&tube), param(now)]);
            (Ask::ReleaseAll { tube }, call)
        }
        Command::Finish { tube, items, show } => finish(tube, &items, show, now),
        Command::Put { .. } => put(vec![command], now),
        Command::Take(_) => take(vec![command], now, Start { from: None, may_sweep: true }),
        Command::Semaphore(command) => {
            let (ask, call) = semaphores::call(command, now);
            (Ask::Semaphore(ask), call)
        }
        other => session(other, context),
    }
}

/// What concerns sessions and the time.
fn session(command: Command, context: &Context<'_>) -> (Ask, Call) {
    let now = context.now;
    let server = || param(context.server.to_vec());
    match command {
        Command::JoinSession { session, create } => {
            let params = [param(session_to_sql(session)), param(create), server(), param(now)];
            (Ask::Join { session }, Call::new(&sql::JOIN_SESSION, params))
        }
        Command::LeaveSession { session } => {
            let params = [param(session_to_sql(session)), server(), param(now)];
            (Ask::Leave { session }, Call::new(&sql::LEAVE_SESSION, params))
        }
        Command::ConfigureSessions { ttr } => {
            let call = Call::new(&sql::CONFIGURE_SESSIONS, [param(ttr.as_micros())]);
            (Ask::Configure, call)
        }
        Command::Tick { limit } => {
            let from = context.timers.begin(context.moment);
            let params = [param(now), param(count_to_sql(limit as u64)), param(from)];
            (Ask::Tick { from }, Call::new(&sql::TICK, params))
        }
        other => unreachable!("{} has its call elsewhere", other.verb()),
    }
}

fn text(tube: &TubeName) -> Param {
    param(tube.as_str().to_owned())
}

fn id_column(ids: &[TaskId]) -> Param {
    param(ids.iter().copied().map(id_to_sql).collect::<Vec<_>>())
}

fn delete(tube: TubeName, ids: &[TaskId], show: bool, now: Option<i64>) -> (Ask, Call) {
    let limit = param(BATCH_BYTES_MAX as i64);
    let params = [text(&tube), param(now), id_column(ids), param(show), limit];
    (Ask::Delete { tube, size: ids.len(), show }, Call::new(&sql::DELETE, params))
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
    ];
    Call::new(&sql::CREATE_TUBE, params)
}

fn alter(tube: &TubeName, change: &TubeChange) -> Call {
    let span = |change: Option<Option<Span>>| param(span_to_sql(change.flatten()));
    let params = [
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
    ];
    Call::new(&sql::ALTER_TUBE, params)
}

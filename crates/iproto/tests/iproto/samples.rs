//! Random commands and replies with every field set or not.

use std::sync::Arc;

use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use taskyard_core::command::TubeInfo;
use taskyard_core::failure::stored_error;
use taskyard_core::{
    AfterFailure, Basis, Body, Calls, CatchUp, Command, Counts, Error, Estimate, Fail, Failure,
    Failures, Finish, FinishItem, Finished, Forecast, Found, HeldKey, Holder, Key, KeyRequest,
    Kind, Lease, List, ListOrder, ListedTask, NewTask, NoEstimate, OnConflict, Outcome, Overlap,
    Placed, Position, Priority, RateLimit, Reason, Reply, RetryPolicy, ScheduleCommand,
    ScheduleName, ScheduleReply, Search, SemaphoreKey, SessionId, Span, State, StateSet,
    StoredSchedule, SubqueuePosition, Take, Task, TaskId, Timestamp, TubeChange, TubeName,
    TubeOptions, TubeStats,
};

/// The seed is fixed, so that a failure is the same everywhere; the fuzz targets test further
/// inputs.
pub fn config() -> Config {
    let rng_seed = RngSeed::Fixed(3301);
    Config { cases: 400, rng_seed, failure_persistence: None, ..Config::default() }
}

pub fn tube() -> impl Strategy<Value = TubeName> {
    "[a-zа-я !.]{1,12}x".prop_map(|name| TubeName::new(&name).unwrap())
}

fn span() -> impl Strategy<Value = Span> {
    let whole = any::<i64>().prop_map(Span::from_micros);
    prop_oneof![
        Just(Span::ZERO),
        Just(Span::FOREVER),
        (0..90_000_000_i64).prop_map(Span::from_micros),
        whole
    ]
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![Just(Timestamp::NEVER), any::<i64>().prop_map(Timestamp::from_micros)]
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<[u8; 16]>().prop_map(SessionId)
}

fn key() -> impl Strategy<Value = Arc<str>> {
    ".{0,40}".prop_map(Arc::from)
}

/// A payload and perhaps a meta, both well-formed.
fn body() -> impl Strategy<Value = Body> {
    let payload = prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| {
        let mut payload = vec![0xc5];
        payload.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        payload.extend_from_slice(&bytes);
        payload
    });
    (payload, any::<bool>()).prop_map(|(payload, meta)| {
        if meta {
            Body::with_meta(&payload, &[0x81, 0xa1, b'k', 0x05])
        } else {
            Body::new(&payload)
        }
    })
}

fn options() -> impl Strategy<Value = TubeOptions> {
    let flags = any::<[bool; 3]>();
    let times = [option::of(span()), option::of(span()), option::of(span())];
    (
        prop::sample::select(Kind::ALL.to_vec()),
        flags,
        option::of(any::<u64>()),
        times,
        any::<u64>(),
        option::of(any::<u32>()),
        option::of(prop::sample::select(vec!["yang", "a b"])),
        (option::of(any::<u32>()), option::of(span()), any::<u64>()),
    )
        .prop_map(
            |(
                kind,
                [temporary, ttl_kills_taken, paused],
                capacity,
                [ttl, ttr, delay],
                pri,
                attempts_max,
                semaphore,
                (queue_num, keep_done, keep_done_max),
            )| {
                TubeOptions {
                    kind,
                    temporary,
                    capacity,
                    ttl,
                    ttr,
                    delay,
                    pri,
                    attempts_max,
                    retry: attempts_max.map(|number| Box::new(retry(number))),
                    rate: queue_num.map(|number| Box::new(rate(number))),
                    keep_done,
                    keep_done_max,
                    ttl_kills_taken,
                    paused,
                    semaphore: semaphore.map(|key| SemaphoreKey::new(key).unwrap()),
                    queue_num,
                }
            },
        )
}

fn change() -> impl Strategy<Value = TubeChange> {
    let span = || option::of(option::of(span()));
    (
        option::of(any::<bool>()),
        option::of(option::of(any::<u64>())),
        [span(), span(), span(), span()],
        [option::of(any::<u64>()), option::of(any::<u64>())],
        option::of(option::of(any::<u32>())),
    )
        .prop_map(|(paused, capacity, spans, [pri, keep_done_max], attempts_max)| {
            let [ttl, ttr, delay, keep_done] = spans;
            TubeChange {
                paused,
                capacity,
                ttl,
                ttr,
                delay,
                pri,
                attempts_max,
                retry: attempts_max.map(|number| number.map(|number| Box::new(retry(number)))),
                rate: attempts_max.map(|number| number.map(|number| Box::new(rate(number)))),
                keep_done,
                keep_done_max,
            }
        })
}

fn retry(number: u32) -> RetryPolicy {
    RetryPolicy {
        delay: Span::from_micros(number.into()),
        factor_permille: number.rotate_left(3),
        delay_max: Span::from_secs(number.into()),
        jitter_permille: number.rotate_left(7),
        retry_lost: number % 2 == 1,
    }
}

fn rate(number: u32) -> RateLimit {
    RateLimit { count: number, per: Span::from_secs(number.into()), burst: number.rotate_left(5) }
}

fn new_task() -> impl Strategy<Value = NewTask> {
    let times = [option::of(span()), option::of(span()), option::of(span())];
    let own = (option::of(priority()), option::of(key_request()));
    (body(), option::of(any::<u64>()), times, option::of(time()), option::of(key()), own).prop_map(
        |(body, pri, [ttl, ttr, delay], at, subqueue, (semaphore_priority, key))| NewTask {
            body,
            pri,
            ttl,
            ttr,
            delay,
            at,
            subqueue,
            semaphore_priority,
            key,
            attempts_max: pri.map(|pri| pri as u32),
        },
    )
}

fn unique_key() -> impl Strategy<Value = Key> {
    "[a-zа-я /:]{1,12}".prop_map(|key| Key::new(&key).unwrap())
}

fn key_request() -> impl Strategy<Value = Box<KeyRequest>> {
    (unique_key(), span(), any::<bool>()).prop_map(|(key, unique_for, replaces)| {
        let on_conflict = if replaces { OnConflict::Replace } else { OnConflict::Keep };
        Box::new(KeyRequest { held: HeldKey { key, unique_for }, on_conflict })
    })
}

fn priority() -> impl Strategy<Value = Priority> {
    (-1e300..1e300).prop_map(|value| Priority::new(value).expect("a number"))
}

fn item() -> impl Strategy<Value = FinishItem> {
    let holder = prop_oneof![
        any::<u64>().prop_map(|number| Holder::Lease(Lease(number))),
        session().prop_map(Holder::Session),
        Just(Holder::Any),
    ];
    let finish = prop_oneof![
        Just(Finish::Ack),
        Just(Finish::ack_with(b"\x92\x01\xa2ok")),
        (span(), any::<bool>()).prop_map(|(delay, counted)| Finish::Release { delay, counted }),
        Just(Finish::Bury),
        span().prop_map(Finish::Touch),
        (".{0,20}", option::of(span())).prop_map(|(error, delay)| Finish::fail(&error, delay)),
        (".{0,20}", any::<u32>(), span()).prop_map(|(error, seed, default_delay)| {
            let then = AfterFailure::Policy { seed, default_delay };
            Finish::Fail(Box::new(Fail { error: stored_error(&error), then }))
        }),
    ];
    (any::<u64>(), holder, finish).prop_map(|(id, holder, finish)| FinishItem {
        id: TaskId(id),
        holder,
        finish,
    })
}

fn ids() -> impl Strategy<Value = Vec<TaskId>> {
    prop::collection::vec(any::<u64>().prop_map(TaskId), 0..20)
}

fn list_order() -> impl Strategy<Value = ListOrder> {
    let id = || any::<u64>().prop_map(TaskId);
    let states = (0..32u8).prop_map(|bits| StateSet::from_bits(bits).unwrap());
    prop_oneof![
        (states, option::of(id())).prop_map(|(states, after)| ListOrder::Id { states, after }),
        option::of((any::<u64>(), id())).prop_map(|after| ListOrder::Queue { after }),
    ]
}

fn listed() -> impl Strategy<Value = ListedTask> {
    (any::<u64>(), any::<u64>()).prop_map(|(id, pri)| ListedTask { id: TaskId(id), pri })
}

fn take() -> impl Strategy<Value = Take> {
    let worker = option::of("[a-z:0-9é]{1,20}".prop_map(Arc::from));
    (tube(), any::<usize>(), option::of(session()), option::of(span()), worker, span()).prop_map(
        |(tube, count, session, lease, worker, wait)| Take {
            tube,
            count,
            session,
            lease,
            worker,
            wait,
        },
    )
}

pub fn command() -> impl Strategy<Value = Command> {
    let many = |tube| (tube, prop::collection::vec(new_task(), 0..20), span());
    prop_oneof![
        (tube(), options(), any::<bool>()).prop_map(|(tube, options, if_not_exists)| {
            Command::CreateTube { tube, options, if_not_exists }
        }),
        (tube(), change()).prop_map(|(tube, change)| Command::AlterTube { tube, change }),
        (tube(), tube(), option::of(any::<u32>()))
            .prop_map(|(tube, name, queue_num)| Command::NameTube { tube, name, queue_num }),
        tube().prop_map(|tube| Command::DropTube { tube }),
        option::of(tube()).prop_map(|tube| Command::Tubes { tube }),
        many(tube()).prop_map(|(tube, tasks, wait)| Command::Put { tube, tasks, wait }),
        take().prop_map(Command::Take),
        (tube(), prop::collection::vec(item(), 0..20), any::<bool>())
            .prop_map(|(tube, items, show)| Command::Finish { tube, items, show }),
        (tube(), any::<u64>()).prop_map(|(tube, count)| Command::Kick { tube, count }),
        (tube(), ids(), any::<bool>()).prop_map(|(tube, ids, reset_attempts)| {
            Command::KickTasks { tube, ids, reset_attempts }
        }),
        (tube(), ids(), any::<bool>()).prop_map(|(tube, ids, show)| Command::Delete {
            tube,
            ids,
            show
        }),
        (tube(), ids()).prop_map(|(tube, ids)| Command::Peek { tube, ids }),
        (tube(), ids()).prop_map(|(tube, ids)| Command::Positions { tube, ids }),
        (tube(), any::<usize>()).prop_map(|(tube, count)| Command::Deliveries { tube, count }),
        (tube(), list_order(), any::<usize>(), option::of(unique_key()))
            .prop_map(|(tube, order, limit, key)| Command::List(List { tube, order, limit, key })),
        (tube(), any::<u64>(), any::<usize>(), 0u8..32, prop::collection::vec(any::<u8>(), 0..9))
            .prop_map(|(tube, first, count, states, run)| {
                let states = StateSet::from_bits(states).unwrap();
                Command::Search(Search {
                    tube,
                    first: TaskId(first),
                    count,
                    states,
                    run: run.into(),
                })
            }),
        tube().prop_map(|tube| Command::Truncate { tube }),
        tube().prop_map(|tube| Command::ReleaseAll { tube }),
        (session(), any::<bool>())
            .prop_map(|(session, create)| Command::JoinSession { session, create }),
        session().prop_map(|session| Command::LeaveSession { session }),
        span().prop_map(|ttr| Command::ConfigureSessions { ttr }),
        (any::<usize>(), any::<u32>()).prop_map(|(limit, seed)| Command::Tick { limit, seed }),
        schedule_command().prop_map(|command| Command::Schedule(Box::new(command))),
    ]
}

fn schedule_name() -> impl Strategy<Value = ScheduleName> {
    "[a-zа-я !:]{1,12}x".prop_map(|name| ScheduleName::new(&name).unwrap())
}

fn schedule() -> impl Strategy<Value = StoredSchedule> {
    let enums = (
        prop::sample::select(vec![CatchUp::None, CatchUp::Last, CatchUp::All]),
        prop::sample::select(vec![Overlap::Allow, Overlap::Skip]),
    );
    let moments = [option::of(time()), option::of(time()), option::of(time())];
    let numbers = (any::<bool>(), any::<u64>(), any::<u64>());
    (schedule_name(), tube(), new_task(), key(), enums, moments, numbers).prop_map(
        |(
            name,
            tube,
            template,
            timing,
            (catch_up, overlap),
            [until, next, last],
            (paused, fired, skipped),
        )| {
            StoredSchedule {
                name,
                tube,
                template,
                timing,
                catch_up,
                overlap,
                until,
                paused,
                next,
                last,
                fired,
                skipped,
            }
        },
    )
}

fn schedule_command() -> impl Strategy<Value = ScheduleCommand> {
    let fire = (
        schedule_name(),
        time(),
        option::of(time()),
        prop::collection::vec(new_task(), 0..5),
        any::<u64>(),
    );
    prop_oneof![
        (schedule(), any::<bool>(), any::<bool>()).prop_map(|(schedule, only_new, keep_paused)| {
            ScheduleCommand::Set { schedule, only_new, keep_paused }
        }),
        schedule_name().prop_map(|name| ScheduleCommand::Get { name }),
        (option::of(schedule_name()), any::<usize>())
            .prop_map(|(after, limit)| ScheduleCommand::List { after, limit }),
        (any::<usize>(), any::<usize>())
            .prop_map(|(skip, limit)| ScheduleCommand::Due { skip, limit }),
        schedule_name().prop_map(|name| ScheduleCommand::Remove { name }),
        (schedule_name(), any::<bool>())
            .prop_map(|(name, paused)| ScheduleCommand::Pause { name, paused }),
        fire.prop_map(|(name, expected, next, puts, skipped)| {
            ScheduleCommand::Fire { name, expected, next, puts, skipped }
        }),
    ]
}

fn schedule_reply() -> impl Strategy<Value = ScheduleReply> {
    prop_oneof![
        any::<bool>().prop_map(ScheduleReply::Set),
        prop::collection::vec(schedule(), 0..4).prop_map(ScheduleReply::Schedules),
        (time(), prop::collection::vec(schedule(), 0..4), option::of(time()))
            .prop_map(|(now, schedules, next)| ScheduleReply::Due { now, schedules, next }),
        Just(ScheduleReply::Removed),
        option::of(prop::collection::vec(placed(), 0..9)).prop_map(ScheduleReply::Fired),
    ]
}

fn placed() -> impl Strategy<Value = Placed> {
    (any::<u64>(), state(), any::<bool>()).prop_map(|(id, state, existing)| Placed {
        id: TaskId(id),
        state,
        existing,
    })
}

fn state() -> impl Strategy<Value = State> {
    let all = [State::Ready, State::Taken, State::Delayed, State::Buried, State::Done];
    prop::sample::select(all.to_vec())
}

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        time().prop_map(Reason::NotDue),
        time().prop_map(Reason::RateLimited),
        prop::sample::select(vec![
            Reason::WaitsForConsumer,
            Reason::Running,
            Reason::TubePaused,
            Reason::SubqueueBusy,
            Reason::Semaphore,
            Reason::Buried,
            Reason::AttemptsUsedUp,
            Reason::Expired,
            Reason::Finished,
        ]),
    ]
}

fn task() -> impl Strategy<Value = Task> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), option::of(any::<u64>()));
    let moments = [option::of(time()), option::of(time()), option::of(time()), option::of(time())];
    let rest = (
        (state(), span(), option::of(key()), option::of(session())),
        (option::of(priority()), reason(), option::of(body()), option::of(unique_key())),
    );
    (numbers, moments, time(), time(), rest).prop_map(
        |(
            (id, pri, attempts, lease),
            [due, start, previous_start, lease_until],
            created,
            expires,
            rest,
        )| {
            let ((state, ttr, subqueue, session), (semaphore_priority, reason, body, key)) = rest;
            // A worker belongs to a delivery; others have none.
            let worker = lease.map(|lease| Arc::from(format!("host:{lease}:w")));
            let failures = (attempts % 2 == 1).then(|| failures(attempts));
            let finished = (attempts % 3 == 1).then(|| {
                let (at, run) = (created.max(Timestamp::EPOCH), Span::from_secs(2));
                Finished::new(at, run, worker.as_deref(), &attempts.to_be_bytes())
            });
            Task {
                id: TaskId(id),
                state,
                pri,
                created,
                due,
                expires,
                ttr,
                attempts,
                start,
                previous_start,
                subqueue,
                semaphore_priority,
                key: key.map(Box::new),
                attempts_max: (attempts % 5 == 1).then_some(attempts),
                session,
                worker,
                failures,
                finished,
                lease: lease.map(Lease),
                lease_until,
                reason,
                body,
            }
        },
    )
}

/// Some failures of a task.
fn failures(attempts: u32) -> Failures {
    let failure = |attempt: u32| Failure {
        at: Timestamp::from_micros(i64::from(attempt)),
        attempt,
        run: Span::from_secs(1),
        worker: attempt.is_multiple_of(2).then(|| "w".into()),
        error: format!("error {attempt}").into(),
    };
    let first = Failures::with(None, &failure(attempts));
    Failures::with(Some(&first), &failure(attempts.wrapping_add(1)))
}

fn stats() -> impl Strategy<Value = TubeStats> {
    (any::<[u64; 6]>(), any::<[u64; 11]>()).prop_map(|(tasks, calls)| {
        let [ready, taken, buried, delayed, done, kept] = tasks;
        let [ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay] = calls;
        TubeStats {
            tasks: Counts { ready, taken, buried, delayed, done, kept },
            calls: Calls { ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay },
        }
    })
}

fn info() -> impl Strategy<Value = TubeInfo> {
    let moments = (option::of(time()), option::of(time()));
    (tube(), any::<u32>(), options(), stats(), any::<u64>(), moments).prop_map(
        |(name, number, options, stats, takeable, (next_wakeup, oldest_ready))| TubeInfo {
            name,
            number,
            options,
            stats,
            takeable,
            next_wakeup,
            oldest_ready,
        },
    )
}

fn forecast() -> impl Strategy<Value = Forecast> {
    let basis = prop::sample::select(Basis::ALL.to_vec());
    let estimate = (any::<u64>(), span(), span(), basis);
    prop_oneof![
        estimate.prop_map(|(ahead, p50, p90, basis)| Ok(Estimate { ahead, p50, p90, basis })),
        prop::sample::select(NoEstimate::ALL.to_vec()).prop_map(Err),
    ]
}

fn position() -> impl Strategy<Value = Position> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>());
    let subqueue = (any::<u64>(), any::<bool>());
    let subqueue = subqueue.prop_map(|(ahead, is_busy)| SubqueuePosition { ahead, is_busy });
    let optional = (
        option::of(time()),
        option::of(subqueue),
        option::of(any::<u64>()),
        option::of(forecast()),
    );
    (numbers, prop::collection::vec(any::<u64>(), 0..18), optional).prop_map(
        |((id, pri, ahead, is_exact), delayed_ahead, (due, subqueue, gate_ahead, estimate))| {
            let id = TaskId(id);
            Position {
                id,
                pri,
                due,
                ahead,
                delayed_ahead,
                subqueue,
                gate_ahead,
                is_exact,
                estimate,
            }
        },
    )
}

pub fn reply() -> impl Strategy<Value = Reply> {
    let outcome = prop_oneof![
        option::of(task().prop_map(Box::new)).prop_map(Outcome::Done),
        Just(Outcome::Stale),
        Just(Outcome::Missing),
    ];
    let tasks = || prop::collection::vec(task(), 0..5);
    prop_oneof![
        Just(Reply::Nothing),
        any::<bool>().prop_map(Reply::Created),
        prop::collection::vec(info(), 0..5).prop_map(Reply::Tubes),
        prop::collection::vec(placed(), 0..20).prop_map(Reply::Put),
        tasks().prop_map(Reply::Taken),
        prop::collection::vec(outcome, 0..5).prop_map(Reply::Finished),
        any::<u64>().prop_map(Reply::Kicked),
        tasks().prop_map(Reply::Tasks),
        prop::collection::vec(listed(), 0..4).prop_map(Reply::Listed),
        (tasks(), any::<[u64; 3]>(), any::<bool>()).prop_map(|(tasks, numbers, some)| {
            let [rank, compared, bytes] = numbers;
            let (ranks, last) = (vec![rank; tasks.len()], some.then_some(TaskId(rank)));
            Reply::Found(Found { tasks, ranks, compared, last, bytes })
        }),
        prop::collection::vec(position(), 0..4).prop_map(Reply::Positions),
        session().prop_map(Reply::Session),
        any::<usize>().prop_map(Reply::Ticked),
        schedule_reply().prop_map(Reply::Schedule),
    ]
}

pub fn error() -> impl Strategy<Value = Error> {
    let text = prop::sample::select(vec!["", "the number of tasks", "send less at once", "touch"]);
    let words = [text.clone(), text.clone()];
    let missing = words.clone();
    prop_oneof![
        tube().prop_map(Error::TubeNotFound),
        tube().prop_map(Error::TubeExists),
        (tube(), any::<u32>()).prop_map(|(tube, num)| Error::QueueNumTaken { tube, num }),
        tube().prop_map(Error::TubeHasTaken),
        tube().prop_map(Error::TubeHasConsumers),
        (tube(), any::<u64>()).prop_map(|(tube, capacity)| Error::TubeFull { tube, capacity }),
        any::<usize>().prop_map(Error::TooManyTubes),
        (tube(), any::<u64>()).prop_map(|(tube, id)| Error::TaskNotFound(tube, TaskId(id))),
        words.clone().prop_map(|[kind, verb]| Error::Unsupported { kind, verb }),
        ".{0,40}".prop_map(Error::Invalid),
        (words, any::<[usize; 2]>()).prop_map(|([what, advice], [size, limit])| {
            Error::TooLarge { what, size, limit, advice }
        }),
        session().prop_map(Error::SessionUnknown),
        text.prop_map(Error::Overloaded),
        ".{0,40}".prop_map(Error::Store),
        Just(Error::ShuttingDown),
        ".{0,40}".prop_map(Error::StoreUnavailable),
        ".{0,40}".prop_map(Error::OutcomeUnknown),
        schedule_name().prop_map(Error::ScheduleNotFound),
        schedule_name().prop_map(Error::ScheduleExists),
        any::<usize>().prop_map(Error::TooManySchedules),
        missing.prop_map(|[store, feature]| Error::MissingFeature { store, feature }),
    ]
}

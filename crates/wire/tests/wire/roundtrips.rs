//! The client's side: from the core's types to text and back, without a loss.

use serde::Serialize;
use serde::de::DeserializeOwned;
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::RETRY_DELAY_SECS_MAX;
use taskyard_core::{
    AfterFailure, Basis, Body, Calls, Command, Counts, Error, Estimate, Fail, Finish, FinishItem,
    Holder, Kind, Lease, NewTask, NoEstimate, Outcome, Placed, Position, Priority, RateLimit,
    Reason, RetryPolicy, ScheduleName, SessionId, Span, State, Take, Task, TaskId, Timestamp,
    TubeChange, TubeName, TubeOptions, TubeStats,
};
use taskyard_wire::Code;
use taskyard_wire::http::{
    self, AlterRequest, CreateRequest, DeleteRequest, DeliveryAnswer, ErrorAnswer, FinishAnswer,
    FinishRequest, Form, NameRequest, PeekRequest, PlacedTask, PutAnswer, PutRequest, QueueAnswer,
    TakeRequest, TaskAnswer, TubeAnswer,
};

use crate::answers::{taken_task, tube};

/// Serializes and parses again.
fn sent<T: Serialize + DeserializeOwned>(shape: T) -> T {
    http::parse_answer(&serde_json::to_vec(&shape).unwrap()).unwrap()
}

/// Payloads that lose something as JSON: wide integers, short floats, binary.
const ODD: [&[u8]; 4] = [b"\xcd\x00\x01", b"\xca\x3f\xc0\0\0", b"\xc4\x01x", b"\xc0"];

#[test]
fn a_put_is_sent_byte_for_byte() {
    let tasks = ODD.map(|payload| NewTask {
        pri: Some(u64::MAX),
        ttl: Some(Span::from_micros(1_001_000)),
        ttr: Some(Span::FOREVER),
        delay: Some(Span::from_micros(1)),
        at: Some(Timestamp::from_micros(1_700_000_000_123_457)),
        attempts_max: Some(u32::MAX),
        subqueue: Some("ключ".into()),
        semaphore_priority: Priority::new(-0.1).ok(),
        ..NewTask::new(Body::with_meta(payload, b"\x81\x01\x02"))
    });
    let put =
        Command::Put { tube: tube(), tasks: tasks.to_vec(), wait: Span::from_micros(333_333) };
    let request = sent(PutRequest::new(&tasks, Span::from_micros(333_333)));
    assert_eq!(request.into_command(tube()), Ok(put));

    let never = NewTask { at: Some(Timestamp::NEVER), ..NewTask::new(Body::new(ODD[3])) };
    let request = sent(PutRequest::new(std::slice::from_ref(&never), Span::ZERO));
    let put = Command::Put { tube: tube(), tasks: vec![never], wait: Span::ZERO };
    assert_eq!(request.into_command(tube()), Ok(put));

    let placed = vec![Placed { id: TaskId(1), state: State::Delayed, existing: false }];
    assert_eq!(sent(PutAnswer::new(&placed)).into_placed(), placed);
}

/// The position of a task stands beside its other fields, in the answers to a put and a peek.
#[test]
fn estimates_are_sent_beside_the_fields_of_a_task() {
    let reason = Position { estimate: Some(Err(NoEstimate::NoHistory)), ..Position::behind(7) };
    let (p50, p90) = (Span::from_micros(1_500_000), Span::from_secs(3));
    let estimate = Estimate { ahead: 8, p50, p90, basis: Basis::Delay };
    let known = Position { is_exact: false, estimate: Some(Ok(estimate)), ..reason.clone() };
    for position in [reason, known] {
        let queue = Some(Box::new(QueueAnswer::new(&position)));
        let (id, state, existing) = (17, State::Ready.into(), false);
        let placed = PlacedTask { id, state, existing, queue: queue.clone() };
        assert_eq!(sent(placed.clone()), placed);
        let task = TaskAnswer::with_reason(&taken_task(Body::new(ODD[2])), Form::Exact);
        let task = TaskAnswer { queue, ..task };
        assert_eq!(sent(task.clone()), task);
        let text = serde_json::to_value(&task).unwrap();
        assert_eq!((&text["ahead"], text.get("queue")), (&7.into(), None));
        let plain = TaskAnswer { queue: None, ..task };
        assert_eq!(sent(plain.clone()), plain);
    }
}

#[test]
fn a_put_may_ask_for_estimates() {
    let asks = |text: &str| http::parse::<PutRequest>(text.as_bytes()).map(|put| put.estimate);
    assert_eq!(asks(r#"{"data": 1}"#), Ok(false));
    assert_eq!(asks(r#"{"estimate": true, "tasks": [{"data": 1}]}"#), Ok(true));
    assert!(asks(r#"{"estimate": 1, "data": 1}"#).is_err());
    assert!(asks(r#"{"estimate": true, "data": 1, "estimate": true}"#).is_err());
    let task = NewTask::new(Body::new(ODD[3]));
    let request = PutRequest { estimate: true, ..PutRequest::new(&[task], Span::ZERO) };
    assert!(sent(request).estimate);
}

#[test]
fn a_take_is_sent_completely() {
    for lease in [None, Some(Span::from_micros(1_001_000)), Some(Span::FOREVER)] {
        let wait = Span::from_micros(290_000);
        let take = Take { tube: tube(), count: 17, session: None, lease, worker: None, wait };
        let request = sent(TakeRequest::new(&take).unwrap());
        assert_eq!(request.form(), Form::Exact);
        assert_eq!(request.into_command(tube()), Ok(Command::Take(take)));
    }
}

#[test]
fn a_task_is_returned_completely() {
    let due = Timestamp::from_micros(1_700_000_100_000_003);
    let states = [
        (State::Taken, Reason::Running),
        (State::Ready, Reason::WaitsForConsumer),
        (State::Ready, Reason::SubqueueBusy),
        (State::Delayed, Reason::Semaphore),
        (State::Ready, Reason::TubePaused),
        (State::Ready, Reason::Expired),
        (State::Ready, Reason::RateLimited(due)),
        (State::Delayed, Reason::NotDue(due)),
        (State::Delayed, Reason::NotDue(Timestamp::NEVER)),
        (State::Buried, Reason::Buried),
        (State::Buried, Reason::AttemptsUsedUp),
        (State::Done, Reason::Finished),
    ];
    for (state, reason) in states {
        let taken = state == State::Taken;
        let task = Task {
            state,
            reason,
            due: match reason {
                Reason::NotDue(due) => Some(due),
                _ => None,
            },
            expires: Timestamp::from_micros(1_700_000_000_000_007),
            ttr: Span::from_micros(7),
            previous_start: Some(Timestamp::from_micros(9)),
            attempts_max: Some(3),
            subqueue: Some("".into()),
            semaphore_priority: Priority::new(1e300).ok(),
            lease: taken.then_some(Lease(u64::MAX)),
            lease_until: taken.then_some(Timestamp::NEVER),
            ..taken_task(Body::with_meta(ODD[0], b"\x80"))
        };
        assert_eq!(sent(TaskAnswer::new(&task, Form::Exact)).into_task().as_ref(), Ok(&task));
        assert_eq!(sent(TaskAnswer::with_reason(&task, Form::Exact)).into_task(), Ok(task));
    }
}

#[test]
fn a_delivery_names_its_session() {
    let session =
        Some(SessionId(*b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"));
    let task = Task { session, body: None, ..taken_task(Body::new(b"\x01")) };
    let delivery = sent(DeliveryAnswer::new(&tube(), &task, true));
    assert_eq!(delivery.session.as_deref(), Some("04030201-0605-0807-090a-0b0c0d0e0f10"));
    assert_eq!(delivery.clone().into_task(), Ok(task));
    for wrong in ["", "zz", "+1", "04030201-0605-0807-090a-0b0c0d0e0f1000", "é"] {
        let delivery = DeliveryAnswer { session: Some(wrong.into()), ..delivery.clone() };
        assert!(matches!(delivery.into_task(), Err(Error::Store(_))), "{wrong}");
    }
}

#[test]
fn a_finish_is_sent_completely() {
    let by_policy = |default_delay| {
        let then = AfterFailure::Policy { seed: 0, default_delay };
        Finish::Fail(Box::new(Fail { error: "late".into(), then }))
    };
    let finishes = [
        Finish::Ack,
        Finish::Bury,
        Finish::Touch(Span::from_micros(1_001_000)),
        Finish::Release { delay: Span::ZERO, counted: true },
        Finish::Release { delay: Span::from_secs(3), counted: false },
        Finish::fail("no route", Some(Span::from_secs(4))),
        Finish::fail("broken", None),
        // The server draws the random number.
        by_policy(Span::ZERO),
        by_policy(Span::from_secs(5)),
    ];
    let holders = [Holder::Any, Holder::Lease(Lease(8))];
    let items: Vec<FinishItem> = finishes
        .into_iter()
        .flat_map(|finish| {
            holders.map(|holder| FinishItem { id: TaskId(5), holder, finish: finish.clone() })
        })
        .collect();
    let request = sent(FinishRequest::new(&items, true).unwrap());
    assert_eq!(
        request.into_command(tube()),
        Ok(Command::Finish { tube: tube(), items, show: true })
    );

    let done = Outcome::Done(Some(Box::new(taken_task(Body::new(ODD[1])))));
    let outcomes = vec![done, Outcome::Stale, Outcome::Missing];
    let answer = sent(FinishAnswer::new(&outcomes, Some(Form::Exact)));
    assert_eq!(answer.into_outcomes(), Ok(outcomes.clone()));
    let unshown = sent(FinishAnswer::new(&outcomes, None));
    let without_tasks = vec![Outcome::Done(None), Outcome::Stale, Outcome::Missing];
    assert_eq!(unshown.into_outcomes(), Ok(without_tasks));
}

#[test]
fn sessions_are_not_sent() {
    let session = SessionId([1; 16]);
    let take = Take {
        tube: tube(),
        count: 1,
        session: Some(session),
        lease: None,
        worker: None,
        wait: Span::ZERO,
    };
    assert!(matches!(TakeRequest::new(&take), Err(Error::Invalid(_))));
    let item = FinishItem { id: TaskId(1), holder: Holder::Session(session), finish: Finish::Ack };
    assert!(matches!(FinishRequest::new(&[item], false), Err(Error::Invalid(_))));
}

const RETRY: RetryPolicy = RetryPolicy {
    delay: Span::from_micros(1_001_001),
    factor_permille: 1_001,
    delay_max: Span::from_secs(RETRY_DELAY_SECS_MAX),
    jitter_permille: 999,
    retry_lost: true,
};
const RATE: RateLimit = RateLimit { count: 7, per: Span::from_micros(1_001), burst: 3 };

#[test]
fn tubes_are_sent_completely() {
    let options = TubeOptions {
        temporary: true,
        capacity: Some(u64::MAX),
        ttl: Some(Span::FOREVER),
        ttr: Some(Span::from_micros(1)),
        delay: Some(Span::ZERO),
        pri: 7,
        attempts_max: Some(u32::MAX),
        retry: Some(Box::new(RETRY)),
        rate: Some(Box::new(RATE)),
        ttl_kills_taken: true,
        paused: true,
        ..TubeOptions::new(Kind::UtubeTtl)
    };
    for options in [options.clone(), TubeOptions::new(Kind::Fifo)] {
        let create =
            Command::CreateTube { tube: tube(), options: options.clone(), if_not_exists: true };
        let request = sent(CreateRequest::new(&options, true));
        assert_eq!(request.into_command(tube()), Ok(create));

        let info = TubeInfo {
            name: tube(),
            number: 4,
            options,
            stats: TubeStats {
                tasks: Counts { ready: 1, taken: 2, buried: 3, delayed: 4, done: 5, kept: 6 },
                calls: Calls { ack: 1, delay: 2, ttr: 3, ..Calls::default() },
            },
            takeable: 1,
            next_wakeup: None,
            oldest_ready: Some(Timestamp::from_micros(9)),
        };
        assert_eq!(sent(TubeAnswer::new(&info, 0)).into_info(), Ok(info));
    }

    let change = TubeChange {
        capacity: Some(None),
        ttl: Some(Some(Span::from_micros(1_001_000))),
        delay: Some(None),
        pri: Some(0),
        ..TubeChange::default()
    };
    let removes = TubeChange { retry: Some(None), rate: Some(None), ..change.clone() };
    let (retry, rate) = (Some(Box::new(RETRY)), Some(Box::new(RATE)));
    let gives = TubeChange { retry: Some(retry), rate: Some(rate), ..change.clone() };
    let lost = RetryPolicy { retry_lost: false, ..RETRY };
    let loses = TubeChange { retry: Some(Some(Box::new(lost))), ..change.clone() };
    for change in [change, removes, gives, loses] {
        let request = sent(AlterRequest::new(&change));
        assert!(!request.needs_current_retry());
        let alter = Command::AlterTube { tube: tube(), change };
        assert_eq!(request.into_command(tube(), None), Ok(alter));
    }
}

#[test]
fn names_are_sent_completely() {
    let name = TubeName::new("letters").unwrap();
    for queue_num in [None, Some(1), Some(u32::MAX)] {
        let command = Command::NameTube { tube: tube(), name: name.clone(), queue_num };
        assert_eq!(sent(NameRequest::new(&name, queue_num)).into_command(tube()), Ok(command));
    }
    let bad = NameRequest { name: "a/b".into(), queue_num: None };
    assert!(matches!(bad.into_command(tube()), Err(Error::Invalid(_))));
}

#[test]
fn lists_of_ids_are_sent_completely() {
    let ids = vec![TaskId(0), TaskId(u64::MAX)];
    let delete = sent(DeleteRequest::new(&ids, true)).into_command(tube());
    assert_eq!(delete, Command::Delete { tube: tube(), ids: ids.clone(), show: true });
    let peek = sent(PeekRequest::new(&ids)).into_command(tube());
    assert_eq!(peek, Command::Peek { tube: tube(), ids });
}

#[test]
fn errors_are_restored() {
    let whole = [
        Error::TubeNotFound(tube()),
        Error::TubeExists(tube()),
        Error::QueueNumTaken { tube: tube(), num: u32::MAX },
        Error::TubeHasTaken(tube()),
        Error::TubeHasConsumers(tube()),
        Error::TubeFull { tube: tube(), capacity: 9 },
        Error::TooManyTubes(10_000),
        Error::TaskNotFound(tube(), TaskId(3)),
        Error::Unsupported { kind: "fifo", verb: "touch" },
        Error::Invalid("wrong".into()),
        Error::ScheduleNotFound(ScheduleName::new("täglich").unwrap()),
        Error::ScheduleExists(ScheduleName::new("daily").unwrap()),
        Error::TooManySchedules(100_000),
        Error::ShuttingDown,
    ];
    for error in whole {
        assert_eq!(sent(ErrorAnswer::from(&error)).into_error("touch"), error);
    }
    let missing = Error::MissingFeature { store: "redis", feature: "schedules" };
    let answer = sent(ErrorAnswer::from(&missing));
    assert_eq!(answer.code().map(Code::status), Some(501));
    assert_eq!(answer.into_error("put"), missing);
    let large = Error::TooLarge { what: "payload", size: 2, limit: 1, advice: "shrink it" };
    let answer = sent(ErrorAnswer::from(&large)).into_error("put");
    assert!(matches!(answer, Error::TooLarge { size: 2, limit: 1, .. }), "{answer:?}");
    let busy = sent(ErrorAnswer::from(&Error::Overloaded("queue"))).into_error("put");
    assert!(matches!(busy, Error::Overloaded(_)), "{busy:?}");
    let unknown = br#"{"error":{"code":"new","message":"later"}}"#;
    let unknown: ErrorAnswer = http::parse_answer(unknown).unwrap();
    assert_eq!(unknown.into_error("put"), Error::Store("later".into()));
}

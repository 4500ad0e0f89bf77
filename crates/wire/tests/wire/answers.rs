//! The JSON text of answers.

use serde::Serialize;
use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Body, Calls, Counts, Error, Kind, Lease, Outcome, Placed, Reason, Span, State, Task, TaskId,
    Timestamp, TubeName, TubeOptions, TubeStats,
};
use taskyard_wire::Code;
use taskyard_wire::http::{
    ConsumerAnswer, CreateAnswer, DeliveryAnswer, ErrorAnswer, FinishAnswer, Form, KickAnswer,
    NothingAnswer, PutAnswer, TaskAnswer, TasksAnswer, TubeAnswer,
};

fn text(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).unwrap()
}

pub(crate) fn tube() -> TubeName {
    TubeName::new("mail").unwrap()
}

pub(crate) fn taken_task(body: Body) -> Task {
    Task {
        key: None,
        id: TaskId(4),
        state: State::Taken,
        pri: 0,
        created: Timestamp::from_micros(1_700_000_000_000_001),
        due: None,
        expires: Timestamp::NEVER,
        ttr: Span::FOREVER,
        attempts: 1,
        start: Some(Timestamp::from_micros(1_700_000_001_500_000)),
        previous_start: None,
        subqueue: None,
        semaphore_priority: None,
        attempts_max: None,
        session: None,
        worker: None,
        failures: None,
        finished: None,
        lease: Some(Lease(77)),
        lease_until: Some(Timestamp::from_micros(1_700_000_061_500_000)),
        reason: Reason::Running,
        body: Some(body),
    }
}

#[test]
fn put_is_short() {
    let placed = [
        Placed { id: TaskId(0), state: State::Ready, existing: false },
        Placed { id: TaskId(1), state: State::Delayed, existing: false },
    ];
    assert_eq!(
        text(&PutAnswer::new(&placed)),
        r#"{"tasks":[{"id":0,"state":"ready"},{"id":1,"state":"delayed"}]}"#
    );
}

#[test]
fn take_shows_the_task() {
    let body = Body::with_meta(b"\x81\xa2to\xa3a@b", b"\x81\xa1v\x01");
    let answer = TasksAnswer::new(&[taken_task(body)], Form::Json);
    assert_eq!(
        text(&answer),
        concat!(
            r#"{"tasks":[{"id":4,"lease":77,"lease_until":1700000061.5,"attempts":1,"#,
            r#""state":"taken","pri":0,"created":1700000000.000001,"start":1700000001.5,"#,
            r#""meta":{"v":1},"data":{"to":"a@b"}}]}"#
        )
    );
    assert_eq!(text(&TasksAnswer { tasks: vec![] }), r#"{"tasks":[]}"#);
}

#[test]
fn values_that_json_cannot_represent_are_base64() {
    for (payload, form, expected) in [
        (&b"\xc4\x01x"[..], Form::Json, r#""data_base64":"xAF4"}"#),
        (b"\xc0", Form::Json, r#""data":null}"#),
        (b"\xc0", Form::Exact, r#""data_base64":"wA=="}"#),
        (b"\xff\xff", Form::Json, r#""data_base64":"//8="}"#),
    ] {
        let answer = text(&TaskAnswer::new(&taken_task(Body::new(payload)), form));
        assert!(answer.ends_with(expected), "{answer}");
    }
}

#[test]
fn a_peek_shows_the_reason() {
    let due = Timestamp::from_micros(1_700_000_100_000_000);
    let task = Task {
        state: State::Delayed,
        due: Some(due),
        reason: Reason::NotDue(due),
        lease: None,
        lease_until: None,
        start: None,
        ttr: Span::from_secs(5),
        ..taken_task(Body::new(b"\x01"))
    };
    assert_eq!(
        text(&TaskAnswer::with_reason(&task, Form::Json)),
        concat!(
            r#"{"id":4,"attempts":1,"state":"delayed","pri":0,"created":1700000000.000001,"#,
            r#""due":1700000100.0,"ttr":5.0,"reason":{"name":"not_due","#,
            r#""text":"not due yet","until":1700000100.0},"data":1}"#
        )
    );
}

#[test]
fn finish_gives_an_outcome_for_each() {
    let task = taken_task(Body::new(b"\x01"));
    let outcomes = [Outcome::Done(Some(Box::new(task))), Outcome::Stale, Outcome::Missing];
    assert_eq!(
        text(&FinishAnswer::new(&outcomes, None)),
        r#"{"done":1,"outcomes":["done","stale","missing"]}"#
    );
    let shown = text(&FinishAnswer::new(&outcomes, Some(Form::Json)));
    assert!(shown.contains(r#""tasks":[{"id":4,"#), "{shown}");
    assert!(shown.ends_with(r#""data":1},null,null]}"#), "{shown}");
}

#[test]
fn a_tube_always_shows_eighteen_counters() {
    let info = TubeInfo {
        name: tube(),
        number: 3,
        options: TubeOptions { capacity: Some(9), ..TubeOptions::new(Kind::LimFifoTtl) },
        stats: TubeStats {
            tasks: Counts { ready: 1, taken: 2, buried: 3, delayed: 4, done: 5, kept: 6 },
            calls: Calls { put: 15, ..Calls::default() },
        },
        takeable: 1,
        next_wakeup: Some(Timestamp::from_micros(1_500_000)),
        oldest_ready: Some(Timestamp::from_micros(250_000)),
    };
    assert_eq!(
        text(&TubeAnswer::new(&info, 2)),
        concat!(
            r#"{"name":"mail","number":3,"kind":"limfifottl","temporary":false,"capacity":9,"#,
            r#""pri":0,"ttl_kills_taken":false,"paused":false,"takeable":1,"consumers":2,"#,
            r#""next_wakeup":1.5,"oldest_ready":0.25,"#,
            r#""tasks":{"ready":1,"taken":2,"buried":3,"delayed":4,"done":5,"kept":6,"total":10},"#,
            r#""calls":{"ack":0,"bury":0,"delete":0,"kick":0,"put":15,"release":0,"take":0,"#,
            r#""touch":0,"ttl":0,"ttr":0,"delay":0}}"#
        )
    );
}

#[test]
fn the_small_answers() {
    assert_eq!(text(&NothingAnswer {}), "{}");
    assert_eq!(text(&KickAnswer { kicked: 2 }), r#"{"kicked":2}"#);
    assert_eq!(text(&CreateAnswer { created: true }), r#"{"created":true}"#);
    let task = Task { body: None, ..taken_task(Body::new(b"\x01")) };
    assert_eq!(
        text(&DeliveryAnswer::new(&tube(), &task, false)),
        r#"{"tube":"mail","id":4,"lease":77,"time":1700000001.5,"until":1700000061.5}"#
    );
    let waiting = ConsumerAnswer::new(&tube(), Timestamp::from_micros(500_000), Timestamp::NEVER);
    assert_eq!(text(&waiting), r#"{"tube":"mail","since":0.5}"#);
}

#[test]
fn errors_have_a_code_and_an_advice() {
    let full = Error::TubeFull { tube: tube(), capacity: 3 };
    assert_eq!(
        text(&ErrorAnswer::from(&full)),
        concat!(
            r#"{"error":{"code":"tube_full","message":"tube 'mail' is full (capacity 3); take some "#,
            r#"tasks, raise its capacity, or put fewer at once","tube":"mail","limit":3}}"#
        )
    );
    let wrong = ErrorAnswer::new(Code::Unauthorized, "give the token with --token");
    assert_eq!(
        text(&wrong),
        r#"{"error":{"code":"unauthorized","message":"give the token with --token"}}"#
    );
    assert_eq!(Code::of(&full).status(), 429);
    assert_eq!(Code::of(&Error::Store("disk full".into())).status(), 503);
}

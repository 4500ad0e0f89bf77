//! The JSON text of requests, and their commands.

use serde::de::DeserializeOwned;
use taskyard_core::limits::META_BYTES_MAX;
use taskyard_core::{
    AfterFailure, Body, Command, Error, Fail, Finish, FinishItem, Holder, Kind, Lease, NewTask,
    Priority, Span, Take, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};
use taskyard_wire::http::{
    self, AckRequest, AlterRequest, BuryRequest, CreateRequest, DeleteRequest, FinishRequest,
    KickRequest, PeekRequest, PutRequest, ReleaseRequest, TakeRequest, TouchRequest,
};

fn tube() -> TubeName {
    TubeName::new("mail").unwrap()
}

/// Parses the request and converts it to a command.
fn command_of<T: DeserializeOwned>(
    json: &str,
    into: impl FnOnce(T, TubeName) -> Result<Command, Error>,
) -> Result<Command, Error> {
    into(http::parse(json.as_bytes())?, tube())
}

fn put(json: &str) -> Result<Command, Error> {
    command_of(json, PutRequest::into_command)
}

fn take(json: &str) -> Result<Command, Error> {
    command_of(json, TakeRequest::into_command)
}

/// The request is refused as the caller's error, with these words.
#[track_caller]
fn refused(answer: Result<Command, Error>, words: &str) {
    match answer {
        Err(Error::Invalid(message)) => assert!(message.contains(words), "{message}"),
        other => panic!("not refused: {other:?}"),
    }
}

fn tasks_of(command: Command) -> Vec<NewTask> {
    match command {
        Command::Put { tasks, .. } => tasks,
        other => panic!("{other:?}"),
    }
}

#[test]
fn put_one() {
    let command = put(r#"{"data": {"to": "a@b"}, "pri": 3, "ttl": 1.5, "ttr": 60, "delay": 0.001,
        "at": 1700000000.25, "utube": "a", "semaphore_priority": -2.5, "meta": {"trace": "x"}, "timeout": 2}"#);
    let body = Body::with_meta(b"\x81\xa2to\xa3a@b", b"\x81\xa5trace\xa1x");
    let task = NewTask {
        pri: Some(3),
        ttl: Some(Span::from_micros(1_500_000)),
        ttr: Some(Span::from_secs(60)),
        delay: Some(Span::from_micros(1_000)),
        at: Some(Timestamp::from_micros(1_700_000_000_250_000)),
        subqueue: Some("a".into()),
        semaphore_priority: Priority::new(-2.5).ok(),
        ..NewTask::new(body)
    };
    let wait = Span::from_secs(2);
    assert_eq!(command, Ok(Command::Put { tube: tube(), tasks: vec![task], wait }));
}

#[test]
fn put_several() {
    let command = put(r#"{"tasks": [{"data": 1}, {"data": null}, {"data_base64": "xAF4"}]}"#);
    let bodies = [&b"\x01"[..], b"\xc0", b"\xc4\x01x"];
    let tasks = bodies.map(|body| NewTask::new(Body::new(body))).to_vec();
    assert_eq!(command, Ok(Command::Put { tube: tube(), tasks, wait: Span::ZERO }));
    assert_eq!(tasks_of(put(r#"{"tasks": []}"#).unwrap()), vec![]);
}

#[test]
fn put_needs_exactly_one_payload() {
    refused(put(""), "needs 'data'");
    refused(put(r#"{"pri": 1}"#), "needs 'data'");
    refused(put(r#"{"tasks": [{}]}"#), "needs 'data'");
    refused(put(r#"{"data": 1, "data_base64": "AQ=="}"#), "both 'data' and 'data_base64'");
    refused(put(r#"{"data": null, "data_base64": "AQ=="}"#), "both 'data' and 'data_base64'");
    refused(put(r#"{"data": 1, "tasks": []}"#), "both 'tasks' and");
    refused(put(r#"{"pri": 1, "tasks": [{"data": 1}]}"#), "both 'tasks' and");
    refused(put(r#"{"data": 1, "data": 2}"#), "duplicate field");
    refused(put(r#"{"tasks": [], "tasks": []}"#), "duplicate field `tasks`");
    assert_eq!(put(r#"{"d\u0061ta": 1, "tim\u0065out": 0}"#), put(r#"{"data": 1}"#));
}

#[test]
fn put_refuses_unknown_fields() {
    refused(put(r#"{"data": 1, "priority": 1}"#), "unknown field `priority`");
    let known = "unknown field `taks`, expected one of `tasks`, `timeout`, `estimate`, `data`, `data_base64`";
    refused(put(r#"{"taks": []}"#), known);
    refused(put(r#"{"tasks": [{"data": 1, "dealy": 1}]}"#), "unknown field `dealy`");
    refused(put(r#"{"data": 1, "pri": -1}"#), "-1 is not a whole number");
    refused(put(r#"{"data": 1, "pri": 1.5}"#), "1.5 is not a whole number");
    refused(put(r#"{"data": 1, "pri": 18446744073709551616}"#), "not a whole number");
    refused(put(r#"[1]"#), "cannot be read");
    refused(put(r#"{"data": }"#), "line 1 column");
    refused(put("{\"data\": \"\u{fffd}\"} trailing"), "trailing characters");
    refused(command_of("\u{feff}{}", PutRequest::into_command), "cannot be read");
}

#[test]
fn put_refuses_wrong_times() {
    refused(put(r#"{"data": 1, "ttl": -1}"#), "'ttl' is -1; give a number of seconds");
    refused(put(r#"{"data": 1, "delay": -0.001}"#), "'delay' is -0.001");
    refused(put(r#"{"data": 1, "timeout": -5}"#), "'timeout'");
    refused(put(r#"{"data": 1, "at": -1}"#), "seconds since 1970");
    refused(put(r#"{"data": 1, "ttl": NaN}"#), "cannot be read");
    refused(put(r#"{"data": 1, "ttl": 1e999}"#), "cannot be read");
    refused(put(r#"{"data": 1, "ttl": "5"}"#), "expected a number");
    let task = tasks_of(put(r#"{"data": 1, "ttl": 1e300, "at": 1e300}"#).unwrap()).remove(0);
    assert_eq!((task.ttl, task.at), (Some(Span::FOREVER), Some(Timestamp::NEVER)));
}

#[test]
fn put_refuses_wrong_payloads() {
    let deep = format!(r#"{{"data": {}{}}}"#, "[".repeat(65), "]".repeat(65));
    refused(put(&deep), "nested deeper than 64 levels");
    refused(put(r#"{"data": 123456789012345678901}"#), "does not fit in 64 bits");
    refused(put(r#"{"data": "\ud800"}"#), "hex escape at line 1 column 18");
    refused(put(r#"{"data_base64": "AQ"}"#), "not base64");
    refused(put(r#"{"data_base64": "A_=="}"#), "not base64");
    refused(put(r#"{"data_base64": ""}"#), "cut short");
    refused(put(r#"{"data_base64": "AQE="}"#), "1 bytes follow");
    let not_utf8 = http::parse::<PutRequest>(b"{\"data\": \"\xff\"}");
    assert!(matches!(not_utf8, Err(Error::Invalid(_))), "{not_utf8:?}");
}

#[test]
fn meta_is_a_small_object() {
    refused(put(r#"{"data": 1, "meta": [1]}"#), "'meta' must be an object");
    refused(put(r#"{"data": 1, "meta_base64": "AQ=="}"#), "'meta' must be an object");
    let meta =
        |length| put(&format!(r#"{{"data": 1, "meta": {{"a": "{}"}}}}"#, "x".repeat(length)));
    let most = META_BYTES_MAX - 6;
    assert_eq!(tasks_of(meta(most).unwrap())[0].body.meta().unwrap().len(), META_BYTES_MAX);
    assert!(matches!(meta(most + 1), Err(Error::TooLarge { what: "meta", .. })));
    let none = tasks_of(put(r#"{"data": 1, "meta": null}"#).unwrap()).remove(0);
    assert_eq!(none.body.meta(), None);
}

#[test]
fn take_defaults() {
    let default = Take {
        tube: tube(),
        count: 1,
        session: None,
        lease: Some(Span::from_secs(60)),
        worker: None,
        wait: Span::ZERO,
    };
    assert_eq!(take(""), Ok(Command::Take(default.clone())));
    assert_eq!(take("{}"), Ok(Command::Take(default.clone())));
    let own_ttr = Take { lease: None, ..default.clone() };
    assert_eq!(take(r#"{"lease": null}"#), Ok(Command::Take(own_ttr)));
    let full = Take { count: 10_000, wait: Span::from_micros(500_000), ..default };
    assert_eq!(take(r#"{"count": 10000, "wait": 0.5}"#), Ok(Command::Take(full)));
}

#[test]
fn take_refuses() {
    refused(take(r#"{"count": 0}"#), "'count' is 0; ask for 1 to 10000");
    refused(take(r#"{"count": 10001}"#), "ask for 1 to 10000");
    refused(take(r#"{"count": 1.5}"#), "1.5 is not a whole number");
    refused(take(r#"{"wait": -1}"#), "'wait' is -1");
    refused(take(r#"{"lease": 0}"#), "'lease' is 0");
    refused(take(r#"{"timeout": 1}"#), "unknown field `timeout`");
}

fn item(id: u64, lease: Option<u64>, finish: Finish) -> FinishItem {
    let holder = lease.map_or(Holder::Any, |lease| Holder::Lease(Lease(lease)));
    FinishItem { id: TaskId(id), holder, finish }
}

fn items(items: &[FinishItem]) -> Result<Command, Error> {
    Ok(Command::Finish { tube: tube(), items: items.to_vec(), show: false })
}

#[test]
fn finish_one_or_several() {
    let one = r#"{"id": 7, "lease": 9}"#;
    let several = r#"{"tasks": [{"id": 7, "lease": 9}, {"id": 8}]}"#;
    let pair = |finish: Finish| items(&[item(7, Some(9), finish.clone()), item(8, None, finish)]);
    assert_eq!(command_of(one, AckRequest::into_command), items(&[item(7, Some(9), Finish::Ack)]));
    assert_eq!(command_of(several, AckRequest::into_command), pair(Finish::Ack));
    assert_eq!(command_of(several, BuryRequest::into_command), pair(Finish::Bury));
    let release = Finish::Release { delay: Span::ZERO, counted: true };
    assert_eq!(command_of(several, ReleaseRequest::into_command), pair(release));
    let later = Finish::Release { delay: Span::from_secs(5), counted: false };
    let json = r#"{"id": 1, "delay": 5, "counted": false}"#;
    assert_eq!(command_of(json, ReleaseRequest::into_command), items(&[item(1, None, later)]));
    let touch = Finish::Touch(Span::from_secs(30));
    let json = r#"{"id": 1, "lease": 2, "seconds": 30}"#;
    assert_eq!(command_of(json, TouchRequest::into_command), items(&[item(1, Some(2), touch)]));
    assert_eq!(command_of(r#"{"tasks": []}"#, AckRequest::into_command), items(&[]));
}

#[test]
fn finish_refuses() {
    let ack = |json| command_of(json, AckRequest::into_command);
    refused(ack(""), "no task is named");
    refused(ack(r#"{"lease": 1}"#), "no task is named");
    refused(ack(r#"{"id": 1, "tasks": []}"#), "both 'tasks' and one task");
    refused(ack(r#"{"lease": 1, "tasks": []}"#), "both 'tasks' and one task");
    refused(ack(r#"{"ids": [1]}"#), "unknown field `ids`");
    refused(ack(r#"{"id": "1"}"#), "expected a whole number");
    refused(command_of(r#"{"id": 1}"#, TouchRequest::into_command), "missing field `seconds`");
    refused(
        command_of(r#"{"id": 1, "seconds": -1}"#, TouchRequest::into_command),
        "'seconds' is -1",
    );
    refused(command_of(r#"{"id": 1, "delay": -1}"#, ReleaseRequest::into_command), "'delay' is -1");
}

#[test]
fn finish_in_different_ways_at_once() {
    let finish = |json| command_of(json, FinishRequest::into_command);
    let json = r#"{"tasks": [{"verb": "ack", "id": 1, "lease": 4}, {"verb": "bury", "id": 2},
        {"verb": "release", "id": 3, "delay": 1}, {"verb": "touch", "id": 4, "seconds": 9}]}"#;
    let expected = [
        item(1, Some(4), Finish::Ack),
        item(2, None, Finish::Bury),
        item(3, None, Finish::Release { delay: Span::from_secs(1), counted: true }),
        item(4, None, Finish::Touch(Span::from_secs(9))),
    ];
    assert_eq!(finish(json), items(&expected));
    refused(finish(r#"{"tasks": [{"verb": "touch", "id": 1}]}"#), "'touch' needs 'seconds'");
    refused(
        finish(r#"{"tasks": [{"verb": "ack", "id": 1, "delay": 1}]}"#),
        "'ack' may have 'result'",
    );
    let with_result = r#"{"tasks": [{"verb": "ack", "id": 1, "result": {"sent": 1}}]}"#;
    let result = b"\x81\xa4sent\x01";
    assert_eq!(finish(with_result), items(&[item(1, None, Finish::ack_with(result))]));
    refused(finish(r#"{"tasks": [{"verb": "bury", "id": 1, "result": 1}]}"#), "only 'ack'");
    refused(finish(r#"{"tasks": [{"verb": "eat", "id": 1}]}"#), "unknown variant `eat`");
}

#[test]
fn tubes_are_created() {
    let create = |json: &str| command_of(json, CreateRequest::into_command);
    let made =
        |options, if_not_exists| Ok(Command::CreateTube { tube: tube(), options, if_not_exists });
    assert_eq!(create(""), made(TubeOptions::new(Kind::FifoTtl), false));
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::LimFifoTtl) {
        let json = format!(r#"{{"kind": "{}"}}"#, kind.name());
        assert_eq!(create(&json), made(TubeOptions::new(kind), false));
    }
    let options = TubeOptions {
        temporary: true,
        capacity: Some(5),
        ttl: Some(Span::from_micros(100_000)),
        attempts_max: Some(3),
        ttl_kills_taken: true,
        ..TubeOptions::new(Kind::LimFifoTtl)
    };
    let json = r#"{"kind": "limfifottl", "temporary": true, "capacity": 5, "ttl": 0.1,
        "attempts_max": 3, "ttl_kills_taken": true, "if_not_exists": true}"#;
    assert_eq!(create(json), made(options, true));
    refused(create(r#"{"kind": "lifo"}"#), "unknown variant `lifo`, expected one of `fifo`");
    refused(create(r#"{"ttr": -2}"#), "'ttr' is -2");
    refused(create(r#"{"if_not_exist": true}"#), "unknown field");
}

#[test]
fn tubes_are_changed_and_null_differs_from_absent() {
    let alter =
        |json| command_of(json, |request: AlterRequest, tube| request.into_command(tube, None));
    let changed = |change| Ok(Command::AlterTube { tube: tube(), change });
    assert_eq!(alter("{}"), changed(TubeChange::default()));
    let json = r#"{"paused": true, "capacity": null, "ttl": 5, "ttr": null, "attempts_max": null}"#;
    let change = TubeChange {
        paused: Some(true),
        capacity: Some(None),
        ttl: Some(Some(Span::from_secs(5))),
        ttr: Some(None),
        attempts_max: Some(None),
        ..TubeChange::default()
    };
    assert_eq!(alter(json), changed(change));
    refused(alter(r#"{"kind": "fifo"}"#), "unknown field `kind`");
    refused(alter(r#"{"delay": -1}"#), "'delay' is -1");
}

#[test]
fn the_small_verbs() {
    let plain = |command| Ok::<_, Error>(command);
    let kick =
        |json| command_of(json, |request: KickRequest, tube| plain(request.into_command(tube)));
    assert_eq!(kick(""), Ok(Command::Kick { tube: tube(), count: 1 }));
    assert_eq!(kick(r#"{"count": 5}"#), Ok(Command::Kick { tube: tube(), count: 5 }));
    refused(kick(r#"{"count": -1}"#), "-1 is not a whole number");

    let ids = vec![TaskId(1), TaskId(2)];
    let delete =
        |json| command_of(json, |request: DeleteRequest, tube| plain(request.into_command(tube)));
    assert_eq!(
        delete(r#"{"ids": [1, 2]}"#),
        Ok(Command::Delete { tube: tube(), ids: ids.clone(), show: false })
    );
    refused(delete("{}"), "missing field `ids`");
    let peek =
        |json| command_of(json, |request: PeekRequest, tube| plain(request.into_command(tube)));
    assert_eq!(peek(r#"{"ids": [1, 2]}"#), Ok(Command::Peek { tube: tube(), ids }));
}

#[test]
fn only_a_failure_has_a_default_delay() {
    let finish = |json: &str| command_of(json, FinishRequest::into_command);
    for verb in ["ack", "bury", "release", "touch"] {
        let item = format!(r#"{{"verb": "{verb}", "id": 1, "default_delay": 5}}"#);
        refused(finish(&format!(r#"{{"tasks": [{item}]}}"#)), "default_delay");
    }
    let fail = |delays: &str| {
        let item = format!(r#"{{"verb": "fail", "id": 1, "error": "late", {delays}}}"#);
        match finish(&format!(r#"{{"tasks": [{item}]}}"#)) {
            Ok(Command::Finish { mut items, .. }) => items.remove(0).finish,
            other => panic!("{other:?}"),
        }
    };
    let then = |then| Finish::Fail(Box::new(Fail { error: "late".into(), then }));
    let default_delay = Span::from_secs(5);
    let by_policy = then(AfterFailure::Policy { seed: 0, default_delay });
    assert_eq!(fail(r#""default_delay": 5"#), by_policy);
    assert_eq!(
        fail(r#""delay": 2, "default_delay": 5"#),
        then(AfterFailure::Retry(Span::from_secs(2)))
    );
}

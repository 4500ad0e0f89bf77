//! Parsing of calls: names and valid arguments.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, ScheduleName,
    SessionId, Span, State, StateSet, Take, TaskId, TubeName, TubeOptions,
};
use taskyard_iproto::{
    Call, CallAction, CallContext, EXECUTE, RUN_SCHEDULE, RecentTubes, ReplyForm, encode_commands,
    parse_call, parse_call_with,
};

use crate::hex::{QUEUE, SESSION, args, hex};

fn tube() -> TubeName {
    TubeName::new("t").unwrap()
}

/// The call of a method of the tube `t`.
fn method(name: &str, arguments: &str) -> Call {
    parse_call(QUEUE, &format!("queue.tube.t:{name}"), &args(arguments)).unwrap()
}

fn function(name: &str, arguments: &str) -> CallAction {
    parse_call(QUEUE, &format!("queue.{name}"), &args(arguments)).unwrap().action
}

fn command(command: Command, form: ReplyForm) -> CallAction {
    CallAction::Command(command, form)
}

/// Puts these tasks into the tube `t`.
fn put_command(tasks: Vec<NewTask>, wait: Span) -> Command {
    Command::Put { tube: tube(), tasks, wait }
}

/// Takes from the tube `t`.
fn take_command(count: usize, wait: Span) -> Command {
    Command::Take(Take {
        tube: tube(),
        count,
        session: Some(SESSION),
        lease: None,
        worker: None,
        wait,
    })
}

/// Finishes these tasks of the tube `t`.
fn finish_command(ids: &[u64], holder: Holder, finish: Finish) -> Command {
    let items = ids.iter().map(|id| FinishItem { id: TaskId(*id), holder, finish: finish.clone() });
    let items = items.collect();
    Command::Finish { tube: tube(), items, show: true }
}

/// The task of a put with these arguments, and its wait.
fn put(arguments: &str) -> (NewTask, Span) {
    match method("put", arguments).action {
        CallAction::Command(Command::Put { mut tasks, wait, .. }, ReplyForm::Task) => {
            assert_eq!(tasks.len(), 1);
            (tasks.remove(0), wait)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_put_keeps_its_data_byte_for_byte() {
    for data in [
        "c0",
        "cc05",
        "cf0000000000000005",
        "cb4049000000000000",
        "c403 010203",
        "d9 03 ff fe fd",
        "d6 01 00000000",
        "de0001 a161 dd00000001 c7 02 05 0101",
        "90",
    ] {
        for list in ["91", "dc0001", "dd00000001"] {
            let arguments = hex(&format!("{list} {data}"));
            let call = parse_call(QUEUE, "queue.tube.t:put", &arguments).unwrap();
            let task = NewTask::new(Body::new(&hex(data)));
            let put = put_command(vec![task], Span::ZERO);
            assert_eq!(call.action, command(put, ReplyForm::Task), "{data}");
        }
    }
}

#[test]
fn options_may_be_missing_in_four_ways() {
    let plain = NewTask::new(Body::new(&[0x01]));
    for arguments in ["[1]", "[1, {}]", "[1, []]", "[1, null]", r#"[1, {"ttl": null}, 7]"#] {
        assert_eq!(put(arguments), (plain.clone(), Span::ZERO), "{arguments}");
    }
    // A list holds no names, and unknown names are ignored.
    assert_eq!(put("[1, [5, 6]]").0, plain);
    assert_eq!(put(r#"[1, {"other": {"deep": [1]}, "x": 1}]"#).0, plain);
}

#[test]
fn options_of_a_put() {
    let (task, wait) =
        put(r#"[1, {"pri": 5, "ttl": 1.5, "ttr": 60, "delay": 0.25, "utube": "k", "timeout": 2}]"#);
    assert_eq!(wait, Span::from_secs(2));
    assert_eq!(task.pri, Some(5));
    assert_eq!(task.ttl, Some(Span::from_micros(1_500_000)));
    assert_eq!(task.ttr, Some(Span::from_secs(60)));
    assert_eq!(task.delay, Some(Span::from_micros(250_000)));
    assert_eq!(task.subqueue.as_deref(), Some("k"));
    assert_eq!(task.at, None);
    // Go sends all numbers as floats.
    assert_eq!(put(r#"[1, {"pri": 5.0}]"#).0.pri, Some(5));
    for (number, value) in [("-2", -2.0), ("2.5", 2.5)] {
        let (task, _) = put(&format!(r#"[1, {{"semaphore_priority": {number}}}]"#));
        assert_eq!(task.semaphore_priority.map(|priority| priority.value()), Some(value));
    }
}

#[test]
fn times_are_limited_to_the_range_of_a_span() {
    let ttl = |seconds: &str| put(&format!(r#"[1, {{"ttl": {seconds}}}]"#)).0.ttl;
    assert_eq!(ttl("-1"), Some(Span::ZERO));
    assert_eq!(ttl("-1e300"), Some(Span::ZERO));
    assert_eq!(ttl("1.5768e16"), Some(Span::FOREVER));
    assert_eq!(ttl("18446744073709551615"), Some(Span::FOREVER));
    let nan = hex("92 01 81 a374746c cb7ff8000000000000");
    let call = parse_call(QUEUE, "queue.tube.t:put", &nan).unwrap();
    let task = NewTask { ttl: Some(Span::ZERO), ..NewTask::new(Body::new(&[0x01])) };
    let put = put_command(vec![task], Span::ZERO);
    assert_eq!(call.action, command(put, ReplyForm::Task));
}

#[test]
fn a_sub_queue_is_named_as_lua_prints_values() {
    let key = |value: &str| put(&format!(r#"[1, {{"utube": {value}}}]"#)).0.subqueue;
    for (value, text) in [
        (r#""""#, ""),
        ("7", "7"),
        ("7.0", "7"),
        ("-7", "-7"),
        ("1.5", "1.5"),
        ("true", "true"),
        ("false", "false"),
        ("18446744073709551615", "18446744073709551615"),
        ("1e300", "1e300"),
        (r#""почта""#, "почта"),
    ] {
        assert_eq!(key(value).as_deref(), Some(text), "{value}");
    }
    assert_eq!(key("null"), None);
}

#[test]
fn how_long_a_take_waits() {
    for (arguments, wait) in [
        ("[]", Span::FOREVER),
        ("[null]", Span::FOREVER),
        ("[0]", Span::ZERO),
        ("[-5]", Span::ZERO),
        ("[0.1]", Span::from_micros(100_000)),
        ("[1e30]", Span::FOREVER),
    ] {
        let take = command(take_command(1, wait), ReplyForm::Task);
        assert_eq!(method("take", arguments).action, take, "{arguments}");
    }
}

#[test]
fn ids_have_any_width() {
    for id in [
        "05",
        "cc05",
        "cd0005",
        "ce00000005",
        "cf0000000000000005",
        "d005",
        "cb4014000000000000",
        "ca40a00000",
    ] {
        let call = parse_call(QUEUE, "queue.tube.t:ack", &hex(&format!("91 {id}"))).unwrap();
        let ack = finish_command(&[5], Holder::Session(SESSION), Finish::Ack);
        assert_eq!(call.action, command(ack, ReplyForm::HeldTask), "{id}");
    }
}

#[test]
fn the_other_methods() {
    let finish = |finish| {
        command(finish_command(&[3], Holder::Session(SESSION), finish), ReplyForm::HeldTask)
    };
    let release = |delay| finish(Finish::Release { delay, counted: true });
    let nothing = || command(Command::Tubes { tube: Some(tube()) }, ReplyForm::Empty);
    let kick =
        |count, asked| command(Command::Kick { tube: tube(), count }, ReplyForm::Kicked(asked));
    let existing = |existing| command(existing, ReplyForm::ExistingTask(TaskId(3)));
    let ids = vec![TaskId(3)];
    for (name, arguments, expected) in [
        ("release", "[3]", release(Span::ZERO)),
        ("release", "[3, {}]", release(Span::ZERO)),
        ("release", "[3, []]", release(Span::ZERO)),
        ("release", r#"[3, {"delay": 2, "ttl": "x", "pri": -1}]"#, release(Span::from_secs(2))),
        ("touch", "[3, 1.5]", finish(Finish::Touch(Span::from_micros(1_500_000)))),
        ("touch", "[3, 1e12]", finish(Finish::Touch(Span::FOREVER))),
        ("touch", "[3]", nothing()),
        ("touch", "[3, 0]", nothing()),
        ("touch", "[3, -1]", nothing()),
        ("touch", "[3, null]", nothing()),
        ("bury", "[3]", existing(finish_command(&[3], Holder::Any, Finish::Bury))),
        ("kick", "[]", kick(1, 1)),
        ("kick", "[0]", kick(0, 0)),
        ("kick", "[-1]", kick(0, -1)),
        ("kick", "[7.0]", kick(7, 7)),
        ("kick", "[18446744073709551615]", kick(i64::MAX as u64, i64::MAX)),
        ("peek", "[3]", existing(Command::Peek { tube: tube(), ids: ids.clone() })),
        ("delete", "[3]", existing(Command::Delete { tube: tube(), ids, show: true })),
        ("truncate", "[]", command(Command::Truncate { tube: tube() }, ReplyForm::Empty)),
        ("release_all", "[]", command(Command::ReleaseAll { tube: tube() }, ReplyForm::Empty)),
        ("drop", "[]", command(Command::DropTube { tube: tube() }, ReplyForm::True)),
    ] {
        let call = method(name, arguments);
        assert_eq!(call.action, expected, "{name}{arguments}");
        assert_eq!(call.function, name);
        assert_eq!(call.tube().map(TubeName::as_str), Some("t"));
    }
}

#[test]
fn batch_methods() {
    let call = method("put_many", r#"[[["a"], ["b", {"pri": 2, "timeout": 3}], [null, []]]]"#);
    let mut second = NewTask::new(Body::new(b"\xa1b"));
    second.pri = Some(2);
    let tasks = vec![NewTask::new(Body::new(b"\xa1a")), second, NewTask::new(Body::new(&[0xc0]))];
    assert_eq!(call.function, "put_many");
    let put = put_command(tasks, Span::from_secs(3));
    assert_eq!(call.action, command(put, ReplyForm::Tasks));
    for (arguments, wait) in [("[10]", Span::FOREVER), ("[10, 0]", Span::ZERO)] {
        let take = command(take_command(10, wait), ReplyForm::Tasks);
        assert_eq!(method("take_many", arguments).action, take);
    }
    let ack = |ids: &[u64]| {
        let ack = finish_command(ids, Holder::Session(SESSION), Finish::Ack);
        command(ack, ReplyForm::Tasks)
    };
    assert_eq!(method("ack_many", "[[0, 5, 2.0]]").action, ack(&[0, 5, 2]));
    assert_eq!(method("ack_many", "[[]]").action, ack(&[]));
    let most = format!("[[{}]]", vec!["1"; BATCH_TASKS_MAX].join(","));
    assert_eq!(method("ack_many", &most).action, ack(&[1; BATCH_TASKS_MAX]));
}

#[test]
fn a_list_has_states_a_limit_and_a_beginning() {
    let buried = StateSet::EMPTY.with(State::Buried);
    for (arguments, states, after, limit) in [
        ("[]", StateSet::UNFINISHED, None, 100),
        ("[[]]", StateSet::UNFINISHED, None, 100),
        (r#"[{"state": "buried"}]"#, buried, None, 100),
        (r#"[{"state": "ready, buried", "limit": 7}]"#, buried.with(State::Ready), None, 7),
        (r#"[{"after": 5, "limit": 1000}]"#, StateSet::UNFINISHED, Some(TaskId(5)), 1000),
    ] {
        let order = ListOrder::Id { states, after };
        let list = Command::List(List { tube: tube(), order, limit, key: None });
        let call = method("list", arguments);
        assert_eq!(call.action, command(list, ReplyForm::TaskPage), "{arguments}");
        assert_eq!(call.tube().map(TubeName::as_str), Some("t"));
    }
}

#[test]
fn functions_of_the_queue() {
    let named = command(Command::Tubes { tube: Some(tube()) }, ReplyForm::Statistics);
    let all = |form| command(Command::Tubes { tube: None }, form);
    assert_eq!(function("statistics", r#"["t"]"#), named);
    assert_eq!(function("stats", r#"["t"]"#), named);
    assert_eq!(function("stats", "[]"), all(ReplyForm::AllStatistics));
    assert_eq!(function("stats", "[null]"), all(ReplyForm::AllStatistics));
    assert_eq!(function("state", "[]"), CallAction::State);
    let (name, version) = (Some("web1:7:mailer".into()), Some("1.2.0-rc.1".into()));
    assert_eq!(function("worker", "[]"), CallAction::Worker { name: None, version: None });
    let named = CallAction::Worker { name, version: None };
    assert_eq!(function("worker", r#"["web1:7:mailer"]"#), named);
    assert_eq!(function("worker", r#"["web1:7:mailer", {"other": 1}]"#), named);
    let with_version = CallAction::Worker { name: None, version };
    assert_eq!(function("worker", r#"[null, {"version": "1.2.0-rc.1"}]"#), with_version);
    assert_eq!(function("identify", "[]"), CallAction::Identify { session: None });
    assert_eq!(function("tube", "[]"), all(ReplyForm::TubeNames));
    assert_eq!(function("tube", r#"["a/b"]"#), CallAction::TubeExists { name: "a/b".into() });
    assert_eq!(function("cfg", "[]"), CallAction::NoSettings);
    assert_eq!(function("cfg", "[{}]"), CallAction::NoSettings);
    assert_eq!(
        function("cfg", r#"[{"ttr": 0.5, "in_replicaset": false}]"#),
        command(Command::ConfigureSessions { ttr: Span::from_micros(500_000) }, ReplyForm::Empty)
    );
    let session = Some(SessionId([0xff; 16]));
    for form in ["b0", "d910", "c410"] {
        let arguments = hex(&format!("91 {form} {}", "ff".repeat(16)));
        let call = parse_call(QUEUE, "queue.identify", &arguments).unwrap();
        assert_eq!(call.action, CallAction::Identify { session });
    }
}

#[test]
fn tubes_are_created_under_two_names() {
    let made = |options: TubeOptions, if_not_exists| {
        command(Command::CreateTube { tube: tube(), options, if_not_exists }, ReplyForm::Empty)
    };
    let ttl = TubeOptions::new(Kind::FifoTtl);
    for name in ["create_tube", "schema.create_tube"] {
        for rest in ["", ", {}", ", []", ", null", r#", {"engine": "vinyl", "delay": 3, "x": [1]}"#]
        {
            let arguments = format!(r#"["t", "fifottl"{rest}]"#);
            assert_eq!(function(name, &arguments), made(ttl.clone(), false), "{arguments}");
        }
    }
    let full = r#"["t", "fifottl", {"temporary": true, "if_not_exists": true, "ttl": 60, "ttr": 5.5,
        "pri": 3, "capacity": 9, "ttl_kills_taken": true, "attempts_max": 4, "utube": "x"}]"#;
    let options = TubeOptions {
        temporary: true,
        ttl: Some(Span::from_secs(60)),
        ttr: Some(Span::from_micros(5_500_000)),
        pri: 3,
        ttl_kills_taken: true,
        attempts_max: Some(4),
        ..ttl
    };
    assert_eq!(function("create_tube", full), made(options, true), "only one kind has a capacity");
    for kind in Kind::ALL {
        let arguments = format!(r#"["t", "{}"]"#, kind.name());
        assert_eq!(function("create_tube", &arguments), made(TubeOptions::new(kind), false));
    }
}

#[test]
fn a_capacity_of_zero_is_no_limit_and_less_accepts_nothing() {
    let capacity = |value: &str| {
        let arguments = format!(r#"["t", "limfifottl", {{"capacity": {value}}}]"#);
        match function("create_tube", &arguments) {
            CallAction::Command(Command::CreateTube { options, .. }, _) => options.capacity,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(capacity("7"), Some(7));
    assert_eq!(capacity("7.0"), Some(7));
    assert_eq!(capacity("1.5"), Some(2), "while it has fewer it takes one more");
    assert_eq!(capacity("0"), None);
    assert_eq!(capacity("-0.0"), None);
    for nothing in ["-1", "-7", "-0.5", "-1e300"] {
        assert_eq!(capacity(nothing), Some(0), "{nothing}");
    }
}

#[test]
fn names_are_split_at_the_last_colon() {
    for (prefix, tube) in [("queue", "a b!"), ("queue", "a.b"), ("my.ns", "почта")] {
        let name = format!("{prefix}.tube.{tube}:take");
        let call = parse_call(CallContext { prefix, ..QUEUE }, &name, &[0x90]).unwrap();
        assert_eq!(call.tube().map(TubeName::as_str), Some(tube));
    }
}

#[test]
fn a_connection_caches_its_tube_names() {
    let mut recent = RecentTubes::default();
    for round in 0..3 {
        for number in 0..6 {
            let name = format!("queue.tube.t{number}:take");
            let call = parse_call_with(&mut recent, QUEUE, &name, &[0x90]).unwrap();
            assert_eq!(call.tube().unwrap().as_str(), format!("t{number}"), "round {round}");
        }
    }
}

#[test]
fn commands_are_sent_in_a_call_of_their_own() {
    let commands = vec![Command::Tubes { tube: None }, Command::Truncate { tube: tube() }];
    let mut arguments = vec![0x91];
    encode_commands(&mut arguments, &commands);
    // Independent of the name of the queue.
    let other = CallContext { prefix: "other", ..QUEUE };
    let call = parse_call(other, EXECUTE, &arguments).unwrap();
    assert_eq!(call.function, "execute");
    assert_eq!(call.action, CallAction::Batch(commands));
}

#[test]
fn a_schedule_is_run_by_its_name() {
    let call = parse_call(QUEUE, RUN_SCHEDULE, b"\x91\xa5daily").unwrap();
    let name = ScheduleName::new("daily").unwrap();
    assert_eq!((call.function, call.action), ("run_schedule", CallAction::RunSchedule { name }));
    for args in [&b"\x90"[..], b"\x91\x07", b"\x91\xa0"] {
        assert!(parse_call(QUEUE, RUN_SCHEDULE, args).is_err(), "{args:?}");
    }
}

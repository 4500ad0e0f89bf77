//! What calls ask: names and good arguments.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Body, Command, Finish, Kind, NewTask, SessionId, Span, TaskId, TubeName, TubeOptions,
};
use taskyard_wire::iproto::{
    Ask, EXECUTE, RecentTubes, encode_commands, parse_call, parse_call_with,
};

use crate::hex::{args, hex};

fn tube() -> TubeName {
    TubeName::new("t").unwrap()
}

/// What a method of the tube `t` asks.
fn method(name: &str, arguments: &str) -> Ask {
    parse_call("queue", &format!("queue.tube.t:{name}"), &args(arguments)).unwrap()
}

fn function(name: &str, arguments: &str) -> Ask {
    parse_call("queue", &format!("queue.{name}"), &args(arguments)).unwrap()
}

/// The task of a put with these arguments, and its wait.
fn put(arguments: &str) -> (NewTask, Span) {
    match method("put", arguments) {
        Ask::Put { task, wait, .. } => (task, wait),
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
            let ask = parse_call("queue", "queue.tube.t:put", &arguments).unwrap();
            let task = NewTask::new(Body::new(&hex(data)));
            assert_eq!(ask, Ask::Put { tube: tube(), task, wait: Span::ZERO }, "{data}");
        }
    }
}

#[test]
fn options_may_be_missing_in_four_ways() {
    let plain = NewTask::new(Body::new(&[0x01]));
    for arguments in ["[1]", "[1, {}]", "[1, []]", "[1, null]", r#"[1, {"ttl": null}, 7]"#] {
        assert_eq!(put(arguments), (plain.clone(), Span::ZERO), "{arguments}");
    }
    // A list holds no names, and names that nobody knows are passed over.
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
fn times_are_cut_to_what_is_possible() {
    let ttl = |seconds: &str| put(&format!(r#"[1, {{"ttl": {seconds}}}]"#)).0.ttl;
    assert_eq!(ttl("-1"), Some(Span::ZERO));
    assert_eq!(ttl("-1e300"), Some(Span::ZERO));
    assert_eq!(ttl("1.5768e16"), Some(Span::FOREVER));
    assert_eq!(ttl("18446744073709551615"), Some(Span::FOREVER));
    let nan = hex("92 01 81 a374746c cb7ff8000000000000");
    let ask = parse_call("queue", "queue.tube.t:put", &nan).unwrap();
    assert!(matches!(ask, Ask::Put { task: NewTask { ttl: Some(Span::ZERO), .. }, .. }));
}

#[test]
fn a_sub_queue_is_named_as_lua_writes_things() {
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
    let timeout = |arguments: &str| match method("take", arguments) {
        Ask::Take { timeout, .. } => timeout,
        other => panic!("{other:?}"),
    };
    assert_eq!(timeout("[]"), None);
    assert_eq!(timeout("[null]"), None);
    assert_eq!(timeout("[0]"), Some(Span::ZERO));
    assert_eq!(timeout("[-5]"), Some(Span::ZERO));
    assert_eq!(timeout("[0.1]"), Some(Span::from_micros(100_000)));
    assert_eq!(timeout("[1e30]"), Some(Span::FOREVER));
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
        let ask = parse_call("queue", "queue.tube.t:ack", &hex(&format!("91 {id}"))).unwrap();
        assert_eq!(ask, Ask::Finish { tube: tube(), id: TaskId(5), finish: Finish::Ack }, "{id}");
    }
}

#[test]
fn the_other_methods() {
    let finish = |finish| Ask::Finish { tube: tube(), id: TaskId(3), finish };
    let release = |delay| finish(Finish::Release { delay, counted: true });
    let tube = tube();
    for (name, arguments, expected) in [
        ("release", "[3]", release(Span::ZERO)),
        ("release", "[3, {}]", release(Span::ZERO)),
        ("release", "[3, []]", release(Span::ZERO)),
        ("release", r#"[3, {"delay": 2, "ttl": "x", "pri": -1}]"#, release(Span::from_secs(2))),
        ("touch", "[3, 1.5]", finish(Finish::Touch(Span::from_micros(1_500_000)))),
        ("touch", "[3, 1e12]", finish(Finish::Touch(Span::FOREVER))),
        ("touch", "[3]", Ask::Nothing { tube: tube.clone() }),
        ("touch", "[3, 0]", Ask::Nothing { tube: tube.clone() }),
        ("touch", "[3, -1]", Ask::Nothing { tube: tube.clone() }),
        ("touch", "[3, null]", Ask::Nothing { tube: tube.clone() }),
        ("bury", "[3]", finish(Finish::Bury)),
        ("kick", "[]", Ask::Kick { tube: tube.clone(), count: 1 }),
        ("kick", "[0]", Ask::Kick { tube: tube.clone(), count: 0 }),
        ("kick", "[-1]", Ask::Kick { tube: tube.clone(), count: -1 }),
        ("kick", "[7.0]", Ask::Kick { tube: tube.clone(), count: 7 }),
        ("kick", "[18446744073709551615]", Ask::Kick { tube: tube.clone(), count: i64::MAX }),
        ("peek", "[3]", Ask::Peek { tube: tube.clone(), id: TaskId(3) }),
        ("delete", "[3]", Ask::Delete { tube: tube.clone(), id: TaskId(3) }),
        ("truncate", "[]", Ask::Truncate { tube: tube.clone() }),
        ("release_all", "[]", Ask::ReleaseAll { tube: tube.clone() }),
        ("drop", "[]", Ask::Drop { tube }),
    ] {
        let ask = method(name, arguments);
        assert_eq!(ask, expected, "{name}{arguments}");
        assert_eq!(ask.verb(), name);
        assert_eq!(ask.tube().map(TubeName::as_str), Some("t"));
    }
}

#[test]
fn many_at_once() {
    let ask = method("put_many", r#"[[["a"], ["b", {"pri": 2, "timeout": 3}], [null, []]]]"#);
    let mut second = NewTask::new(Body::new(b"\xa1b"));
    second.pri = Some(2);
    let tasks = vec![NewTask::new(Body::new(b"\xa1a")), second, NewTask::new(Body::new(&[0xc0]))];
    assert_eq!(ask.verb(), "put_many");
    assert_eq!(ask, Ask::PutMany { tube: tube(), tasks, wait: Span::from_secs(3) });
    let ask = method("take_many", "[10]");
    assert_eq!(ask, Ask::TakeMany { tube: tube(), count: 10, timeout: None });
    let ask = method("take_many", "[10, 0]");
    assert_eq!(ask, Ask::TakeMany { tube: tube(), count: 10, timeout: Some(Span::ZERO) });
    let ask = method("ack_many", "[[0, 5, 2.0]]");
    assert_eq!(ask, Ask::AckMany { tube: tube(), ids: [0, 5, 2].map(TaskId).to_vec() });
    assert_eq!(method("ack_many", "[[]]"), Ask::AckMany { tube: tube(), ids: vec![] });
    let most = format!("[[{}]]", vec!["1"; BATCH_TASKS_MAX].join(","));
    assert!(
        matches!(method("ack_many", &most), Ask::AckMany { ids, .. } if ids.len() == BATCH_TASKS_MAX)
    );
}

#[test]
fn functions_of_the_queue() {
    let named = Ask::Statistics { tube: Some(tube()) };
    assert_eq!(function("statistics", r#"["t"]"#), named);
    assert_eq!(function("stats", r#"["t"]"#), named);
    assert_eq!(function("stats", "[]"), Ask::Statistics { tube: None });
    assert_eq!(function("stats", "[null]"), Ask::Statistics { tube: None });
    assert_eq!(function("state", "[]"), Ask::State);
    assert_eq!(function("identify", "[]"), Ask::Identify { session: None });
    assert_eq!(function("tube", "[]"), Ask::TubeNames);
    assert_eq!(function("tube", r#"["a/b"]"#), Ask::TubeExists { name: "a/b".into() });
    assert_eq!(function("cfg", "[]"), Ask::Cfg { ttr: None });
    assert_eq!(function("cfg", "[{}]"), Ask::Cfg { ttr: None });
    assert_eq!(
        function("cfg", r#"[{"ttr": 0.5, "in_replicaset": false}]"#),
        Ask::Cfg { ttr: Some(Span::from_micros(500_000)) }
    );
    let session = Some(SessionId([0xff; 16]));
    for form in ["b0", "d910", "c410"] {
        let arguments = hex(&format!("91 {form} {}", "ff".repeat(16)));
        let ask = parse_call("queue", "queue.identify", &arguments).unwrap();
        assert_eq!(ask, Ask::Identify { session });
    }
}

#[test]
fn tubes_are_made_under_two_names() {
    let made = |options: TubeOptions, if_not_exists| Ask::CreateTube {
        tube: tube(),
        options,
        if_not_exists,
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
fn a_capacity_of_nothing_is_none() {
    let capacity = |value: &str| {
        let arguments = format!(r#"["t", "limfifottl", {{"capacity": {value}}}]"#);
        match function("create_tube", &arguments) {
            Ask::CreateTube { options, .. } => options.capacity,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(capacity("7"), Some(7));
    assert_eq!(capacity("7.0"), Some(7));
    assert_eq!(capacity("1.5"), Some(2), "while it has fewer it takes one more");
    assert_eq!(capacity("0"), None);
}

#[test]
fn names_are_split_at_the_last_colon() {
    for (prefix, tube) in [("queue", "a b!"), ("queue", "a.b"), ("my.ns", "почта")] {
        let name = format!("{prefix}.tube.{tube}:take");
        let ask = parse_call(prefix, &name, &[0x90]).unwrap();
        assert_eq!(ask.tube().map(TubeName::as_str), Some(tube));
    }
}

#[test]
fn a_connection_remembers_its_tubes() {
    let mut recent = RecentTubes::default();
    for round in 0..3 {
        for number in 0..6 {
            let name = format!("queue.tube.t{number}:take");
            let ask = parse_call_with(&mut recent, "queue", &name, &[0x90]).unwrap();
            assert_eq!(ask.tube().unwrap().as_str(), format!("t{number}"), "round {round}");
        }
    }
}

#[test]
fn commands_travel_in_a_call_of_their_own() {
    let commands = vec![Command::Tubes { tube: None }, Command::Truncate { tube: tube() }];
    let mut arguments = vec![0x91];
    encode_commands(&mut arguments, &commands);
    // Whatever the queue is called.
    let ask = parse_call("other", EXECUTE, &arguments).unwrap();
    assert_eq!(ask.verb(), "execute");
    assert_eq!(ask, Ask::Execute(commands));
}

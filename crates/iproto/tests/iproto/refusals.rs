//! Wrong calls: the code and the text of each error.

use taskyard_core::{Command, Error, Kind, NewTask, SessionId, TaskId, TubeName};
use taskyard_iproto::{
    Call, CallAction, Fault, ReplyForm, fault_of, faults, parse_call, parse_eval, parse_method_of,
};

use crate::hex::{QUEUE, SESSION, args, hex};

/// The meaning of a call for a tube of this kind.
fn parse(kind: Kind, name: &str, arguments: &[u8]) -> Result<CallAction, Fault> {
    let Call { function, action } = parse_call(QUEUE, name, arguments)?;
    match action {
        CallAction::DependsOnKind { tube, args } => {
            parse_method_of(SESSION, kind, tube, function, &args).map(|call| call.action)
        }
        action => Ok(action),
    }
}

/// The error of a call, for a tube of the kind that has all options.
fn call(name: &str, arguments: &[u8]) -> (u32, String) {
    let Fault { code, text } = parse(Kind::UtubeTtl, name, arguments).expect_err(name);
    (code, text.into_owned())
}

/// Each row: a function, its arguments as JSON, the code, and what the text contains.
const TABLE: &[(&str, &str, u32, &str)] = &[
    ("tube.t:put", "[]", 39, "Tuple field 9 required by space format is missing"),
    (
        "tube.t:put",
        r#"[1, {"pri": -1}]"#,
        23,
        "Tuple field 6 type does not match one required by operation: expected unsigned",
    ),
    ("tube.t:put", r#"[1, {"pri": 1.5}]"#, 23, "Tuple field 6 type does not match"),
    ("tube.t:put", r#"[1, {"pri": "1"}]"#, 23, "Tuple field 6 type does not match"),
    ("tube.t:put", r#"[1, {"ttl": "1"}]"#, 32, "attempt to compare string with number"),
    ("tube.t:put", r#"[1, {"ttr": true}]"#, 32, "attempt to compare boolean with number"),
    ("tube.t:put", r#"[1, {"delay": {}}]"#, 32, "attempt to compare number with table"),
    ("tube.t:put", r#"[1, {"utube": [1]}]"#, 32, "a table cannot name a sub-queue"),
    (
        "tube.t:put",
        r#"[1, {"semaphore_priority": "x"}]"#,
        32,
        "Invalid value of semaphore_priority: x",
    ),
    ("tube.t:put", "[1, 5]", 32, "attempt to index local 'opts' (a number value)"),
    ("tube.t:put", "[1, true]", 32, "attempt to index local 'opts' (a boolean value)"),
    ("tube.t:take", r#"["1"]"#, 32, "attempt to compare string with number"),
    ("tube.t:take", "[{}]", 32, "attempt to compare table with number"),
    ("tube.t:take", "[true]", 32, "attempt to compare boolean with number"),
    ("tube.t:ack", "[]", 19, "Invalid key part count in an exact match (expected 2, got 1)"),
    (
        "tube.t:ack",
        r#"["1"]"#,
        18,
        "Supplied key type of part 1 does not match index part type: expected unsigned",
    ),
    ("tube.t:ack", "[null]", 18, "Supplied key type of part 1"),
    ("tube.t:ack", "[-1]", 18, "Supplied key type of part 1"),
    ("tube.t:ack", "[1.5]", 18, "Supplied key type of part 1"),
    ("tube.t:ack", "[[1]]", 18, "Supplied key type of part 1"),
    ("tube.t:release", "[]", 19, "(expected 2, got 1)"),
    ("tube.t:release", r#"["x"]"#, 18, "Supplied key type of part 1"),
    ("tube.t:release", "[null]", 18, "Supplied key type of part 1"),
    ("tube.t:release", r#"[1, {"delay": "x"}]"#, 32, "attempt to compare number with string"),
    ("tube.t:release", "[1, 5]", 32, "attempt to index local 'opts' (a number value)"),
    ("tube.t:touch", r#"[1, "x"]"#, 32, "attempt to compare string with number"),
    ("tube.t:touch", "[null, 5]", 18, "Supplied key type of part 1"),
    ("tube.t:touch", "[-1, 5]", 18, "Supplied key type of part 1"),
    ("tube.t:bury", "[]", 19, "(expected 1, got 0)"),
    ("tube.t:bury", "[true]", 18, "Supplied key type of part 0"),
    ("tube.t:bury", "[null]", 18, "Supplied key type of part 0"),
    ("tube.t:kick", r#"["x"]"#, 32, "'for' limit must be a number"),
    ("tube.t:kick", "[null]", 32, "'for' limit must be a number"),
    ("tube.t:kick", "[{}]", 32, "'for' limit must be a number"),
    ("tube.t:peek", "[]", 19, "Invalid key part count in an exact match (expected 1, got 0)"),
    ("tube.t:peek", r#"["1"]"#, 18, "Supplied key type of part 0"),
    ("tube.t:peek", "[null]", 18, "Supplied key type of part 0"),
    ("tube.t:delete", "[]", 19, "(expected 1, got 0)"),
    ("tube.t:delete", "[{}]", 18, "Supplied key type of part 0"),
    ("tube.t:put_many", "[]", 32, "put_many must be a list"),
    ("tube.t:put_many", "[5]", 32, "put_many must be a list"),
    ("tube.t:put_many", "[[5]]", 32, "each task of put_many must be a list"),
    ("tube.t:put_many", "[[[]]]", 39, "Tuple field 9 required"),
    ("tube.t:put_many", r#"[[[1, {"pri": -1}]]]"#, 23, "Tuple field 6"),
    ("tube.t:take_many", "[]", 32, "take_many needs the number of tasks"),
    ("tube.t:take_many", "[-1]", 32, "take_many needs the number of tasks"),
    ("tube.t:take_many", r#"[1, "x"]"#, 32, "attempt to compare string with number"),
    ("tube.t:ack_many", "[5]", 32, "ack_many must be a list"),
    ("tube.t:ack_many", r#"[["x"]]"#, 18, "Supplied key type of part 1"),
    ("tube.t:ack_many", "[[null]]", 18, "Supplied key type of part 1"),
    ("tube.t:list", "[5]", 32, "attempt to index local 'opts' (a number value)"),
    ("tube.t:list", r#"[{"state": "lost"}]"#, 32, "use ready, taken, delayed, buried"),
    ("tube.t:list", r#"[{"state": 5}]"#, 32, "Invalid value of state: 5"),
    ("tube.t:list", r#"[{"limit": 0}]"#, 32, "must be between 1 and 1000"),
    ("tube.t:list", r#"[{"limit": 1001}]"#, 32, "must be between 1 and 1000"),
    ("tube.t:list", r#"[{"limit": -1}]"#, 32, "Invalid value of limit: -1"),
    ("tube.t:list", r#"[{"after": "x"}]"#, 32, "Invalid value of after: x"),
    ("tube.t:list", r#"[{"worker": "x"}]"#, 32, "use state, limit and after"),
    ("statistics", r#"["a/b"]"#, 32, "attempt to index a nil value"),
    ("stats", "[5]", 32, "attempt to index a nil value"),
    ("identify", r#"["short"]"#, 32, "Invalid UUID format."),
    ("identify", "[5]", 32, "Invalid UUID format."),
    ("worker", "[5]", 32, "the name of a worker is a text of 1 to 128 bytes"),
    ("worker", r#"[""]"#, 32, "the name of a worker is a text of 1 to 128 bytes"),
    ("worker", r#"["a\u0007b"]"#, 32, "without control characters"),
    ("cfg", r#"[{"ttr": -1}]"#, 32, "Invalid value of ttr: -1"),
    ("cfg", r#"[{"ttr": "x"}]"#, 32, "Invalid value of ttr: x"),
    ("cfg", r#"[{"in_replicaset": 1}]"#, 32, "Invalid value of in_replicaset: 1"),
    ("cfg", r#"[{"zz": 1}]"#, 32, "Unknown option zz"),
    ("cfg", "[5]", 32, "attempt to index local 'opts' (a number value)"),
    ("create_tube", r#"["t", "x"]"#, 32, "Unknown tube type x"),
    ("create_tube", r#"["t"]"#, 32, "Unknown tube type nil"),
    ("create_tube", r#"[5, "fifo"]"#, 18, "part 0 does not match index part type: expected string"),
    (
        "create_tube",
        r#"["", "fifo"]"#,
        70,
        "Invalid identifier '' (expected printable symbols only or it is too long)",
    ),
    ("create_tube", r#"["a/b", "fifo"]"#, 70, "a tube name must not contain '/'"),
    ("create_tube", r#"["_queue", "fifo"]"#, 32, "Space '_queue' already exists"),
    ("create_tube", r#"["_vspace", "fifo"]"#, 32, "Space '_vspace' already exists"),
    ("create_tube", r#"["_queue_taken_2", "fifo"]"#, 32, "Space '_queue_taken_2' already exists"),
    (
        "create_tube",
        r#"["_queue", "fifo", {"if_not_exists": true}]"#,
        32,
        r#"space "_queue" does not have "task_id" index"#,
    ),
    ("create_tube", r#"["t", "fifo", {"engine": "foo"}]"#, 57, "Space engine 'foo' does not exist"),
    (
        "create_tube",
        r#"["t", "fifo", {"engine": 5}]"#,
        1,
        "Illegal parameters, options parameter 'engine' should be of type string",
    ),
    (
        "create_tube",
        r#"["t", "fifo", {"temporary": 0}]"#,
        1,
        "Illegal parameters, options parameter 'temporary' should be of type boolean",
    ),
    (
        "create_tube",
        r#"["t", "fifo", {"engine": "vinyl", "temporary": true}]"#,
        12,
        "Can't modify space 't': engine does not support temporary flag",
    ),
    (
        "create_tube",
        r#"["t", "limfifottl", {"engine": "vinyl"}]"#,
        32,
        "limfifottl queue does not support vinyl engine",
    ),
    (
        "create_tube",
        r#"["t", "utube", {"engine": "vinyl", "storage_mode": "ready_buffer"}]"#,
        32,
        r#""ready_buffer" storage mode cannot be used with vinyl engine"#,
    ),
    ("create_tube", r#"["t", "fifo", "x"]"#, 32, "attempt to index local 'opts' (a string value)"),
    ("create_tube", r#"["t", "fifo", 5]"#, 32, "attempt to index local 'opts' (a number value)"),
    (
        "create_tube",
        r#"["t", "fifottl", {"ttl": "x"}]"#,
        32,
        "attempt to compare string with number",
    ),
    ("create_tube", r#"["t", "fifottl", {"pri": -1}]"#, 23, "Tuple field 6"),
    (
        "create_tube",
        r#"["t", "limfifottl", {"capacity": "x"}]"#,
        32,
        "attempt to compare number with string",
    ),
    (
        "create_tube",
        r#"["t", "fifo", {"attempts_max": -1}]"#,
        32,
        "Invalid value of attempts_max: -1",
    ),
    ("tube", "[5]", 32, "argument #1 should be string or nil"),
];

#[test]
fn the_table_of_wrong_arguments() {
    for (name, arguments, code, text) in TABLE {
        let found = call(&format!("queue.{name}"), &args(arguments));
        assert_eq!(found.0, *code, "{name}{arguments}: {}", found.1);
        assert!(found.1.contains(text), "{name}{arguments}: {}", found.1);
    }
}

// The data of a task are in another field of each kind's tuples; the text always named the field of
// a fifo.
#[test]
fn missing_data_name_the_field_of_the_kind() {
    for (kind, field) in Kind::ALL.into_iter().zip([3, 8, 8, 4, 9]) {
        let refused = parse(kind, "queue.tube.t:put", &[0x90]).unwrap_err();
        let text = format!("Tuple field {field} required by space format is missing");
        assert_eq!(refused, Fault::new(39, text), "{kind:?}");
    }
}

// Options were checked before the kind was known, so a fifo refused a priority that it ignores.
#[test]
fn options_that_a_kind_ignores_may_have_any_value() {
    let times = [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl];
    let rows = [
        (r#"[1, {"pri": "x"}]"#, &times[..]),
        (r#"[1, {"ttl": "x"}]"#, &times),
        (r#"[1, {"ttr": {}}]"#, &times),
        (r#"[1, {"delay": [1]}]"#, &times),
        (r#"[1, {"utube": [1]}]"#, &[Kind::Utube, Kind::UtubeTtl]),
        (r#"[1, {"timeout": "x"}]"#, &[]),
        (r#"[1, "x"]"#, &[]),
        ("[1, 5]", &Kind::ALL[1..]),
        ("[1, true]", &Kind::ALL[1..]),
    ];
    for (arguments, refusing) in rows {
        for kind in Kind::ALL {
            let asked = parse(kind, "queue.tube.t:put", &args(arguments));
            assert_eq!(asked.is_err(), refusing.contains(&kind), "{kind:?} {arguments}: {asked:?}");
            if let Ok(CallAction::Command(Command::Put { tasks, .. }, _)) = asked {
                let plain = NewTask::new(tasks[0].body.clone());
                assert_eq!(tasks, [plain], "{arguments}");
            }
        }
    }
    for (arguments, refusing) in [(r#"[1, {"delay": "x"}]"#, &times[..]), ("[1, 5]", &times)] {
        for kind in Kind::ALL {
            let asked = parse(kind, "queue.tube.t:release", &args(arguments));
            assert_eq!(asked.is_err(), refusing.contains(&kind), "{kind:?} {arguments}: {asked:?}");
        }
    }
    for arguments in [r#"{"ttl": "x"}"#, r#"{"pri": -1}"#, r#"{"capacity": "x"}"#] {
        let arguments = args(&format!(r#"["t", "utube", {arguments}]"#));
        assert!(parse(Kind::Utube, "queue.create_tube", &arguments).is_ok());
    }
}

#[test]
fn a_kick_counts_what_lua_counts() {
    let count = |arguments: &str| match parse(Kind::Fifo, "queue.tube.t:kick", &args(arguments)) {
        Ok(CallAction::Command(_, ReplyForm::Kicked(count))) => count,
        other => panic!("{other:?}"),
    };
    assert_eq!([count("[]"), count("[3]"), count(r#"["5"]"#), count("[-1]")], [1, 3, 5, -1]);
}

#[test]
fn unknown_functions_are_not_defined() {
    for name in [
        "",
        "queue",
        "queue.",
        "queue.x",
        "queue._VERSION",
        "queuestate",
        "other.state",
        "queue.tube.",
        "queue.tube.t",
        "queue.tube.t:",
        "queue.tube.t:x",
        "queue.tube.:take",
        "queue.tube.a/b:take",
        "queue.tube.a:b:take",
        "queue.tube.t.take",
        "taskyard.other",
    ] {
        assert_eq!(call(name, &[0x90]), (33, format!("Procedure '{name}' is not defined")));
    }
}

#[test]
fn arguments_that_are_not_well_formed() {
    for arguments in ["", "05", "80", "91", "91 a5 61", "91 c1", "dd ffffffff"] {
        let found = call("queue.tube.t:put", &hex(arguments));
        assert_eq!(found, (20, "Invalid MsgPack - packet body".into()), "{arguments}");
    }
}

#[test]
fn data_that_is_nested_too_deep() {
    let put = |depth: usize| {
        let mut arguments = vec![0x91];
        arguments.extend(std::iter::repeat_n(0x91, depth));
        arguments.push(0x00);
        parse(Kind::Fifo, "queue.tube.t:put", &arguments)
    };
    assert!(put(64).is_ok());
    let Fault { code, text } = put(65).unwrap_err();
    assert_eq!(code, 32);
    assert!(text.contains("nested deeper than 64 levels"), "{text}");
    assert!(put(1_000_000).is_err());
}

#[test]
fn lists_longer_than_a_batch() {
    let many = hex("91 dd 00002711");
    let (code, text) = call("queue.tube.t:ack_many", &[&many[..], &[0x01; 10_001]].concat());
    assert_eq!(code, 32);
    assert!(text.contains("10001") && text.contains("10000"), "{text}");
}

#[test]
fn errors_of_the_queue() {
    let tube = TubeName::new("t").unwrap();
    let function = "queue.tube.t:put";
    let mut session = [0; 16];
    session[..8].copy_from_slice(&[0xba, 0x99, 0x88, 0xc5, 0x88, 0x48, 0xc6, 0x4b]);
    for (error, code, text) in [
        (Error::TubeNotFound(tube.clone()), 33, "Procedure 'queue.tube.t:put' is not defined"),
        (Error::TubeExists(tube.clone()), 32, "Space 't' already exists"),
        (
            Error::QueueNumTaken { tube: tube.clone(), num: 7 },
            32,
            "queue number 7 belongs to tube 't' for good; a number has one tube, a tube one number",
        ),
        (Error::TubeHasTaken(tube.clone()), 32, "There are taken tasks in the tube"),
        (Error::TubeHasConsumers(tube.clone()), 32, "There are consumers connected the tube"),
        (Error::TaskNotFound(tube.clone(), TaskId(7)), 32, "Task 7 not found"),
        (
            Error::Unsupported { kind: "fifo", verb: "touch" },
            32,
            "fifo queue does not support touch",
        ),
        (
            Error::SessionUnknown(SessionId(session)),
            32,
            "The UUID c58899ba-4888-4bc6-0000-000000000000 is unknown.",
        ),
        (Error::Overloaded("too much"), 32, "overloaded: too much; try again a little later"),
        (Error::Invalid("no".into()), 32, "no"),
        // It had the code of a refusal, so a client assumed that nothing was done although it may
        // have been.
        (Error::OutcomeUnknown("lost".into()), 20_001, "lost"),
    ] {
        assert_eq!(fault_of(&error, function), Fault::new(code, text));
    }
}

#[test]
fn errors_of_the_server() {
    for (fault, code, text) in [
        (faults::not_taken(), 32, "Task was not taken"),
        (faults::not_found(TaskId(3)), 32, "Task 3 not found"),
        (
            faults::denied("queue.tube.gr:put", "lim"),
            42,
            "Execute access to function 'queue.tube.gr:put' is denied for user 'lim'",
        ),
        (faults::eval_denied("lim"), 42, "Execute access to universe '' is denied for user 'lim'"),
        (
            faults::read_denied("_queue", "lim"),
            42,
            "Read access to space '_queue' is denied for user 'lim'",
        ),
        (faults::login_failed(), 47, "User not found or supplied credentials are invalid"),
        (faults::unknown_type(99), 48, "Unknown request type 99"),
        (faults::no_space(7), 36, "Space '#7' does not exist"),
        (faults::no_statistics(), 32, "attempt to index a nil value"),
    ] {
        assert_eq!(fault, Fault::new(code, text));
    }
}

// Names were repeated in full, and twice: one frame of 60 MiB cost the server 440 MB.
#[test]
fn long_texts_are_shortened_in_errors() {
    let long = "я".repeat(100_000);
    let text = hex(&format!("91 db {:08x}", long.len()));
    let text = [&text[..], long.as_bytes()].concat();
    let two = [&hex(r#"92 a1"t""#)[..], &text[1..]].concat();
    let option = [&hex("91 81")[..], &text[1..], &[0x01]].concat();
    let value = [&hex(r#"91 81 a3"ttr""#)[..], &text[1..]].concat();
    let expressions = [
        format!("return queue.tube.t:{}()", "x".repeat(100_000)),
        format!("return queue.{}()", "x".repeat(100_000)),
        format!("return queue.tube['{long}']:take()"),
        format!("{}:take(0) 5", "x".repeat(100_000)),
    ];
    let mut refused = vec![
        parse_call(QUEUE, &long, &[0x90]).unwrap_err(),
        parse_call(QUEUE, &format!("queue.{long}"), &[0x90]).unwrap_err(),
        parse_call(QUEUE, &format!("queue.tube.{long}:put"), &[0x90]).unwrap_err(),
        parse_call(QUEUE, &format!("queue.tube.t:{long}"), &[0x90]).unwrap_err(),
        parse_call(QUEUE, "queue.create_tube", &two).unwrap_err(),
        parse_call(QUEUE, "queue.cfg", &option).unwrap_err(),
        parse_call(QUEUE, "queue.cfg", &value).unwrap_err(),
        faults::denied(&long, &long),
        faults::eval_denied(&long),
        faults::read_denied("_queue", &long),
    ];
    let evaluated = expressions.iter().map(|one| parse_eval(QUEUE, one, &[0x90]).unwrap_err());
    refused.extend(evaluated);
    for Fault { code, text } in refused {
        assert!(text.len() < 600, "{code}: {} bytes", text.len());
    }
    let Fault { text, .. } = parse_call(QUEUE, &long, &[0x90]).unwrap_err();
    assert!(text.ends_with("...' is not defined"), "{text}");
}

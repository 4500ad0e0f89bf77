//! Expressions that are understood, and those that are not.

use taskyard_core::{Body, Finish, Kind, NewTask, Span, TaskId, TubeName, TubeOptions};
use taskyard_wire::iproto::{Ask, Eval, EvalAsk, Fault, parse_eval};
use taskyard_wire::msgpack_to_json;

use crate::hex::{args, hex};

fn eval(expression: &str) -> Eval {
    parse_eval("queue", expression, &[0x90])
        .unwrap_or_else(|fault| panic!("{expression}: {fault:?}"))
}

fn tube(name: &str) -> TubeName {
    TubeName::new(name).unwrap()
}

fn made(name: &str, kind: Kind) -> EvalAsk {
    let options = TubeOptions::new(kind);
    EvalAsk::Ask(Ask::CreateTube { tube: tube(name), options, if_not_exists: false })
}

fn done(ask: EvalAsk) -> Eval {
    Eval { ask, assigns: None, returns: false }
}

fn returned(ask: Ask) -> Eval {
    Eval { ask: EvalAsk::Ask(ask), assigns: None, returns: true }
}

/// What is put by the expression, as JSON.
fn put(data: &str) -> String {
    let Eval { ask: EvalAsk::Ask(Ask::Put { task, .. }), .. } =
        eval(&format!("return queue.tube.t:put({data})"))
    else {
        panic!("{data} is not put")
    };
    msgpack_to_json(task.body.payload()).unwrap()
}

#[test]
fn the_two_expressions_of_the_go_client() {
    let create = "local name, type, cfg = ... ; queue.create_tube(name, type, cfg)";
    let sent = args(r#"["t", "fifottl", {"temporary": true, "if_not_exists": true, "ttl": 2.5}]"#);
    let options = TubeOptions {
        temporary: true,
        ttl: Some(Span::from_micros(2_500_000)),
        ..TubeOptions::new(Kind::FifoTtl)
    };
    let ask = Ask::CreateTube { tube: tube("t"), options, if_not_exists: true };
    assert_eq!(parse_eval("queue", create, &sent), Ok(done(EvalAsk::Ask(ask))));

    let exists = "local name = ... ; return queue.tube[name] ~= nil";
    let ask = Ask::TubeExists { name: "t".into() };
    assert_eq!(parse_eval("queue", exists, &args(r#"["t"]"#)), Ok(returned(ask)));
}

#[test]
fn tubes_are_made_in_many_ways() {
    for expression in [
        "queue.create_tube('t', 'fifo')",
        "queue.create_tube('t','fifo',{})",
        "box.queue.create_tube(\"t\", \"fifo\", nil)",
        "queue.schema.create_tube('t', 'fifo');",
        "create_tube('t', 'fifo')",
        "queue = require('queue'); queue.create_tube('t', 'fifo')",
        "local q = require 'queue'\nq.create_tube('t', 'fifo')",
        "require('queue').create_tube('t', 'fifo')",
        "local t = queue.create_tube('t', 'fifo')",
        "-- a comment\nqueue.create_tube('t', --[[ or\n two ]] 'fifo') -- the end",
        "queue['create_tube']('t', 'fifo')",
        "queue.create_tube([[t]], 'fifo')",
    ] {
        assert_eq!(eval(expression), done(made("t", Kind::Fifo)), "{expression}");
    }
    let eval_of_all = eval("return queue.create_tube('t', 'fifo')");
    assert_eq!(eval_of_all, Eval { returns: true, ..done(made("t", Kind::Fifo)) });
}

#[test]
fn a_global_name_for_a_tube() {
    let assigns = Some("tube".into());
    let expected = Eval { assigns: assigns.clone(), ..done(made("t", Kind::UtubeTtl)) };
    assert_eq!(eval("tube = queue.create_tube('t', 'utubettl')"), expected);
    assert_eq!(eval("tube = create_tube('t', 'utubettl')"), expected);
    let named = Eval { ask: EvalAsk::Tube(tube("t")), assigns, returns: false };
    assert_eq!(eval("tube = queue.tube.t"), named);
    assert_eq!(eval("local t = queue.tube['t']; tube = t"), named);
    assert_eq!(eval("queue.create_tube('t', 'utubettl'); tube = queue.tube.t"), expected);

    let on_variable = |expression: &str| match eval(expression).ask {
        EvalAsk::OnVariable { variable, method, args } => (variable, method, args),
        other => panic!("{other:?}"),
    };
    let (variable, method, sent) = on_variable("return tube:put({a = 1}, {delay = 0.5})");
    assert_eq!((variable.as_str(), method.as_str()), ("tube", "put"));
    assert_eq!(msgpack_to_json(&sent).unwrap(), r#"[{"a":1},{"delay":0.5}]"#);
    assert_eq!(on_variable("tube:take(0)").2, [0x91, 0x00]);
    assert_eq!(on_variable("tube:truncate()").2, [0x90]);
}

#[test]
fn methods_of_a_tube() {
    let ask = || Ask::Take { tube: tube("t"), timeout: Some(Span::ZERO) };
    for expression in [
        "return queue.tube.t:take(0)",
        "return queue.tube['t']:take(0)",
        "return queue.tube[ \"t\" ]:take( 0 ) ;",
        "return box.queue.tube.t:take(-1)",
        "local t = queue.tube.t return t:take(0)",
        "local name = 't'; return queue.tube[name]:take(0)",
    ] {
        assert_eq!(eval(expression), returned(ask()), "{expression}");
    }
    assert_eq!(eval("queue.tube.t:take(0)"), done(EvalAsk::Ask(ask())));
    let ack = Ask::Finish { tube: tube("t"), id: TaskId(7), finish: Finish::Ack };
    assert_eq!(eval("return queue.tube.t:ack(7)"), returned(ack));
}

#[test]
fn arguments_that_were_sent_along() {
    let sent = args(r#"[{"a": [1]}, {"pri": 3}]"#);
    let mut task = NewTask::new(Body::new(&args(r#"{"a": [1]}"#)));
    task.pri = Some(3);
    let ask = Ask::Put { tube: tube("t"), task, wait: Span::ZERO };
    for expression in [
        "return queue.tube.t:put(...)",
        "local data, opts = ... return queue.tube.t:put(data, opts)",
    ] {
        assert_eq!(parse_eval("queue", expression, &sent), Ok(returned(ask.clone())));
    }
    // In the middle of a list it is the first of them; a name without a value is nil.
    let first = parse_eval("queue", "queue.tube.t:put(..., {pri = 3})", &sent).unwrap();
    assert_eq!(first, done(EvalAsk::Ask(ask)));
    let nil = parse_eval("queue", "local a, b, c = ...; queue.tube.t:put(c)", &sent).unwrap();
    let task = NewTask::new(Body::new(&[0xc0]));
    assert_eq!(nil, done(EvalAsk::Ask(Ask::Put { tube: tube("t"), task, wait: Span::ZERO })));
}

#[test]
fn the_queue_itself() {
    assert_eq!(eval("return queue.state()"), returned(Ask::State));
    assert_eq!(eval("return queue.statistics()"), returned(Ask::Statistics { tube: None }));
    let named = returned(Ask::Statistics { tube: Some(tube("t")) });
    assert_eq!(eval("return queue.statistics('t')"), named);
    assert_eq!(eval("return queue.stats 't'"), named);
    let cfg = done(EvalAsk::Ask(Ask::Cfg { ttr: Some(Span::from_secs(5)) }));
    assert_eq!(eval("queue.cfg{ttr = 5}"), cfg);
    assert_eq!(eval("queue.cfg({ttr = 5, in_replicaset = false})"), cfg);
    assert_eq!(eval("return queue.tube()"), returned(Ask::TubeNames));
    let exists = returned(Ask::TubeExists { name: "t".into() });
    assert_eq!(eval("return queue.tube('t')"), exists);
    assert_eq!(eval("return queue.tube.t ~= nil"), exists);
}

#[test]
fn loading_the_queue_does_nothing() {
    for expression in
        ["", ";", "queue = require('queue')", "local queue = require 'queue'", "require('queue')"]
    {
        assert_eq!(eval(expression), done(EvalAsk::Nothing), "{expression}");
    }
    assert_eq!(eval("return"), Eval { returns: true, ..done(EvalAsk::Nothing) });
}

#[test]
fn another_name_of_the_queue() {
    for expression in
        ["return my.tasks.state()", "return box.my.tasks.state()", "return queue.state()"]
    {
        assert_eq!(parse_eval("my.tasks", expression, &[0x90]), Ok(returned(Ask::State)));
    }
    assert!(parse_eval("queue", "return my.tasks.state()", &[0x90]).is_err());
    // The refusal named the function as if the operator had not chosen another name.
    let fault = parse_eval("my.tasks", "return queue.tube.t:x()", &[0x90]).unwrap_err();
    assert_eq!(fault.text, "Procedure 'my.tasks.tube.t:x' is not defined");
}

#[test]
fn literals() {
    for (literal, json) in [
        ("nil", "null"),
        ("true", "true"),
        ("false", "false"),
        ("0", "0"),
        ("-5", "-5"),
        ("007", "7"),
        ("0x1F", "31"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("5.0", "5"),
        ("1e3", "1000"),
        ("-2.5E-1", "-0.25"),
        ("1e300", "1e+300"),
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551615ULL", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("''", r#""""#),
        (r#"'a"b'"#, r#""a\"b""#),
        (r#""a'b""#, r#""a'b""#),
        (r"'\n\t\r\\\'\65\x42\0'", r#""\n\t\r\\'AB\u0000""#),
        ("'почта'", r#""почта""#),
        ("[[\nlong ' \" \\n]]", r#""long ' \" \\n""#),
        ("{}", "[]"),
        ("{1, 'a', {}}", r#"[1,"a",[]]"#),
        ("{1; 2,}", "[1,2]"),
        ("{a = 1, ['b c'] = {x = nil}}", r#"{"a":1,"b c":{"x":null}}"#),
    ] {
        assert_eq!(put(literal), json, "{literal}");
    }
    // Lists inside maps are numbered as Lua numbers them; JSON has no way to show that.
    let Eval { ask: EvalAsk::Ask(Ask::Put { task, .. }), .. } =
        eval("queue.tube.t:put({'x', a = 1})")
    else {
        panic!()
    };
    assert_eq!(task.body.payload(), hex(r#"82 01 a1"x" a1"a" 01"#));
    let Eval { ask: EvalAsk::Ask(Ask::Put { task, .. }), .. } =
        eval(r"queue.tube.t:put('\xff\254')")
    else {
        panic!()
    };
    assert_eq!(task.body.payload(), [0xa2, 0xff, 0xfe], "text need not be UTF-8");
}

#[test]
fn what_is_not_understood_says_what_is() {
    for expression in [
        "1",
        "nil",
        "return 1",
        "return x",
        "return queue",
        "return queue.tube",
        "return box.info.status",
        "box.cfg{}",
        "os.execute('rm')",
        "require('os')",
        "require(5)",
        "queue.tube.t",
        "queue.tube.t:take",
        "queue.tube.t:take(",
        "queue.tube.t:take(0",
        "queue.tube.t:take(0))",
        "queue.tube.t:take(0,)x",
        "queue.tube[5]:take(0)",
        "queue.tube.t:put(function() end)",
        "queue.tube.t:put(1 + 1)",
        "queue.tube.t:put(x)",
        "queue.tube.t:put({a = })",
        "queue.tube.t:put({[1] 2})",
        "queue.tube.t:put('open)",
        "queue.tube.t:put('a\nb')",
        r"queue.tube.t:put('\300')",
        r"queue.tube.t:put('\q')",
        r"queue.tube.t:put('\x1')",
        "queue.tube.t:put([[open)",
        "queue.tube.t:put(1.2.3)",
        "queue.tube.t:put(0xZZ)",
        "queue.tube.t:put(-'a')",
        "return queue.tube.t ~= 5",
        "return queue.tube.t == nil",
        "return queue.state() return queue.state()",
        "return queue.state(), 1",
        "local",
        "local x",
        "local x =",
        "local 5 = 1",
        "local x = queue.state()",
        "x = queue.state()",
        "x = 5",
        "a.b:take(0)",
        "if true then end",
        "return queue.tube.t:take(0) @",
    ] {
        let Err(Fault { code, text }) = parse_eval("queue", expression, &[0x90]) else {
            panic!("{expression} was understood")
        };
        assert_eq!(code, 32, "{expression}: {text}");
        assert!(text.contains("queue.create_tube("), "{expression}: {text}");
    }
}

// The place was taken after the words were read, so that it was always the end.
#[test]
fn what_is_not_understood_is_named() {
    for (expression, near) in [
        ("os.exit()", "near 'os.exit()'"),
        ("return 1", "near 'return 1'"),
        ("local t = queue.tube.t; os.exit();", "near 'os.exit();'"),
        ("queue.tube.t:put(1 + 1)", "near '+ 1)'"),
    ] {
        let Fault { text, .. } = parse_eval("queue", expression, &[0x90]).unwrap_err();
        assert!(text.contains(near), "{expression}: {text}");
    }
}

#[test]
fn one_thing_at_a_time() {
    for expression in [
        "queue.create_tube('a', 'fifo') queue.create_tube('b', 'fifo')",
        "local t = queue.create_tube('a', 'fifo'); return t:take(0)",
        // The variable stood for the tube that was made, or for none, without a word.
        "queue.create_tube('mine', 'fifo'); t = queue.tube.other",
        "queue.tube.a:put(1); t = queue.tube.b",
        "a = queue.create_tube('t', 'fifo'); b = queue.tube.t",
    ] {
        let Fault { code, text } = parse_eval("queue", expression, &[0x90]).unwrap_err();
        assert_eq!(code, 32);
        assert!(text.contains("one thing"), "{text}");
    }
}

#[test]
fn the_refusals_of_calls_hold_for_expressions() {
    for (expression, code) in [
        ("queue.create_tube('t', 'x')", 32),
        ("return queue.tube.t:x()", 33),
        ("return queue.x()", 33),
        ("return queue.schema.x()", 33),
        ("return queue.tube['a/b']:take(0)", 33),
        ("return queue.tube.t:put()", 39),
        ("return queue.tube.t:ack('x')", 18),
        ("return queue.tube.t:put(1, {pri = -1})", 23),
    ] {
        assert_eq!(
            parse_eval("queue", expression, &[0x90]).unwrap_err().code,
            code,
            "{expression}"
        );
    }
}

#[test]
fn nothing_grows_without_end() {
    let refused = |expression: &str, sent: &[u8]| {
        let Fault { code, text } = parse_eval("queue", expression, sent).unwrap_err();
        assert_eq!(code, 32, "{text}");
        text.into_owned()
    };
    let deep = format!("queue.tube.t:put({}{})", "{".repeat(100_000), "}".repeat(100_000));
    assert!(refused(&deep, &[0x90]).contains("nested deeper than 64"));
    let index = format!("return queue{}", "[queue".repeat(30_000));
    assert!(refused(&index, &[0x90]).contains("nested deeper than 64"));
    let long = format!("queue.tube.t:put('{}')", "x".repeat(300_000));
    assert!(refused(&long, &[0x90]).contains("send data as arguments"));
    // A few names for one large thing would fill the memory.
    let large = args(&format!(r#"["{}"]"#, "x".repeat(100_000)));
    let many = format!("local a = ... queue.tube.t:put({{{}}})", "a,".repeat(10_000));
    assert!(refused(&many, &large).contains("too often"));
    let names = (0..60).map(|at| format!("local n{at} = 1 ")).collect::<String>();
    assert!(refused(&names, &[0x90]).contains("50"));
    let sent = args(&format!("[{}]", vec!["1"; 1_001].join(",")));
    assert!(refused("queue.tube.t:put(...)", &sent).contains("1000"));
}

//! Parsing of expressions: supported and unsupported ones.

use proptest::prelude::*;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, NewTask, Span, Take, TaskId, TubeName,
    TubeOptions,
};
use taskyard_iproto::eval::{NewTube, Returns};
use taskyard_iproto::{
    Answer, Call, CallAction, CallContext, Eval, EvalAction, Fault, ReplyForm, parse_eval,
};
use taskyard_wire::msgpack_to_json;

use crate::hex::{QUEUE, SESSION, args, hex};

fn eval(expression: &str) -> Eval {
    parse_eval(QUEUE, expression, &[0x90]).unwrap_or_else(|fault| panic!("{expression}: {fault:?}"))
}

fn tube(name: &str) -> TubeName {
    TubeName::new(name).unwrap()
}

fn refused(expression: &str) -> String {
    match parse_eval(QUEUE, expression, &[0x90]) {
        Ok(eval) => panic!("{expression} was understood: {eval:?}"),
        Err(Fault { code, text }) => {
            assert_eq!(code, 32, "{expression}: {text}");
            text.into_owned()
        }
    }
}

fn new_tube(name: &str, kind: Kind) -> NewTube {
    let options = TubeOptions::new(kind);
    NewTube { tube: tube(name), options, if_not_exists: false, variable: None }
}

/// A tube that is created unless it exists.
fn missing_tube(name: &str, kind: Kind) -> NewTube {
    NewTube { if_not_exists: true, ..new_tube(name, kind) }
}

fn made(name: &str, kind: Kind) -> EvalAction {
    EvalAction::CreateTubes(vec![new_tube(name, kind)])
}

fn done(action: EvalAction) -> Eval {
    Eval { action, returns: Returns::Nothing }
}

fn called(call: Call) -> Eval {
    done(EvalAction::Call(call))
}

fn returned(call: Call) -> Eval {
    Eval { action: EvalAction::Call(call), returns: Returns::Result }
}

fn call(function: &'static str, command: Command, form: ReplyForm) -> Call {
    Call { function, action: CallAction::Command(command, form) }
}

fn exists(name: &str) -> Call {
    Call { function: "tube", action: CallAction::TubeExists { name: name.into() } }
}

fn state() -> Call {
    Call { function: "state", action: CallAction::State }
}

fn statistics(name: Option<&str>) -> Call {
    let form = if name.is_some() { ReplyForm::Statistics } else { ReplyForm::AllStatistics };
    call("statistics", Command::Tubes { tube: name.map(tube) }, form)
}

/// Acknowledges the task 7 of the tube `t`.
fn ack() -> Call {
    let item = FinishItem { id: TaskId(7), holder: Holder::Session(SESSION), finish: Finish::Ack };
    let command = Command::Finish { tube: tube("t"), items: vec![item], show: true };
    call("ack", command, ReplyForm::HeldTask)
}

/// Puts a task into the tube `t`.
fn put_call(task: NewTask) -> Call {
    let command = Command::Put { tube: tube("t"), tasks: vec![task], wait: Span::ZERO };
    call("put", command, ReplyForm::Task)
}

/// The payload that the expression puts.
fn put_payload(expression: &str) -> Vec<u8> {
    match eval(expression).action {
        EvalAction::Call(Call {
            action: CallAction::Command(Command::Put { tasks, .. }, ReplyForm::Task),
            ..
        }) => tasks[0].body.payload().to_vec(),
        other => panic!("{expression}: {other:?}"),
    }
}

/// The payload that the expression puts, as JSON.
fn put(data: &str) -> String {
    msgpack_to_json(&put_payload(&format!("return queue.tube.t:put({data})"))).unwrap()
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
    let new = NewTube { options, ..missing_tube("t", Kind::FifoTtl) };
    assert_eq!(parse_eval(QUEUE, create, &sent), Ok(done(EvalAction::CreateTubes(vec![new]))));

    let asks = "local name = ... ; return queue.tube[name] ~= nil";
    assert_eq!(parse_eval(QUEUE, asks, &args(r#"["t"]"#)), Ok(returned(exists("t"))));
}

#[test]
fn tubes_are_created_in_many_ways() {
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
    assert_eq!(eval_of_all, Eval { action: made("t", Kind::Fifo), returns: Returns::Result });
}

#[test]
fn a_global_name_for_a_tube() {
    let new = NewTube { variable: Some("tube".into()), ..new_tube("t", Kind::UtubeTtl) };
    let expected = done(EvalAction::CreateTubes(vec![new]));
    assert_eq!(eval("tube = queue.create_tube('t', 'utubettl')"), expected);
    assert_eq!(eval("tube = create_tube('t', 'utubettl')"), expected);
    let named = done(EvalAction::Tube { tube: tube("t"), variable: "tube".into() });
    assert_eq!(eval("tube = queue.tube.t"), named);
    assert_eq!(eval("local t = queue.tube['t']; tube = t"), named);
    assert_eq!(eval("queue.create_tube('t', 'utubettl'); tube = queue.tube.t"), expected);

    let on_variable = |expression: &str| match eval(expression).action {
        EvalAction::OnVariable { variable, method, args } => (variable, method, args),
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
    let take = || {
        let (tube, session) = (tube("t"), Some(SESSION));
        let take = Take { tube, count: 1, session, lease: None, worker: None, wait: Span::ZERO };
        call("take", Command::Take(take), ReplyForm::Task)
    };
    for expression in [
        "return queue.tube.t:take(0)",
        "return queue.tube['t']:take(0)",
        "return queue.tube[ \"t\" ]:take( 0 ) ;",
        "return box.queue.tube.t:take(-1)",
        "local t = queue.tube.t return t:take(0)",
        "local name = 't'; return queue.tube[name]:take(0)",
    ] {
        assert_eq!(eval(expression), returned(take()), "{expression}");
    }
    assert_eq!(eval("queue.tube.t:take(0)"), called(take()));
    assert_eq!(eval("return queue.tube.t:ack(7)"), returned(ack()));
}

#[test]
fn arguments_that_were_sent_along() {
    let sent = args(r#"[{"a": [1]}, {"pri": 3}]"#);
    let mut task = NewTask::new(Body::new(&args(r#"{"a": [1]}"#)));
    task.pri = Some(3);
    let put = put_call(task);
    for expression in [
        "return queue.tube.t:put(...)",
        "local data, opts = ... return queue.tube.t:put(data, opts)",
    ] {
        assert_eq!(parse_eval(QUEUE, expression, &sent), Ok(returned(put.clone())));
    }
    // In the middle of a list `...` is the first argument; a name without a value is nil.
    let first = parse_eval(QUEUE, "queue.tube.t:put(..., {pri = 3})", &sent).unwrap();
    assert_eq!(first, called(put));
    let nil = parse_eval(QUEUE, "local a, b, c = ...; queue.tube.t:put(c)", &sent).unwrap();
    let task = NewTask::new(Body::new(&[0xc0]));
    assert_eq!(nil, called(put_call(task)));
}

#[test]
fn the_queue_itself() {
    assert_eq!(eval("return queue.state()"), returned(state()));
    assert_eq!(eval("return queue.statistics()"), returned(statistics(None)));
    let named = returned(statistics(Some("t")));
    assert_eq!(eval("return queue.statistics('t')"), named);
    assert_eq!(eval("return queue.stats 't'"), named);
    let configure = Command::ConfigureSessions { ttr: Span::from_secs(5) };
    let cfg = called(call("cfg", configure, ReplyForm::Empty));
    assert_eq!(eval("queue.cfg{ttr = 5}"), cfg);
    assert_eq!(eval("queue.cfg({ttr = 5, in_replicaset = false})"), cfg);
    let names = call("tube", Command::Tubes { tube: None }, ReplyForm::TubeNames);
    assert_eq!(eval("return queue.tube()"), returned(names));
    assert_eq!(eval("return queue.tube('t')"), returned(exists("t")));
}

// Most programs create their tubes this way, and the expression was refused.
#[test]
fn tubes_are_created_unless_they_exist() {
    let action = EvalAction::CreateTubes(vec![missing_tube("t", Kind::FifoTtl)]);
    for expression in [
        "if not queue.tube.t then queue.create_tube('t', 'fifottl') end",
        "if not queue.tube['t'] then queue.create_tube('t', 'fifottl', {}); end;",
        "if queue.tube.t == nil then queue.create_tube('t', 'fifottl') end",
        "if (queue.tube['t'] == nil) then queue.create_tube('t', 'fifottl') end",
        "if not(queue.tube.t) then queue.create_tube('t', 'fifottl') end",
        "if not (queue.tube.t ~= nil) then queue.create_tube('t', 'fifottl') end",
        "if not queue.tube('t') then queue.create_tube('t', 'fifottl') end",
        "if not box.queue.tube.t then\n  box.queue.create_tube('t', 'fifottl')\nend",
        "if not my.tasks.tube.t then my.tasks.create_tube('t', 'fifottl') end",
        "if not box.my.tasks.tube.t then box.my.tasks.create_tube('t', 'fifottl') end",
        "local q = require('queue') if not q.tube.t then q.create_tube('t', 'fifottl') end",
        "local there = queue.tube.t ~= nil if not there then queue.create_tube('t', 'fifottl') end",
        "local t = queue.tube.t; if t == nil then queue.create_tube('t', 'fifottl') end",
    ] {
        assert_eq!(
            parse_eval(CallContext { prefix: "my.tasks", ..QUEUE }, expression, &[0x90]),
            Ok(done(action.clone())),
            "{expression}"
        );
    }
    let sent = args(r#"["t", "fifottl"]"#);
    let with_names = "local name, kind = ...\n\
                      if not queue.tube[name] then queue.create_tube(name, kind) end";
    assert_eq!(parse_eval(QUEUE, with_names, &sent), Ok(done(action)));
}

#[test]
fn an_if_may_only_create_the_tube_of_its_condition() {
    for (expression, why) in [
        (
            "if not queue.tube.a then queue.create_tube('b', 'fifo') end",
            "'a' exists and creates 'b'",
        ),
        ("if queue.tube.a then queue.create_tube('a', 'fifo') end", "near 'queue.tube.a then"),
        ("if queue.tube.a ~= nil then queue.tube.a:drop() end", "near 'queue.tube.a ~= nil then"),
        ("if not queue.tube.a then queue.tube.a:drop() end", "near 'queue.tube.a:drop() end'"),
        ("if not queue.tube.a then end", "near 'end'"),
        ("if not queue.tube.a then return true end", "near 'return true end'"),
        ("if not queue.tube.a then t = queue.create_tube('a', 'fifo') end", "near 't = queue"),
        (
            "if not queue.tube.a then queue.create_tube('a', 'fifo') else x() end",
            "near 'else x() end'",
        ),
        ("if not queue.tube.a then queue.create_tube('a', 'fifo')", "at its end"),
        ("if not queue.tube.a queue.create_tube('a', 'fifo') end", "near 'queue.create_tube("),
        // In Lua this is `(not queue.tube.a) == nil`, which is never true.
        ("if not queue.tube.a == nil then queue.create_tube('a', 'fifo') end", "near 'not queue"),
        ("if not os.exit then queue.create_tube('a', 'fifo') end", "near 'not os.exit then"),
        ("if true then end", "near 'true then end'"),
        ("if", "at its end"),
    ] {
        let text = refused(expression);
        assert!(text.contains(why), "{expression}: {text}");
    }
}

proptest! {
    #[test]
    fn any_words_around_an_if(words in prop::collection::vec(prop::sample::select(vec![
        "if", "not", "(", ")", "queue.tube.t", "==", "~=", "nil", "then", "end", ";", "return",
        "true", "local", "x", "=", "queue.create_tube('t', 'fifo')", "queue.statistics()", ".t",
        "['t']", "[1]", "else",
    ]), 0..14)) {
        let expression = words.join(" ");
        if let Err(fault) = parse_eval(QUEUE, &expression, &[0x90]) {
            prop_assert!(fault.text.len() < 600, "{}", fault.text);
        }
    }
}

#[test]
fn whether_a_tube_exists_or_is_missing() {
    for expression in [
        "return queue.tube.t ~= nil",
        "return (queue.tube['t'] ~= nil)",
        "return not (queue.tube.t == nil)",
        "return not not queue.tube.t",
        "local t = queue.tube.t return t ~= nil",
        "local there = queue.tube.t ~= nil; return there",
    ] {
        assert_eq!(eval(expression), returned(exists("t")), "{expression}");
    }
    for expression in
        ["return queue.tube.t == nil", "return not queue.tube['t']", "return not queue.tube('t')"]
    {
        let expected = Eval { returns: Returns::Opposite, ..returned(exists("t")) };
        assert_eq!(eval(expression), expected, "{expression}");
    }
    // A tube that was created exists.
    let made = Eval { action: made("t", Kind::Fifo), returns: Returns::Flag(true) };
    assert_eq!(eval("queue.create_tube('t', 'fifo') return queue.tube.t ~= nil"), made);
    let made = Eval { returns: Returns::Flag(false), ..made };
    assert_eq!(eval("local t = queue.create_tube('t', 'fifo') return t == nil"), made);
    // A comparison from before the creation cannot be answered after it.
    for before in ["there = queue.tube.t ~= nil", "there = queue.tube.t", "there = queue.tube('t')"]
    {
        for last in ["return there", "return not there", "tube = there"] {
            let expression = format!("local {before} queue.create_tube('t', 'fifo') {last}");
            let text = refused(&expression);
            assert!(text.contains("there';"), "{expression}: {text}");
        }
    }
}

#[test]
fn a_last_return() {
    let create = "local queue = require('queue'); queue.create_tube('t', 'fifo');";
    for (last, returns) in [
        ("return true", Returns::Flag(true)),
        ("return false;", Returns::Flag(false)),
        ("return nil", Returns::Nil),
        ("return", Returns::Nothing),
        ("return ;", Returns::Nothing),
        ("local ok = true return ok", Returns::Flag(true)),
    ] {
        let expression = format!("{create} {last}");
        assert_eq!(
            eval(&expression),
            Eval { action: made("t", Kind::Fifo), returns },
            "{expression}"
        );
    }
    // The result of the last action was sent, as if it were returned.
    assert_eq!(eval("queue.tube.t:ack(7) return"), called(ack()));
    let expected = Eval { returns: Returns::Flag(true), ..returned(ack()) };
    assert_eq!(eval("queue.tube.t:ack(7) return true"), expected);
    let nothing = Eval { action: EvalAction::Nothing, returns: Returns::Flag(true) };
    assert_eq!(eval("return true"), nothing);
}

#[test]
fn the_return_value_replaces_the_result() {
    let found = Answer::Flag(true);
    assert_eq!(Returns::Result.instead_of(&found), None);
    assert_eq!(Returns::Nothing.instead_of(&found), Some(Answer::Nothing));
    assert_eq!(Returns::Opposite.instead_of(&found), Some(Answer::Flag(false)));
    assert_eq!(Returns::Flag(true).instead_of(&Answer::Nothing), Some(Answer::Flag(true)));
    assert_eq!(Returns::Nil.instead_of(&found), Some(Answer::Nil));
}

#[test]
fn several_tubes_at_once() {
    let both = vec![new_tube("a", Kind::Fifo), missing_tube("b", Kind::Utube)];
    let expression = "queue.create_tube('a', 'fifo')\n\
                      if not queue.tube.b then queue.create_tube('b', 'utube') end";
    assert_eq!(eval(expression), done(EvalAction::CreateTubes(both.clone())));
    let expected = Eval { action: EvalAction::CreateTubes(both), returns: Returns::Flag(true) };
    assert_eq!(eval(&format!("{expression} return true")), expected);

    let named = |name: &str, variable: &str| NewTube {
        variable: Some(variable.into()),
        ..new_tube(name, Kind::Fifo)
    };
    let expected = done(EvalAction::CreateTubes(vec![named("a", "x"), named("b", "y")]));
    let expression = "x = queue.create_tube('a', 'fifo'); y = queue.create_tube('b', 'fifo')";
    assert_eq!(eval(expression), expected);
    let many = (0..51).map(|at| format!("queue.create_tube('t{at}', 'fifo') ")).collect::<String>();
    assert!(refused(&many).contains("may create at most 50 tubes"));
}

#[test]
fn the_statistics_of_one_tube() {
    let one = returned(statistics(Some("mail")));
    assert_eq!(eval("return queue.statistics().mail"), one);
    assert_eq!(eval("return queue.statistics()['mail']"), one);
    for expression in [
        "return queue.statistics('mail').tasks",
        "return queue.statistics('mail')['tasks']['ready']",
        "return queue.statistics().mail.tasks",
    ] {
        let text = refused(expression);
        assert!(text.contains("CALL queue.statistics('mail')"), "{expression}: {text}");
    }
    let text = refused("return queue.statistics()['a/b']");
    assert!(text.contains("nil value"), "{text}");
    let text = refused("return queue.tube.t:take(0.5)[1]");
    assert!(
        text.contains("near '[1]': an answer is sent as a whole; return it and select"),
        "{text}"
    );
}

#[test]
fn loading_the_queue_does_nothing() {
    for expression in
        ["", ";", "queue = require('queue')", "local queue = require 'queue'", "require('queue')"]
    {
        assert_eq!(eval(expression), done(EvalAction::Nothing), "{expression}");
    }
    assert_eq!(eval("return"), done(EvalAction::Nothing));
}

#[test]
fn another_name_of_the_queue() {
    for expression in
        ["return my.tasks.state()", "return box.my.tasks.state()", "return queue.state()"]
    {
        assert_eq!(
            parse_eval(CallContext { prefix: "my.tasks", ..QUEUE }, expression, &[0x90]),
            Ok(returned(state()))
        );
    }
    assert!(parse_eval(QUEUE, "return my.tasks.state()", &[0x90]).is_err());
    // The error named the function with the default name of the queue.
    let fault =
        parse_eval(CallContext { prefix: "my.tasks", ..QUEUE }, "return queue.tube.t:x()", &[0x90])
            .unwrap_err();
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
    let mixed = put_payload("queue.tube.t:put({'x', a = 1})");
    assert_eq!(mixed, hex(r#"82 01 a1"x" a1"a" 01"#));
    let bytes = put_payload(r"queue.tube.t:put('\xff\254')");
    assert_eq!(bytes, [0xa2, 0xff, 0xfe], "text need not be UTF-8");
}

#[test]
fn unsupported_expressions_list_what_is_supported() {
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
        "return queue.state",
        "return queue._VERSION",
        "return ...",
        "return 'ok'",
        "return not 5",
        "return not queue.state()",
        "return (queue.state()",
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
        "return queue.tube.t == 5",
        "return queue.tube('t') == nil",
        "return not queue.tube.t == nil",
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
        "return queue.tube.t:take(0) @",
    ] {
        let text = refused(expression);
        assert!(text.contains("queue.create_tube("), "{expression}: {text}");
    }
}

// The position was noted after the words were read, so it was always the end or the next word.
#[test]
fn the_unsupported_part_is_named() {
    for (expression, near) in [
        ("os.exit()", "near 'os.exit()';"),
        ("return 1", "near '1';"),
        ("return x", "near 'x';"),
        ("return queue._VERSION", "near 'queue._VERSION';"),
        ("return box.info.version -- what is it?", "near 'box.info.version -- what is it?';"),
        ("return box.space._queue:select{}", "near 'box.space._queue:select{}';"),
        ("return require('os')", "near 'require('os')';"),
        ("return require('queue')", "near 'require('queue')';"),
        (
            "box.cfg{listen=3301}; queue = require 'queue'; queue.state()",
            "near 'box.cfg{listen=3301}; queue = require 'q...';",
        ),
        ("local t = queue.tube.t; os.exit();", "near 'os.exit();';"),
        (
            "local t = queue.tube.t:take(0) return t",
            "near 'local t = queue.tube.t:take(0) return t';",
        ),
        ("local t =\n  queue.tube.t -- mine\n\n  os.exit()\n", "near 'os.exit()' in line 4;"),
        ("queue.tube.t:put(1 + 1)", "near '+ 1)';"),
        ("queue.tube.t:put(1, x)", "near 'x)';"),
        ("queue.tube.t:put(function() end)", "near 'function() end)';"),
        ("queue.tube.t:put('open)", "near ''open)';"),
        ("queue.tube[5]:take(0)", "near '5]:take(0)';"),
        ("local 5 = 1", "near '5 = 1';"),
        ("return queue.state(), 1", "near ', 1';"),
        ("queue.tube.t:take(0", "at its end;"),
        ("return queue.tube.t ~=", "at its end;"),
        ("return queue.tube. -- which", "at its end;"),
    ] {
        let text = refused(expression);
        assert!(text.contains(near), "{expression}: {text}");
    }
}

// A tube without a method was looked up with the name of a method that was not in the expression.
#[test]
fn a_tube_cannot_be_returned() {
    for expression in ["return queue.tube.nope", "queue.tube.nope", "return queue.tube['nope']"] {
        let text = refused(expression);
        assert!(text.contains("return queue.tube['nope'] ~= nil"), "{expression}: {text}");
    }
    let jobs = CallContext { prefix: "jobs", ..QUEUE };
    let Fault { text, .. } = parse_eval(jobs, "return jobs.tube.a", &[0x90]).unwrap_err();
    assert!(text.contains("return jobs.tube['a'] ~= nil"), "{text}");
}

#[test]
fn an_expression_does_one_thing() {
    for expression in [
        "queue.create_tube('a', 'fifo') return queue.state()",
        "queue.create_tube('a', 'fifo') return queue.tube.b ~= nil",
        "queue.tube.a:put(1) queue.create_tube('a', 'fifo')",
        "local t = queue.create_tube('a', 'fifo'); return t:take(0)",
        // The variable silently stood for the tube that was created, or for none.
        "queue.create_tube('mine', 'fifo'); t = queue.tube.other",
        "queue.tube.a:put(1); t = queue.tube.b",
        "a = queue.create_tube('t', 'fifo'); b = queue.tube.t",
    ] {
        assert!(refused(expression).contains("one thing"), "{expression}");
    }
    let text = refused("queue.tube.a:put(1); queue.tube.a:put(2); queue.tube.a:put(3)");
    assert!(text.ends_with("near 'queue.tube.a:put(2); queue.tube.a:put(3)'"), "{text}");
}

#[test]
fn errors_of_calls_apply_to_expressions() {
    for (expression, code) in [
        ("queue.create_tube('t', 'x')", 32),
        ("return queue.tube.t:x()", 33),
        ("return queue.x()", 33),
        ("return queue.schema.x()", 33),
        ("return queue.tube['a/b']:take(0)", 33),
    ] {
        assert_eq!(parse_eval(QUEUE, expression, &[0x90]).unwrap_err().code, code, "{expression}");
    }
    for (expression, method) in [
        ("return queue.tube.t:put()", "put"),
        ("return queue.tube.t:ack('x')", "ack"),
        ("return queue.tube.t:put(1, {pri = -1})", "put"),
    ] {
        let action = eval(expression).action;
        let EvalAction::Call(call) = action else { panic!("{expression}: {action:?}") };
        assert_eq!(call.function, method);
        let depends = matches!(call.action, CallAction::DependsOnKind { .. });
        assert!(depends, "{expression}: {call:?}");
    }
}

#[test]
fn the_size_of_expressions_is_limited() {
    let refused = |expression: &str, sent: &[u8]| {
        let Fault { code, text } = parse_eval(QUEUE, expression, sent).unwrap_err();
        assert_eq!(code, 32, "{text}");
        text.into_owned()
    };
    let deep = format!("queue.tube.t:put({}{})", "{".repeat(100_000), "}".repeat(100_000));
    assert!(refused(&deep, &[0x90]).contains("nested deeper than 64"));
    let index = format!("return queue{}", "[queue".repeat(30_000));
    assert!(refused(&index, &[0x90]).contains("nested deeper than 64"));
    for opening in ["not ", "(", "not (", "put("] {
        let deep = format!("return {}", opening.repeat(50_000));
        assert!(refused(&deep, &[0x90]).contains("nested deeper than 64"), "{opening}");
    }
    let long = format!("queue.tube.t:put('{}')", "x".repeat(300_000));
    assert!(refused(&long, &[0x90]).contains("send data as arguments"));
    // A few names for one large value would use up the memory.
    let large = args(&format!(r#"["{}"]"#, "x".repeat(100_000)));
    let many = format!("local a = ... queue.tube.t:put({{{}}})", "a,".repeat(10_000));
    assert!(refused(&many, &large).contains("too often"));
    let names = (0..60).map(|at| format!("local n{at} = 1 ")).collect::<String>();
    assert!(refused(&names, &[0x90]).contains("50"));
    let sent = args(&format!("[{}]", vec!["1"; 1_001].join(",")));
    assert!(refused("queue.tube.t:put(...)", &sent).contains("1000"));
}

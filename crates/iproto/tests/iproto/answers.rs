//! The shapes of results: CALL and its older form.

use taskyard_core::{Body, Calls, Counts, SessionId, State, TaskId, TubeName, TubeStats};
use taskyard_iproto::{Answer, Shape, check_msgpack, next_frame, parse_reply, write_answer};
use taskyard_wire::msgpack_to_json;

use crate::hex::hex;

/// The data of both shapes, without the list header around it.
fn data(answer: &Answer<'_>) -> [Vec<u8>; 2] {
    [Shape::Call, Shape::Call16].map(|shape| {
        let mut out = Vec::new();
        write_answer(&mut out, 1, shape, answer);
        let frame = next_frame(&out, 100_000).unwrap().unwrap();
        let data = parse_reply(frame.body).unwrap().data.unwrap();
        check_msgpack(data).unwrap();
        data.to_vec()
    })
}

fn both(answer: &Answer<'_>, call: &str, call_16: &str) {
    assert_eq!(data(answer), [hex(call), hex(call_16)], "{answer:?}");
}

#[test]
fn the_table_of_shapes() {
    both(&Answer::Nothing, "dd00000000", "dd00000000");
    both(&Answer::Nil, "dd00000001 c0", "dd00000001 91 c0");
    let task = Answer::Task { id: TaskId(3), state: State::Taken, data: &[0x05] };
    both(&task, r#"dd00000001 93 03 a1"t" 05"#, r#"dd00000001 93 03 a1"t" 05"#);
    both(&Answer::Number(5), "dd00000001 05", "dd00000001 91 05");
    both(&Answer::Number(-1), "dd00000001 ff", "dd00000001 91 ff");
    both(&Answer::Text("RUNNING"), r#"dd00000001 a7"RUNNING""#, r#"dd00000001 91 a7"RUNNING""#);
    both(&Answer::Flag(true), "dd00000001 c3", "dd00000001 91 c3");
    let names = ["a", "b"].map(|name| TubeName::new(name).unwrap());
    let list = r#"dd00000001 92 a1"a" a1"b""#;
    both(&Answer::Names(&names), list, list);
    both(&Answer::Names(&[]), "dd00000001 90", "dd00000001 90");
}

#[test]
fn a_session_is_text_of_16_bytes() {
    let session = Answer::Session(SessionId(*b"0123456789abcdef"));
    let text = r#"b0"0123456789abcdef""#;
    both(&session, &format!("dd00000001 {text}"), &format!("dd00000001 91 {text}"));
}

#[test]
fn every_state_has_its_letter() {
    for (state, letter) in [
        (State::Ready, "r"),
        (State::Taken, "t"),
        (State::Done, "-"),
        (State::Buried, "!"),
        (State::Delayed, "~"),
    ] {
        let task = Answer::Task { id: TaskId(u64::MAX), state, data: &[] };
        let [call, _] = data(&task);
        let expected = format!(r#"dd00000001 93 cfffffffffffffffff a1"{letter}" c0"#);
        assert_eq!(call, hex(&expected), "a task without data shows nil");
    }
}

/// The old shape was also one list in a list, and the Node driver, which uses it, saw one task
/// where Tarantool sends a row for each.
#[test]
fn a_list_of_tasks_is_one_result_or_a_row_for_each() {
    let body = Body::with_meta(&[0xa1, b'x'], &[0x80]);
    let tasks = vec![(TaskId(0), State::Done, Some(body)), (TaskId(200), State::Ready, None)];
    let list = r#"dd00000001 92 93 00 a1"-" a1"x" 93 ccc8 a1"r" c0"#;
    let rows = r#"dd00000002 93 00 a1"-" a1"x" 93 ccc8 a1"r" c0"#;
    both(&Answer::Tasks(tasks), list, rows);
    both(&Answer::Tasks(Vec::new()), "dd00000001 90", "dd00000001 90");
}

fn stats() -> TubeStats {
    TubeStats {
        tasks: Counts { ready: 1, taken: 2, buried: 3, delayed: 4, done: 5, kept: 17 },
        calls: Calls {
            ack: 6,
            bury: 7,
            delete: 8,
            kick: 9,
            put: 10,
            release: 11,
            take: 12,
            touch: 13,
            ttl: 14,
            ttr: 15,
            delay: 16,
        },
    }
}

#[test]
fn statistics_have_the_same_17_keys_always() {
    let expected = r#"{"tasks":{"ready":1,"taken":2,"buried":3,"delayed":4,"done":5,"total":10},"calls":{"ack":6,"bury":7,"delete":8,"kick":9,"put":10,"release":11,"take":12,"touch":13,"ttl":14,"ttr":15,"delay":16}}"#;
    let [call, call_16] = data(&Answer::Stats(&stats()));
    assert_eq!(msgpack_to_json(&call).unwrap(), format!("[{expected}]"));
    assert_eq!(msgpack_to_json(&call_16).unwrap(), format!("[[{expected}]]"));

    let all =
        [("a", stats()), ("b", stats())].map(|(name, stats)| (TubeName::new(name).unwrap(), stats));
    let [call, _] = data(&Answer::AllStats(&all));
    let shown = msgpack_to_json(&call).unwrap();
    assert_eq!(shown, format!(r#"[{{"a":{expected},"b":{expected}}}]"#));
    let [none, _] = data(&Answer::AllStats(&[]));
    assert_eq!(none, hex("dd00000001 80"));
}

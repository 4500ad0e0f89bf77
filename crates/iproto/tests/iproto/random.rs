//! Random and damaged bytes: every input is parsed or refused, and nothing panics.

use proptest::prelude::*;
use taskyard_iproto::{
    Greeting, Operation, Query, Rows, Shape, Space, check_msgpack, decode_commands, decode_replies,
    encode_request, next_frame, parse_call, parse_eval, parse_reply, parse_request, write_fault,
    write_ok, write_rows,
};

use crate::hex::QUEUE;
use crate::samples::config;

const NAMES: &[&str] = &[
    "queue.tube.t:put",
    "queue.tube.t:take",
    "queue.tube.t:ack",
    "queue.tube.t:release",
    "queue.tube.t:touch",
    "queue.tube.t:bury",
    "queue.tube.t:kick",
    "queue.tube.t:put_many",
    "queue.tube.t:take_many",
    "queue.tube.t:ack_many",
    "queue.tube.t:list",
    "queue.statistics",
    "queue.identify",
    "queue.worker",
    "queue.cfg",
    "queue.create_tube",
    "queue.tube",
    "taskyard.execute",
    "taskyard.run_schedule",
];

/// Processes a request as far as a server does.
fn serve(body: &[u8]) {
    let mut out = Vec::new();
    match parse_request(body) {
        Ok(request) => {
            match &request.operation {
                Operation::Call { name, args, .. } => drop(parse_call(QUEUE, name, args)),
                Operation::Eval { expression, args } => {
                    drop(parse_eval(QUEUE, expression, args));
                }
                Operation::Select { index, limit, offset, iterator, key, .. } => {
                    let (index, limit) = (*index, *limit);
                    let query = Query { index, limit, offset: *offset, iterator: *iterator, key };
                    drop(write_rows(&mut out, Space::Spaces, &query, Rows::Schema { queue: true }));
                }
                _ => {}
            }
            // A parsed request can be encoded again.
            let mut again = Vec::new();
            encode_request(&mut again, request.sync, &request.operation);
            let frame = next_frame(&again, usize::MAX).unwrap().unwrap();
            assert_eq!(parse_request(frame.body), Ok(request));
        }
        Err(bad) => {
            write_fault(&mut out, bad.sync, &bad.fault);
            let frame = next_frame(&out, usize::MAX).unwrap().unwrap();
            assert_eq!(parse_reply(frame.body).unwrap().fault(), Some(bad.fault));
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(Some(frame)) = next_frame(&bytes, 50) {
            prop_assert!(frame.consumed <= bytes.len() && frame.body.len() <= 50);
            serve(frame.body);
        }
        serve(&bytes);
        let _ = parse_reply(&bytes);
        let _ = decode_commands(&bytes);
        let _ = decode_replies(&bytes);
        for name in NAMES {
            let _ = parse_call(QUEUE, name, &bytes);
        }
    }

    #[test]
    fn any_greeting(bytes in prop::collection::vec(any::<u8>(), 128)) {
        let _ = Greeting::parse(bytes.as_slice().try_into().unwrap());
    }

    #[test]
    fn damaged_requests(
        name in prop::sample::select(NAMES),
        args in list(),
        shape in prop_oneof![Just(Shape::Call), Just(Shape::Call16)],
        sync in any::<u64>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        let call = Operation::Call { name, args: &args, shape };
        encode_request(&mut bytes, sync, &call);
        let request = parse_request(&bytes[5..]).unwrap();
        prop_assert_eq!((request.sync, request.operation), (sync, call));
        let _ = parse_call(QUEUE, name, &args);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = next_frame(&bytes, 1_000);
        serve(&bytes[5..]);
        bytes.truncate(5 + cut.index(bytes.len() - 5));
        let _ = next_frame(&bytes, 1_000);
        serve(&bytes[5..]);
    }

    #[test]
    fn any_answer_is_read_again(data in value(), sync in any::<u64>()) {
        prop_assert_eq!(check_msgpack(&data), Ok(()));
        let mut out = Vec::new();
        write_ok(&mut out, sync, |out| out.extend_from_slice(&data));
        let frame = next_frame(&out, usize::MAX).unwrap().unwrap();
        let reply = parse_reply(frame.body).unwrap();
        prop_assert_eq!(reply.sync, sync);
        prop_assert_eq!(reply.data.unwrap(), &data[..]);
        for end in 0..out.len() {
            prop_assert_eq!(next_frame(&out[..end], usize::MAX), Ok(None));
        }
    }

    #[test]
    fn any_words_of_lua(words in prop::collection::vec(word(), 0..12), args in list()) {
        for between in ["", " "] {
            let expression = words.join(between);
            let _ = parse_eval(QUEUE, &expression, &args);
        }
    }

    #[test]
    fn any_text_as_lua(expression in ".{0,60}", args in list()) {
        let _ = parse_eval(QUEUE, &expression, &args);
    }

    #[test]
    fn options_of_any_literals(
        names in prop::collection::vec(option_name(), 0..5),
        values in prop::collection::vec(literal(), 5),
        in_brackets in any::<bool>(),
    ) {
        let pairs: Vec<String> = names.iter().zip(&values).map(|(name, value)| {
            if in_brackets { format!("['{name}'] = {value}") } else { format!("{name} = {value}") }
        }).collect();
        let options = format!("{{{}}}", pairs.join(", "));
        for expression in [
            format!("return queue.tube.t:put('x', {options})"),
            format!("queue.create_tube('t', 'limfifottl', {options})"),
            format!("queue.cfg{options}"),
        ] {
            // It may be refused for its values, but it is supported.
            if let Err(fault) = parse_eval(QUEUE, &expression, &[0x90]) {
                prop_assert!(!fault.text.contains("not supported"), "{expression}: {}", fault.text);
            }
        }
    }
}

fn option_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "pri",
        "ttl",
        "ttr",
        "delay",
        "utube",
        "timeout",
        "capacity",
        "temporary",
        "if_not_exists",
        "attempts_max",
        "other",
        "in_replicaset",
    ])
}

fn literal() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (-1e6..1e6_f64).prop_map(|number| format!("{number}")),
        (-1e6..1e6_f64).prop_map(|number| format!("{number:e}")),
        "[a-z \"]{0,9}".prop_map(|text| format!("'{text}'")),
        prop::sample::select(vec!["nil", "true", "false", "{}", "''", "..."])
            .prop_map(String::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop::collection::vec((any::<bool>(), inner), 0..4).prop_map(|values| {
            let values = values
                .into_iter()
                .map(|(named, value)| if named { format!("key = {value}") } else { value });
            format!("{{{}}}", values.collect::<Vec<_>>().join("; "))
        })
    })
}

fn word() -> impl Strategy<Value = String> {
    let words = vec![
        "local",
        "return",
        "queue",
        "box",
        ".",
        "tube",
        ":",
        "put",
        "take",
        "create_tube",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        "=",
        "~=",
        "nil",
        "...",
        "'t'",
        "\"fifo\"",
        "5",
        "-",
        "1.5",
        "x",
        "require",
        "'queue'",
        "--",
        "[[",
        "]]",
        "\\",
        "'",
        "\n",
    ];
    prop::sample::select(words).prop_map(String::from)
}

/// One well-formed value of any type and width.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        prop::sample::select(vec![0xc0, 0xc2, 0xc3, 0x00, 0x7f, 0xe0, 0xff])
            .prop_map(|byte| vec![byte]),
        any::<u8>().prop_map(|number| vec![0xcc, number]),
        any::<[u8; 2]>().prop_map(|bytes| [&[0xcd][..], &bytes].concat()),
        any::<[u8; 4]>().prop_map(|bytes| [&[0xce][..], &bytes].concat()),
        any::<[u8; 8]>().prop_map(|bytes| [&[0xcf][..], &bytes].concat()),
        any::<i8>().prop_map(|number| vec![0xd0, number as u8]),
        any::<[u8; 8]>().prop_map(|bytes| [&[0xd3][..], &bytes].concat()),
        any::<[u8; 8]>().prop_map(|bytes| [&[0xcb][..], &bytes].concat()),
        any::<[u8; 5]>().prop_map(|bytes| [&[0xa5][..], &bytes].concat()),
        any::<[u8; 3]>().prop_map(|bytes| [&[0xc4, 3][..], &bytes].concat()),
        any::<[u8; 2]>().prop_map(|bytes| [&[0xd4][..], &bytes].concat()),
        option_name().prop_map(|name| [&[0xa0 | name.len() as u8], name.as_bytes()].concat()),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        (prop::collection::vec(inner, 0..6), any::<bool>()).prop_map(|(values, map)| {
            let head =
                if map { 0x80 | (values.len() / 2) as u8 } else { 0x90 | values.len() as u8 };
            let count = if map { values.len() / 2 * 2 } else { values.len() };
            [&[head][..], &values[..count].concat()].concat()
        })
    })
}

fn list() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(value(), 0..4)
        .prop_map(|values| [&[0x90 | values.len() as u8][..], &values.concat()].concat())
}

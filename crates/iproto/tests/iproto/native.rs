//! The native call: everything that is encoded can be decoded.

use proptest::prelude::*;
use taskyard_core::{Body, Command, NewTask, Span, TubeName};
use taskyard_iproto::{
    CallAction, Operation, Shape, check_msgpack, decode_commands, decode_executed, decode_replies,
    encode_commands, encode_execute, encode_replies, next_frame, parse_call, parse_reply,
    parse_request, write_ok,
};

use crate::hex::{QUEUE, hex};
use crate::samples::{command, config, error, reply};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn commands_come_back(commands in prop::collection::vec(command(), 0..4)) {
        let mut bytes = Vec::new();
        encode_commands(&mut bytes, &commands);
        prop_assert_eq!(check_msgpack(&bytes), Ok(()));
        prop_assert_eq!(decode_commands(&bytes), Ok(commands));
    }

    #[test]
    fn replies_come_back(
        replies in prop::collection::vec(prop_oneof![
            reply().prop_map(Ok),
            error().prop_map(Err),
        ], 0..4),
    ) {
        let mut bytes = Vec::new();
        encode_replies(&mut bytes, &replies);
        prop_assert_eq!(check_msgpack(&bytes), Ok(()));
        prop_assert_eq!(decode_replies(&bytes), Ok(replies));
    }

    #[test]
    fn cut_or_damaged_it_is_refused_or_means_something_else(
        command in command(),
        reply in reply(),
        cut in any::<prop::sample::Index>(),
        damage in any::<u8>(),
    ) {
        let (mut commands, mut replies) = (Vec::new(), Vec::new());
        encode_commands(&mut commands, std::slice::from_ref(&command));
        encode_replies(&mut replies, &[Ok(reply)]);
        prop_assert!(decode_commands(&commands[..cut.index(commands.len())]).is_err());
        prop_assert!(decode_replies(&replies[..cut.index(replies.len())]).is_err());
        let (at, place) = (cut.index(commands.len()), cut.index(replies.len()));
        commands[at] = damage;
        replies[place] = damage;
        let _ = decode_commands(&commands);
        let _ = decode_replies(&replies);
    }
}

#[test]
fn a_batch_through_the_whole_protocol() {
    let tube = TubeName::new("t").unwrap();
    let tasks = vec![NewTask::new(Body::new(&[0x05])); 3];
    let commands =
        vec![Command::Put { tube, tasks, wait: Span::ZERO }, Command::Tubes { tube: None }];
    let mut sent = Vec::new();
    encode_execute(&mut sent, 7, &commands);
    let frame = next_frame(&sent, 1_000).unwrap().unwrap();
    assert_eq!(frame.consumed, sent.len());
    let request = parse_request(frame.body).unwrap();
    let Operation::Call { name, args, shape: Shape::Call } = request.operation else {
        panic!("{request:?}")
    };
    assert_eq!(request.sync, 7);
    let call = parse_call(QUEUE, name, args).unwrap();
    assert_eq!(call.action, CallAction::Batch(commands));

    let replies =
        vec![Err(taskyard_core::Error::ShuttingDown), Ok(taskyard_core::Reply::Kicked(1))];
    let mut answered = Vec::new();
    write_ok(&mut answered, 7, |out| {
        out.push(0x91);
        encode_replies(out, &replies);
    });
    let frame = next_frame(&answered, 1_000).unwrap().unwrap();
    let data = parse_reply(frame.body).unwrap().data.unwrap();
    assert_eq!(decode_executed(data), Ok(replies));
}

#[test]
fn a_put_is_small() {
    let task = NewTask::new(Body::new(b"\xa5hello"));
    let put =
        Command::Put { tube: TubeName::new("t").unwrap(), tasks: vec![task], wait: Span::ZERO };
    let mut bytes = Vec::new();
    encode_commands(&mut bytes, &[put]);
    assert_eq!(bytes, hex(r#"91 94 04 a1"t" 91 91 c406 a5"hello" 00"#));
}

#[test]
fn newer_programs_may_add_fields() {
    // A truncate with two more fields, and a put without its last ones.
    let bytes = hex(r#"92 94 0b a1"t" 05 81 a1"x" 90 | 94 04 a1"t" 91 91 c401 05 00"#);
    let commands = decode_commands(&bytes).unwrap();
    assert_eq!(commands[0], Command::Truncate { tube: TubeName::new("t").unwrap() });
    assert_eq!(commands.len(), 2);
}

#[test]
fn malformed_commands_are_refused() {
    for wrong in [
        "",
        "05",
        "91 05",
        "91 90",
        "91 91 a1 41",
        "91 91 18",
        "91 91 0b",
        "91 92 0b a0",
        "91 92 0b a1 2f",
        "91 92 0b a1 ff",
        "91 93 0b a1 41 c1",
        "90 00",
        "dd ffffffff",
        "91 94 04 a1 41 dd 7fffffff",
        // Payloads that are not MessagePack, or more than one value, or nested too deep; a meta
        // that is no map.
        "91 94 04 a1 41 91 91 c400 00",
        "91 94 04 a1 41 91 91 c402 0505 00",
        "91 94 04 a1 41 91 91 92 c401 05 c401 05 00",
        "91 94 04 a1 41 91 91 a1 41 00",
        "91 94 04 a1 41 91 90 00",
        // A time and a session of another type or size.
        "91 92 0f a1 41",
        "91 92 0f cfffffffffffffffff",
        "91 92 0e c402 0000",
        // A tube of an unknown kind.
        "91 94 00 a1 41 95 a1 41 00 c2 c2 c2 c2",
    ] {
        let fault = decode_commands(&hex(wrong)).expect_err(wrong);
        assert_eq!(fault.code, 32, "{wrong}: {}", fault.text);
    }
    let mut deep = hex("91 94 04 a1 41 91 91 c442");
    deep.extend([0x91; 65]);
    deep.extend([0x00, 0x00]);
    assert!(decode_commands(&deep).unwrap_err().text.contains("nested too deep"));
}

#[test]
fn a_small_message_cannot_use_much_memory() {
    // Many commands, each of a few bytes.
    let truncate = hex(r#"92 0b a1"t""#);
    let mut bytes = hex("dd 00030d41");
    (0..200_001).for_each(|_| bytes.extend_from_slice(&truncate));
    let fault = decode_commands(&bytes).unwrap_err();
    assert!(fault.text.contains("send less at once"), "{}", fault.text);
    // Many tasks in a few commands.
    let tasks =
        [&hex(r#"94 04 a1"t" dd 00019000"#)[..], &hex("91 c401 05").repeat(0x19000), &[0]].concat();
    let fault = decode_commands(&[&[0x92][..], &tasks, &tasks].concat()).unwrap_err();
    assert!(fault.text.contains("send less at once"), "{}", fault.text);
}

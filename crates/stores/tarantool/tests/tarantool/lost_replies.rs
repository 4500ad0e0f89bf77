//! Tarantool executes a request and its reply is lost.

use taskyard_core::{Command, Error, Kind, Span, Take, TubeName, TubeOptions};
use taskyard_store::Store;
use taskyard_tarantool::LuaValue;

use taskyard_testkit::SharedDatabase;
use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::faulty_proxy::Loss;
use taskyard_testkit::suite::lost_replies::{is_unknown, ready_and_taken};
use taskyard_testkit::tarantool::{
    CALL, SharedTarantool, TarantoolInstance, lossy_path_to, open, program, run,
};

taskyard_testkit::lost_reply_suite!(taskyard_testkit::tarantool::SharedTarantool);

fn take_many(tube: &TubeName, count: usize) -> Command {
    let (session, lease, wait) = (None, None, Span::ZERO);
    Command::Take(Take { tube: tube.clone(), count, session, lease, worker: None, wait })
}

// The reply to many takes is lost beside many other deliveries: undoing them blocked Tarantool for so long that its answer timed out too.
// In a tube that was renamed meanwhile the lost deliveries stayed.
#[test]
fn only_lost_deliveries_of_many_takes_are_undone() {
    run(async {
        let path = SharedTarantool::lossy_path();
        let (store, other) = (open(&path.url), open(&path.url));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 10_000)).expect("they are put");
        ask(&store, put(&tube, 1_000)).expect("they are put");
        ask(&store, take_many(&tube, 10_000)).expect("they are taken");
        path.proxy.withhold_reply(b"batch");
        let lost = store.execute(NOW, vec![take_many(&tube, 1); 1_000]).await;
        lost.replies.into_iter().for_each(is_unknown);
        let name = TubeName::new("post").expect("a name");
        let rename = Command::NameTube { tube, name: name.clone(), queue_num: None };
        ask(&other, rename).expect("it has another name");
        assert_eq!(ready_and_taken(&other, &name), (0, 11_000));
        assert_eq!(ready_and_taken(&store, &name), (1_000, 10_000));
        SharedTarantool::audit(&path.part);
    });
}

// A resync was sent three times on three connections: the first was delayed, arrived after sessions were joined that it does not contain, and
// ended them.
#[test]
fn a_delayed_resync_is_ignored() {
    let Some(program) = program() else { return };
    let alone = TarantoolInstance::new(program);
    let store = open(&alone.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let resync = format!("{CALL} call('resync', server, nil, 9, {{}}, {{}})");
    alone.talk(&resync);
    alone.talk(&format!(
        "{CALL} call('batch', server, 10, nil, 7, {{{{13, ('s'):rep(16), true}}, {{5, 'mail', 1, 0, nil, ('s'):rep(16)}}}}, 0)"
    ));
    let held = "return box.space.taskyard_held:len()";
    assert_eq!(alone.talk(held), LuaValue::Int(1));
    alone.talk(&resync);
    alone.talk(&format!("{CALL} call('batch', server, 11, nil, 8, {{{{16, 9}}}}, 0)"));
    assert_eq!(alone.talk(held), LuaValue::Int(1));
}

// A connection was lost while it was opened: a put got an unknown outcome although it had not been sent.
#[test]
fn a_command_that_was_not_sent_has_a_known_outcome() {
    let Some(program) = program() else { return };
    let alone = TarantoolInstance::new(program);
    let path = lossy_path_to(&alone);
    let store = open(&path.url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    alone.kill();
    alone.start();
    // This is in the first request of each connection.
    path.proxy.lose(Loss { word: b"box.info.ro", times: usize::MAX, executed: true });
    let away = ask(&store, put(&tube, 1));
    assert!(matches!(away, Err(Error::StoreUnavailable(_))), "{away:?}");
}

// A call that timed out must not be done later: a slow Tarantool may still receive it.
#[test]
fn a_call_that_timed_out_is_not_done_later() {
    let Some(program) = program() else { return };
    let alone = TarantoolInstance::new(program);
    let store = open(&alone.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let take = |call: u64| {
        format!(
            "{CALL}
            box.space.taskyard_server:update(server, {{{{'=', 3, 10}}}})
            return #call('batch', server, {call}, nil, 7, {{{{5, 'mail', 1}}}}, 0)"
        )
    };
    assert_eq!(alone.talk(&take(10)), LuaValue::Int(0), "it says that it was not wanted");
    assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    assert_eq!(alone.talk(&take(11)), LuaValue::Int(9), "the parts of an answer");
    assert_eq!(ready_and_taken(&store, &tube), (0, 1));
}

//! Tests of how retry policies and rate limits are stored, shared by servers and copied.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Outcome, RateLimit, Reason,
    Reply, RetryPolicy, Span, Task, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, RemoteChange, Store};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{NOW, ask, make_tube, put, take};
use taskyard_testkit::tarantool::{TarantoolInstance, instance, open, own, program, run};

/// A token each half second, at most three.
const RATE: RateLimit = RateLimit { count: 2, per: Span::from_secs(1), burst: 3 };
const HALF: Span = Span::from_micros(500_000);

fn paced() -> TubeOptions {
    TubeOptions {
        retry: Some(Box::new(RetryPolicy::DEFAULT)),
        rate: Some(Box::new(RATE)),
        ..TubeOptions::new(Kind::FifoTtl)
    }
}

fn prefix_of(url: &str) -> String {
    url.rsplit_once('=').expect("it has a prefix").1.to_owned()
}

#[track_caller]
fn peek(store: &(impl Store + ?Sized), tube: &TubeName) -> Vec<Task> {
    match ask(store, Command::Peek { tube: tube.clone(), ids: (0..9).map(TaskId).collect() }) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("a peek shows tasks, not {other:?}"),
    }
}

fn limited_until(store: &(impl Store + ?Sized), tube: &TubeName) -> Option<Timestamp> {
    match peek(store, tube).last().expect("a task").reason {
        Reason::RateLimited(next) => Some(next),
        _ => None,
    }
}

/// Fails a task as the policy says. Answers when it is tried again.
#[track_caller]
fn fail(store: &(impl Store + ?Sized), tube: &TubeName, task: &Task) -> Option<Timestamp> {
    let holder = Holder::Lease(task.lease.expect("it is taken"));
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::fail_by_policy("no", 7) }];
    match ask(store, Command::Finish { tube: tube.clone(), items, show: true }) {
        Ok(Reply::Finished(outcomes)) => match &outcomes[0] {
            Outcome::Done(Some(task)) => task.due,
            other => panic!("{other:?}"),
        },
        other => panic!("a failure has an outcome, not {other:?}"),
    }
}

fn change(rate: Option<RateLimit>) -> TubeChange {
    TubeChange { rate: Some(rate.map(Box::new)), ..TubeChange::default() }
}

/// Policies and limits need the format that keys have; the same change without them does not.
#[test]
fn the_first_policy_or_limit_raises_the_stored_format() {
    run(async {
        let retry =
            TubeChange { retry: Some(Some(Box::new(RetryPolicy::DEFAULT))), ..change(None) };
        for raising in [retry, change(Some(RATE))] {
            let url = own(&instance().url());
            let format = format!("return box.space.{}_meta:get('format')[2]", prefix_of(&url));
            let store = open(&url);
            let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
            let alter = |change| ask(&store, Command::AlterTube { tube: tube.clone(), change });
            alter(TubeChange { retry: Some(None), ..change(None) }).expect("it is altered");
            ask(&store, put(&tube, 1)).expect("it is put");
            let task = take(&store, &tube, 1).remove(0);
            assert_eq!(fail(&store, &tube, &task), None, "without a policy it is buried");
            assert_eq!(instance().talk(&format), LuaValue::Int(1));
            alter(raising).expect("it is altered");
            assert_eq!(instance().talk(&format), LuaValue::Int(3));
        }
        let url = own(&instance().url());
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let own = NewTask { attempts_max: Some(2), ..NewTask::new(Body::new(b"\x00")) };
        let put = Command::Put { tube: tube.clone(), tasks: vec![own], wait: Span::ZERO };
        ask(&store, put).expect("it is put");
        assert_eq!(peek(&store, &tube)[0].attempts_max, Some(2));
        let format = format!("return box.space.{}_meta:get('format')[2]", prefix_of(&url));
        assert_eq!(instance().talk(&format), LuaValue::Int(3));
    });
}

#[test]
fn policies_and_tokens_survive_a_kill() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, paced());
    ask(&store, put(&tube, 6)).expect("they are put");
    let taken = take(&store, &tube, 9);
    assert_eq!(taken.len(), 3);
    let due = fail(&store, &tube, &taken[0]);
    assert_eq!(due, Some(NOW + RetryPolicy::DEFAULT.delay_after(1, 7, taken[0].id)));
    drop(store);
    tarantool.kill();
    tarantool.start();
    let store = open(&tarantool.url());
    let Ok(Reply::Tubes(tubes)) = ask(&store, Command::Tubes { tube: None }) else { panic!() };
    assert_eq!((&tubes[0].options.retry, &tubes[0].options.rate), (&paced().retry, &paced().rate));
    assert_eq!((tubes[0].takeable, tubes[0].next_wakeup), (0, Some(NOW + HALF)));
    assert_eq!(peek(&store, &tube)[0].due, due);
    assert_eq!(limited_until(&store, &tube), Some(NOW + HALF));
    assert_eq!(take(&store, &tube, 9).len(), 0);
    // The deadline is not stored: a tick finds it, and the next one has a token.
    let tick = |now| block_on(store.execute(now, vec![Command::Tick { limit: 9, seed: 0 }]));
    assert_eq!(tick(NOW).effects.next_wakeup, Some(NOW + HALF));
    let effects = tick(NOW + HALF).effects;
    assert_eq!(effects.ready, [(tube.clone(), 1)]);
    assert!(effects.next_wakeup.is_none_or(|at| at > NOW + HALF));
    tarantool.audit("taskyard");
}

/// The servers share the tokens, and a tick of one tells the others that there is one again.
#[test]
fn servers_share_tokens() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, paced());
        ask(&here, put(&tube, 2000)).expect("they are put");
        assert_eq!(take(&here, &tube, 2).len(), 2);
        assert_eq!(take(&there, &tube, 2).len(), 1);
        assert_eq!(take(&here, &tube, 1).len(), 0);
        let (sender, noticed) = mpsc::channel();
        there.watch(Arc::new(move |change| drop(sender.send(change))));
        // It may not listen yet when the first notices come.
        let noticed = (1..600).find_map(|round| {
            let now = NOW + Span::from_secs(round);
            block_on(here.execute(now, vec![Command::Tick { limit: 9, seed: 0 }]));
            let take = Command::Take(taskyard_core::Take {
                tube: tube.clone(),
                count: 9,
                session: None,
                lease: None,
                worker: None,
                wait: Span::ZERO,
            });
            block_on(here.execute(now, vec![take]));
            let change = noticed.recv_timeout(Duration::from_millis(100)).ok();
            change.filter(|change| *change != RemoteChange::Anything)
        });
        assert_eq!(noticed, Some(RemoteChange::Tube(tube)));
        instance().audit(&prefix_of(&url));
    });
}

/// A limit is refused where the user may not create its space.
#[test]
fn without_the_right_to_create_spaces_limits_are_refused() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let tube = make_tube(&open(&tarantool.url()), TubeOptions::new(Kind::Fifo));
    tarantool.talk(
        "box.space.taskyard_bucket:drop()
        box.schema.user.create('plain', { password = 'plain' })
        box.schema.user.grant('plain', 'read,write,execute', 'universe')",
    );
    let plain = open(&tarantool.url_with("plain:plain@"));
    ask(&plain, put(&tube, 1)).expect("it is put");
    assert_eq!(take(&plain, &tube, 1).len(), 1);
    let alter = Command::AlterTube { tube: tube.clone(), change: change(Some(RATE)) };
    match ask(&plain, alter) {
        Err(Error::Invalid(why)) => assert!(why.contains("taskyard migrate"), "{why}"),
        other => panic!("it is refused, not {other:?}"),
    }
}

#[test]
fn policies_and_tokens_are_copied() {
    run(async {
        let url = || own(&instance().url());
        let (source, from, to, back) =
            (MemoryStore::default(), open(&url()), open(&url()), MemoryStore::default());
        let tube = make_tube(&source, paced());
        let own = NewTask { attempts_max: Some(2), ..NewTask::new(Body::new(b"\x00")) };
        let tasks = vec![own, NewTask::new(Body::new(b"\x01"))];
        let command = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        ask(&source, command).expect("they are put");
        ask(&source, put(&tube, 4)).expect("they are put");
        for task in take(&source, &tube, 3) {
            fail(&source, &tube, &task);
        }
        let expected = peek(&source, &tube);
        let stores: [(&dyn Store, &dyn Store); 3] = [(&source, &from), (&from, &to), (&to, &back)];
        for (from, to) in stores {
            let plan = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &plan, |_| ()).await.expect("it is copied");
            assert_eq!(peek(to, &tube), expected);
            assert_eq!(limited_until(to, &tube), Some(NOW + HALF));
            let Ok(Reply::Tubes(tubes)) = ask(to, Command::Tubes { tube: None }) else { panic!() };
            assert_eq!(tubes[0].options, paced());
        }
        assert_eq!(expected[0].attempts_max, Some(2));
    });
}

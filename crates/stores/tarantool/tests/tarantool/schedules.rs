//! Tests of how schedules are stored, fired by several servers and copied.

use std::sync::Barrier;
use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, CatchUp, Command, Error, Kind, NewTask, Overlap, Placed, Priority, Reply,
    ScheduleCommand, ScheduleName, ScheduleReply, Span, StoredSchedule, Timestamp, TubeName,
    TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, Store};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{NOW, ask, make_tube, take};
use taskyard_testkit::tarantool::{TarantoolInstance, instance, open, own, program, run};

const MINUTE: Span = Span::from_secs(60);

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).expect("a good name")
}

fn schedule(text: &str, tube: &TubeName) -> StoredSchedule {
    StoredSchedule {
        name: name(text),
        tube: tube.clone(),
        template: NewTask::new(Body::new(b"\xa1x")),
        timing: "every 1 min".into(),
        catch_up: CatchUp::All,
        overlap: Overlap::Allow,
        until: None,
        paused: false,
        next: Some(NOW),
        last: None,
        fired: 0,
        skipped: 0,
    }
}

fn run_command(
    store: &(impl Store + ?Sized),
    command: ScheduleCommand,
) -> Result<ScheduleReply, Error> {
    match ask(store, Command::Schedule(Box::new(command)))? {
        Reply::Schedule(reply) => Ok(reply),
        other => panic!("unexpected reply: {other:?}"),
    }
}

fn set(store: &(impl Store + ?Sized), schedule: &StoredSchedule) {
    let set =
        ScheduleCommand::Set { schedule: schedule.clone(), only_new: true, keep_paused: false };
    assert_eq!(run_command(store, set), Ok(ScheduleReply::Set(true)));
}

fn all(store: &(impl Store + ?Sized)) -> Vec<StoredSchedule> {
    match run_command(store, ScheduleCommand::List { after: None, limit: 1000 }) {
        Ok(ScheduleReply::Schedules(all)) => all,
        other => panic!("unexpected reply: {other:?}"),
    }
}

/// Fires a time; the added tasks, or `None` if another time is next.
#[track_caller]
fn fire(
    store: &(impl Store + ?Sized),
    text: &str,
    expected: Timestamp,
    puts: usize,
) -> Option<Vec<Placed>> {
    let (puts, next) = (vec![NewTask::new(Body::new(b"\xa1x")); puts], Some(expected + MINUTE));
    let fire = ScheduleCommand::Fire { name: name(text), expected, next, puts, skipped: 0 };
    match run_command(store, fire) {
        Ok(ScheduleReply::Fired(placed)) => placed,
        other => panic!("unexpected reply: {other:?}"),
    }
}

/// A schedule with a value in every part.
fn full(tube: &TubeName) -> StoredSchedule {
    let template = NewTask {
        pri: Some(u64::MAX),
        ttl: Some(Span::from_secs(100)),
        delay: Some(Span::from_micros(1)),
        semaphore_priority: Some(Priority::new(0.25).expect("a number")),
        attempts_max: Some(4),
        ..NewTask::new(Body::with_meta(&[0xc4, 2, 0xff, 0xfe], &[0x81, 0xa1, b'k', 0xc0]))
    };
    StoredSchedule {
        template,
        until: Some(NOW + MINUTE),
        paused: true,
        next: Some(Timestamp::NEVER),
        ..schedule("voll\u{e9}", tube)
    }
}

#[test]
fn the_first_schedule_raises_the_stored_format() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        let format = format!("return box.space.{prefix}_meta:get('format')[2]");
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        assert_eq!(all(&store), []);
        let unknown = ScheduleCommand::Remove { name: name("daily") };
        assert_eq!(run_command(&store, unknown), Err(Error::ScheduleNotFound(name("daily"))));
        assert_eq!(instance().talk(&format), LuaValue::Int(1));
        set(&store, &schedule("daily", &tube));
        assert_eq!(instance().talk(&format), LuaValue::Int(3));
    });
}

#[test]
fn schedules_survive_a_kill() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
    let (daily, full) = (schedule("daily", &tube), full(&tube));
    set(&store, &daily);
    set(&store, &full);
    assert_eq!(fire(&store, "daily", NOW, 2).map(|placed| placed.len()), Some(2));
    drop(store);
    tarantool.kill();
    tarantool.start();
    let store = open(&tarantool.url());
    let next = Some(NOW + MINUTE);
    let fired = StoredSchedule { next, last: Some(NOW), fired: 2, ..daily };
    assert_eq!(all(&store), [fired, full]);
    assert_eq!(fire(&store, "daily", NOW, 2), None);
    assert_eq!(take(&store, &tube, 9).len(), 2);
}

/// Every reply says when the next schedule is due; neither paused nor removed ones are.
#[test]
fn replies_have_the_next_time() {
    run(async {
        let url = own(&instance().url());
        let (store, other) = (open(&url), open(&url));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let next = || {
            let tubes = vec![Command::Tubes { tube: None }];
            block_on(other.execute(NOW, tubes)).effects.next_schedule
        };
        assert_eq!(next(), None);
        let later = NOW + MINUTE;
        set(&store, &StoredSchedule { next: Some(later), ..schedule("later", &tube) });
        set(&store, &full(&tube));
        assert_eq!(next(), Some(later));
        set(&store, &schedule("now", &tube));
        assert_eq!(next(), Some(NOW));
        fire(&store, "now", NOW, 0).expect("it fires");
        assert_eq!(next(), Some(later));
        for text in ["now", "later"] {
            let pause = ScheduleCommand::Pause { name: name(text), paused: true };
            run_command(&store, pause).expect("it is paused");
        }
        assert_eq!(next(), None);
    });
}

/// Servers that fire the same times at once add each time's tasks once.
#[test]
fn servers_fire_each_time_once() {
    run(async {
        const TIMES: u64 = 200;
        let url = own(&instance().url());
        let stores = [open(&url), open(&url)];
        let tube = make_tube(&stores[0], TubeOptions::new(Kind::Fifo));
        set(&stores[0], &schedule("daily", &tube));
        let together = &Barrier::new(2);
        let fired = thread::scope(|scope| {
            let servers = stores.each_ref().map(|store| {
                scope.spawn(move || {
                    let time = |round| {
                        together.wait();
                        let expected = NOW + Span::from_secs(60 * round);
                        fire(store, "daily", expected, 1).is_some()
                    };
                    (0..TIMES).map(time).collect::<Vec<_>>()
                })
            });
            servers.map(|server| server.join().expect("it does not fail"))
        });
        let [here, there] = fired;
        assert!(here.iter().zip(&there).all(|(here, there)| here != there), "once for each time");
        assert_eq!(take(&stores[1], &tube, 1000).len() as u64, TIMES);
        assert_eq!(all(&stores[1])[0].fired, TIMES);
    });
}

#[test]
fn schedules_are_copied() {
    run(async {
        let url = || own(&instance().url());
        let (source, from, to, back) =
            (MemoryStore::default(), open(&url()), open(&url()), MemoryStore::default());
        let tube = make_tube(&source, TubeOptions::new(Kind::FifoTtl));
        // More than are read together.
        for number in 0..250 {
            set(&source, &schedule(&format!("number {number}"), &tube));
        }
        set(&source, &full(&tube));
        fire(&source, "number 7", NOW, 2).expect("it fires");
        let expected = all(&source);
        let stores: [(&dyn Store, &dyn Store); 3] = [(&source, &from), (&from, &to), (&to, &back)];
        for (from, to) in stores {
            let plan = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &plan, |_| ()).await.expect("it is copied");
            assert_eq!(all(to), expected);
        }
        assert_eq!(fire(&to, "number 7", NOW, 1), None, "no time fires again");
        assert!(fire(&to, "number 7", NOW + MINUTE, 1).is_some());
    });
}

//! Retry policies, rate limits and schedules with several servers, and copies of them.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, CatchUp, Command, HeldKey, Key, KeyRequest, Kind, NewTask, OnConflict, Overlap,
    RateLimit, Reply, RetryPolicy, ScheduleCommand, ScheduleName, ScheduleReply, Span,
    StoredSchedule, Take, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{Export, Exported, MemoryStore, Store};
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, check_counts, run, sql};

const SERVERS: usize = 3;
const RATE: RateLimit = RateLimit { count: 2, per: Span::from_secs(1), burst: 5 };

fn every_minute(tube: &TubeName, overlap: Overlap) -> StoredSchedule {
    StoredSchedule {
        name: ScheduleName::new("daily").expect("a name"),
        tube: tube.clone(),
        template: NewTask::new(Body::new(&[0xc0])),
        timing: "every 1 min".into(),
        catch_up: CatchUp::All,
        overlap,
        until: None,
        paused: false,
        next: Some(NOW),
        last: None,
        fired: 0,
        skipped: 0,
    }
}

fn scheduled(store: &(impl Store + ?Sized), command: ScheduleCommand) -> ScheduleReply {
    match ask(store, Command::Schedule(Box::new(command))) {
        Ok(Reply::Schedule(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

/// Servers that fire the same times at once add each task once, and the counters agree.
#[test]
fn each_time_of_a_schedule_fires_once() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let schedule = every_minute(&tube, Overlap::Allow);
        let (name, only_new) = (schedule.name.clone(), true);
        scheduled(&store, ScheduleCommand::Set { schedule, only_new, keep_paused: false });
        let barrier = Barrier::new(SERVERS);
        let work = || {
            let store = database.open();
            barrier.wait();
            let mut fired = 0;
            for minute in 0..40 {
                let expected = NOW + Span::from_secs(60 * minute);
                let next = Some(expected + Span::from_secs(60));
                let puts = vec![NewTask::new(Body::new(&[minute as u8])); 2];
                let name = name.clone();
                let fire = ScheduleCommand::Fire { name, expected, next, puts, skipped: 1 };
                let ScheduleReply::Fired(placed) = scheduled(&store, fire) else { panic!() };
                fired += placed.map_or(0, |placed| placed.len());
            }
            fired
        };
        let fired: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..SERVERS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it fires")).sum()
        });
        assert_eq!(fired, 80);
        let mut times = BTreeMap::new();
        for task in take(&store, &tube, 100) {
            *times.entry(task.body.expect("a payload").payload().to_vec()).or_insert(0) += 1;
        }
        assert!(times.len() == 40 && times.values().all(|count| *count == 2), "{times:?}");
        let shown = scheduled(&store, ScheduleCommand::Get { name });
        let ScheduleReply::Schedules(shown) = shown else { panic!("{shown:?}") };
        assert_eq!((shown[0].fired, shown[0].skipped), (80, 40));
        check_counts(&database.url());
    });
}

/// Servers that take from one tube with a rate limit share its tokens.
#[test]
fn servers_share_the_tokens_of_a_tube() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let options = TubeOptions { rate: Some(Box::new(RATE)), ..TubeOptions::new(Kind::Fifo) };
        let tube = make_tube(&store, options);
        ask(&store, put(&tube, 50)).expect("they are put");
        let barrier = Barrier::new(SERVERS);
        let work = || {
            let store = database.open();
            barrier.wait();
            (0..6).map(|_| take(&store, &tube, 2).len()).sum::<usize>()
        };
        let taken: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..SERVERS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it takes")).sum()
        });
        assert_eq!(taken, 5, "as many as the burst");
    });
}

/// Servers of earlier versions took the row about the next token for a tube that does not exist, and did not deliver the tasks beside it.
#[test]
fn earlier_versions_are_not_told_of_tokens() {
    run(async {
        let database = Database::new();
        let store = database.open();
        // The functions use the clock of the database: no token may come while the test runs.
        let rate = RateLimit { per: Span::from_secs(3600), ..RATE };
        let options = TubeOptions { rate: Some(Box::new(rate)), ..TubeOptions::new(Kind::FifoTtl) };
        let tube = make_tube(&store, options);
        for place in 0..8 {
            ask(&store, put(&tube, place)).expect("a put");
        }
        let delivered = |function: &str| {
            let text = format!(
                "SELECT string_agg(status::text, '' ORDER BY status) FROM taskyard.{function}('{tube}', NULL, 4, \
                 NULL, NULL, 1000000, NULL, NULL, false, NULL) WHERE status <> 4"
            );
            sql(&database.url(), &text)
        };
        assert_eq!(delivered("deliver_to_workers").as_deref(), Some("00003"));
        assert_eq!(delivered("deliver_to_workers").as_deref(), Some("0"));
        assert_eq!(delivered("deliver_with_rate").as_deref(), Some("5"));
    });
}

/// A take that reaches the limit sets a deadline, and the tick at that moment reports the tube as ready, so that waiting takes are
/// repeated. Without ready tasks it does not.
#[test]
fn waiting_takes_are_woken_by_the_next_token() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let options = TubeOptions { rate: Some(Box::new(RATE)), ..TubeOptions::new(Kind::Fifo) };
        let tube = make_tube(&store, options);
        ask(&store, put(&tube, 6)).expect("they are put");
        let run_at = |now: Timestamp, command: Command| block_on(store.execute(now, vec![command]));
        let take = || {
            let (session, lease, worker, wait) = (None, None, None, Span::ZERO);
            Command::Take(Take { tube: tube.clone(), count: 9, session, lease, worker, wait })
        };
        let tick = || Command::Tick { limit: 100, seed: 0 };
        run_at(NOW, tick());
        let next = NOW + Span::from_micros(500_000);
        let limited = run_at(NOW, take());
        assert_eq!(limited.effects.next_wakeup, Some(next));
        let early = run_at(NOW + Span::from_micros(499_999), tick());
        assert_eq!((early.effects.ready, early.effects.next_wakeup), (vec![], Some(next)));
        let woken = run_at(next, tick());
        assert_eq!(woken.effects.ready, [(tube.clone(), 1)]);
        assert_eq!(woken.effects.next_wakeup, None);
        let last = run_at(next, take());
        assert!(matches!(&last.replies[0], Ok(Reply::Taken(tasks)) if tasks.len() == 1));
        assert_eq!(last.effects.next_wakeup, None, "no task is left");
    });
}

/// The moment of the next schedule is reported by each command that sets it, and by ticks of other servers.
///
/// A fire reported the time that it had fired until the next tick, so that servers asked in vain and waited a second.
#[test]
fn the_next_schedule_is_reported() {
    run(async {
        let database = Database::new();
        let (store, other) = (database.open(), database.open());
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let next_of = |store: &PostgresStore, command: Command| {
            let executed = block_on(store.execute(NOW, vec![command]));
            assert!(executed.replies[0].is_ok(), "{:?}", executed.replies);
            executed.effects.next_schedule
        };
        let tick = || Command::Tick { limit: 100, seed: 0 };
        let ask = |command| Command::Schedule(Box::new(command));
        assert_eq!(next_of(&other, tick()), None);
        let schedule = every_minute(&tube, Overlap::Skip);
        let (name, only_new) = (schedule.name.clone(), false);
        let set = ScheduleCommand::Set { schedule, only_new, keep_paused: false };
        assert_eq!(next_of(&store, ask(set)), Some(NOW));
        assert_eq!(next_of(&other, tick()), Some(NOW));
        let next = Some(NOW + Span::from_secs(60));
        let puts = vec![NewTask::new(Body::new(&[0xc0]))];
        let fire =
            ScheduleCommand::Fire { name: name.clone(), expected: NOW, next, puts, skipped: 0 };
        assert_eq!(next_of(&store, ask(fire.clone())), next);
        let due = || ask(ScheduleCommand::Due { skip: 0, limit: 1 });
        assert_eq!(next_of(&other, due()), next);
        assert_eq!(next_of(&other, ask(fire)), next, "it does not fire again");
        for store in [&store, &other] {
            assert_eq!(next_of(store, tick()), next);
        }
        next_of(&store, ask(ScheduleCommand::Pause { name, paused: true }));
        assert_eq!(next_of(&other, due()), None);
        assert_eq!(next_of(&store, tick()), None);
    });
}

/// Everything that a store has of keys, policies, limits and schedules.
fn content(store: &dyn Store) -> (Vec<String>, Vec<String>, Vec<StoredSchedule>) {
    let Ok(Exported::Tubes(tubes, _)) = block_on(store.export(Export::Tubes)) else { panic!() };
    let (mut shown, mut records) = (Vec::new(), Vec::new());
    for copy in tubes {
        let (tube, from, count) = (copy.number, TaskId(0), 100);
        shown.push(format!("{:?}", copy.record));
        let tasks = Export::Tasks { tube, from, count, bytes: 1 << 20 };
        let Ok(Exported::Tasks(tasks)) = block_on(store.export(tasks)) else { panic!() };
        records.extend(tasks.iter().map(|task| format!("{task:?}")));
        let ended = Export::EndedKeys { tube, from, count };
        let Ok(Exported::EndedKeys(keys)) = block_on(store.export(ended)) else { panic!() };
        assert_eq!(keys.len(), 1, "a key of an ended task");
        records.extend(keys.iter().map(|key| format!("{key:?}")));
    }
    let Ok(Exported::Schedules(schedules)) = block_on(store.export(Export::Schedules)) else {
        panic!()
    };
    (shown, records, schedules)
}

fn fill(store: &dyn Store) {
    let retry = Some(Box::new(RetryPolicy { retry_lost: true, ..RetryPolicy::DEFAULT }));
    let options = TubeOptions {
        retry,
        rate: Some(Box::new(RATE)),
        keep_done: Some(Span::from_secs(900)),
        ..TubeOptions::new(Kind::FifoTtl)
    };
    let tube = make_tube(store, options);
    let held =
        |key: &str| HeldKey { key: Key::new(key).expect("a key"), unique_for: Span::from_secs(60) };
    let task = |key: &str, attempts_max| {
        let request = KeyRequest { held: held(key), on_conflict: OnConflict::Replace };
        let key = Some(Box::new(request));
        NewTask { key, attempts_max, ..NewTask::new(Body::new(&[0xc0])) }
    };
    let tasks = vec![task("done", Some(7)), task("ready", Some(3)), task("other", None)];
    ask(store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }).expect("put");
    let done = take(store, &tube, 1).remove(0);
    ack(store, &tube, &done);
    for (name, overlap) in [("a", Overlap::Allow), ("b", Overlap::Skip)] {
        let name = ScheduleName::new(name).expect("a name");
        let template = match overlap {
            Overlap::Allow => task("template", Some(2)),
            Overlap::Skip => NewTask { at: Some(NOW), ..NewTask::new(Body::new(&[1])) },
        };
        let schedule = StoredSchedule { name, template, ..every_minute(&tube, overlap) };
        scheduled(store, ScheduleCommand::Set { schedule, only_new: true, keep_paused: false });
    }
    let name = ScheduleName::new("b").expect("a name");
    let fire = ScheduleCommand::Fire { name, expected: NOW, next: None, puts: vec![], skipped: 4 };
    scheduled(store, fire);
}

/// A copy to this store and from it has all keys, policies, tokens and schedules.
#[test]
fn copies_are_complete() {
    run(async {
        let (source, target) = (MemoryStore::default(), MemoryStore::default());
        fill(&source);
        let database = Database::new();
        let store = database.open();
        let run = |from: &dyn Store, to: &dyn Store| {
            block_on(async {
                let plan = plan(from, to, &[]).await.expect("it can be copied");
                copy(from, to, NOW, &plan, |_| {}).await.expect("it is copied");
            });
        };
        run(&source, &store);
        let wanted = content(&source);
        assert_eq!(content(&store), wanted);
        let again = ask(
            &store,
            Command::Put {
                tube: TubeName::new("mail").expect("a name"),
                tasks: vec![NewTask {
                    key: Some(Box::new(KeyRequest::new(Key::new("done").expect("a key")))),
                    ..NewTask::new(Body::new(&[0xc0]))
                }],
                wait: Span::ZERO,
            },
        );
        assert!(matches!(again, Ok(Reply::Put(placed)) if placed[0].existing));
        run(&store, &target);
        assert_eq!(content(&target), wanted);
        let ended = sql(&database.url(), "SELECT sum(ended) FROM taskyard.count");
        assert_eq!(ended.as_deref(), Some("1"));
    });
}

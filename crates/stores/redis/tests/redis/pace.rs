//! Tests of retry policies, rate limits and schedules that several servers share, and of their copies.

use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, CatchUp, Command, Effects, Finish, FinishItem, Holder, Kind, NewTask, Overlap, Placed,
    RateLimit, Reply, RetryPolicy, ScheduleCommand, ScheduleName, ScheduleReply, Span,
    StoredSchedule, Take, Task, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, Store};
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{NOW, ask, make_tube, take};
use taskyard_testkit::redis::{instance, open, own, run};

use crate::cluster::cluster;

const SECOND: Span = Span::from_secs(1);
const RATE: RateLimit = RateLimit { count: 1, per: Span::from_secs(10), burst: 2 };

fn task() -> NewTask {
    NewTask::new(Body::new(&[0xc0]))
}

fn schedule_name() -> ScheduleName {
    ScheduleName::new("daily").expect("a good name")
}

fn schedule(tube: &TubeName) -> StoredSchedule {
    StoredSchedule {
        name: schedule_name(),
        tube: tube.clone(),
        template: NewTask { pri: Some(3), ttl: Some(SECOND), ..task() },
        timing: "every 1s".into(),
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

fn command(command: ScheduleCommand) -> Command {
    Command::Schedule(Box::new(command))
}

fn set(schedule: StoredSchedule) -> Command {
    command(ScheduleCommand::Set { schedule, only_new: false, keep_paused: false })
}

/// Fires this time; the next one is a second later.
fn fire(store: &dyn Store, expected: Timestamp) -> Option<Vec<Placed>> {
    let (puts, next) = (vec![task(); 2], Some(expected + SECOND));
    let fire = ScheduleCommand::Fire { name: schedule_name(), expected, next, puts, skipped: 1 };
    match ask(store, command(fire)) {
        Ok(Reply::Schedule(ScheduleReply::Fired(placed))) => placed,
        other => panic!("a fire answers with tasks, not {other:?}"),
    }
}

fn get(store: &dyn Store) -> StoredSchedule {
    match ask(store, command(ScheduleCommand::Get { name: schedule_name() })) {
        Ok(Reply::Schedule(ScheduleReply::Schedules(mut all))) => all.remove(0),
        other => panic!("a get shows a schedule, not {other:?}"),
    }
}

fn effects_at(store: &dyn Store, now: Timestamp, command: Command) -> Effects {
    let executed = block_on(store.execute(now, vec![command]));
    assert!(executed.replies[0].is_ok(), "{:?}", executed.replies);
    executed.effects
}

fn tick() -> Command {
    Command::Tick { limit: 10, seed: 7 }
}

fn ready(store: &dyn Store, tube: &TubeName) -> u64 {
    match ask(store, Command::Tubes { tube: Some(tube.clone()) }) {
        Ok(Reply::Tubes(tubes)) => tubes[0].stats.tasks.ready,
        other => panic!("a tube is shown, not {other:?}"),
    }
}

/// How many times each server fires.
const TIMES: i64 = 25;

/// Fires one time after the other. Answers how many of them this server fired.
fn fired_by(store: &RedisStore) -> i64 {
    let mut fired = 0;
    for number in 0..TIMES {
        let at = NOW.moved(number * SECOND.as_micros());
        // Until the time before has fired.
        while get(store).next.is_some_and(|next| next < at) {}
        fired += i64::from(fire(store, at).is_some());
    }
    fired
}

/// Servers that fire the same times: each fires once, with all its tasks.
fn fire_from_both(url: &str) {
    let stores = [open(url), open(url)];
    let tube = make_tube(&stores[0], TubeOptions::new(Kind::FifoTtl));
    ask(&stores[0], set(schedule(&tube))).expect("it is set");
    let fired: i64 = thread::scope(|scope| {
        let fire_all = |number: usize| fired_by(&stores[number % 2]);
        let threads = [0, 1, 2, 3].map(|number| scope.spawn(move || fire_all(number)));
        threads.map(|thread| thread.join().expect("it fires")).into_iter().sum()
    });
    assert_eq!(fired, TIMES);
    let after = get(&stores[1]);
    assert_eq!(after.next, Some(NOW.moved(TIMES * SECOND.as_micros())));
    assert_eq!((after.fired, after.skipped), (2 * TIMES as u64, TIMES as u64));
    assert_eq!(ready(&stores[0], &tube), 2 * TIMES as u64);
}

#[test]
fn servers_fire_each_time_once() {
    run(async { fire_from_both(&own(&instance().url())) });
}

// A server that had read the schedule before others fired this time and the next one put the tasks of this time again.
#[test]
fn servers_of_a_cluster_fire_each_time_once() {
    run(async { fire_from_both(&own(&cluster().url())) });
}

// On a cluster a schedule and its tube may be on two nodes. A server may die after it has put the tasks and before it has changed the
// schedule; the next one that fires this time must not put them again.
#[test]
fn an_interrupted_fire_on_a_cluster_is_finished() {
    run(async {
        let url = own(&cluster().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        ask(&store, set(schedule(&tube))).expect("it is set");
        let registry = cluster().master_of(&format!("{{{prefix}}}:schedules"));
        let parts = ["schedules", "schedule_times"].map(|part| format!("{{{prefix}}}:{part}"));
        for part in &parts {
            assert_eq!(registry.talk(&["COPY", part, &format!("{part}:saved")]), "1");
        }
        let restore = || {
            for part in &parts {
                let saved = format!("{part}:saved");
                assert_eq!(registry.talk(&["COPY", &saved, part, "REPLACE"]), "1");
            }
        };
        fire(&store, NOW).expect("it fires");
        let after = get(&store);
        restore();
        // Meanwhile more times are due. They lost theirs, because the answer for fewer tasks was taken for theirs.
        let (name, next) = (schedule_name(), Some(NOW + Span::from_secs(60)));
        let puts = vec![task(); 5];
        let later = ScheduleCommand::Fire { name, expected: NOW, next, puts, skipped: 7 };
        let fired = ask(&store, command(later)).expect("an answer");
        assert_eq!(fired, Reply::Schedule(ScheduleReply::Fired(None)));
        assert_eq!(get(&store), after);
        assert_eq!(ready(&store, &tube), 2);
        let next = fire(&store, NOW + SECOND).expect("it fires");
        assert_eq!(next.iter().map(|one| one.id.0).collect::<Vec<_>>(), [2, 3]);
        // A registry that lost its last writes fires again, and did not for ever.
        restore();
        let again = fire(&store, NOW).expect("it fires");
        assert_eq!(again.iter().map(|one| one.id.0).collect::<Vec<_>>(), [4, 5]);
    });
}

#[test]
fn every_server_learns_when_the_next_schedule_is_due() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        let at = NOW + Span::from_secs(30);
        let one = StoredSchedule { next: Some(at), ..schedule(&tube) };
        assert_eq!(effects_at(&here, NOW, set(one)).next_schedule, Some(at));
        assert_eq!(effects_at(&there, NOW, tick()).next_schedule, Some(at));
        let pause = ScheduleCommand::Pause { name: schedule_name(), paused: true };
        assert_eq!(effects_at(&there, NOW, command(pause)).next_schedule, None);
        drop(there);
        let again = open(&url);
        assert_eq!(effects_at(&again, NOW, tick()).next_schedule, None);
    });
}

#[test]
fn servers_share_the_tokens_of_a_tube() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let rate = Some(Box::new(RATE));
        let tube = make_tube(&here, TubeOptions { rate, ..TubeOptions::new(Kind::Fifo) });
        let tasks = vec![task(); 5];
        ask(&here, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }).expect("put");
        assert_eq!(take(&here, &tube, 1).len(), 1);
        assert_eq!(take(&there, &tube, 5).len(), 1);
        assert_eq!(take(&here, &tube, 5), []);
        // A waiting consumer is woken when there is a token.
        let at = NOW + RATE.per;
        let effects = effects_at(&here, NOW, tick());
        assert_eq!((effects.next_wakeup, effects.ready), (Some(at), Vec::new()));
        assert_eq!(effects_at(&here, at, tick()).ready, [(tube, 1)]);
    });
}

fn taken_at(store: &dyn Store, tube: &TubeName, now: Timestamp) -> Vec<Task> {
    let (lease, session) = (Some(SECOND), None);
    let take =
        Take { tube: tube.clone(), count: 9, session, lease, worker: None, wait: Span::ZERO };
    match block_on(store.execute(now, vec![Command::Take(take)])).replies.remove(0) {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

#[test]
fn policies_limits_and_schedules_are_copied_in_both_directions() {
    run(async {
        for url in [own(&instance().url()), own(&cluster().url())] {
            let (from, to, back) = (MemoryStore::default(), open(&url), MemoryStore::default());
            let policy =
                RetryPolicy { retry_lost: true, jitter_permille: 0, ..RetryPolicy::DEFAULT };
            let (retry, rate) = (Some(Box::new(policy)), Some(Box::new(RATE)));
            let tube =
                make_tube(&from, TubeOptions { retry, rate, ..TubeOptions::new(Kind::FifoTtl) });
            let own = NewTask { attempts_max: Some(2), ..task() };
            let tasks = vec![own.clone(), own, task()];
            let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
            ask(&from, put).expect("they are put");
            let task = take(&from, &tube, 1).remove(0);
            let holder = Holder::Lease(task.lease.expect("it is taken"));
            let finish = Finish::fail_by_policy("no route", 5);
            let items = vec![FinishItem { id: task.id, holder, finish }];
            ask(&from, Command::Finish { tube: tube.clone(), items, show: false }).expect("fails");
            ask(&from, set(schedule(&tube))).expect("it is set");
            fire(&from, NOW).expect("it fires");
            let look = |store: &dyn Store| {
                let ids = (0..6).map(TaskId).collect();
                let peek = Command::Peek { tube: tube.clone(), ids };
                let shown = Command::Tubes { tube: Some(tube.clone()) };
                let Ok(Reply::Tubes(tubes)) = ask(store, shown) else { panic!("a tube is shown") };
                (ask(store, peek), tubes[0].options.clone(), tubes[0].takeable, get(store))
            };
            let expected = look(&from);
            let stores: [(&dyn Store, &dyn Store); 2] = [(&from, &to), (&to, &back)];
            for (from, to) in stores {
                let found = plan(from, to, &[]).await.expect("a plan");
                copy(from, to, NOW, &found, |_| ()).await.expect("it is copied");
                assert_eq!(look(to), expected);
                assert!(plan(from, to, &[]).await.expect("a plan").already);
            }
            for store in [&from as &dyn Store, &to, &back] {
                let first = taken_at(store, &tube, NOW);
                assert_eq!(first.len(), 1, "the bucket was copied");
                block_on(store.execute(NOW + SECOND, vec![tick()]));
                let peek = Command::Peek { tube: tube.clone(), ids: vec![first[0].id] };
                let Ok(Reply::Tasks(tasks)) = ask(store, peek) else { panic!("it is shown") };
                assert_eq!(tasks[0].due, Some(NOW + SECOND + policy.delay), "a lost lease waits");
            }
        }
    });
}

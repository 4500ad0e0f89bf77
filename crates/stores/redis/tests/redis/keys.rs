//! Tests of how unique keys are stored, shared, removed and copied.

use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::limits::ENDED_KEYS_MAX;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Key, KeyRequest, Kind, NewTask, Outcome, Placed,
    Reply, Span, State, Task, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, Store};

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

/// A URL with a prefix of its own, and that prefix.
fn part() -> (String, String) {
    let url = own(&instance().url());
    let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
    (url, prefix)
}

/// A task with this key, which stays held for so many seconds after the end.
fn keyed(key: &str, seconds: u64) -> NewTask {
    let mut request = KeyRequest::new(Key::new(key).expect("a good key"));
    request.held.unique_for = Span::from_secs(seconds);
    NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(&[0xc0])) }
}

fn place(store: &dyn Store, tube: &TubeName, tasks: Vec<NewTask>) -> Vec<Placed> {
    match ask(store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }) {
        Ok(Reply::Put(placed)) => placed,
        other => panic!("a put places tasks, not {other:?}"),
    }
}

fn later(seconds: u64) -> Timestamp {
    NOW + Span::from_secs(seconds)
}

fn exists(prefix: &str, key: &str) -> bool {
    instance().talk(&["EXISTS", &format!("{{{prefix}:mail}}:{key}")]) == "1"
}

/// How many keys each server puts.
const KEYS: usize = 200;

/// Puts all keys in a random order. Answers how many tasks that added.
fn added_by(store: &dyn Store, tube: &TubeName, seed: u64) -> usize {
    let mut keys: Vec<usize> = (0..KEYS).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut keys);
    let new = |key: &usize| keyed(&format!("key {key}"), 60);
    let placed = keys.chunks(7).flat_map(|some| place(store, tube, some.iter().map(new).collect()));
    placed.filter(|placed| !placed.existing).count()
}

#[test]
fn servers_that_put_the_same_keys_add_each_task_once() {
    run(async {
        for kind in [Kind::Fifo, Kind::UtubeTtl] {
            let (url, prefix) = part();
            let stores = [open(&url), open(&url)];
            let tube = make_tube(&stores[0], TubeOptions::new(kind));
            let added: usize = thread::scope(|scope| {
                let put_all = |number: usize| added_by(&stores[number % 2], &tube, number as u64);
                let threads: Vec<_> =
                    (0..4).map(|number| scope.spawn(move || put_all(number))).collect();
                threads.into_iter().map(|thread| thread.join().expect("it puts all")).sum()
            });
            assert_eq!(added, KEYS);
            instance().audit(&prefix, "mail");
        }
    });
}

#[test]
fn a_large_put_finds_keys_that_are_held_or_repeated() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let many = |from: usize| (from..from + 1_500).map(|key| keyed(&format!("key {key}"), 0));
        let ids = |placed: Vec<Placed>| placed.iter().map(|one| one.id.0).collect::<Vec<_>>();
        let first = ids(place(&store, &tube, many(0).collect()));
        assert_eq!(first, (0..1_500).collect::<Vec<_>>());
        // The last key is held; then the last key is that of the first task.
        let second = place(&store, &tube, many(2_000).chain([keyed("key 1499", 0)]).collect());
        assert_eq!(ids(second), (1_500..3_000).chain([1_499]).collect::<Vec<_>>());
        let third = place(&store, &tube, many(4_000).chain([keyed("key 4000", 0)]).collect());
        assert_eq!(ids(third), (3_000..4_500).chain([3_000]).collect::<Vec<_>>());
        instance().audit(&prefix, "mail");
    });
}

/// Writes the moments of ended tasks behind the ids of the holders, as earlier programs of this format did.
const WITH_MOMENTS: &str = "
local ended = redis.call('ZRANGE', KEYS[1] .. ':j', 0, -1, 'WITHSCORES')
for place = 1, #ended, 2 do
    local id, key = string.sub(ended[place], 1, 8), string.sub(ended[place], 9)
    redis.call('HSET', KEYS[1] .. ':y', key, id .. struct.pack('<d', tonumber(ended[place + 1])))
end
return #ended / 2";

#[test]
fn keys_of_ended_tasks_stay_held_as_earlier_programs_stored_them() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        place(&store, &tube, vec![keyed("a", 60), keyed("b", 60)]);
        for task in take(&store, &tube, 2) {
            assert_eq!(ack(&store, &tube, &task), Outcome::Done(None));
        }
        let base = format!("{{{prefix}:mail}}");
        assert_eq!(instance().talk(&["EVAL", WITH_MOMENTS, "1", &base]), "2");
        let placed = place(&store, &tube, vec![keyed("a", 60), keyed("c", 60)]);
        assert_eq!(placed.iter().map(|one| one.existing).collect::<Vec<_>>(), [true, false]);
        let put = Command::Put { tube: tube.clone(), tasks: vec![keyed("a", 0)], wait: Span::ZERO };
        let replies = block_on(store.execute(later(60), vec![put])).replies;
        let [Ok(Reply::Put(placed))] = &replies[..] else { panic!("it is put: {replies:?}") };
        assert!(!placed[0].existing);
        instance().audit(&prefix, "mail");
    });
}

#[test]
fn free_keys_of_ended_tasks_are_removed() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        place(&store, &tube, vec![keyed("a", 5), keyed("b", 33), keyed("c", 0)]);
        for task in take(&store, &tube, 3) {
            assert_eq!(ack(&store, &tube, &task), Outcome::Done(None));
        }
        instance().audit(&prefix, "mail");
        let tick = |seconds| {
            let tick = Command::Tick { limit: 10, seed: 0 };
            block_on(store.execute(later(seconds), vec![tick])).replies.remove(0)
        };
        // They are removed together with others that are free about then.
        assert_eq!(tick(9), Ok(Reply::Ticked(0)));
        assert_eq!(tick(10), Ok(Reply::Ticked(1)));
        instance().audit(&prefix, "mail");
        assert!(exists(&prefix, "j"));
        assert_eq!(tick(39), Ok(Reply::Ticked(0)));
        assert_eq!(tick(40), Ok(Reply::Ticked(1)));
        assert!(!exists(&prefix, "j"));
        instance().audit(&prefix, "mail");
    });
}

/// Adds so many keys of ended tasks that are free at this moment.
const MORE_ENDED: &str = "
for first = 1, tonumber(ARGV[1]), 1000 do
    local members = {}
    for number = first, math.min(first + 999, tonumber(ARGV[1])) do
        members[#members + 1] = ARGV[2]
        members[#members + 1] = struct.pack('>I8', number + 1000) .. 'other ' .. number
    end
    redis.call('ZADD', KEYS[1] .. ':j', unpack(members))
end
return redis.call('ZCARD', KEYS[1] .. ':j')";

/// The key that would be free first is free when there are too many, and the server learns how many were freed before their time.
#[test]
fn the_number_of_ended_keys_is_limited() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        place(&store, &tube, vec![keyed("a", 60), keyed("b", 60), keyed("c", 60)]);
        let freed_by = |now, task: &Task| {
            let holder = Holder::Lease(task.lease.expect("a lease"));
            let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
            let ack = Command::Finish { tube: tube.clone(), items, show: false };
            let acked = block_on(store.execute(now, vec![ack]));
            assert_eq!(acked.replies, [Ok(Reply::Finished(vec![Outcome::Done(None)]))]);
            acked.effects.keys_freed_early
        };
        let tasks = take(&store, &tube, 3);
        assert_eq!(freed_by(NOW, &tasks[0]), 0);
        let (base, more) = (format!("{{{prefix}:mail}}"), (ENDED_KEYS_MAX - 1).to_string());
        let until = later(3_600).as_micros().to_string();
        let count = instance().talk(&["EVAL", MORE_ENDED, "1", &base, &more, &until]);
        assert_eq!(count, ENDED_KEYS_MAX.to_string());
        assert_eq!(freed_by(NOW, &tasks[1]), 1);
        let placed = place(&store, &tube, vec![keyed("a", 0), keyed("b", 0)]);
        assert_eq!(placed.iter().map(|one| one.existing).collect::<Vec<_>>(), [false, true]);
        assert_eq!(freed_by(later(60), &tasks[2]), 0, "the first was free");
        ask(&store, Command::DropTube { tube }).expect("it is dropped");
    });
}

#[test]
fn keys_of_done_tasks_are_removed_with_them() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let keep_done = Some(Span::from_secs(10));
        let options = TubeOptions { keep_done, ..TubeOptions::new(Kind::Fifo) };
        let tube = make_tube(&store, options);
        place(&store, &tube, vec![keyed("a", 0), keyed("b", 0)]);
        ask(&store, put(&tube, 1)).expect("it is put");
        for task in take(&store, &tube, 3) {
            assert_eq!(ack(&store, &tube, &task), Outcome::Done(None));
        }
        assert!(exists(&prefix, "z"));
        let tick = Command::Tick { limit: 10, seed: 0 };
        let ticked = block_on(store.execute(later(20), vec![tick])).replies.remove(0);
        assert_eq!(ticked, Ok(Reply::Ticked(3)));
        assert!(!exists(&prefix, "z"));
    });
}

#[test]
fn keys_are_copied_in_both_directions() {
    run(async {
        let (url, prefix) = part();
        let (from, to, back) = (MemoryStore::default(), open(&url), MemoryStore::default());
        let keep_done = Some(Span::from_secs(100));
        let options = TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) };
        let tube = make_tube(&from, options);
        let own = NewTask { attempts_max: Some(3), ..keyed("both", 9) };
        let tasks = vec![keyed("done", 50), keyed("deleted", 50), own];
        let placed = place(&from, &tube, tasks);
        let task = take(&from, &tube, 1).remove(0);
        assert_eq!(ack(&from, &tube, &task), Outcome::Done(None));
        let delete = Command::Delete { tube: tube.clone(), ids: vec![TaskId(1)], show: false };
        ask(&from, delete).expect("it is deleted");
        let look = |store: &dyn Store| {
            let ids = placed.iter().map(|placed| placed.id).collect();
            ask(store, Command::Peek { tube: tube.clone(), ids }).expect("they are shown")
        };
        let expected = look(&from);
        let stores: [(&dyn Store, &dyn Store); 2] = [(&from, &to), (&to, &back)];
        for (from, to) in stores {
            let found = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &found, |_| ()).await.expect("it is copied");
            assert_eq!(look(to), expected);
            assert!(plan(from, to, &[]).await.expect("a plan").already);
        }
        instance().audit(&prefix, "mail");
        for store in [&to as &dyn Store, &back] {
            let held = place(store, &tube, vec![keyed("done", 1), keyed("deleted", 1)]);
            let done = |id| Placed { id: TaskId(id), state: State::Done, existing: true };
            assert_eq!(held, [done(0), done(1)]);
            let held = place(store, &tube, vec![keyed("both", 1)]);
            assert_eq!(held, [Placed { id: TaskId(2), state: State::Ready, existing: true }]);
        }
    });
}

/// How functions of format 4 read the end of a tube's options.
const READ_AS_FORMAT_4: &str = "
local raw = string.sub(redis.call('GET', KEYS[1] .. ':o'), 51)
local _, marker = struct.unpack('<I4I2', raw)
return { struct.unpack(marker == 65535 and '<I4I2ddI2c0I2c0' or '<I4I2c0I2c0', raw) }";

#[test]
fn data_of_format_4_gets_keys_and_functions_of_format_4_stop() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 2)).expect("they are put");
        store.close().await.expect("it closes");
        drop(store);
        let (format, base) = (format!("{{{prefix}}}:format"), format!("{{{prefix}:mail}}"));
        assert_eq!(instance().talk(&["SET", &format, "4"]), "OK");
        let read = || instance().script("format_4.lua", READ_AS_FORMAT_4, &base);
        assert!(read().contains("mail"), "a tube without the new features stays readable");
        let store = open(&url);
        assert_eq!(instance().talk(&["GET", &format]), "5");
        assert_eq!(take(&store, &tube, 1).len(), 1);
        let placed = place(&store, &tube, vec![keyed("k", 0), keyed("k", 0)]);
        assert_eq!(placed.iter().map(|one| one.id.0).collect::<Vec<_>>(), [2, 2]);
        assert!(read().contains("unpack"), "{}", read());
        instance().audit(&prefix, "mail");
    });
}

//! Tests of how done tasks are stored, shared and removed.

use taskyard_core::limits::KEEP_DONE_DEFAULT;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, Outcome, Reply,
    Span, State, StateSet, Take, Task, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, Store};

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

/// What contradicts itself in the keys of done tasks.
const AUDIT: &str = "
local base, wrong, kept = KEYS[1], {}, redis.call('HGETALL', KEYS[1] .. ':k')
local function check(what, is)
    wrong[#wrong + 1] = not is and what or nil
end
for place = 1, #kept, 2 do
    local id, text = kept[place], kept[place + 1]
    local tail, bytes = struct.unpack('<I4I4', text, 58)
    local at = struct.unpack('>I8', text, 66 + tail + (bytes <= 512 and bytes + 4 or 0))
    local block = redis.call('ZSCORE', base .. ':i', string.sub(id, 1, 7))
    check('another end', tonumber(redis.call('ZSCORE', base .. ':e', id) or -1) == at)
    check('no block', block and tonumber(block) >= at)
    check('not finished', redis.call('HEXISTS', base .. ':t', id) == 0)
    check('no body', bytes <= 512 or redis.call('HEXISTS', base .. ':b', id) == 1)
end
check('ends', #kept / 2 == redis.call('ZCARD', base .. ':e'))
for _, key in ipairs({ ':a', ':b', ':f' }) do
    for _, id in ipairs(redis.call('HKEYS', base .. key)) do
        check('of no task: ' .. key, redis.call('HEXISTS', base .. ':k', id) == 1
            or key ~= ':a' and redis.call('HEXISTS', base .. ':t', id) == 1)
    end
end
return table.concat(wrong, ', ')";

/// How functions of format 3 read the end of a tube's options.
const READ_AS_FORMAT_3: &str =
    "return struct.unpack('<I4I2c0I2c0', string.sub(redis.call('GET', KEYS[1] .. ':o'), 51))";

/// Panics unless the keys of done tasks of the tube `mail` agree.
pub fn audit_done(prefix: &str) {
    let wrong = instance().script("done.lua", AUDIT, &base(prefix));
    assert_eq!(wrong, "", "done tasks contradict themselves");
}

/// Keeps no done tasks any more, and removes those that are left.
pub fn remove_done(store: &dyn Store, tube: &TubeName, now: Timestamp) {
    let change = TubeChange { keep_done: Some(None), ..TubeChange::default() };
    ask_at(store, now, Command::AlterTube { tube: tube.clone(), change });
    while tick(store, now, 1_000) > 0 {}
}

/// A URL with a prefix of its own, and that prefix.
fn part() -> (String, String) {
    let url = own(&instance().url());
    let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
    (url, prefix)
}

/// The beginning of the keys of the tube `mail`. A copied tube keeps the tag of its temporary name.
fn base(prefix: &str) -> String {
    let tag = instance().talk(&["HGET", &format!("{{{prefix}}}:homes"), "mail"]);
    format!("{{{prefix}:{}}}", if tag.is_empty() { "mail" } else { &tag })
}

fn keeping(kind: Kind) -> TubeOptions {
    TubeOptions { keep_done: Some(Span::from_secs(100)), ..TubeOptions::new(kind) }
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_micros(NOW.as_micros() + 1_000_000 * seconds)
}

fn ask_at(store: &dyn Store, now: Timestamp, command: Command) -> Reply {
    let mut replies = taskyard_conformance::block_on(store.execute(now, vec![command])).replies;
    replies.remove(0).expect("it is done")
}

fn tick(store: &dyn Store, now: Timestamp, limit: usize) -> usize {
    match ask_at(store, now, Command::Tick { limit, seed: 0 }) {
        Reply::Ticked(count) => count,
        other => panic!("a tick answers a number, not {other:?}"),
    }
}

fn peek(store: &dyn Store, tube: &TubeName, now: Timestamp) -> Vec<Task> {
    let ids = (0..20).map(TaskId).collect();
    match ask_at(store, now, Command::Peek { tube: tube.clone(), ids }) {
        Reply::Tasks(tasks) => tasks,
        other => panic!("a peek shows tasks, not {other:?}"),
    }
}

fn finish(store: &dyn Store, tube: &TubeName, tasks: &[Task], finish: &Finish) {
    let item = |task: &Task| {
        let holder = Holder::Lease(task.lease.expect("it is taken"));
        FinishItem { id: task.id, holder, finish: finish.clone() }
    };
    let items = tasks.iter().map(item).collect();
    let finished = ask(store, Command::Finish { tube: tube.clone(), items, show: false });
    assert_eq!(finished, Ok(Reply::Finished(vec![Outcome::Done(None); tasks.len()])));
}

/// Done tasks with bodies inside and outside of the record, with failures, workers and results or without, and an unfinished one.
fn fill(store: &dyn Store, tube: &TubeName) {
    let task = |size: usize| NewTask {
        subqueue: Some(size.to_string().into()),
        ..NewTask::new(Body::with_meta(&vec![0xc0; size], b"meta"))
    };
    let tasks = [1, 5_000, 2, 6_000, 3].map(task).to_vec();
    ask(store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }).expect("they are put");
    finish(store, tube, &take(store, tube, 2), &Finish::fail("no route", Some(Span::ZERO)));
    let take = |worker: Option<&str>| {
        let (session, lease, worker) = (None, None, worker.map(Into::into));
        Take { tube: tube.clone(), count: 2, session, lease, worker, wait: Span::ZERO }
    };
    for (worker, end) in [(Some("host:1:test"), Finish::ack_with(b"\xa2ok")), (None, Finish::Ack)] {
        let Ok(Reply::Taken(tasks)) = ask(store, Command::Take(take(worker))) else {
            panic!("two")
        };
        finish(store, tube, &tasks, &end);
    }
}

/// The keys of a tube that exist, by their last letters.
fn keys(prefix: &str) -> Vec<&'static str> {
    let exists = |key: &str| instance().talk(&["EXISTS", &format!("{}:{key}", base(prefix))]);
    ["a", "b", "e", "f", "i", "k", "t"].into_iter().filter(|key| exists(key) == "1").collect()
}

#[test]
fn everything_is_removed_with_a_done_task() {
    run(async {
        for kind in [Kind::FifoTtl, Kind::UtubeTtl] {
            let (url, prefix) = part();
            let store = open(&url);
            let tube = make_tube(&store, keeping(kind));
            fill(&store, &tube);
            audit_done(&prefix);
            assert_eq!(keys(&prefix), ["a", "b", "e", "f", "i", "k", "t"]);
            let done = peek(&store, &tube, NOW);
            let ends = done.iter().filter_map(|task| task.finished.as_ref());
            let ends: Vec<_> = ends.map(|end| (end.worker(), end.result())).collect();
            let named = (Some("host:1:test"), Some(&b"\xa2ok"[..]));
            assert_eq!(ends, [named, named, (None, None), (None, None)]);
            assert_eq!(done[1].body.as_ref().map(Body::bytes), Some(5_004));
            assert!(done[..2].iter().all(|task| task.failures.is_some()));
            let ids = vec![TaskId(1), TaskId(0), TaskId(1), TaskId(4)];
            let delete = Command::Delete { tube: tube.clone(), ids, show: true };
            let Reply::Finished(outcomes) = ask_at(&store, NOW, delete) else { panic!("outcomes") };
            let expected = Task { failures: None, ..done[1].clone() };
            assert_eq!(outcomes[0], Outcome::Done(Some(Box::new(expected))));
            assert_eq!(outcomes[2], Outcome::Missing, "it is deleted already");
            audit_done(&prefix);
            assert_eq!(keys(&prefix), ["b", "e", "i", "k"]);
            assert_eq!(tick(&store, later(99), 10), 0);
            assert_eq!(tick(&store, later(100), 10), 2);
            assert_eq!(keys(&prefix), [""; 0]);
            fill(&store, &tube);
            ask(&store, Command::Truncate { tube: tube.clone() }).expect("it is truncated");
            assert_eq!(keys(&prefix), [""; 0]);
        }
    });
}

// Each tick removes as many as it may, and each group is removed once there are an eighth too many.
#[test]
fn many_done_tasks_are_removed_in_bounded_steps() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions { keep_done_max: 800, ..keeping(Kind::Fifo) });
        let finish_some = |count| {
            ask(&store, put(&tube, count)).expect("they are put");
            finish(&store, &tube, &take(&store, &tube, count), &Finish::Ack);
        };
        finish_some(900);
        assert_eq!(tick(&store, NOW, 50), 0, "not yet too many");
        finish_some(1);
        assert_eq!([50, 50, 50].map(|limit| tick(&store, NOW, limit)), [50, 0, 0]);
        for _ in 0..4 {
            finish_some(1_000);
        }
        assert_eq!(tick(&store, NOW, 3_000), 3_000);
        assert_eq!(tick(&store, NOW, 3_000), 1_051);
        assert_eq!(tick(&store, NOW, 3_000), 0);
        audit_done(&prefix);
        let order = ListOrder::Id { states: StateSet::EMPTY.with(State::Done), after: None };
        let list = Command::List(List { tube: tube.clone(), order, limit: 1_000, key: None });
        let Reply::Listed(tasks) = ask_at(&store, NOW, list) else { panic!("a list") };
        assert!(tasks.iter().map(|task| task.id.0).eq(4_101..4_901), "the latest stay");
        let most = Some(KEEP_DONE_DEFAULT);
        let change = TubeChange { keep_done_max: most, ..TubeChange::default() };
        ask(&store, Command::AlterTube { tube: tube.clone(), change }).expect("it is altered");
        remove_done(&store, &tube, NOW);
        assert_eq!(keys(&prefix), [""; 0]);
        let options = instance().talk(&["STRLEN", &format!("{}:o", base(&prefix))]);
        assert_eq!(options, "62", "it is a tube without done tasks again");
    });
}

#[test]
fn servers_share_done_tasks() {
    run(async {
        let (url, prefix) = part();
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, keeping(Kind::Fifo));
        ask(&here, put(&tube, 2)).expect("they are put");
        let tasks = take(&there, &tube, 2);
        assert_eq!(ack(&here, &tube, &tasks[0]), Outcome::Done(None));
        assert_eq!(ack(&there, &tube, &tasks[0]), Outcome::Missing);
        assert_eq!(ack(&there, &tube, &tasks[1]), Outcome::Done(None));
        assert_eq!(peek(&here, &tube, NOW), peek(&there, &tube, NOW));
        assert_eq!(peek(&here, &tube, NOW).len(), 2);
        assert_eq!(tick(&there, later(100), 10), 2);
        assert_eq!(tick(&here, later(100), 10), 0, "they are removed once");
        assert_eq!(keys(&prefix), [""; 0]);
    });
}

// The server that finished the tasks is gone, and no other knows when they are over age.
#[test]
fn another_server_removes_done_tasks() {
    run(async {
        let (url, prefix) = part();
        let here = open(&url);
        let tube = make_tube(&here, keeping(Kind::Utube));
        fill(&here, &tube);
        here.close().await.expect("it closes");
        drop(here);
        let there = open(&url);
        assert_eq!(tick(&there, later(100), 10), 4);
        assert_eq!(keys(&prefix), ["t"]);
    });
}

#[test]
fn a_tube_of_format_3_can_keep_done_tasks() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        fill(&store, &tube);
        store.close().await.expect("it closes");
        drop(store);
        let read = || instance().script("options.lua", READ_AS_FORMAT_3, &base(&prefix));
        assert_eq!(read(), "0", "the queue number of a tube without the option");
        let format = format!("{{{prefix}}}:format");
        assert_eq!(instance().talk(&["SET", &format, "3"]), "OK");
        let store = open(&url);
        let keep_done = Some(Some(Span::from_secs(100)));
        let change = TubeChange { keep_done, ..TubeChange::default() };
        ask(&store, Command::AlterTube { tube: tube.clone(), change }).expect("it is altered");
        finish(&store, &tube, &take(&store, &tube, 1), &Finish::Ack);
        let tasks = peek(&store, &tube, NOW);
        assert_eq!(tasks.iter().map(|task| task.state).collect::<Vec<_>>(), [State::Done]);
        assert_eq!(instance().talk(&["GET", &format]), "5", "servers of then stop");
        assert!(read().contains("too short"), "functions of then stop before they change anything");
    });
}

#[test]
fn done_tasks_are_copied() {
    run(async {
        let ((url, _), (other, prefix)) = (part(), part());
        let (from, to, back) = (open(&url), open(&other), MemoryStore::default());
        let tube = make_tube(&from, TubeOptions { keep_done_max: 7, ..keeping(Kind::UtubeTtl) });
        fill(&from, &tube);
        let expected = peek(&from, &tube, NOW);
        assert_eq!(expected.iter().filter(|task| task.finished.is_some()).count(), 4);
        let stores: [(&dyn Store, &dyn Store); 2] = [(&from, &to), (&to, &back)];
        for (from, to) in stores {
            let plan = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &plan, |_| ()).await.expect("it is copied");
            assert_eq!(peek(to, &tube, NOW), expected);
        }
        audit_done(&prefix);
        assert_eq!(tick(&to, later(100), 10), 4);
        assert_eq!(keys(&prefix), ["t"]);
    });
}

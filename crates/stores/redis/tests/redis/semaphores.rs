//! Tests of semaphores on Redis with several servers: notices, and random load.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use taskyard_conformance::random::runs;
use taskyard_conformance::semaphores::{SemaphoreCommands, storm};
use taskyard_conformance::{Harness, StoreHarness, block_on};
use taskyard_core::{
    Body, Command, Effects, EnqueueItem, Error, EventKind, Execute, Finish, FinishItem,
    GrantFinish, GrantItem, Holder, Kind, MemberGroup, NewEvents, NewTask, Priority, Reason, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span, Status, Take, Task,
    TaskId, TubeName, TubeOptions,
};
use taskyard_store::{RemoteChange, Store};
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::NOW;
use taskyard_testkit::redis::{RedisInstance, program};
use taskyard_testkit::redis::{instance, open, own, run};

const CLIENTS: u64 = 8;
const SEMAPHORES: usize = 100;

/// A server that may fail. It repeats commands while Redis is away, and counts answers.
struct Server<'a> {
    store: RedisStore,
    answers: &'a AtomicUsize,
    clock: &'a storm::Clock,
}

impl Execute for Server<'_> {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let (now, ticks) = self.clock.pass();
        if ticks {
            self.store.execute(now, vec![Command::Tick { limit: 100, seed: 0 }]).await;
        }
        loop {
            let replies = self.store.execute(now, commands.clone()).await.replies;
            if replies.iter().all(|reply| matches!(reply, Err(Error::StoreUnavailable(_)))) {
                thread::yield_now();
                continue;
            }
            self.answers.fetch_add(1, Ordering::Relaxed);
            return replies;
        }
    }
}

fn harness(url: &str) -> StoreHarness {
    let url = url.to_owned();
    StoreHarness::new(move || Box::new(open(&url)))
}

/// Runs many random clients, each with a server of its own; `meanwhile` runs beside them.
fn play(url: &str, calls: usize, meanwhile: impl Fn(&AtomicUsize)) -> storm::DeliveredEvents {
    let (barrier, answers) = (Barrier::new(CLIENTS as usize + 1), AtomicUsize::new(0));
    let clock = storm::Clock::new(NOW);
    thread::scope(|scope| {
        let clients: Vec<_> = storm::client_seeds(CLIENTS)
            .into_iter()
            .map(|seed| {
                let (barrier, answers, clock) = (&barrier, &answers, &clock);
                scope.spawn(move || {
                    let server = Server { store: open(url), answers, clock };
                    barrier.wait();
                    block_on(storm::run_client(&server, seed, SEMAPHORES, calls))
                })
            })
            .collect();
        barrier.wait();
        meanwhile(&answers);
        clients.into_iter().flat_map(|client| client.join().expect("no client fails")).collect()
    })
}

fn wait_for(answers: &AtomicUsize, count: usize) {
    while answers.load(Ordering::Relaxed) < count {
        thread::yield_now();
    }
}

fn judge(redis: &RedisInstance, url: &str, told: storm::DeliveredEvents) {
    let queue = harness(url);
    queue.advance(Span::from_secs(3600));
    block_on(storm::check_invariants(&queue, SEMAPHORES, told));
    audit(redis, url);
}

/// Panics unless the orders of all semaphores match their entries.
fn audit(redis: &RedisInstance, url: &str) {
    let prefix = url.rsplit_once('=').expect("it has a prefix").1;
    let keys = redis.talk(&["HKEYS", &format!("{{{prefix}}}:semaphores")]);
    for key in keys.lines() {
        redis.audit_semaphore(&format!("{{{prefix}:/{key}}}"));
    }
}

#[test]
fn random_load_leaves_semaphores_consistent() {
    run(async {
        let url = own(&instance().url());
        block_on(storm::prepare(&harness(&url), SEMAPHORES, storm::LEASE));
        let told = play(&url, 80, |_| {});
        judge(instance(), &url, told);
    });
}

/// Connections are cut, then Redis is killed: a call has happened or not, and no entry, grant or event is lost or
/// duplicated.
#[test]
fn random_load_with_kills_leaves_semaphores_consistent() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let url = own(&redis.url());
    block_on(storm::prepare(&harness(&url), SEMAPHORES, storm::LEASE));
    let told = play(&url, 120, |answers| {
        for blow in 1..=5 * runs() {
            wait_for(answers, blow * 150);
            if blow % 5 > 0 {
                redis.talk(&["CLIENT", "KILL", "TYPE", "normal"]);
            } else {
                redis.kill();
                redis.start();
            }
        }
    });
    judge(&redis, &url, told);
}

fn yang() -> SemaphoreKey {
    SemaphoreKey::new("yang").expect("a good key")
}

/// Two tubes with one semaphore, of which one has sub-queues.
fn gated_tubes(store: &RedisStore, active: i64) -> [TubeName; 2] {
    limit(store, active);
    let tubes = [("one", Kind::FifoTtl), ("other", Kind::UtubeTtl)];
    tubes.map(|(text, kind)| gated_tube(store, text, TubeOptions::new(kind)))
}

fn limit(store: &RedisStore, active: i64) {
    let change = Box::new(SemaphoreChange::limits(active, active));
    let configure = SemaphoreCommand::Configure { key: yang(), change, only_new: false };
    effects(store, vec![Command::Semaphore(configure)]);
}

fn gated_tube(store: &RedisStore, text: &str, options: TubeOptions) -> TubeName {
    let tube = TubeName::new(text).expect("a good name");
    let options = TubeOptions { semaphore: Some(yang()), ..options };
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    effects(store, vec![create]);
    tube
}

/// Runs a batch whose first command must succeed; answers its effects.
fn effects(store: &RedisStore, commands: Vec<Command>) -> Effects {
    let executed = block_on(store.execute(NOW, commands));
    assert!(executed.replies[0].is_ok(), "{:?}", executed.replies);
    executed.effects
}

fn put(tube: &TubeName) -> Command {
    let tasks = vec![NewTask::new(Body::new(&[0xc0]))];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

fn take_from(tube: &TubeName, count: usize) -> Command {
    let (session, lease, wait) = (None, None, Span::ZERO);
    Command::Take(Take { tube: tube.clone(), count, session, lease, worker: None, wait })
}

fn enqueue(task: u64, priority: f64) -> Command {
    let entries = vec![EnqueueItem { task: TaskId(task), priority }];
    Command::Semaphore(SemaphoreCommand::Enqueue { key: yang(), entries })
}

fn finish(tube: &TubeName, id: u64, finish: Finish) -> Command {
    let items = vec![FinishItem { id: TaskId(id), holder: Holder::Any, finish }];
    Command::Finish { tube: tube.clone(), items, show: false }
}

/// Callers that wait for a task of another tube, or for an event, are woken at once.
#[test]
fn grants_for_other_tubes_wake_waiting_callers() {
    run(async {
        let store = open(&own(&instance().url()));
        let [one, other] = gated_tubes(&store, 1);
        effects(&store, vec![put(&one)]);
        effects(&store, vec![take_from(&one, 1)]);
        effects(&store, vec![put(&other)]);
        let after = effects(&store, vec![finish(&one, 0, Finish::Ack)]);
        assert_eq!((after.ready, after.events), (vec![(other.clone(), 1)], NewEvents::Nothing));
        // The other way round: a task of a caller waits for one of the tube.
        let delete = Command::Delete { tube: other, ids: vec![TaskId(0)], show: false };
        assert_eq!(effects(&store, vec![enqueue(7, -1e12)]).events, NewEvents::Nothing);
        assert_eq!(
            effects(&store, vec![delete]).events,
            NewEvents::of(yang()),
            "its grant is announced"
        );
    });
}

// All servers were gone, and the first call is to the semaphore. It asked a task of a temporary tube to release; checking whether that task
// is taken emptied the tube and removed its entry, and the call was aborted.
#[test]
fn removed_tasks_leave_the_semaphore() {
    run(async {
        for (temporary, left) in [(true, 0), (false, 1)] {
            let url = own(&instance().url());
            let store = open(&url);
            limit(&store, 1);
            let options = TubeOptions { temporary, ..TubeOptions::new(Kind::FifoTtl) };
            let tube = gated_tube(&store, "notes", options);
            effects(&store, vec![put(&tube)]);
            effects(&store, vec![take_from(&tube, 1)]);
            store.close().await.expect("it closes");
            drop(store);
            let store = open(&url);
            effects(&store, vec![enqueue(7, 5.0)]);
            let queue = harness(&url);
            let info = SemaphoreCommands::info(&queue).await;
            assert_eq!((info.acquired, info.revoking, info.waiting), (1, 0, left), "{temporary}");
            assert_eq!(queue.member(7).await.map(|place| place.status), Some(Status::Acquired));
            audit(instance(), &url);
        }
    });
}

// The keys of a semaphore were removed by hand: no task becomes ready, and taken tasks can be finished.
#[test]
fn tasks_of_a_lost_semaphore_stay_gated() {
    run(async {
        let url = own(&instance().url());
        let store = open(&url);
        let [one, other] = gated_tubes(&store, 2);
        effects(&store, vec![put(&one), take_from(&one, 1), put(&other)]);
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        let keys = ["o", "s", "p", "w", "a"].map(|key| format!("{{{prefix}:/yang}}:{key}"));
        keys.iter().for_each(|key| _ = instance().talk(&["DEL", key]));
        effects(&store, vec![finish(&one, 0, Finish::Ack)]);
        let after = effects(&store, vec![put(&one), put(&other)]);
        assert_eq!(after.ready, [(other.clone(), 1)], "the one that was let in before");
        let peek = Command::Peek { tube: one.clone(), ids: vec![TaskId(1)] };
        let reply = block_on(store.execute(NOW, vec![peek])).replies.remove(0);
        let Ok(Reply::Tasks(tasks)) = reply else { panic!("{reply:?}") };
        assert_eq!(tasks[0].reason, Reason::Semaphore);
        for tube in [one, other] {
            instance().audit(prefix, tube.as_str());
        }
    });
}

/// The tasks that hold a grant, in pages.
async fn holders(queue: &StoreHarness) -> Vec<u64> {
    let (mut shown, mut after) = (Vec::new(), None);
    loop {
        let page = queue.members(MemberGroup::Holders, after, 1).await;
        shown.extend(page.members.iter().map(|member| member.info.task.0));
        after = page.next;
        if after.is_none() {
            return shown;
        }
    }
}

// Functions of an earlier version only count the tasks that declined. A holder that declined there was not shown. One that was removed there
// stayed in the order of those that declined, and every call that shows holders failed.
#[test]
fn holders_are_shown_after_functions_of_an_earlier_version() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        let [order, kept] = ["k", "kept"].map(|key| format!("{{{prefix}:/yang}}:{key}"));
        let queue = harness(&url);
        for comes_back in [false, true] {
            queue.limits(2, 2).await;
            queue.admit(2).await;
            queue.enqueue(7, 5.0).await;
            queue.drain_events().await;
            queue.finish_grant(1, None, GrantFinish::Decline).await;
            assert_eq!(instance().talk(&["RENAME", &order, &kept]), "OK");
            assert_eq!(holders(&queue).await, [0, 1], "also the one that was only counted");
            audit(instance(), &url);
            queue.release_task(1).await;
            if comes_back {
                queue.enqueue(1, 0.5).await;
            }
            assert_eq!(instance().talk(&["RENAME", &kept, &order]), "OK");
            assert_eq!(holders(&queue).await, [7, 0]);
            audit(instance(), &url);
            let drop = SemaphoreCommand::Drop { key: yang(), force: true };
            assert_eq!(queue.semaphore(drop).await, Ok(SemaphoreReply::Dropped));
        }
    });
}

// A task that had left through functions of an earlier version was counted among the best holders, so one of the best was asked.
#[test]
fn a_removed_entry_is_not_one_of_the_best() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        let queue = harness(&url);
        let declines = async |task: u64| {
            assert_eq!(queue.drain_events().await, [(task, EventKind::TryRelease)]);
            queue.finish_grant(task, None, GrantFinish::Decline).await;
        };
        queue.limits(3, 1).await;
        queue.enqueue_many(&[(0, 12.0), (1, 10.0), (2, 1.0)]).await;
        queue.drain_events().await;
        queue.enqueue(7, 20.0).await;
        declines(2).await;
        queue.enqueue(2, 15.0).await;
        declines(1).await;
        let order = format!("{{{prefix}:/yang}}:k");
        assert_eq!(instance().talk(&["ZADD", &order, "-13", "a place that left"]), "1");
        queue.enqueue(8, 21.0).await;
        assert_eq!(queue.drain_events().await, [], "two may stay, and one is better");
        assert_eq!(holders(&queue).await, [2, 0, 1]);
        audit(instance(), &url);
    });
}

// A server died after a semaphore was dropped and before its entry in the registry was removed: the next drop answered that there is none,
// and the entry stayed.
#[test]
fn a_second_drop_finishes_an_interrupted_one() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        let registry = |key: &str| format!("{{{prefix}}}:{key}");
        let [numbers, listed] = [format!("{{{prefix}:/yang}}:s"), registry("semaphores")];
        let queue = harness(&url);
        let drop = || queue.semaphore(SemaphoreCommand::Drop { key: yang(), force: false });
        queue.limits(1, 1).await;
        for key in [&numbers, &listed] {
            assert_eq!(instance().talk(&["COPY", key, &format!("{key}:kept")]), "1");
        }
        assert_eq!(drop().await, Ok(SemaphoreReply::Dropped));
        for key in [&numbers, &listed] {
            assert_eq!(instance().talk(&["RENAME", &format!("{key}:kept"), key]), "OK");
        }
        instance().talk(&["DEL", &registry("begins"), &registry("free"), &registry("grants")]);
        assert_eq!(drop().await, Ok(SemaphoreReply::Dropped));
        assert_eq!(instance().talk(&["EXISTS", &numbers, &listed]), "0");
        assert_eq!(instance().talk(&["SCARD", &registry("free")]), "1");
        assert_eq!(drop().await, Err(Error::SemaphoreNotFound(yang())));
    });
}

#[test]
fn servers_are_notified_of_events_of_others() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        gated_tubes(&here, 1);
        let (sender, heard) = mpsc::channel();
        there.watch(Arc::new(move |what| _ = sender.send(what)));
        let release = || {
            let finish = GrantFinish::Release;
            let items = vec![GrantItem { task: TaskId(1), grant: None, finish }];
            Command::Semaphore(SemaphoreCommand::Finish { key: yang(), items })
        };
        // They may not know of each other yet at the first ones.
        let hears = (0..600).any(|_| {
            effects(&here, vec![enqueue(1, 1.0)]);
            effects(&here, vec![release()]);
            let news = heard.recv_timeout(Duration::from_millis(100));
            news.into_iter().chain(heard.try_iter()).any(|what| what == RemoteChange::Events)
        });
        assert!(hears);
        effects(&here, vec![enqueue(1, 1.0)]);
        effects(&there, vec![Command::Tick { limit: 100, seed: 0 }]);
        let fetch = SemaphoreCommand::Events { key: None, count: 9, wait: Span::ZERO };
        let told = block_on(there.execute(NOW, vec![Command::Semaphore(fetch)])).replies.remove(0);
        assert!(format!("{told:?}").contains("Acquired"), "{told:?}");
    });
}

/// Servers work on two tubes with one semaphore while connections are cut: never more tasks are taken than allowed, and all grants
/// are free in the end.
#[test]
fn random_load_on_tubes_with_a_semaphore() {
    let Some(program) = program() else { return };
    let redis = &RedisInstance::new(program);
    let url = &own(&redis.url());
    let tubes = &gated_tubes(&open(url), 3);
    let (barrier, answers) = (&Barrier::new(5), &AtomicUsize::new(0));
    let clock = &storm::Clock::new(NOW);
    thread::scope(|scope| {
        for seed in storm::client_seeds(4) {
            scope.spawn(move || {
                let server = Server { store: open(url), answers, clock };
                barrier.wait();
                block_on(work(&server, seed, tubes));
            });
        }
        barrier.wait();
        for blow in 1..=5 * runs() {
            wait_for(answers, blow * 40);
            redis.talk(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    });
    let prefix = url.rsplit_once('=').expect("it has a prefix").1;
    for tube in tubes {
        redis.audit(prefix, tube.as_str());
    }
    audit(redis, url);
    // The rest can be finished, and then no grant is held.
    let queue = Server { store: open(url), answers, clock };
    for tube in tubes {
        block_on(queue.execute(vec![Command::ReleaseAll { tube: tube.clone() }]));
    }
    while block_on(finish_some(&queue, tubes)) > 0 {}
    let info = block_on(SemaphoreCommands::info(&harness(url)));
    assert_eq!((info.acquired, info.revoking, info.waiting, info.events), (0, 0, 0, 0));
    audit(redis, url);
}

/// Random puts, takes, acks, releases and deletes, with any outcome.
async fn work(queue: &Server<'_>, seed: u64, tubes: &[TubeName]) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..80 * runs() {
        let tube = &tubes[rng.usize(0..tubes.len())];
        let mut task = NewTask::new(Body::new(&[0xc0]));
        task.pri = Some(rng.u64(0..4));
        task.subqueue = Some(["a", "b", "c"][rng.usize(0..3)].into());
        let own = f64::from(rng.i8(-6..6)) / 2.0;
        task.semaphore_priority = rng.bool().then(|| Priority::new(own).expect("a number"));
        let id = rng.u64(0..60);
        let release = Finish::Release { delay: Span::ZERO, counted: true };
        let command = match rng.u8(0..8) {
            0..3 => Command::Put { tube: tube.clone(), tasks: vec![task], wait: Span::ZERO },
            3..5 => take_from(tube, 2),
            5 => finish(tube, id, Finish::Ack),
            6 => finish(tube, id, release),
            _ => Command::Delete { tube: tube.clone(), ids: vec![TaskId(id)], show: false },
        };
        let other = take_from(&tubes[rng.usize(0..tubes.len())], 2);
        let batch = if rng.bool() { vec![command] } else { vec![command, other] };
        for reply in queue.execute(batch).await {
            let away = |error: &Error| {
                matches!(error, Error::StoreUnavailable(_) | Error::OutcomeUnknown(_))
            };
            assert!(reply.as_ref().err().is_none_or(away), "{reply:?}");
        }
    }
}

/// Takes and acks ready tasks; answers how many.
async fn finish_some(queue: &Server<'_>, tubes: &[TubeName]) -> usize {
    let mut done = 0;
    for tube in tubes {
        let reply = queue.execute(vec![take_from(tube, 9)]).await.remove(0);
        let Ok(Reply::Taken(tasks)) = reply else { panic!("{reply:?}") };
        assert!(tasks.len() <= 3, "no more are let in");
        let ack = |task: &Task| FinishItem {
            id: task.id,
            holder: Holder::Lease(task.lease.expect("it is taken")),
            finish: Finish::Ack,
        };
        let items: Vec<_> = tasks.iter().map(ack).collect();
        done += items.len();
        let finish = Command::Finish { tube: tube.clone(), items, show: false };
        queue.execute(vec![finish]).await.remove(0).expect("they are held");
    }
    done
}

//! Tests of semaphores and tubes with a semaphore: notifications, and the state after all servers were gone.

use taskyard_conformance::semaphores::SemaphoreCommands;
use taskyard_conformance::{StoreHarness, block_on};
use taskyard_core::{
    Body, Command, Effects, EnqueueItem, Error, Finish, FinishItem, Holder, Kind, NewEvents,
    NewTask, Priority, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreKey, Span, Status, Take,
    TaskId, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_tarantool::TarantoolStore;

use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::tarantool::{instance, open, own, run};

fn yang() -> SemaphoreKey {
    SemaphoreKey::new("yang").expect("a good key")
}

fn limit(store: &TarantoolStore, key: SemaphoreKey, active: i64) {
    let change = Box::new(SemaphoreChange::limits(active, active));
    let configure = SemaphoreCommand::Configure { key, change, only_new: false };
    effects(store, Command::Semaphore(configure));
}

fn gated_tube(store: &TarantoolStore, text: &str, options: TubeOptions) -> TubeName {
    let tube = TubeName::new(text).expect("a good name");
    let options = TubeOptions { semaphore: Some(yang()), ..options };
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    effects(store, create);
    tube
}

/// The effects of a command that must succeed.
fn effects(store: &TarantoolStore, command: Command) -> Effects {
    let executed = block_on(store.execute(NOW, vec![command]));
    assert!(executed.replies[0].is_ok(), "{:?}", executed.replies);
    executed.effects
}

fn take_from(tube: &TubeName) -> Command {
    let (session, lease, wait) = (None, None, Span::ZERO);
    Command::Take(Take { tube: tube.clone(), count: 1, session, lease, worker: None, wait })
}

fn enqueue(key: SemaphoreKey, task: u64, priority: f64) -> Command {
    let entries = vec![EnqueueItem { task: TaskId(task), priority }];
    Command::Semaphore(SemaphoreCommand::Enqueue { key, entries })
}

fn ack(tube: &TubeName, id: u64) -> Command {
    let items = vec![FinishItem { id: TaskId(id), holder: Holder::Any, finish: Finish::Ack }];
    Command::Finish { tube: tube.clone(), items, show: false }
}

fn audit(url: &str) {
    instance().audit(url.rsplit_once('=').expect("it has a prefix").1);
}

/// Callers that wait for a task of another tube, or for an event of that semaphore, are woken at once, and no others.
#[test]
fn grants_for_other_tubes_wake_waiting_callers() {
    run(async {
        let url = own(&instance().url());
        let store = open(&url);
        limit(&store, yang(), 1);
        let one = gated_tube(&store, "one", TubeOptions::new(Kind::FifoTtl));
        let other = gated_tube(&store, "other", TubeOptions::new(Kind::UtubeTtl));
        effects(&store, put(&one, 1));
        effects(&store, take_from(&one));
        effects(&store, put(&other, 1));
        let after = effects(&store, ack(&one, 0));
        assert_eq!((after.ready, after.events), (vec![(other.clone(), 1)], NewEvents::Nothing));
        // The other way round: a task of a caller waits for one of the tube.
        let delete = Command::Delete { tube: other, ids: vec![TaskId(0)], show: false };
        assert_eq!(effects(&store, enqueue(yang(), 7, -1e12)).events, NewEvents::Nothing);
        assert_eq!(effects(&store, delete).events, NewEvents::of(yang()), "its grant is announced");
        audit(&url);
    });
}

/// An event that was not acknowledged is due again after a while: callers that wait for that semaphore are woken by the tick.
#[test]
fn events_that_are_due_again_are_announced_by_key() {
    run(async {
        let store = open(&own(&instance().url()));
        let keys = ["yang", "yin"].map(|text| SemaphoreKey::new(text).expect("a good key"));
        for key in &keys {
            limit(&store, key.clone(), 1);
            effects(&store, enqueue(key.clone(), 1, 0.0));
        }
        let key = Some(keys[1].clone());
        let fetch = SemaphoreCommand::Events { key, count: 9, wait: Span::ZERO };
        effects(&store, Command::Semaphore(fetch));
        let tick = |seconds| {
            let tick = vec![Command::Tick { limit: 100, seed: 0 }];
            block_on(store.execute(NOW + Span::from_secs(seconds), tick)).effects.events
        };
        assert_eq!(tick(29), NewEvents::Nothing, "the other one was told when it came about");
        assert_eq!(tick(30), NewEvents::of(keys[1].clone()));
        assert_eq!(tick(30), NewEvents::Nothing, "once");
    });
}

// All servers were gone. The tasks of a temporary tube are removed then, but they kept their entries in the semaphore forever.
#[test]
fn removed_tasks_leave_the_semaphore() {
    run(async {
        for (temporary, left) in [(true, 0), (false, 1)] {
            let url = own(&instance().url());
            let store = open(&url);
            limit(&store, yang(), 1);
            let options = TubeOptions { temporary, ..TubeOptions::new(Kind::UtubeTtl) };
            let tube = gated_tube(&store, "notes", options);
            effects(&store, put(&tube, 1));
            effects(&store, take_from(&tube));
            store.close().await.expect("it closes");
            drop(store);
            let store = open(&url);
            effects(&store, enqueue(yang(), 7, 5.0));
            let again = url.clone();
            let queue = StoreHarness::new(move || Box::new(open(&again)));
            let info = SemaphoreCommands::info(&queue).await;
            assert_eq!((info.acquired, info.revoking, info.waiting), (1, 0, left), "{temporary}");
            assert_eq!(queue.member(7).await.map(|place| place.status), Some(Status::Acquired));
            audit(&url);
        }
    });
}

// Lua encodes 2.0 as an integer and numbers beyond 10^14 as doubles: priorities must survive that.
#[test]
fn priorities_survive_encoding() {
    run(async {
        let store = open(&own(&instance().url()));
        limit(&store, yang(), 1);
        let tube = gated_tube(&store, "jobs", TubeOptions::new(Kind::FifoTtl));
        let numbers = [0.0, 2.0, -3.0, 0.1, -1.5, 1e14, -1e15, 9e18, 1e300, -f64::MAX, 5e-324];
        let own = numbers.map(|number| Priority::new(number).expect("a number"));
        let task = |own: &Priority| NewTask {
            semaphore_priority: Some(*own),
            ..NewTask::new(Body::new(&[0xc0]))
        };
        let tasks = own.iter().map(task).collect();
        effects(&store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO });
        let ids = (0..numbers.len() as u64).map(TaskId).collect();
        let Ok(Reply::Tasks(shown)) = ask(&store, Command::Peek { tube: tube.clone(), ids }) else {
            panic!("they are shown")
        };
        let shown: Vec<_> = shown.iter().filter_map(|task| task.semaphore_priority).collect();
        assert_eq!(shown, own);
        // The best one gets the grant; a take does not show its priority.
        let Ok(Reply::Taken(taken)) = ask(&store, take_from(&tube)) else { panic!("a take") };
        assert_eq!((taken[0].id, taken[0].semaphore_priority), (TaskId(8), None));
    });
}

#[test]
fn a_put_with_a_priority_for_no_semaphore_is_refused() {
    run(async {
        let store = open(&own(&instance().url()));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let plain = NewTask::new(Body::new(&[0xc0]));
        let own = NewTask { semaphore_priority: Some(Priority::ZERO), ..plain.clone() };
        let tasks = vec![plain, own];
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        assert_eq!(ask(&store, put), Err(Error::NoSemaphore(tube.clone())));
        assert_eq!(ask(&store, take_from(&tube)), Ok(Reply::Taken(Vec::new())));
    });
}

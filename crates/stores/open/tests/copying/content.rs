//! Fills a store with content of every kind, and reads everything back.

use std::collections::BTreeMap;

use taskyard_conformance::block_on;
use taskyard_core::transfer::{EventCopy, QueueEntryCopy};
use taskyard_core::{
    Body, Command, Counts, EnqueueItem, EventId, Finish, FinishItem, GrantFinish, GrantItem,
    Holder, Kind, NewTask, Priority, Record, Reply, SemaphoreChange, SemaphoreCommand,
    SemaphoreKey, SemaphoreOptions, Span, Take, Task, TaskId, Timestamp, TubeName, TubeOptions,
    TubeRecord,
};
use taskyard_store::copy::{Copied, CopyError, copy, plan};
use taskyard_store::{Export, Exported, Store, fill};

/// The time of all commands.
pub const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// How many tasks `fill_store` leaves, those of the tube `many` not counted.
pub const TASKS: u64 = 3 + 6 + 4 + 5 + 3 + 2;

pub fn name(text: &str) -> TubeName {
    TubeName::new(text).expect("a name")
}

fn key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("a key")
}

pub fn ask(store: &dyn Store, command: Command) -> Reply {
    let mut executed = block_on(store.execute(NOW, vec![command]));
    if !executed.unloaded.is_empty() {
        let keys = executed.unloaded.iter().map(|unloaded| unloaded.key).collect();
        let bodies = block_on(store.load(keys)).into_iter().map(|body| body.expect("it is read"));
        fill(&mut executed.replies, &executed.unloaded, bodies.collect());
    }
    executed.replies.remove(0).expect("it is done")
}

pub fn make(store: &dyn Store, tube: &str, options: TubeOptions) {
    ask(store, Command::CreateTube { tube: name(tube), options, if_not_exists: false });
}

pub fn put(store: &dyn Store, tube: &str, tasks: Vec<NewTask>) {
    ask(store, Command::Put { tube: name(tube), tasks, wait: Span::ZERO });
}

pub fn task(number: u64) -> NewTask {
    NewTask::new(Body::new(format!("\u{a5}task {number}").as_bytes()))
}

pub fn take(store: &dyn Store, tube: &str, count: usize) -> Vec<Task> {
    let take = Take {
        tube: name(tube),
        count,
        session: None,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    };
    match ask(store, Command::Take(take)) {
        Reply::Taken(tasks) => tasks,
        other => panic!("{other:?}"),
    }
}

pub fn finish(store: &dyn Store, tube: &str, id: u64, finish: Finish) {
    let items = vec![FinishItem { id: TaskId(id), holder: Holder::Any, finish }];
    ask(store, Command::Finish { tube: name(tube), items, show: false });
}

/// Adds content of every kind.
pub fn fill_store(store: &dyn Store) {
    plain_tubes(store);
    semaphores(store);
}

fn plain_tubes(store: &dyn Store) {
    let release = Finish::Release { delay: Span::ZERO, counted: true };
    // Ids at the end and in between are used: 0, 2 and 3 stay, 5 is next.
    make(store, "fifo", TubeOptions { paused: true, ..TubeOptions::new(Kind::Fifo) });
    put(store, "fifo", (0..5).map(task).collect());
    ask(
        store,
        Command::Delete { tube: name("fifo"), ids: vec![TaskId(1), TaskId(4)], show: false },
    );
    // Every state.
    let options = TubeOptions {
        ttl: Some(Span::from_secs(3600)),
        attempts_max: Some(2),
        pri: 7,
        queue_num: Some(12),
        ..TubeOptions::new(Kind::FifoTtl)
    };
    make(store, "states", options);
    let body = Body::with_meta(b"\xa4body", b"\x81\xa1k\xa1v");
    let mut tasks: Vec<NewTask> = (0..6).map(task).collect();
    tasks[0] = NewTask { pri: Some(u64::MAX), ttr: Some(Span::from_secs(9)), ..NewTask::new(body) };
    tasks[1].delay = Some(Span::from_secs(600));
    tasks[2].pri = Some(0);
    tasks[3].pri = Some(1);
    put(store, "states", tasks);
    // 2 is released once, then its attempts are used up; 3 is released once; 4 is buried; 5 is taken.
    for _ in 0..2 {
        take(store, "states", 1);
        finish(store, "states", 2, release.clone());
    }
    take(store, "states", 1);
    finish(store, "states", 3, Finish::fail("no route to host", Some(Span::ZERO)));
    finish(store, "states", 4, Finish::Bury);
    // Sub-queues, one of them without a ready task.
    make(store, "sub", TubeOptions::new(Kind::UtubeTtl));
    let of = |number: u64, key: &str| NewTask { subqueue: Some(key.into()), ..task(number) };
    let mut delayed = of(3, "c");
    delayed.delay = Some(Span::from_secs(60));
    put(store, "sub", vec![of(0, "a"), of(1, "a"), of(2, "b"), delayed]);
    let limited = TubeOptions { capacity: Some(5), ..TubeOptions::new(Kind::LimFifoTtl) };
    make(store, "full", limited);
    put(store, "full", (0..5).map(task).collect());
    // Done tasks, with and without a result, beside one that is ready.
    let keep_done = Some(Span::from_secs(3600));
    make(
        store,
        "done",
        TubeOptions { keep_done, keep_done_max: 7, ..TubeOptions::new(Kind::Fifo) },
    );
    put(store, "done", (0..3).map(task).collect());
    take(store, "done", 1);
    finish(store, "done", 0, Finish::fail("no route to host", Some(Span::ZERO)));
    take(store, "done", 2);
    finish(store, "done", 0, Finish::Ack);
    finish(store, "done", 1, Finish::ack_with(b"\xa6result"));
    make(store, "empty", TubeOptions::new(Kind::Utube));
    put(store, "empty", vec![task(0)]);
    ask(store, Command::Truncate { tube: name("empty") });
}

fn semaphores(store: &dyn Store) {
    let configure = |text: &str, active: i64| {
        let change = SemaphoreChange {
            active: Some(active),
            try_release: Some(1),
            lease: Some(Some(Span::from_secs(900))),
            margin: Some(0.5),
            ..SemaphoreChange::default()
        };
        let configure = SemaphoreCommand::Configure {
            key: key(text),
            change: Box::new(change),
            only_new: false,
        };
        ask(store, Command::Semaphore(configure));
    };
    configure("own", 2);
    configure("gate", 1);
    let item = |task: u64, priority: f64| EnqueueItem { task: TaskId(task), priority };
    let enqueue = |entries: Vec<EnqueueItem>| {
        ask(store, Command::Semaphore(SemaphoreCommand::Enqueue { key: key("own"), entries }));
    };
    // 1 declines and is pinned, 2 holds and is asked to release for 5; 3 and 4 wait, alike.
    enqueue(vec![item(1, 2.0), item(2, 1.0), item(4, 0.0), item(3, 0.0)]);
    let events = SemaphoreCommand::Events { key: Some(key("own")), count: 1, wait: Span::ZERO };
    ask(store, Command::Semaphore(events));
    let grant = GrantItem { task: TaskId(4), grant: None, finish: GrantFinish::Release };
    let finish = SemaphoreCommand::Finish { key: key("own"), items: vec![grant] };
    ask(store, Command::Semaphore(finish));
    enqueue(vec![item(4, 0.0), item(5, 9.0)]);
    // One of two tasks is admitted.
    let gated = TubeOptions { semaphore: Some(key("gate")), ..TubeOptions::new(Kind::FifoTtl) };
    make(store, "gated", gated);
    let important = Some(Priority::new(3.5).expect("a number"));
    put(store, "gated", vec![task(0), NewTask { semaphore_priority: important, ..task(1) }]);
}

/// A task by tube and id.
type TasksById<T> = BTreeMap<(String, u64), T>;

/// Everything that can be read from a store, without numbers that differ between stores.
#[derive(Debug, PartialEq)]
pub struct Content {
    pub tubes: Vec<TubeRecord>,
    pub counts: Vec<Counts>,
    pub records: TasksById<Record>,
    pub peeked: TasksById<Task>,
    pub semaphores: Vec<(SemaphoreKey, SemaphoreOptions, u64)>,
    /// By semaphore, in the order of sequence numbers.
    pub places: Vec<(SemaphoreKey, Option<TubeName>, QueueEntryCopy)>,
    pub events: Vec<(SemaphoreKey, Option<TubeName>, EventCopy)>,
}

pub fn content(store: &dyn Store) -> Content {
    let tubes = match block_on(store.export(Export::Tubes)) {
        Ok(Exported::Tubes(tubes, _)) => tubes,
        other => panic!("{other:?}"),
    };
    let (mut records, mut peeked) = (BTreeMap::new(), BTreeMap::new());
    for tube in &tubes {
        let at = |id: TaskId| (tube.record.name.to_string(), id.0);
        let mut from = TaskId(0);
        loop {
            let wanted = Export::Tasks { tube: tube.number, from, count: 3000, bytes: 1 << 20 };
            let page = match block_on(store.export(wanted)) {
                Ok(Exported::Tasks(page)) => page,
                other => panic!("{other:?}"),
            };
            let Some(last) = page.last() else { break };
            from = TaskId(last.id.0 + 1);
            let ids = page.iter().map(|record| record.id).collect();
            let peek = Command::Peek { tube: tube.record.name.clone(), ids };
            let Reply::Tasks(tasks) = ask(store, peek) else { panic!("a peek shows tasks") };
            peeked.extend(tasks.into_iter().map(|task| (at(task.id), task)));
            records.extend(page.into_iter().map(|record| (at(record.id), record)));
        }
    }
    let of = |number: Option<u32>| {
        let tube = |number| tubes.iter().find(|tube| tube.number == number);
        number.and_then(tube).map(|tube| tube.record.name.clone())
    };
    let mut all = match block_on(store.export(Export::Semaphores)) {
        Ok(Exported::Semaphores(all)) => all,
        other => panic!("{other:?}"),
    };
    all.sort_by(|a, b| a.record.key.cmp(&b.record.key));
    let (mut semaphores, mut places, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for copy in all {
        let key = copy.record.key;
        semaphores.push((key.clone(), copy.record.options, copy.record.grant_seq));
        for mut place in copy.entries {
            let tube = of(place.tube.take());
            place.entry.seq = 0;
            places.push((key.clone(), tube, place));
        }
        for mut event in copy.events {
            let tube = of(event.tube.take());
            event.id = EventId(0);
            events.push((key.clone(), tube, event));
        }
    }
    let counts = tubes.iter().map(|tube| Counts { done: 0, ..tube.stats.tasks }).collect();
    let tubes = tubes.into_iter().map(|tube| tube.record).collect();
    Content { tubes, counts, records, peeked, semaphores, places, events }
}

/// Copies everything.
pub fn copy_all(from: &dyn Store, to: &dyn Store) -> Result<Copied, CopyError> {
    block_on(async {
        let plan = plan(from, to, &[]).await?;
        copy(from, to, NOW, &plan, |_| ()).await
    })
}

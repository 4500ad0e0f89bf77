//! Prints the speed without a limit: `TASKYARD_SPEED=100000 cargo test --release -- speed --nocapture`.

use std::time::{Duration, Instant};

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, Reply, Span,
    StateSet, Take, Task, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::postgres::{Database, connect, run, runtime};

/// How many callers share a batch, as the engine collects them.
const CALLERS: usize = 16;

#[test]
fn speed() {
    run(async {
        let tasks = std::env::var("TASKYARD_SPEED").ok().and_then(|text| text.parse().ok());
        let tasks: usize = tasks.unwrap_or(2_000);
        let database = Database::new();
        let store = database.open();
        let tube = TubeName::new("mail").expect("a name");
        let options = TubeOptions::new(Kind::FifoTtl);
        ask(
            &store,
            vec![Command::CreateTube { tube: tube.clone(), options, if_not_exists: false }],
        );
        let put = |count: usize| Command::Put {
            tube: tube.clone(),
            tasks: vec![NewTask::new(Body::new(&[0xc0; 100])); count],
            wait: Span::ZERO,
        };
        measure("puts one by one", tasks, || {
            for _ in 0..tasks / CALLERS {
                ask(&store, vec![put(1); CALLERS]);
            }
        });
        measure("puts in batches of 1,000", tasks, || {
            for _ in 0..tasks / 1000 {
                ask(&store, vec![put(1000)]);
            }
        });
        measure("drain one by one", tasks, || {
            for _ in 0..tasks / CALLERS {
                drain(&store, &tube, 1, CALLERS);
            }
        });
        measure("drain in batches of 1,000", tasks, || {
            for _ in 0..tasks / 1000 {
                drain(&store, &tube, 1000, 1);
            }
        });
        measure_kept(&store, tasks);
        measure_scan(&store, tasks);
        let long = connect_long(&database);
        for _ in 0..tasks / 1000 {
            ask(&store, vec![put(1000)]);
        }
        measure("drain one by one beside a long transaction", tasks, || {
            for _ in 0..tasks / CALLERS {
                drain(&store, &tube, 1, CALLERS);
            }
        });
        drop(long);
        let mut waits: Vec<Duration> = (0..200)
            .map(|_| {
                let begin = Instant::now();
                ask(&store, vec![put(1)]);
                drain(&store, &tube, 1, 1);
                begin.elapsed()
            })
            .collect();
        waits.sort_unstable();
        println!("put, take and ack alone: p50 {:?}, p99 {:?}", waits[100], waits[197]);
    });
}

/// The same drain in a tube that keeps done tasks, with the ticks that remove them.
fn measure_kept(store: &PostgresStore, tasks: usize) {
    let tube = TubeName::new("kept").expect("a name");
    let keep_done = Some(Span::from_secs(3600));
    let options = TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) };
    ask(store, vec![Command::CreateTube { tube: tube.clone(), options, if_not_exists: false }]);
    for (what, count, callers) in [("one by one", 1, CALLERS), ("in batches of 1,000", 1000, 1)] {
        fill(store, &tube, tasks);
        measure(&format!("drain {what} with retention"), tasks, || {
            for _ in 0..tasks / (count * callers) {
                drain(store, &tube, count, callers);
            }
            while ask(store, vec![Command::Tick { limit: 1000, seed: 0 }]) != [Reply::Ticked(0)] {}
        });
    }
}

/// Reads all tasks of a tube, as a search of payloads does.
fn measure_scan(store: &PostgresStore, tasks: usize) {
    let tube = TubeName::new("scanned").expect("a name");
    let options = TubeOptions::new(Kind::FifoTtl);
    ask(store, vec![Command::CreateTube { tube: tube.clone(), options, if_not_exists: false }]);
    fill(store, &tube, tasks);
    measure("list and peek in pages of 1,000", tasks, || {
        let mut after = None;
        loop {
            let order = ListOrder::Id { states: StateSet::ALL, after };
            let list = Command::List(List { tube: tube.clone(), order, limit: 1000, key: None });
            let Reply::Listed(page) = ask(store, vec![list]).remove(0) else { panic!("a page") };
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            let ids = page.iter().map(|task| task.id).collect();
            let peek = Command::Peek { tube: tube.clone(), ids };
            let Reply::Tasks(shown) = ask(store, vec![peek]).remove(0) else { panic!("tasks") };
            assert_eq!(shown.len(), page.len());
        }
    });
}

fn fill(store: &PostgresStore, tube: &TubeName, tasks: usize) {
    for _ in 0..tasks / 1000 {
        let tasks = vec![NewTask::new(Body::new(&[0xc0; 100])); 1000];
        ask(store, vec![Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }]);
    }
}

/// A connection with a long transaction, so that dead rows cannot be removed meanwhile.
fn connect_long(database: &Database) -> tokio_postgres::Client {
    runtime().block_on(async {
        let client = connect(&database.url()).await;
        let look = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM taskyard.task";
        client.batch_execute(look).await.expect("it looks");
        client
    })
}

fn measure(what: &str, tasks: usize, work: impl FnOnce()) {
    let begin = Instant::now();
    work();
    let took = begin.elapsed();
    println!("{what}: {:.0} tasks/s", tasks as f64 / took.as_secs_f64());
}

/// Takes and acks, as this many callers.
fn drain(store: &PostgresStore, tube: &TubeName, count: usize, callers: usize) {
    let lease = Some(Span::from_secs(60));
    let take =
        Take { tube: tube.clone(), count, session: None, lease, worker: None, wait: Span::ZERO };
    let taken = ask(store, vec![Command::Take(take); callers]);
    let acks = taken.into_iter().map(|reply| {
        let Reply::Taken(tasks) = reply else { panic!("a take answers with tasks") };
        assert_eq!(tasks.len(), count, "the tube must not be empty");
        Command::Finish { tube: tube.clone(), items: tasks.iter().map(ack).collect(), show: false }
    });
    ask(store, acks.collect());
}

fn ack(task: &Task) -> FinishItem {
    let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
    FinishItem { id: task.id, holder, finish: Finish::Ack }
}

fn ask(store: &PostgresStore, commands: Vec<Command>) -> Vec<Reply> {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let replies = block_on(store.execute(now, commands)).replies;
    replies.into_iter().map(|reply| reply.expect("it works")).collect()
}

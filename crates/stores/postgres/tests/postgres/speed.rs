//! Prints the speed without a limit: `TASKYARD_SPEED=100000 cargo test --release -- speed --nocapture`.

use std::time::{Duration, Instant};

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, NewTask, Reply, Span, Take, Task, Timestamp,
    TubeName, TubeOptions,
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

//! Tests that a call of a semaphore reads few pages while a transaction with an old snapshot prevents the
//! removal of dead rows.

use taskyard_conformance::StoreHarness;
use taskyard_conformance::semaphores::SemaphoreCommands;
use tokio_postgres::{Client, SimpleQueryMessage};

use taskyard_testkit::postgres::{Database, connect, run, runtime};

/// Number of tasks that were released before a call is measured.
const DEAD: u32 = 100_000;

/// Maximum number of pages that a call reads. From the beginning of the index it would read all dead entries.
const BUFFERS_MAX: u64 = 200;

fn tasks(from: u32, count: u32) -> String {
    format!("ARRAY(SELECT n::bigint FROM generate_series({from}, {}) n)", from + count - 1)
}

fn enqueue(from: u32, count: u32, priority: &str) -> String {
    let (tasks, priorities) =
        (tasks(from, count), format!("array_fill({priority}::float8, ARRAY[{count}])"));
    format!("SELECT * FROM taskyard.semaphore_enqueue('yang', NULL, {tasks}, {priorities})")
}

fn release(from: u32, count: u32) -> String {
    let nothing = format!("array_fill(NULL::bigint, ARRAY[{count}])");
    format!(
        "SELECT * FROM taskyard.semaphore_finish('yang', NULL, {}, {nothing}, \
         array_fill(0::smallint, ARRAY[{count}]), {nothing})",
        tasks(from, count)
    )
}

/// Number of pages that a call reads, with everything that its function runs.
pub async fn buffers(client: &Client, call: &str) -> u64 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {call}");
    let rows = client.simple_query(&explain).await.expect("it is explained");
    let plan = rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    let plan = plan.expect("a plan");
    let number = |name: &str| -> u64 {
        let (_, rest) = plan.split_once(&format!("\"{name}\": ")).expect("it counts pages");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        digits.parse().expect("a number")
    };
    number("Shared Hit Blocks") + number("Shared Read Blocks")
}

/// A database with a semaphore, a connection, and a second one with a snapshot from the beginning.
async fn with_old_snapshot(active: i64) -> (Database, Client, Client) {
    let database = Database::new();
    let url = database.url();
    let queue = StoreHarness::new({
        let url = url.clone();
        move || {
            let store = taskyard_store_postgres::PostgresStore::open(
                &url,
                taskyard_store_postgres::Clock::Caller,
            );
            Box::new(store.expect("the store opens"))
        }
    });
    queue.limits(active, active).await;
    let (client, old) = (connect(&url).await, connect(&url).await);
    old.batch_execute(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM taskyard.semaphore",
    )
    .await
    .expect("it begins");
    (database, client, old)
}

async fn run_calls(client: &Client, calls: &[String]) {
    for call in calls {
        client.batch_execute(call).await.unwrap_or_else(|error| panic!("{call}: {error}"));
    }
}

async fn check_consistent(client: &Client) {
    let wrong = client.query("SELECT * FROM taskyard.semaphore_audit", &[]).await;
    assert!(wrong.expect("the audit runs").is_empty());
}

/// Admits tasks one at a time, and checks that each call reads few pages.
async fn pops_read_little(client: &Client, holders: impl Iterator<Item = u32>) {
    for holder in holders {
        let read = buffers(client, &release(holder, 1)).await;
        assert!(read <= BUFFERS_MAX, "the release of {holder} read {read} pages");
    }
    check_consistent(client).await;
}

/// Clears the bounds of the searches.
const CLEAR_BOUNDS: &str = "UPDATE taskyard.semaphore_state SET rest_rank = NULL, rest_seq = NULL, ahead = 0, \
                      head_rank = NULL, head_seq = NULL, tail_rank = NULL, tail_seq = NULL";

/// Adds and removes [`DEAD`] tasks of one priority, whose entries stay in the indexes; without the functions,
/// which would take long.
async fn leave_dead_entries(client: &Client, priority: &str, were_admitted: bool) {
    let last = 1_000_000 + DEAD;
    let insert = format!(
        "INSERT INTO taskyard.semaphore_task (semaphore_id, task_id, priority, seq, enqueued) \
         SELECT s.id, n, {priority}, nextval('taskyard.semaphore_seq'), 0 \
         FROM taskyard.semaphore s, generate_series(1000001, {last}) n"
    );
    let hold = "UPDATE taskyard.semaphore_task SET status = 'ACQUIRED' WHERE task_id > 1000000";
    let delete = "DELETE FROM taskyard.semaphore_task WHERE task_id > 1000000";
    let admit = if were_admitted { vec![hold.into()] } else { Vec::new() };
    // As autovacuum does at some time: then the planner assumes an almost empty table, and every index costs the same.
    let analyze = "VACUUM (ANALYZE) taskyard.semaphore_task";
    run_calls(client, &[vec![insert], admit, vec![delete.into(), analyze.into()]].concat()).await;
}

/// Enqueues, admits and releases some more tasks by calls. The first of them reads the dead entries, and
/// records where they end.
async fn pass_through(client: &Client, priority: &str) {
    leave_dead_entries(client, priority, true).await;
    run_calls(client, &["UPDATE taskyard.semaphore SET active = 100".into()]).await;
    for round in 0..3 {
        let from = 2_000_000 + round * 100;
        run_calls(client, &[enqueue(from, 100, priority), release(from, 100)]).await;
    }
    run_calls(client, &["UPDATE taskyard.semaphore SET active = 1".into()]).await;
}

#[test]
fn a_call_does_not_read_dead_entries() {
    let _runtime = runtime().enter();
    run(async {
        let (_database, client, _old) = with_old_snapshot(1).await;
        pass_through(&client, "1").await;
        run_calls(&client, &[enqueue(1, 20, "1")]).await;
        pops_read_little(&client, 1..6).await;
        // Tasks with a better priority are enqueued and released: the bound of the others stays.
        run_calls(&client, &[enqueue(50, 2, "5")]).await;
        pops_read_little(&client, [6, 50, 51, 7, 8].into_iter()).await;
        let read = buffers(&client, &enqueue(60, 1, "0.5")).await;
        assert!(read <= BUFFERS_MAX, "an enqueue read {read} pages");
        // Without the bounds a call reads many pages.
        run_calls(&client, &[CLEAR_BOUNDS.into()]).await;
        let read = buffers(&client, &release(9, 1)).await;
        assert!(read > 5 * BUFFERS_MAX, "only {read} pages from the beginning");
        check_consistent(&client).await;
    });
}

#[test]
fn an_empty_queue_is_not_searched_again() {
    let _runtime = runtime().enter();
    run(async {
        let (_database, client, _old) = with_old_snapshot(1).await;
        run_calls(&client, &[enqueue(1, 1, "1")]).await;
        leave_dead_entries(&client, "1", false).await;
        for round in 0..3 {
            let from = 2_000_000 + round * 100;
            run_calls(&client, &[enqueue(from, 100, "1"), release(from, 100)]).await;
        }
        // The first search reads the dead entries once.
        run_calls(&client, &[release(1, 1)]).await;
        for task in 2..5 {
            for call in [enqueue(task, 1, "1"), enqueue(task + 10, 1, "1"), release(task, 1)] {
                let read = buffers(&client, &call).await;
                assert!(read <= BUFFERS_MAX, "{call} read {read} pages");
            }
            run_calls(&client, &[release(task + 10, 1)]).await;
        }
        check_consistent(&client).await;
    });
}

/// Dead entries of former holders are behind the worst holder.
#[test]
fn the_worst_holder_is_found_among_dead_entries() {
    let _runtime = runtime().enter();
    run(async {
        let (_database, client, _old) = with_old_snapshot(1).await;
        pass_through(&client, "-5").await;
        run_calls(&client, &[enqueue(1, 1, "1"), enqueue(2, 1, "0")]).await;
        for task in 3..6 {
            let read = buffers(&client, &enqueue(task, 1, "0")).await;
            assert!(read <= BUFFERS_MAX, "an enqueue read {read} pages");
        }
        check_consistent(&client).await;
        run_calls(&client, &[CLEAR_BOUNDS.into()]).await;
        let read = buffers(&client, &enqueue(7, 1, "0")).await;
        assert!(read > 5 * BUFFERS_MAX, "only {read} pages from the end");
    });
}

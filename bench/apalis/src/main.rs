//! apalis with its SQLite store, doing the same as our workers do in `taskyard bench`: empty a backlog with handlers that
//! do nothing, and begin a task as soon as it was put. Every commit is synced, as ours is.
//!
//! Called with one JSON argument (folder, tasks, processors, batch, starts); prints one line of JSON.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteStorage, queries::push_tasks};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::mpsc;

/// How often its worker looks: often enough that this is not what is measured, and no oftener.
const POLL: Duration = Duration::from_millis(5);

/// How long it may take for its backlog.
const DRAIN_MAX: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Asked {
    folder: PathBuf,
    tasks: usize,
    processors: usize,
    batch: usize,
    starts: usize,
}

#[derive(Serialize)]
struct Figures {
    version: &'static str,
    settings: String,
    drain: f64,
    start_p50: f64,
    start_p99: f64,
}

/// The same fields as our task.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    user_id: i64,
    text: String,
    is_urgent: bool,
}

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let argument = std::env::args().nth(1).ok_or("called without its settings")?;
    let asked: Asked = serde_json::from_str(&argument)?;
    let drain = tokio::time::timeout(DRAIN_MAX, drain(&asked))
        .await
        .map_err(|_| format!("{} tasks were not done in {DRAIN_MAX:?}", asked.tasks))??;
    let mut times = starts(&asked).await?;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let figures = Figures {
        version: "1.0.0",
        settings: format!(
            "WAL, synchronous FULL, batches of {}, no second lock for each task, looks every {POLL:?}",
            asked.batch
        ),
        drain,
        start_p50: at(0.5),
        start_p99: at(0.99),
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// A new database. Its own `setup` turns syncing off, so only its tables are made by it.
async fn pool(folder: &Path, name: &str) -> Result<sqlx::SqlitePool, Failure> {
    let path = folder.join(name);
    let options = SqliteConnectOptions::from_str(&format!("sqlite://{}", path.display()))?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
    SqliteStorage::migrations().run(&pool).await?;
    Ok(pool)
}

async fn put(pool: &sqlx::SqlitePool, queue: &str, notes: &[Note]) -> Result<(), Failure> {
    let tasks: Result<Vec<_>, _> = notes
        .iter()
        .map(|note| serde_json::to_vec(note).map(|bytes| TaskBuilder::new(bytes).build()))
        .collect();
    let mut transaction = pool.begin().await?;
    push_tasks(&mut *transaction, queue, &tasks?).await?;
    transaction.commit().await?;
    Ok(())
}

fn note(user_id: usize) -> Note {
    Note { user_id: user_id as i64, text: "a short text of 30 characters.".into(), is_urgent: true }
}

/// Fills a queue and lets a worker empty it; tasks a second.
async fn drain(asked: &Asked) -> Result<f64, Failure> {
    let pool = pool(&asked.folder, "drain.db").await?;
    let notes: Vec<_> = (0..asked.tasks).map(note).collect();
    for notes in notes.chunks(1000) {
        put(&pool, "notes", notes).await?;
    }
    let config = Config::default().queue("notes").batch_size(asked.batch).lock_tasks(false);
    let backend = SqliteStorage::<Note>::new(&pool).with_config(config).poll_with_interval(POLL);
    let (done, tasks) = (Arc::new(AtomicUsize::new(0)), asked.tasks);
    let handler = move |_: Note, worker: WorkerContext| {
        let done = done.clone();
        async move {
            if done.fetch_add(1, Ordering::Relaxed) + 1 == tasks {
                worker.stop()?;
            }
            Ok::<_, BoxDynError>(())
        }
    };
    let begin = Instant::now();
    WorkerBuilder::new("bench")
        .backend(backend)
        .concurrency(asked.processors)
        .build(handler)
        .run()
        .await?;
    let seconds = begin.elapsed().as_secs_f64();
    let done: i64 = sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = 'Done'")
        .fetch_one(&pool)
        .await?;
    if done as usize != tasks {
        return Err(format!("{done} of {tasks} tasks are done in the database").into());
    }
    Ok(tasks as f64 / seconds)
}

/// From the beginning of a put to the beginning of its handler, in milliseconds, on a worker with nothing else to do.
async fn starts(asked: &Asked) -> Result<Vec<f64>, Failure> {
    let pool = pool(&asked.folder, "starts.db").await?;
    let config = Config::default().queue("notes").batch_size(asked.batch).lock_tasks(false);
    let backend = SqliteStorage::<Note>::new(&pool).with_config(config).poll_with_interval(POLL);
    let (begun, mut beginnings) = mpsc::unbounded_channel();
    let last = asked.starts as i64 - 1;
    let handler = move |note: Note, worker: WorkerContext| {
        let now = Instant::now();
        let begun = begun.clone();
        async move {
            begun.send(now)?;
            if note.user_id == last {
                worker.stop()?;
            }
            Ok::<_, BoxDynError>(())
        }
    };
    let worker =
        WorkerBuilder::new("idle").backend(backend).concurrency(asked.processors).build(handler);
    let running = tokio::spawn(worker.run());
    let mut times = Vec::new();
    for user_id in 0..asked.starts {
        let begin = Instant::now();
        put(&pool, "notes", &[note(user_id)]).await?;
        let started: Instant = beginnings.recv().await.ok_or("the worker ended")?;
        times.push(started.duration_since(begin).as_secs_f64() * 1000.0);
    }
    running.await??;
    Ok(times)
}

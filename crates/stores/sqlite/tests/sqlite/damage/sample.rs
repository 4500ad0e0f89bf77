//! Creates folders to damage: the same history of tasks, stopped in different ways.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use taskyard_core::{Body, Command, Finish, Kind, NewTask, Reply, Span, TubeChange, TubeOptions};
use taskyard_store::Store;
use taskyard_store_sqlite::SqliteStore;
use tempfile::TempDir;

use crate::fixture::{
    TaskContent, block_on, close, content, copy, create, delete, fast_folder, finish, must, name,
    open, open_without_journal, put_now, take_now,
};

/// All ids of a sample are lower than this.
pub const IDS: u64 = 1700;

/// A folder and its content.
pub struct Sample {
    folder: TempDir,
    pub name: &'static str,
    /// The expected content.
    pub content: TaskContent,
    /// The payload of every task that was put, by the number of its tube and its id.
    pub payloads: BTreeMap<(u32, u64), Body>,
    /// The names of the tubes and their options, as text.
    pub tubes: String,
}

impl Sample {
    /// Closed: one file has everything.
    pub fn closed() -> Sample {
        Sample::new("closed", |_| {})
    }

    /// A part is in the database, the rest in the log.
    pub fn crashed() -> Sample {
        Sample::new("crashed", later_work)
    }

    /// Everything is in the log, and the same in the database.
    pub fn copied() -> Sample {
        Sample::new("copied", |history| {
            later_work(history);
            history.copy_log();
        })
    }

    /// The log was copied and reset.
    pub fn log_reset() -> Sample {
        Sample::new("log reset", |history| {
            later_work(history);
            history.copy_log();
            history.put("mail", 20, 50);
            history.finish(30, Finish::Ack);
        })
    }

    /// The newest batches are in the journal only.
    pub fn journaled() -> Sample {
        Sample::new("journaled", |history| {
            history.store.set_journal_bytes(1 << 20);
            history.store.set_journal_delay(Duration::MAX);
            later_work(history);
            history.put("mail", 20, 50);
            history.finish(30, Finish::Ack);
            history.put("keys", 40, 300);
            history.finish(20, Finish::Release { delay: Span::from_secs(50_000), counted: true });
            must(&history.store, delete("mail", 500..520));
        })
    }

    /// The database has everything, from a log that was copied, and the journal still has the same.
    pub fn applied() -> Sample {
        Sample::new("applied", |history| {
            history.store.set_journal_bytes(1 << 20);
            later_work(history);
            history.put("mail", 20, 50);
            history.finish(30, Finish::Ack);
            history.store.catch_up().expect("the database can be written");
            history.copy_log();
        })
    }

    fn new(name: &'static str, later: impl FnOnce(&mut History)) -> Sample {
        let made = fast_folder();
        let mut history =
            History { store: open_without_journal(made.path()), made, payloads: BTreeMap::new() };
        early_work(&mut history);
        block_on(history.store.close()).expect("the store closes");
        history = history.reopen();
        later(&mut history);
        let folder = fast_folder();
        if name == "closed" {
            block_on(history.store.close()).expect("the store closes");
        }
        copy(history.made.path(), folder.path().to_owned());
        // The content, read from another copy of the folder.
        let twin = open(&copy(history.made.path(), history.made.path().join("twin")));
        let content = content(&twin, IDS).expect("an intact store can be read");
        let tubes = describe_tubes(&twin);
        close(twin);
        assert!(content.len() > 1500, "{} tasks", content.len());
        Sample { folder, name, content, payloads: history.payloads, tubes }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The bytes of one of its files; none if there is no such file.
    pub fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.folder().join(file)).unwrap_or_default()
    }
}

/// The tubes of a store, without values that depend on the time.
pub fn describe_tubes(store: &SqliteStore) -> String {
    let tubes = crate::fixture::tubes(store);
    tubes.iter().map(|tube| format!("{} {} {:?}\n", tube.number, tube.name, tube.options)).collect()
}

/// A store in use and the payloads of its tasks.
struct History {
    made: TempDir,
    store: SqliteStore,
    payloads: BTreeMap<(u32, u64), Body>,
}

impl History {
    fn reopen(self) -> History {
        let History { made, store, payloads } = self;
        drop(store);
        History { store: open_without_journal(made.path()), made, payloads }
    }

    fn put(&mut self, tube: &str, count: usize, bytes: usize) {
        let mut random = fastrand::Rng::with_seed(bytes as u64);
        let tasks: Vec<NewTask> = (0..count).map(|_| new_task(&mut random, bytes)).collect();
        let bodies: Vec<Body> = tasks.iter().map(|task| task.body.clone()).collect();
        let number =
            crate::fixture::tubes(&self.store).into_iter().find(|t| t.name.as_str() == tube);
        let number = number.map(|tube| tube.number).expect("the tube is there");
        for (id, body) in put_now(&self.store, tube, tasks).into_iter().zip(bodies) {
            self.payloads.insert((number, id), body);
        }
    }

    fn finish(&self, count: usize, how: Finish) {
        let tasks = take_now(&self.store, "mail", count);
        assert_eq!(tasks.len(), count);
        let commands = tasks.iter().map(|task| finish("mail", task, how.clone())).collect();
        let executed = block_on(self.store.execute(crate::fixture::NOW, commands));
        assert!(executed.replies.iter().all(|r| matches!(r, Ok(Reply::Finished(_)))));
    }

    /// Copies the log into the database, as the store does when the log has grown.
    fn copy_log(&self) {
        let db =
            rusqlite::Connection::open(self.made.path().join("taskyard.db")).expect("it opens");
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let left: i64 = db
            .query_row(sql, [], |row| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
            .expect("the log can be copied");
        assert_eq!(left, 0, "all of it was copied");
    }
}

fn new_task(random: &mut fastrand::Rng, bytes: usize) -> NewTask {
    let mut payload = vec![0; random.usize(..bytes)];
    random.fill(&mut payload);
    let meta: &[u8] = if random.u8(..4) == 0 { b"\x81\xa1k\xa1v" } else { b"" };
    NewTask {
        pri: Some(random.u64(..3)),
        delay: (random.u8(..6) == 0).then_some(Span::from_secs(100_000)),
        ttl: (random.u8(..6) == 0).then_some(Span::from_secs(1_000_000)),
        subqueue: Some(["red", "green", "blue"][random.usize(..3)].into()),
        ..NewTask::new(Body::with_meta(&payload, meta))
    }
}

fn early_work(history: &mut History) {
    let paused = TubeOptions { paused: true, ..TubeOptions::new(Kind::LimFifoTtl) };
    let temporary = TubeOptions { temporary: true, ..TubeOptions::new(Kind::FifoTtl) };
    for (tube, options) in [
        ("mail", TubeOptions::new(Kind::FifoTtl)),
        ("keys", TubeOptions::new(Kind::UtubeTtl)),
        // These two have no tasks whose loss could show theirs.
        ("quiet", paused),
        ("temporary", temporary),
    ] {
        must(&history.store, create(tube, options));
    }
    history.put("mail", 1400, 200);
    history.put("mail", 15, 20_000);
    history.put("keys", 300, 80);
    // Creates free pages.
    must(&history.store, delete("mail", 200..320));
    history.finish(40, Finish::Ack);
    history.finish(40, Finish::Bury);
}

/// Several commits of all kinds, with pages of their own.
fn later_work(history: &mut History) {
    history.put("mail", 150, 200);
    history.finish(30, Finish::Release { delay: Span::from_secs(50_000), counted: true });
    history.finish(30, Finish::Ack);
    history.put("keys", 100, 80);
    must(&history.store, Command::Kick { tube: name("mail"), count: 10 });
    must(&history.store, delete("mail", 400..420));
    let change = TubeChange { ttl: Some(Some(Span::from_secs(77))), ..TubeChange::default() };
    must(&history.store, Command::AlterTube { tube: name("quiet"), change });
    history.put("mail", 5, 20_000);
    history.finish(10, Finish::Bury);
}

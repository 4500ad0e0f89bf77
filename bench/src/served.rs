//! Processor time of a server process and of its database, and what they write, for fixed amounts of plain puts, takes and acks over HTTP.
//!
//! The server is a program of its own, of this build or of another one, so two builds can be compared under the same load. Clients and
//! measurement are not in that process. The database is new in each run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use taskyard::Client;

use super::load::{self, Load, Measured};
use super::postgres::{self, Database};
use super::processor_time::{bytes_written_by_tree, seconds_used_by_tree};
use super::queue_figures::{CLIENTS, warm_up};
use super::redis::server::{self as redis_server, RedisServer};
use super::report::{Report, Row};
use super::server_process::ServerProcess;
use super::tarantool::server::{self as tarantool_server, TarantoolServer};
use super::{Size, store_in};

/// Tasks in one call where they come in batches.
const BATCH: usize = 100;

/// Where the server stores tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    Memory,
    Sqlite,
    Postgres,
    Redis,
    Tarantool,
}

impl StoreKind {
    /// All of them.
    pub const ALL: [StoreKind; 5] = [
        StoreKind::Memory,
        StoreKind::Sqlite,
        StoreKind::Postgres,
        StoreKind::Redis,
        StoreKind::Tarantool,
    ];

    /// Whether it is in the process that uses it.
    pub fn is_embedded(self) -> bool {
        matches!(self, StoreKind::Memory | StoreKind::Sqlite)
    }

    /// How the report names it.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Memory => "memory",
            StoreKind::Sqlite => "SQLite",
            StoreKind::Postgres => "PostgreSQL",
            StoreKind::Redis => "Redis",
            StoreKind::Tarantool => "Tarantool",
        }
    }
}

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct ServedArgs {
    /// For the parts served and keep-done: only these stores.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STORES")]
    pub store: Vec<StoreKind>,
    /// For the part served: the program whose server is measured, instead of the one that is built with the benchmark.
    #[arg(long, value_name = "FILE")]
    product: Option<PathBuf>,
    /// For the part served: one more argument of the server, such as --serve-arg=--record=trace; may be repeated. The
    /// server runs in the folder of --data.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    serve_arg: Vec<String>,
}

/// A store for one server.
pub enum ServedStore {
    Embedded(String),
    Postgres(Database),
    Redis(RedisServer),
    Tarantool(TarantoolServer),
}

impl ServedStore {
    /// An empty store; `None` with a note if its database is not installed.
    pub fn start(kind: StoreKind, folder: &Path) -> Result<Option<Self>> {
        Ok(match kind {
            StoreKind::Memory => Some(ServedStore::Embedded("memory:".into())),
            StoreKind::Sqlite => Some(ServedStore::Embedded(store_in(folder, "served"))),
            StoreKind::Postgres => postgres::database(folder, None)?.map(ServedStore::Postgres),
            StoreKind::Redis => match redis_server::program() {
                Some(program) => {
                    Some(ServedStore::Redis(RedisServer::start(&program, &folder.join("redis"))?))
                }
                None => {
                    eprintln!("  Redis is not measured: it is not installed; set TASKYARD_REDIS");
                    None
                }
            },
            StoreKind::Tarantool => tarantool_server::start(folder)?.map(ServedStore::Tarantool),
        })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        match self {
            ServedStore::Embedded(url) => url.clone(),
            ServedStore::Postgres(database) => database.url(),
            ServedStore::Redis(server) => server.url(),
            ServedStore::Tarantool(server) => server.url(),
        }
    }

    /// The process of the database, if it is one.
    fn process(&self) -> Option<u32> {
        match self {
            ServedStore::Embedded(_) => None,
            ServedStore::Postgres(database) => database.process(),
            ServedStore::Redis(server) => Some(server.id()),
            ServedStore::Tarantool(server) => Some(server.id()),
        }
    }
}

pub async fn measure(
    report: &mut Report,
    folder: &Path,
    size: Size,
    args: &ServedArgs,
) -> Result<()> {
    let folder = &folder.canonicalize()?;
    let program = args.product.clone().map_or_else(crate::product, Ok)?;
    let wanted = |kind: &StoreKind| args.store.is_empty() || args.store.contains(kind);
    for kind in StoreKind::ALL.into_iter().filter(wanted) {
        let Some(store) = ServedStore::start(kind, folder)? else { continue };
        let url = store.url();
        let args = ["--store", &url].into_iter().chain(args.serve_arg.iter().map(String::as_str));
        let server = ServerProcess::start(&program, folder, args)?;
        let client = load::open(server.url()?).await?;
        warm_up(&client, BATCH).await?;
        let run = ServedRun { name: kind.name(), server: server.id(), store: store.process() };
        let single = size.tasks / 50;
        run.measure(report, &client, Load { clients: CLIENTS, batch: 1, tasks: single }).await?;
        let many = Load { clients: CLIENTS, batch: BATCH, tasks: single * 10 };
        run.measure(report, &client, many).await?;
        client.close().await?;
    }
    Ok(())
}

/// The processes that are measured.
struct ServedRun {
    name: &'static str,
    server: u32,
    store: Option<u32>,
}

/// What the processes have used.
#[derive(Clone, Copy, Default)]
struct Used {
    /// Seconds of processor time.
    server: f64,
    store: f64,
    /// Written by both.
    bytes: Option<u64>,
}

impl ServedRun {
    async fn measure(&self, report: &mut Report, client: &Client, load: Load) -> Result<()> {
        let begin = self.used()?;
        let put = load::put_uncounted(client, load, load::task).await.context("put")?;
        let after_put = self.used()?;
        let (take, held) = load::take(client, load).await.context("take")?;
        let after_take = self.used()?;
        let ack = load::ack(client, load, held).await.context("ack")?;
        let end = self.used()?;
        self.add_rows(report, load, "put", (begin, after_put), &put);
        self.add_rows(report, load, "take", (after_put, after_take), &take);
        self.add_rows(report, load, "ack", (after_take, end), &ack);
        let pairs = [("server", begin.server, end.server), ("database", begin.store, end.store)];
        for (who, begin, end) in pairs.into_iter().take(1 + usize::from(self.store.is_some())) {
            self.add_row(report, load, ("put, take and ack", who), end - begin, String::new());
        }
        self.add_bytes(report, load, [begin, after_put, after_take, end]);
        Ok(())
    }

    fn used(&self) -> Result<Used> {
        let store = self.store.map(seconds_used_by_tree).transpose()?.unwrap_or_default();
        let of_store = self.store.map_or(Ok(Some(0)), bytes_written_by_tree)?;
        let bytes = bytes_written_by_tree(self.server)?.zip(of_store);
        let bytes = bytes.map(|(server, store)| server + store);
        Ok(Used { server: seconds_used_by_tree(self.server)?, store, bytes })
    }

    /// Adds a row with the bytes that were written for each task.
    fn add_bytes(&self, report: &mut Report, load: Load, moments: [Used; 4]) {
        let [begin, after_put, after_take, end] = moments.map(|used| used.bytes);
        let for_task = |from: Option<u64>, to: Option<u64>| {
            Some(to?.saturating_sub(from?) as f64 / load.tasks as f64)
        };
        let (Some(figure), Some(put), Some(take), Some(ack)) = (
            for_task(begin, end),
            for_task(begin, after_put),
            for_task(after_put, after_take),
            for_task(after_take, end),
        ) else {
            return;
        };
        report.add(Row {
            what: format!("{}, put, take and ack, {}: written", self.name, how(load)),
            figure,
            unit: "bytes/task",
            target: None,
            note: format!(
                "in whole pages, by server and database; put {put:.0}, take {take:.0}, ack {ack:.0}"
            ),
        });
    }

    fn add_rows(
        &self,
        report: &mut Report,
        load: Load,
        verb: &str,
        (begin, end): (Used, Used),
        measured: &Measured,
    ) {
        let rate = || format!("{:.0} tasks/s, {}", measured.rate(), measured.note());
        self.add_row(report, load, (verb, "server"), end.server - begin.server, rate());
        if self.store.is_some() {
            self.add_row(report, load, (verb, "database"), end.store - begin.store, rate());
        }
    }

    fn add_row(
        &self,
        report: &mut Report,
        load: Load,
        (verb, who): (&str, &str),
        seconds: f64,
        note: String,
    ) {
        report.add(Row {
            what: format!("{}, {verb}, {}: {who}", self.name, how(load)),
            figure: seconds * 1e6 / load.tasks as f64,
            unit: "µs/task",
            target: None,
            note: format!("{seconds:.2} s of processor time; {note}"),
        });
    }
}

fn how(load: Load) -> String {
    match load.batch {
        1 => format!("{} clients one by one", load.clients),
        batch => format!("{} clients with batches of {batch}", load.clients),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        served: ServedArgs,
    }

    #[test]
    fn an_argument_of_the_server_may_begin_with_hyphens() {
        let line = ["bench", "--store", "redis,memory", "--serve-arg=--record=trace"];
        let served = Line::parse_from(line).served;
        assert_eq!(served.store, [StoreKind::Redis, StoreKind::Memory]);
        assert_eq!(served.serve_arg, ["--record=trace"]);
    }

    /// The test process stands for the server: what is measured and how it is named.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_verb_has_a_figure() {
        let client = load::open("memory:").await.unwrap();
        warm_up(&client, 2).await.unwrap();
        let own = std::process::id();
        let run = ServedRun { name: "memory", server: own, store: Some(own) };
        let mut report = Report::default();
        let load = Load { clients: 2, batch: 1, tasks: 10 };
        tokio::time::timeout(Duration::from_secs(60), run.measure(&mut report, &client, load))
            .await
            .unwrap()
            .unwrap();
        let expected = ["put", "take", "ack", "put, take and ack"]
            .iter()
            .flat_map(|verb| ["server", "database"].map(|who| (verb, who)))
            .map(|(verb, who)| format!("memory, {verb}, 2 clients one by one: {who}"));
        let mut expected: Vec<_> = expected.collect();
        expected.push("memory, put, take and ack, 2 clients one by one: written".into());
        assert_eq!(report.names(), expected);
    }
}

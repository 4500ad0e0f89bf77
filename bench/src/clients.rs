//! Workers of the packages for other languages, compared with the queues that are usual there.
//!
//! Each is a program in the folder `bench` that puts tasks, works them off with functions that do nothing, and measures the time
//! from a put to the start of its function. The others use a Redis; ours uses the product on that Redis and on a folder.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;

use super::peers::{Peer, PeerResults, StartLatency, compare};
use super::redis::server::{self, RedisServer};
use super::report::{Report, Row, Target};
use super::{Size, product, store_in};

/// Puts at a time, and tasks that a worker runs at a time.
const CLIENTS: usize = 16;
/// The longest time from a put to its start that is accepted, in milliseconds.
const START_MAX: f64 = 2.0;

/// A language with our package and the other queues.
struct Language {
    name: &'static str,
    ours: Peer,
    /// The folder from which our package is loaded; that of Node is built by `cargo xtask bench`.
    package: &'static str,
    others: &'static [Peer],
}

/// All languages. To add one, add an entry.
const LANGUAGES: &[Language] = &[
    Language {
        name: "Python",
        ours: python("Taskyard", "taskyard-worker.py"),
        package: concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/python/src"),
        others: &[
            python("Celery", "celery-worker.py"),
            python("RQ", "rq-worker.py"),
            python("dramatiq", "dramatiq-worker.py"),
        ],
    },
    Language {
        name: "Node",
        ours: node("Taskyard", "taskyard-worker.js"),
        package: concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/node"),
        others: &[node("BullMQ", "bullmq.js")],
    },
];

const fn python(name: &'static str, script: &'static str) -> Peer {
    Peer { name, script, interpreter: "TASKYARD_PEERS_PYTHON" }
}

const fn node(name: &'static str, script: &'static str) -> Peer {
    Peer { name, script, interpreter: "TASKYARD_NODE" }
}

/// What a program reports.
#[derive(Deserialize)]
struct ClientFigures {
    version: String,
    settings: String,
    put: f64,
    drain: f64,
    start: StartLatency,
}

/// How much to do.
#[derive(Clone, Copy)]
struct ClientAmounts {
    /// How long tasks are put one by one.
    seconds: f64,
    /// How many tasks our worker works off at least.
    backlog: usize,
    /// How many starts are measured.
    starts: usize,
}

const FULL: ClientAmounts = ClientAmounts { seconds: 3.0, backlog: 100_000, starts: 300 };
const QUICK: ClientAmounts = ClientAmounts { seconds: 1.0, backlog: 30_000, starts: 100 };

/// Measures our packages and the others.
pub fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    let Some(program) = server::program() else {
        eprintln!("  clients are not measured: Redis is not installed; set TASKYARD_REDIS");
        return Ok(());
    };
    let redis = RedisServer::start(&program, &folder.join("clients-redis"))?;
    let amounts = if size.is_quick() { QUICK } else { FULL };
    for language in LANGUAGES {
        let mut others = Vec::new();
        for peer in language.others {
            redis.empty()?;
            others.push((peer, run(peer, amounts, "", redis.port(), "")));
        }
        redis.empty()?;
        for (place, store) in [("a folder", store_in(folder, "clients")), ("Redis", redis.url())] {
            let server = ProductServer::start(&store)?;
            let ours = run(&language.ours, amounts, &server.url, 0, language.package)?;
            add_rows(report, &format!("{} on {place}", language.name), &ours, &others);
        }
    }
    Ok(())
}

fn run(
    peer: &Peer,
    amounts: ClientAmounts,
    url: &str,
    port: u16,
    package: &str,
) -> Result<ClientFigures> {
    let figures: Result<ClientFigures> = peer.run(&json!({
        "url": url,
        "port": port,
        "package": package,
        "seconds": amounts.seconds,
        "clients": CLIENTS,
        "backlog": amounts.backlog,
        "starts": amounts.starts,
    }));
    match &figures {
        Ok(ClientFigures { version, settings, put, drain, start }) => eprintln!(
            "  {} {version}: put {put:.0}/s, work {drain:.0}/s, put to start p50 {:.2} ms, p99 {:.2} ms ({settings})",
            peer.name, start.p50, start.p99,
        ),
        Err(why) => eprintln!("  {} is not measured: {why:#}", peer.name),
    }
    figures
}

fn add_rows(
    report: &mut Report,
    what: &str,
    ours: &ClientFigures,
    others: &PeerResults<'_, ClientFigures>,
) {
    let rate = |figure: fn(&ClientFigures) -> f64| {
        let of_ours = figure(ours);
        compare(others, |theirs| {
            let theirs = figure(theirs);
            format!("{theirs:.0}/s: {:.1} times", of_ours / theirs)
        })
    };
    let best = others.iter().filter_map(|(_, theirs)| theirs.as_ref().ok());
    let best = best.map(|theirs| theirs.drain).reduce(f64::max);
    report.add(Row {
        what: format!("{what}: work, {CLIENTS} at a time"),
        figure: ours.drain,
        unit: "tasks/s",
        // Without any of the others there is nothing to reach.
        target: best.map(Target::AtLeast),
        note: format!("functions that do nothing; {}", rate(|figures| figures.drain)),
    });
    report.add(Row {
        what: format!("{what}: put, {CLIENTS} at a time"),
        figure: ours.put,
        unit: "tasks/s",
        target: None,
        note: rate(|figures| figures.put),
    });
    report.add(Row {
        what: format!("{what}: put to start, p50"),
        figure: ours.start.p50,
        unit: "ms",
        target: Some(Target::AtMost(START_MAX)),
        note: format!(
            "p99 {:.2} ms; {}; {}",
            ours.start.p99,
            compare(others, |theirs| format!("{:.2} ms", theirs.start.p50)),
            server::SETTINGS_NOTE
        ),
    });
}

/// The product as a server in a process of its own; it ends with this.
struct ProductServer {
    url: String,
    child: Child,
}

impl ProductServer {
    /// Starts a server on a free port and waits until it accepts requests.
    fn start(store: &str) -> Result<Self> {
        let mut command = Command::new(product()?);
        command.args(["serve", "--store", store, "--http", "127.0.0.1:0", "--iproto", "off"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("the server has an output")?);
        let mut lines = output.lines().map_while(Result::ok);
        let url = lines.find_map(|line| {
            line.split_whitespace().find(|word| word.starts_with("http://")).map(String::from)
        });
        // What it prints later is not read, but it may print it.
        std::thread::spawn(move || lines.for_each(drop));
        let url = url.context("the server did not start")?;
        Ok(ProductServer { url, child })
    }
}

impl Drop for ProductServer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

//! The queue over iproto, as programs written for Tarantool's queue use it, compared with Tarantool itself if
//! one is given.
//!
//! The server runs in this process on its own threads, durable, and the load connects to it over TCP
//! through the public client.

mod batches;
mod latency;
mod load;
mod pipelined;
mod sequence;
mod subqueues;
mod waiting;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use taskyard::{Iproto, OpenOptions};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, IprotoConfig, Server};
use tokio::sync::oneshot;

use super::report::{Report, Row, Target};
use super::{Size, store_in};

/// The rates of Tarantool 2.6 with its queue on two cores of such a machine, with a sync of its log for each
/// group of commits: printed if none is measured.
const TARANTOOL: [(&str, &str); 6] = [
    ("put, 64 in flight", "73-109k"),
    ("take, 64 in flight", "37-44k"),
    ("ack, 64 in flight", "34-41k"),
    ("put, 16 connections", "26-34k"),
    ("put, take, ack, 16 connections", "8-10k"),
    ("put, take, ack, one connection", "1.7-2.3k"),
];

/// Our targets for the same.
const WANTED: [f64; 6] = [200_000.0, 150_000.0, 150_000.0, 45_000.0, 15_000.0, 3_500.0];

/// Runs the load on one thread, as a client program would.
pub fn measure(
    report: &mut Report,
    folder: &Path,
    size: Size,
    tarantool: Option<&str>,
) -> Result<()> {
    let load = || {
        // Created and dropped on that thread: a runtime cannot be dropped inside another one.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure_all(report, folder, size, tarantool))
    };
    // The runtime of the other parts is idle meanwhile.
    std::thread::scope(|scope| scope.spawn(load).join()).map_err(|_| anyhow!("the load failed"))?
}

async fn measure_all(
    report: &mut Report,
    folder: &Path,
    size: Size,
    tarantool: Option<&str>,
) -> Result<()> {
    let server = BenchServer::start(&store_in(folder, "iproto"))?;
    let ours = basics(&server.address, size).await.context("over iproto")?;
    let theirs = match tarantool {
        Some(address) => Some(basics(address, size).await.context("with Tarantool")?),
        None => None,
    };
    for (place, (what, reference)) in TARANTOOL.into_iter().enumerate() {
        let beside = match &theirs {
            Some(theirs) => {
                let ratio = ours[place] / theirs[place];
                format!("Tarantool in this run {:.0}/s: {ratio:.1} times", theirs[place])
            }
            None => format!("durable; Tarantool with fsync on such a machine: {reference}"),
        };
        report.add(Row {
            what: format!("iproto {what}"),
            figure: ours[place],
            unit: "/s",
            target: Some(Target::AtLeast(WANTED[place])),
            note: beside,
        });
    }
    batches::measure(report, &server.address, size).await?;
    latency::measure(report, &server.address, size).await?;
    waiting::measure(report, &server.address, size).await?;
    subqueues::measure(report, &server.address, size).await?;
    server.stop()
}

/// The six figures that any server of the protocol can give.
async fn basics(address: &str, size: Size) -> Result<[f64; 6]> {
    let [put, take, ack] = pipelined::measure(address, size).await?;
    let sixteen = sequence::puts(address, 16, size.seconds).await?;
    let cycles = sequence::cycles(address, 16, size.seconds).await?;
    let alone = sequence::cycles(address, 1, size.seconds).await?;
    Ok([put, take, ack, sixteen, cycles, alone])
}

/// A server with its own threads.
pub(super) struct BenchServer {
    /// Where it speaks iproto.
    pub address: String,
    /// Where it answers HTTP.
    pub http_address: String,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl BenchServer {
    pub fn start(store: &str) -> Result<BenchServer> {
        let store = taskyard_stores::open(store, &OpenOptions::default())?;
        let runtime = crate::server_runtime()?;
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let anywhere = "127.0.0.1:0".parse()?;
        let iproto = Some(IprotoConfig::new(anywhere));
        let config = Config { iproto, ..Config::new(anywhere) };
        let (stop, stopped) = oneshot::channel::<()>();
        let (bound, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let server = Server::bind(config, engine).await?;
                let address = server.iproto_address().context("there is no iproto")?;
                bound.send((address.to_string(), server.address().to_string()))?;
                Ok(server.run(async { _ = stopped.await }).await?)
            })
        });
        let (address, http_address) = address.recv().context("the server does not start")?;
        Ok(BenchServer { address, http_address, stop, thread })
    }

    pub fn stop(self) -> Result<()> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("the server failed"))?
    }
}

/// A new connection.
fn connect(address: &str) -> Result<Iproto> {
    Ok(Iproto::new(address)?)
}

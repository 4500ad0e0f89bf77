//! Connections that send one request after the other: puts, then takes each followed by its ack.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use taskyard::Client;
use tokio::task::LocalSet;

use super::raw_client::{RawClient, field, request};
use crate::load;
use crate::processor_time::{seconds_used, seconds_used_by_thread};

/// Connections, each with one request in flight.
pub const CONNECTIONS: usize = 64;
/// Tasks in one round.
const ROUND: usize = 200_000;
/// The tube.
const TUBE: &str = "singles";

/// What one phase cost in all rounds.
#[derive(Clone, Copy, Default)]
pub struct HttpPhase {
    pub tasks: usize,
    pub seconds: f64,
    /// Seconds of processor time of this process, and of the thread with the load alone.
    pub process: f64,
    pub load: f64,
}

impl HttpPhase {
    /// Tasks a second.
    pub fn rate(self) -> f64 {
        self.tasks as f64 / self.seconds
    }

    /// Processor time for a task, in microseconds: of the process without the load, and of the load.
    pub fn micros(self) -> (f64, f64) {
        let micros = |seconds: f64| seconds * 1e6 / self.tasks as f64;
        (micros(self.process - self.load), micros(self.load))
    }

    fn add(&mut self, other: HttpPhase) {
        self.tasks += other.tasks;
        self.seconds += other.seconds;
        self.process += other.process;
        self.load += other.load;
    }
}

/// Puts, and pairs of take and ack, in rounds of 200,000. Runs on the calling thread, which must have a runtime of its own.
pub async fn measure(address: &str, tasks: usize) -> Result<[HttpPhase; 2]> {
    let counter = load::open(&format!("http://{address}")).await?;
    let requests = Rc::new(Requests::new(address));
    let (mut puts, mut pairs) = (HttpPhase::default(), HttpPhase::default());
    for _ in 0..(tasks / ROUND).max(1) {
        puts.add(phase(address, &requests, Work::Put).await?);
        count(&counter, ROUND as u64).await?;
        pairs.add(phase(address, &requests, Work::TakeAndAck).await?);
        count(&counter, 0).await?;
    }
    Ok([puts, pairs])
}

/// Compares the count of the tube.
async fn count(client: &Client, expected: u64) -> Result<()> {
    let found = client.stats(TUBE).await?.tasks.total();
    ensure!(found == expected, "the tube has {found} tasks instead of {expected}");
    Ok(())
}

/// What is always sent in the same form.
struct Requests {
    host: String,
    put: Vec<u8>,
    take: Vec<u8>,
}

impl Requests {
    fn new(address: &str) -> Requests {
        let path = |verb| format!("/v1/tubes/{TUBE}/{verb}");
        let data = format!("{{\"data\":\"{}\"}}", "z".repeat(100));
        let put = request(address, &path("put"), &data);
        Requests { host: address.into(), put, take: request(address, &path("take"), "{}") }
    }

    fn ack(&self, id: u64, lease: u64) -> Vec<u8> {
        let body = format!("{{\"id\":{id},\"lease\":{lease}}}");
        request(&self.host, &format!("/v1/tubes/{TUBE}/ack"), &body)
    }
}

#[derive(Clone, Copy)]
enum Work {
    Put,
    TakeAndAck,
}

/// One round of a phase on new connections, which are opened before the time begins.
async fn phase(address: &str, requests: &Rc<Requests>, work: Work) -> Result<HttpPhase> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(RawClient::connect(address).await?);
    }
    let left = Rc::new(Cell::new(ROUND));
    let local = LocalSet::new();
    let used =
        || Ok::<_, anyhow::Error>((seconds_used(std::process::id())?, seconds_used_by_thread()?));
    let (before, begin) = (used()?, Instant::now());
    let connection = |client| connection(client, requests.clone(), left.clone(), work);
    let running: Vec<_> =
        clients.into_iter().map(|client| local.spawn_local(connection(client))).collect();
    let mut ids = Vec::with_capacity(ROUND);
    let gather = async {
        for running in running {
            ids.extend(running.await.context("the load failed")??);
        }
        Ok::<(), anyhow::Error>(())
    };
    local.run_until(gather).await?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), used()?);
    ids.sort_unstable();
    ids.dedup();
    ensure!(ids.len() == ROUND, "{} tasks instead of {ROUND}", ids.len());
    Ok(HttpPhase { tasks: ROUND, seconds, process: after.0 - before.0, load: after.1 - before.1 })
}

/// One connection, until all tasks of the round are claimed; returns the ids of its own.
async fn connection(
    mut client: RawClient,
    requests: Rc<Requests>,
    left: Rc<Cell<usize>>,
    work: Work,
) -> Result<Vec<u64>> {
    let mut done = Vec::with_capacity(ROUND / CONNECTIONS * 2);
    while let Some(after) = left.get().checked_sub(1) {
        left.set(after);
        done.push(match work {
            Work::Put => field(client.send(&requests.put).await?, b"\"id\":")?,
            Work::TakeAndAck => take_and_ack(&mut client, &requests).await?,
        });
    }
    Ok(done)
}

async fn take_and_ack(client: &mut RawClient, requests: &Requests) -> Result<u64> {
    let taken = client.send(&requests.take).await?;
    let (id, lease) = (field(taken, b"\"id\":")?, field(taken, b"\"lease\":")?);
    let acked = client.send(&requests.ack(id, lease)).await?;
    ensure!(field(acked, b"\"done\":")? == 1, "the task {id} was not acknowledged");
    Ok(id)
}

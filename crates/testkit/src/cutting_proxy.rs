//! A proxy that cuts each connection after a random number of bytes, in the middle of a request or of its answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The proxy; it ends when it is dropped.
pub struct CuttingProxy {
    address: SocketAddr,
    cuts: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

/// Up to how many bytes a connection forwards, in both directions together.
#[derive(Clone, Copy, Debug)]
pub struct ByteRange {
    /// The bytes before the first request: they are always forwarded.
    pub least: usize,
    /// The largest number.
    pub most: usize,
}

impl CuttingProxy {
    /// A proxy before the server at this address.
    pub async fn new(server: SocketAddr, bytes: ByteRange, seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let cuts = Arc::new(AtomicUsize::new(0));
        let accepting = tokio::spawn(accept(listener, server, bytes, seed, cuts.clone()));
        CuttingProxy { address, cuts, accepting }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were cut.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    bytes: ByteRange,
    seed: u64,
    cuts: Arc<AtomicUsize>,
) {
    let mut rng = Rng::with_seed(seed);
    while let Ok((client, _)) = listener.accept().await {
        let budget = rng.usize(bytes.least..=bytes.most);
        let cuts = cuts.clone();
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else { return };
            if forward(client, server, budget).await {
                cuts.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Forwards until the budget is used up; returns whether it was, instead of an end of the connection.
async fn forward(mut client: TcpStream, mut server: TcpStream, budget: usize) -> bool {
    let left = AtomicUsize::new(budget);
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    tokio::select! {
        cut = copy(&mut from_client, &mut to_server, &left) => cut,
        cut = copy(&mut from_server, &mut to_client, &left) => cut,
    }
}

async fn copy(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, left: &AtomicUsize) -> bool {
    let mut buffer = [0; 4096];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return false };
        let before = left.load(Ordering::Relaxed);
        let forwarded = read.min(before);
        left.store(before - forwarded, Ordering::Relaxed);
        if to.write_all(&buffer[..forwarded]).await.is_err() {
            return false;
        }
        if forwarded == before {
            return true;
        }
    }
}

//! A proxy between a server and PostgreSQL that closes connections in the middle of a reply.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

use taskyard_testkit::postgres::Cluster;
use taskyard_testkit::recorded_output::in_url;

/// The largest number of bytes of replies after which a connection is closed. The first hundreds belong to the handshake.
const BYTES_MAX: usize = 6_000;

/// A proxy that closes connections.
pub struct PostgresProxy {
    /// The URL of the database through the proxy.
    pub url: String,
    cutting: Arc<AtomicBool>,
    cuts: watch::Sender<usize>,
}

impl PostgresProxy {
    /// Starts a proxy for this database of a cluster.
    pub async fn new(cluster: &Cluster, url: &str) -> Self {
        let database = url.rsplit('/').next().unwrap_or_default();
        let socket = cluster.socket();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener has an address");
        let (cutting, cuts) = (Arc::new(AtomicBool::new(false)), watch::channel(0).0);
        let password = in_url(cluster.password());
        let url = format!("postgres://postgres:{password}@{address}/{database}");
        tokio::spawn(accept(listener, socket, cutting.clone(), cuts.clone()));
        PostgresProxy { url, cutting, cuts }
    }

    /// Closes so many more connections, and none afterwards.
    pub async fn cut(&self, count: usize) {
        self.cutting.store(true, Ordering::Relaxed);
        let mut cuts = self.cuts.subscribe();
        let total = *cuts.borrow() + count;
        cuts.wait_for(|cuts| *cuts >= total).await.expect("connections are made");
        self.cutting.store(false, Ordering::Relaxed);
    }
}

async fn accept(
    listener: TcpListener,
    socket: PathBuf,
    cutting: Arc<AtomicBool>,
    cuts: watch::Sender<usize>,
) {
    while let Ok((server, _)) = listener.accept().await {
        let Ok(database) = UnixStream::connect(&socket).await else { continue };
        tokio::spawn(carry(server, database, cutting.clone(), cuts.clone()));
    }
}

async fn carry(
    server: TcpStream,
    database: UnixStream,
    cutting: Arc<AtomicBool>,
    cuts: watch::Sender<usize>,
) {
    let (mut asks, mut hears) = server.into_split();
    let (mut answers, mut listens) = database.into_split();
    let asking = tokio::spawn(async move { copy(&mut asks, &mut listens).await });
    let mut left = Rng::new().usize(500..BYTES_MAX);
    let mut bytes = vec![0; 4096];
    while let Ok(count @ 1..) = answers.read(&mut bytes).await {
        let cut = cutting.load(Ordering::Relaxed) && count > left;
        let passed = if cut { left } else { count };
        if hears.write_all(&bytes[..passed]).await.is_err() || cut {
            break;
        }
        left = left.saturating_sub(count);
    }
    if cutting.load(Ordering::Relaxed) {
        cuts.send_modify(|cuts| *cuts += 1);
    }
    asking.abort();
}

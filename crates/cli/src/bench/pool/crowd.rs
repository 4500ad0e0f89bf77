//! Two thousand clients that wait at one gateway, which is a process of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::report::{Report, Row, Target};

/// Clients that wait.
const CLIENTS: usize = 2_000;
/// How long their gateway is watched.
const WATCHED: Duration = Duration::from_secs(10);
/// Ticks of the processor's clock in a second, as `/proc` counts them.
const TICKS: f64 = 100.0;

/// The two that run must not be done before the others were watched, however slow the machine is.
const CONFIG: &str = "backends: 2\nclasses: [{name: all, seconds: 1000, limit: 100%}]\nprograms: \
                      {wait: {command: [/bin/sleep, '1000']}}\n";

pub async fn measure(report: &mut Report) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("taskyard-bench-pool-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = watch(report, &folder).await;
    _ = std::fs::remove_dir_all(&folder);
    measured
}

async fn watch(report: &mut Report, folder: &Path) -> Result<()> {
    let file = folder.join("pool.yaml");
    std::fs::write(&file, CONFIG)?;
    let gateway = Gateway::start(&file)?;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let stream = wait_in(&gateway.address).await?;
        clients.spawn(listen(stream));
    }
    // Everybody has been told once.
    sleep(Duration::from_secs(2)).await;
    let (before, begin) = (gateway.ticks()?, Instant::now());
    sleep(WATCHED).await;
    let used = (gateway.ticks()? - before) / TICKS / begin.elapsed().as_secs_f64();
    if let Some(said) = clients.try_join_next() {
        bail!("a client did not wait; the last it heard: {}", said.unwrap_or_default());
    }
    report.add(Row {
        what: format!("pool: {CLIENTS} waiting clients"),
        figure: used,
        unit: "cores",
        target: Some(Target::AtMost(0.5)),
        note: "the gateway's process, estimates flowing".into(),
    });
    Ok(())
}

/// The gateway's process; it ends with this.
struct Gateway {
    child: Child,
    address: String,
}

impl Gateway {
    fn start(file: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["pool", "serve", "--http", "127.0.0.1:0"])
            .arg(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("its output is ours")?);
        let line = output.lines().map_while(Result::ok).find(|line| line.starts_with("  pool "));
        let address = line.as_deref().and_then(|line| line.split('/').nth(2)).map(String::from);
        let gateway = Gateway { child, address: address.unwrap_or_default() };
        if gateway.address.is_empty() {
            bail!("the gateway does not start");
        }
        Ok(gateway)
    }

    /// How much of the processor it has used.
    fn ticks(&self) -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = text.rsplit_once(')').context("no such line")?.1;
        let used = fields.split_whitespace().skip(11).take(2);
        Ok(used.filter_map(|one| one.parse::<f64>().ok()).sum())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A client that has said start, written as plain bytes: what a WebSocket needs is little.
async fn wait_in(address: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET /pool/run/wait HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: \
         websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    if !answer.starts_with(b"HTTP/1.1 101") {
        bail!("the gateway said {}", String::from_utf8_lossy(&answer));
    }
    // A text frame of one piece, masked with zeros.
    let text = b"start {}";
    stream.write_all(&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0]).await?;
    stream.write_all(text).await?;
    Ok(stream)
}

/// Reads what comes until the gateway ends the connection, and answers the last of it.
async fn listen(mut stream: TcpStream) -> String {
    let (mut bytes, mut last) = ([0; 4096], Vec::new());
    loop {
        match stream.read(&mut bytes).await {
            Ok(size) if size > 0 => last = bytes[..size].to_vec(),
            Ok(_) => return String::from_utf8_lossy(&last).into_owned(),
            Err(error) => return format!("{error} after {}", String::from_utf8_lossy(&last)),
        }
    }
}

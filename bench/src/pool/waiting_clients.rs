//! Two thousand clients that wait at one gateway, which is a separate process.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::report::{Report, Row, Target};
use super::gateway::{Gateway, Line};

/// Waiting clients.
const CLIENTS: usize = 2_000;
/// How long their gateway is measured.
const WATCHED: Duration = Duration::from_secs(10);

/// The two running tasks must not end before the others were measured, however slow the machine is.
const CONFIG: &str = "backends: 2\nclasses: [{name: all, seconds: 1000, limit: 100%}]\nprograms: \
                      {wait: {command: [/bin/sleep, '1000']}}\n";

pub async fn measure(report: &mut Report) -> Result<()> {
    let gateway = Gateway::start(CONFIG)?;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut line = Line::open(&gateway.address, "wait").await?;
        line.say_start().await?;
        clients.spawn(listen(line.stream));
    }
    // Every client has received its first estimate.
    sleep(Duration::from_secs(2)).await;
    let (before, begin) = (gateway.seconds_used()?, Instant::now());
    sleep(WATCHED).await;
    let used = (gateway.seconds_used()? - before) / begin.elapsed().as_secs_f64();
    if let Some(said) = clients.try_join_next() {
        bail!("a client did not wait; its last message: {}", said.unwrap_or_default());
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

/// Reads until the gateway ends the connection, and returns the last message.
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

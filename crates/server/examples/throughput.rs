//! Measures the throughput of puts over HTTP: requests of 100 tasks with 100 bytes each, on
//! keep-alive connections, client and server in one process. Arguments: connections, requests on
//! each.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use taskyard_store::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const BATCH: usize = 100;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let connections = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let requests: usize = arguments.next().map_or(Ok(1_000), |text| text.parse())?;
    let store = Box::new(MemoryStore::default());
    let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
    let server = Server::bind(Config::new("127.0.0.1:0".parse()?), engine).await?;
    let address = server.address();
    let running = tokio::spawn(server.run(std::future::pending()));
    let started = Instant::now();
    let mut load = JoinSet::new();
    for _ in 0..connections {
        load.spawn(ask(address, requests));
    }
    while let Some(asked) = load.join_next().await {
        asked??;
    }
    let seconds = started.elapsed().as_secs_f64();
    let tasks = connections * requests * BATCH;
    println!("{tasks} tasks in {seconds:.2} s: {:.0} tasks/s", tasks as f64 / seconds);
    running.abort();
    Ok(())
}

async fn ask(address: SocketAddr, requests: usize) -> Outcome {
    let request = request();
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut answer = vec![0; 1 << 20];
    for _ in 0..requests {
        stream.write_all(request.as_bytes()).await?;
        let mut size = 0;
        while !answer[..size].ends_with(b"]}") {
            match stream.read(&mut answer[size..]).await? {
                0 => return Err("the server closed the connection".into()),
                count => size += count,
            }
        }
        if !answer.starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(&answer[..size]).into());
        }
    }
    Ok(())
}

fn request() -> String {
    let task = format!("{{\"data\":\"{}\"}}", "x".repeat(100));
    let body = format!("{{\"tasks\":[{}]}}", vec![task; BATCH].join(","));
    format!(
        "POST /v1/tubes/bench/put HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

//! The smallest server: tasks in memory, HTTP on the given address (default 127.0.0.1:7070), and
//! the given longest wait in seconds (default 300).

use std::error::Error;
use std::sync::Arc;

use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use taskyard_store::MemoryStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7070".into());
    let store = Box::new(MemoryStore::default());
    let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
    let mut config = Config::new(address.parse()?);
    if let Some(seconds) = std::env::args().nth(2) {
        config.wait_seconds_max = seconds.parse()?;
    }
    let server = Server::bind(config, engine).await?;
    println!("{}", server.url());
    server.run(async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}

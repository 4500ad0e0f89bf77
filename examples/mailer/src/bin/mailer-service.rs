//! The mailer as a service: settings in a file, metrics for Prometheus, and a stop by signals.

use std::env;
use std::time::Duration;

use mailer::queues::Handlers;
use mailer::{Bounces, Mailer, Print};
use taskyard::Client;
use taskyard_worker::{ConfigFile, Worker};
use tokio::net::TcpListener;

// docs: begin service
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [url, settings, address] = &args[..] else {
        return Err("usage: mailer-service URL SETTINGS ADDRESS".into());
    };
    let client = Client::open(url).await?;
    let handlers = Handlers::default().on_emails(Mailer(Print)).on_bounces(Bounces);
    let worker = Worker::builder("mailer", client.clone(), handlers).build()?;

    // Settings: shop/worker/queue/mailer in the file, which is read now and again when it changes.
    let mut config = ConfigFile::new(settings, "shop");
    for problem in config.load(&worker) {
        eprintln!("{problem}");
    }
    tokio::spawn(config.follow(worker.clone()));

    // Metrics: until the worker ends.
    let listener = TcpListener::bind(address).await?;
    println!("metrics: http://{}/metrics", listener.local_addr()?);
    tokio::spawn(worker.clone().serve_metrics(listener));

    // Signals: after SIGTERM or SIGINT running handlers have 28 seconds to finish.
    worker.run_until_signal(Duration::from_secs(28)).await?;
    client.close().await?;
    Ok(())
}
// docs: end

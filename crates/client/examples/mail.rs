//! Puts a task, and calls a function for each task until Ctrl-C.

use serde::{Deserialize, Serialize};
use taskyard::Client;

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

async fn send(mail: &Mail) -> Result<(), std::io::Error> {
    println!("writing to {}", mail.to);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // "http://127.0.0.1:7070" uses a server.
    let client = Client::open("memory:").await?;
    client.put("mail", &Mail { to: "ann".into() }).await?;

    let worker = client.worker("mail").concurrency(10);
    worker.run(async |mail: Mail, _task| send(&mail).await).await?;
    Ok(client.close().await?)
}

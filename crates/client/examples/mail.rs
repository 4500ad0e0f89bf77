//! Puts a task and processes it, in a queue inside this process.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskyard::Client;

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

#[tokio::main]
async fn main() -> Result<(), taskyard::Error> {
    // "http://127.0.0.1:7070" uses a server, "sqlite:queue" a queue on disk.
    let client = Client::open("memory:").await?;
    client.put("mail", &Mail { to: "ann".into() }).await?;

    while let Some(task) = client.take("mail", Duration::ZERO).await? {
        let mail: Mail = task.data()?;
        println!("writing to {}", mail.to);
        client.ack(&task).await?;
    }
    client.close().await
}

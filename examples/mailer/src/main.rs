//! Puts three e-mails and processes them, in a queue inside this process.

use std::time::Duration;

use mailer::queues::{EmailsTask, Handlers};
use mailer::{Mailer, Transport};
use taskyard::Client;
use taskyard_worker::{PutOptions, TypedTask, Worker};

struct Print;

impl Transport for Print {
    fn send(&self, mail: &EmailsTask) -> Result<(), String> {
        println!("to {}: {}", mail.to, mail.subject);
        Ok(())
    }
}

// docs: begin main
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // "http://127.0.0.1:7070" uses the queues of a server instead.
    let client = Client::open("memory:").await?;
    let handlers = Handlers::default().on_emails(Mailer(Print));
    let worker = Worker::builder("mailer", client.clone(), handlers).build()?;
    worker.init().await?;

    for to in ["ann", "ben", "cy"] {
        let mail = EmailsTask { to: to.into(), subject: "hello".into(), ..EmailsTask::default() };
        mail.put(&client, PutOptions::default()).await?;
    }

    let all_sent = async {
        while client.stats("emails").await.is_ok_and(|stats| stats.tasks.total() > 0) {
            tokio::task::yield_now().await;
        }
    };
    worker.run_until(all_sent, Duration::from_secs(28)).await??;
    client.close().await?;
    Ok(())
}
// docs: end

//! Puts three e-mails and processes them, in a queue inside this process.

use std::time::Duration;

use mailer::queues::{EmailsTask, Handlers};
use mailer::{Bounces, Mailer, Print};
use taskyard::Client;
use taskyard_worker::{PutOptions, TypedTask, Worker};

// docs: begin main
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // "http://127.0.0.1:7070" uses the queues of a server instead.
    let client = Client::open("memory:").await?;
    let handlers = Handlers::default().on_emails(Mailer(Print)).on_bounces(Bounces);
    let worker = Worker::builder("mailer", client.clone(), handlers).build()?;
    worker.init().await?;

    let mail = EmailsTask { subject: "hello".into(), ..EmailsTask::default() };
    let mails = ["ann", "ben", "cy"].map(|to| EmailsTask { to: to.into(), ..mail.clone() });
    EmailsTask::put_many(&client, &mails, PutOptions::default()).await?;

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

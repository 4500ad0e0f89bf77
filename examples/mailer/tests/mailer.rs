//! The mailer with a failing transport and a manual clock.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mailer::queues::{EmailsTask, Handlers};
use mailer::{ATTEMPTS_MAX, Bounces, Mailer, Transport};
use taskyard::Client;
use taskyard_worker::testing::TestKit;
use taskyard_worker::{PutOptions, TypedTask};

/// Fails this many times before it succeeds.
#[derive(Clone)]
struct FailingTransport {
    failures: u32,
    tries: Arc<AtomicU32>,
}

impl Transport for FailingTransport {
    fn send(&self, _mail: &EmailsTask) -> Result<(), String> {
        let tries = self.tries.fetch_add(1, Ordering::Relaxed);
        if tries < self.failures { Err("no network".into()) } else { Ok(()) }
    }
}

/// How many e-mails were sent and buried when the transport fails this often, and the number of its calls.
async fn outcome(failures: u32) -> (u64, u64, u32) {
    let kit = TestKit::new();
    let transport = FailingTransport { failures, tries: Arc::default() };
    let handlers = Handlers::default().on_emails(Mailer(transport.clone())).on_bounces(Bounces);
    let worker = kit.worker(handlers).build().unwrap();
    let running = kit.start(&worker).await;
    let mail = EmailsTask { to: "ann".into(), ..EmailsTask::default() };
    mail.put(kit.queue(), PutOptions::default()).await.unwrap();
    loop {
        kit.wait_drained("emails").await;
        let tasks = kit.tube("emails").await.stats.tasks;
        if tasks.delayed == 0 {
            running.stop().await;
            return (tasks.done, tasks.buried, transport.tries.load(Ordering::Relaxed));
        }
        let tries = transport.tries.load(Ordering::Relaxed);
        kit.advance(Duration::from_secs(3600));
        while transport.tries.load(Ordering::Relaxed) == tries {
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn an_email_is_tried_again_until_it_is_sent() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(outcome(0)), (1, 0, 1));
    assert_eq!(runtime.block_on(outcome(ATTEMPTS_MAX - 1)), (1, 0, ATTEMPTS_MAX));
}

#[test]
fn an_email_is_buried_after_ten_attempts() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(outcome(u32::MAX)), (0, 1, ATTEMPTS_MAX));
}

/// An e-mail that is buried, kicked and buried again has one bounce: the handler puts it with a key.
#[test]
fn a_buried_email_has_one_bounce() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let kit = TestKit::new();
        let transport = FailingTransport { failures: u32::MAX, tries: Arc::default() };
        let handlers = Handlers::default().on_emails(Mailer(transport.clone())).on_bounces(Bounces);
        let worker = kit.worker(handlers).build().unwrap();
        let running = kit.start(&worker).await;
        let mail = EmailsTask { to: "ann".into(), ..EmailsTask::default() };
        mail.put(kit.queue(), PutOptions::default()).await.unwrap();
        for failures in 1..ATTEMPTS_MAX {
            kit.wait_until("emails", |tube| tube.stats.calls.release == u64::from(failures)).await;
            kit.advance(Duration::from_secs(3600));
        }
        kit.wait_until("emails", |tube| tube.stats.calls.bury == 1).await;
        assert_eq!(Client::new(kit.queue().clone()).kick("emails", 1).await.unwrap(), 1);
        kit.wait_until("emails", |tube| tube.stats.calls.bury == 2).await;
        assert_eq!(kit.tube("bounces").await.stats.calls.put, 1);
        kit.wait_until("bounces", |tube| tube.stats.calls.ack == 1).await;
        running.stop().await;
    });
}

#[test]
fn the_program_sends_all_emails() {
    let ran = Command::new(env!("CARGO_BIN_EXE_mailer")).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "to ann: hello\nto ben: hello\nto cy: hello\n"
    );
}

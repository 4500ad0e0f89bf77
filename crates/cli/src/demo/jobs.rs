//! The tubes of the example, with their options, their tasks and how long those run.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use taskyard::{Kind, NewTask, Span, TubeOptions, new_task};
use taskyard_core::{RetryPolicy, SemaphoreKey};

/// The semaphore that limits one of the tubes.
pub const SEMAPHORE: &str = "gpu";
/// The tube that the schedule fills.
pub const SCHEDULED: &str = "reports.sales";
/// Names of customers, which are sub-queues of a tube.
const CUSTOMERS: [&str; 5] = ["acme", "globex", "initech", "umbrella", "wonka"];

/// A tube, the tasks that are put into it, and its workers.
#[derive(Clone, Debug)]
pub struct Job {
    /// The tube.
    pub tube: &'static str,
    /// The names of its workers are this and a number.
    pub worker: &'static str,
    pub workers: usize,
    /// How long a task runs.
    pub run_ms: Range<u64>,
    /// A task is put about this often; `None` if a schedule puts them.
    pub every_ms: Option<u64>,
    /// No task is put while this many wait, delayed ones included.
    pub waiting_max: u64,
    /// Of a thousand deliveries so many fail.
    pub fail_permille: u32,
    /// The errors of failed deliveries. The task is buried at once for the last one, and tried again for the others.
    pub errors: &'static [&'static str],
    /// The payload of a task.
    data: fn(&mut Rng) -> Value,
}

/// All of them.
pub static JOBS: [Job; 6] = [
    Job {
        tube: "mail.welcome",
        worker: "mailer",
        workers: 2,
        run_ms: 200..900,
        every_ms: Some(250),
        waiting_max: 25,
        fail_permille: 30,
        errors: &["SMTP 451: greylisted, try again later", "SMTP 550: no such mailbox"],
        data: |rng| json!({ "to": format!("user{}@example.org", rng.u32(..5_000)), "template": "welcome" }),
    },
    Job {
        tube: "images.resize",
        worker: "resizer",
        workers: 4,
        run_ms: 800..3_000,
        every_ms: Some(800),
        waiting_max: 15,
        fail_permille: 20,
        errors: &["out of memory while decoding", "not an image: unexpected end of file"],
        data: |rng| json!({ "file": format!("uploads/{:06}.jpg", rng.u32(..999_999)), "width": 1280 }),
    },
    Job {
        tube: "invoices.render",
        worker: "renderer",
        workers: 1,
        run_ms: 400..1_200,
        every_ms: Some(800),
        waiting_max: 20,
        fail_permille: 10,
        errors: &["no template for currency XAU"],
        data: |rng| json!({ "invoice": 10_000 + rng.u32(..90_000), "customer": customer(rng) }),
    },
    Job {
        tube: "customers.sync",
        worker: "syncer",
        workers: 3,
        run_ms: 300..1_200,
        every_ms: Some(220),
        waiting_max: 25,
        fail_permille: 20,
        errors: &["CRM 429: too many requests", "CRM 404: the customer was deleted"],
        data: |rng| json!({ "customer": customer(rng), "since": format!("2026-10-{:02}", rng.u32(1..28)) }),
    },
    Job {
        tube: "webhooks.deliver",
        worker: "notifier",
        workers: 2,
        run_ms: 50..400,
        every_ms: Some(150),
        waiting_max: 20,
        fail_permille: 250,
        errors: &[
            "HTTP 503 from hooks.example.org: Service Unavailable",
            "timeout after 5 s: hooks.example.org does not answer",
            "HTTP 410 from hooks.example.org: the hook was removed",
        ],
        data: |rng| json!({ "url": format!("https://hooks.example.org/{}", customer(rng)), "event": "order.paid" }),
    },
    Job {
        tube: SCHEDULED,
        worker: "reporter",
        workers: 1,
        run_ms: 500..2_500,
        every_ms: None,
        waiting_max: 0,
        fail_permille: 0,
        errors: &[],
        data: |_| json!({ "report": "sales" }),
    },
];

fn customer(rng: &mut Rng) -> &'static str {
    rng.choice(CUSTOMERS).unwrap_or(CUSTOMERS[0])
}

impl Job {
    /// The options of the tube.
    pub fn options(&self) -> TubeOptions {
        let retry = RetryPolicy {
            delay: Span::from_secs(2),
            delay_max: Span::from_secs(20),
            ..RetryPolicy::DEFAULT
        };
        let kind = if self.has_subqueues() { Kind::UtubeTtl } else { Kind::FifoTtl };
        let options = TubeOptions {
            retry: Some(Box::new(retry)),
            attempts_max: Some(3),
            keep_done: Some(Span::from_secs(600)),
            keep_done_max: 500,
            ..TubeOptions::new(kind)
        };
        match self.tube {
            "images.resize" => {
                TubeOptions { semaphore: SemaphoreKey::new(SEMAPHORE).ok(), ..options }
            }
            _ => options,
        }
    }

    fn has_subqueues(&self) -> bool {
        self.tube == "customers.sync"
    }

    /// A new task: some are urgent, some are delayed.
    pub fn task(&self, rng: &mut Rng) -> taskyard::Result<NewTask> {
        let data = (self.data)(rng);
        let subqueue = self.has_subqueues().then(|| data["customer"].as_str().map(Into::into));
        let mut task = new_task(&data)?;
        task.subqueue = subqueue.flatten();
        task.pri = Some(if rng.u8(..8) == 0 { 0 } else { 100 });
        if rng.u8(..10) == 0 {
            task.delay = Some(Span::from_secs(rng.u64(5..40)));
        }
        Ok(task)
    }

    /// How long the next task runs.
    pub fn run_time(&self, rng: &mut Rng) -> Duration {
        Duration::from_millis(rng.u64(self.run_ms.clone()))
    }

    /// The error of the next delivery if it fails, and whether the task is worth another try.
    pub fn failure(&self, rng: &mut Rng) -> Option<(&'static str, bool)> {
        if rng.u32(..1_000) >= self.fail_permille || self.errors.is_empty() {
            return None;
        }
        let nth = rng.usize(..self.errors.len());
        Some((self.errors[nth], nth + 1 < self.errors.len()))
    }
}

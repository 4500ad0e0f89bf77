//! Defines the lines that the child prints: the batches it is about to run and their results.

use std::fmt;

/// The tubes of the crash test: a plain one, one that is truncated now and then, a temporary one.
pub const TUBES: [&str; 3] = ["mail", "scrap", "temporary"];
pub const SCRAP: usize = 1;
pub const TEMPORARY: usize = 2;

/// A line of the child.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The child is about to open the folder.
    Start,
    /// A batch is about to run at this time, in microseconds.
    Begin { now: i64, steps: Vec<Step> },
    /// The store has replied: the ids of the put tasks and the leases of the taken ones, in order.
    Done { ids: Vec<u64>, leases: Vec<u64> },
}

/// A durable effect of a batch. The number after the tube is a task's id or a count.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub tube: usize,
    pub verb: Verb,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// The token determines the payload.
    Put {
        token: u64,
        pri: u64,
        delay_s: u64,
    },
    /// Put and deleted in the same batch.
    PutDeleted,
    Ack(u64),
    Release {
        id: u64,
        delay_s: u64,
    },
    Bury(u64),
    Kick(u64),
    Delete(u64),
    Truncate,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Start => write!(f, "@start"),
            Line::Begin { now, steps } => {
                write!(f, "@begin {now}")?;
                steps.iter().try_for_each(|step| write!(f, " {}", step.text()))
            }
            Line::Done { ids, leases } => write!(f, "@done {} {}", join(ids), join(leases)),
        }
    }
}

impl Line {
    /// Parses a line; `None` for output of the test harness.
    pub fn parse(text: &str) -> Option<Line> {
        let mut words = text.strip_prefix('@')?.split(' ');
        Some(match words.next()? {
            "start" => Line::Start,
            "begin" => Line::Begin {
                now: words.next()?.parse().ok()?,
                steps: words.map(Step::parse).collect(),
            },
            "done" => Line::Done { ids: split(words.next()?), leases: split(words.next()?) },
            other => panic!("the child printed {other:?}"),
        })
    }
}

impl Step {
    fn text(&self) -> String {
        let (verb, a, b, c) = match self.verb {
            Verb::Put { token, pri, delay_s } => ("put", token, pri, delay_s),
            Verb::PutDeleted => ("put_deleted", 0, 0, 0),
            Verb::Ack(id) => ("ack", id, 0, 0),
            Verb::Release { id, delay_s } => ("release", id, delay_s, 0),
            Verb::Bury(id) => ("bury", id, 0, 0),
            Verb::Kick(count) => ("kick", count, 0, 0),
            Verb::Delete(id) => ("delete", id, 0, 0),
            Verb::Truncate => ("truncate", 0, 0, 0),
        };
        format!("{verb},{},{a},{b},{c}", self.tube)
    }

    fn parse(text: &str) -> Step {
        let mut words = text.split(',');
        let verb = words.next().expect("a verb");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        let (tube, a, b, c): (u64, u64, u64, u64) = (number(), number(), number(), number());
        let verb = match verb {
            "put" => Verb::Put { token: a, pri: b, delay_s: c },
            "put_deleted" => Verb::PutDeleted,
            "ack" => Verb::Ack(a),
            "release" => Verb::Release { id: a, delay_s: b },
            "bury" => Verb::Bury(a),
            "kick" => Verb::Kick(a),
            "delete" => Verb::Delete(a),
            "truncate" => Verb::Truncate,
            other => panic!("no verb {other:?}"),
        };
        Step { tube: tube as usize, verb }
    }
}

/// The payload of a token: one in sixteen is large, so that the log is emptied now and then while the child
/// runs.
pub fn payload(token: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(token);
    let length =
        if token.is_multiple_of(16) { random.usize(..200_000) } else { random.usize(..300) };
    let mut bytes = vec![0; length + 8];
    random.fill(&mut bytes);
    bytes[..8].copy_from_slice(&token.to_le_bytes());
    bytes
}

fn join(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    words.join(",")
}

fn split(text: &str) -> Vec<u64> {
    let words = text.split(',').filter(|word| !word.is_empty());
    words.map(|word| word.parse().expect("a number")).collect()
}

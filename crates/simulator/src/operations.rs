//! Draws single operations of clients: which verb, and the tasks and times of its command.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::{
    AfterFailure, Body, Command, Finish, FinishItem, HeldKey, Holder, Key, KeyRequest, Lease,
    NewTask, OnConflict, SessionId, Span, Take, TaskId, TubeName,
};

use crate::history::OperationNumber;
use crate::tubes::TubeRole;

/// The first byte of a MessagePack number of eight bytes.
const NUMBER: u8 = 0xcf;
/// The bytes of such a number.
const PACKED_BYTES: usize = 9;
/// A long payload has at least so many bytes after its number.
const FILLER_MIN: u32 = 100;

/// The longest explicit lease of a delivery.
pub const LEASE_SECS_MAX: u64 = 30;
/// The longest extension of a delivery.
pub const TOUCH_SECS_MAX: u64 = 5;
/// The longest delay of a task.
pub const DELAY_SECS_MAX: u64 = 60;

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Adds tasks.
    Put,
    /// Takes tasks.
    Take,
    /// Acks a held task.
    Ack,
    /// Releases a held task.
    Release,
    /// Reports a held task as failed.
    Fail,
    /// Buries a held task.
    Bury,
    /// Extends the delivery of a held task.
    Touch,
    /// Acks a task by a delivery that it held before, or holds no more.
    LateAck,
    /// Keeps a task without finishing it.
    Forget,
    /// Kicks buried tasks.
    Kick,
    /// Deletes a task that it put.
    Delete,
    /// Removes all tasks of a tube.
    Truncate,
    /// Ends the session and begins another one.
    Session,
    /// Pauses, resumes or changes a tube.
    Alter,
    /// Lists tasks of a state, and kicks, buries, releases or deletes some of them.
    Choose,
    /// Shows tasks that it acked.
    Show,
    /// Creates, fills and drops a tube of its own.
    Scratch,
}

/// The verbs of extended runs with their largest weight.
const EXTENDED_VERBS: [(Verb, u32); 4] =
    [(Verb::Alter, 3), (Verb::Choose, 6), (Verb::Show, 8), (Verb::Scratch, 1)];

/// The verbs with their largest weight.
const VERBS: [(Verb, u32); 13] = [
    (Verb::Put, 12),
    (Verb::Take, 12),
    (Verb::Ack, 12),
    (Verb::Release, 4),
    (Verb::Fail, 4),
    (Verb::Bury, 3),
    (Verb::Touch, 3),
    (Verb::LateAck, 2),
    (Verb::Forget, 2),
    (Verb::Kick, 2),
    (Verb::Delete, 2),
    (Verb::Truncate, 1),
    (Verb::Session, 2),
];

/// How often each verb is used in a run, and how tasks differ.
#[derive(Clone, Debug)]
pub struct Weights {
    verbs: [u32; VERBS.len()],
    extended: [u32; EXTENDED_VERBS.len()],
    /// Whether tasks have priorities, delays and times to live.
    priorities: bool,
    delays: bool,
    ttls: bool,
    /// Whether clients take in sessions.
    pub sessions: bool,
    /// Whether takes wait.
    waits: bool,
    /// Of how many calls the client gives one up before its reply; 0 is none.
    pub gives_up: u32,
    /// The most bytes of a payload after its number.
    pub payload_bytes_max: u32,
}

impl Weights {
    /// Draws the weights of a run: about a third of the optional verbs is not used.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut verbs = [0; VERBS.len()];
        for (index, (verb, most)) in VERBS.iter().enumerate() {
            let needed = matches!(verb, Verb::Put | Verb::Take | Verb::Ack);
            verbs[index] = if needed || rng.u8(0..3) > 0 { rng.u32(1..=*most) * 2 } else { 0 };
            // A run with many of them never has many tasks.
            if *verb == Verb::Truncate {
                verbs[index] = verbs[index].min(1);
            }
        }
        Weights {
            verbs,
            extended: [0; EXTENDED_VERBS.len()],
            priorities: rng.bool(),
            delays: rng.bool(),
            ttls: rng.u8(0..4) == 0,
            sessions: rng.bool(),
            waits: rng.bool(),
            gives_up: if rng.u8(0..3) == 0 { rng.u32(4..20) } else { 0 },
            payload_bytes_max: 0,
        }
    }

    /// Draws the weights of the verbs that only extended runs have.
    pub fn extend(&mut self, rng: &mut Rng) {
        for (weight, (_, most)) in self.extended.iter_mut().zip(EXTENDED_VERBS) {
            *weight = if rng.u8(0..3) > 0 { rng.u32(1..=most) * 2 } else { 0 };
        }
    }

    /// Leaves out everything but puts and kicks, for runs in which workers do the rest.
    pub fn only_produce(&mut self) {
        for (weight, (verb, _)) in self.verbs.iter_mut().zip(VERBS) {
            *weight *= u32::from(matches!(verb, Verb::Put | Verb::Kick));
        }
        self.sessions = false;
    }

    /// Draws a verb.
    pub fn verb(&self, rng: &mut Rng) -> Verb {
        let weights = self.verbs.iter().chain(&self.extended);
        let mut left = rng.u32(0..weights.clone().sum());
        for (weight, (verb, _)) in weights.zip(VERBS.into_iter().chain(EXTENDED_VERBS)) {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return verb,
            }
        }
        Verb::Put
    }

    /// Draws a put into a tube.
    pub fn put(&self, role: TubeRole, number: OperationNumber, rng: &mut Rng) -> Command {
        let count = if rng.u8(0..4) == 0 { rng.u64(2..=3) } else { 1 };
        let tasks = (0..count).map(|index| self.task(role, number, index, rng)).collect();
        let waits = role == TubeRole::Small && rng.bool();
        let wait = if waits { seconds(rng, 10) } else { Span::ZERO };
        Command::Put { tube: role.tube(), tasks, wait }
    }

    fn task(&self, role: TubeRole, number: OperationNumber, index: u64, rng: &mut Rng) -> NewTask {
        let mut payload = payload(number, index).to_be_bytes().to_vec();
        if self.payload_bytes_max > 0 && rng.bool() {
            payload.extend(filler(&payload, FILLER_MIN + rng.u32(0..self.payload_bytes_max)));
        }
        let mut task = NewTask::new(Body::new(&payload));
        if self.priorities {
            task.pri = Some(rng.u64(0..4));
        }
        if self.delays && rng.u8(0..4) == 0 {
            let most = if rng.bool() { 2 } else { DELAY_SECS_MAX };
            task.delay = Some(seconds(rng, most));
        }
        if self.ttls && rng.u8(0..3) == 0 {
            task.ttl = Some(seconds(rng, 120));
        }
        match role {
            TubeRole::Subqueues => {
                let names: [Arc<str>; 3] = ["a".into(), "b".into(), "c".into()];
                task.subqueue = names.get(rng.usize(0..names.len())).cloned();
            }
            TubeRole::Keyed => {
                let key = Key::new(&format!("key {}", rng.u8(0..5))).expect("the key is good");
                let unique_for = if rng.bool() { Span::ZERO } else { seconds(rng, 60) };
                let replaces = rng.u8(0..4) == 0;
                let on_conflict = if replaces { OnConflict::Replace } else { OnConflict::Keep };
                let held = HeldKey { key, unique_for };
                task.key = Some(Box::new(KeyRequest { held, on_conflict }));
            }
            _ => {}
        }
        task
    }

    /// Draws a take from a tube, in a session if the client has one.
    pub fn take(&self, role: TubeRole, session: Option<SessionId>, rng: &mut Rng) -> Command {
        let wait = if self.waits && rng.bool() { seconds(rng, 20) } else { Span::ZERO };
        let session = session.filter(|_| rng.u8(0..4) > 0);
        // A session's deliveries last as long as the session.
        let lease = session.is_none().then(|| seconds(rng, LEASE_SECS_MAX));
        let count = if rng.u8(0..4) == 0 { 3 } else { 1 };
        Command::Take(Take { tube: role.tube(), count, session, lease, worker: None, wait })
    }

    /// When the client gives up this call, if it does.
    pub fn patience(&self, rng: &mut Rng) -> Option<Duration> {
        let gives_up = self.gives_up > 0 && rng.u32(0..self.gives_up) == 0;
        gives_up.then(|| Duration::from_millis(rng.u64(0..3_000)))
    }
}

/// A delivery that a client received.
#[derive(Clone, Debug)]
pub struct HeldTask {
    /// The tube.
    pub tube: TubeName,
    /// The task.
    pub id: TaskId,
    /// The delivery.
    pub lease: Lease,
}

impl HeldTask {
    /// The command that ends or extends this delivery.
    pub fn finish(&self, verb: Verb, rng: &mut Rng) -> Command {
        let delay = if rng.bool() { Span::ZERO } else { seconds(rng, 10) };
        let finish = match verb {
            Verb::Release => Finish::Release { delay, counted: rng.u8(0..3) > 0 },
            Verb::Fail if rng.bool() => Finish::fail_by_policy("failed", rng.u32(..)),
            Verb::Fail => Finish::fail("failed", Some(delay)),
            Verb::Bury => Finish::Bury,
            Verb::Touch => Finish::Touch(seconds(rng, TOUCH_SECS_MAX)),
            _ if TubeRole::Kept.is(&self.tube) => Finish::ack_with(&result_of(self.lease)),
            _ => Finish::Ack,
        };
        let items = vec![FinishItem { id: self.id, holder: Holder::Lease(self.lease), finish }];
        Command::Finish { tube: self.tube.clone(), items, show: verb == Verb::Touch }
    }
}

/// The result of a delivery, a MessagePack number: no other delivery has it.
fn result_of(lease: Lease) -> Vec<u8> {
    [&[NUMBER], &lease.0.to_be_bytes()[..]].concat()
}

/// Replaces retry policies by a delay: over HTTP the server draws the random part of the delay itself.
pub fn fix_delays(command: &mut Command) {
    let Command::Finish { items, .. } = command else { return };
    for item in items {
        if let Finish::Fail(fail) = &mut item.finish
            && let AfterFailure::Policy { .. } = fail.then
        {
            fail.then = AfterFailure::Retry(Span::from_secs(1));
        }
    }
}

/// A payload as one MessagePack value, which clients over iproto must send: a number, or a short text.
pub fn packed(body: &Body) -> Body {
    let payload = body.payload();
    let first = if payload.len() == 8 { NUMBER } else { 0xa0 | payload.len() as u8 };
    Body::new(&[&[first], payload].concat())
}

/// The payload of a task: no other task of the run has it.
pub fn payload(number: OperationNumber, index: u64) -> u64 {
    u64::from(number.0) << 40 | u64::from(number.1) << 8 | index
}

/// So many bytes that follow from a number.
fn filler(number: &[u8], count: u32) -> Vec<u8> {
    let bytes = (0..count).zip(number.iter().cycle());
    bytes.map(|(index, byte)| byte.wrapping_add((index / 8) as u8)).collect()
}

/// The number in the payload of a task.
pub fn read_payload(body: &Body) -> Option<u64> {
    let payload = body.payload();
    let number = match payload.len() {
        PACKED_BYTES => payload.strip_prefix(&[NUMBER])?,
        8 => payload,
        // Payloads of others are as long.
        _ => {
            let (number, rest) = payload.split_at_checked(8)?;
            (rest == filler(number, rest.len() as u32)).then_some(number)?
        }
    };
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// A time from 1 ms to so many seconds.
fn seconds(rng: &mut Rng, most: u64) -> Span {
    Span::from_micros(rng.i64(1..=most as i64 * 1_000) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_without_weight_are_never_drawn_and_the_others_are() {
        let mut rng = Rng::with_seed(5);
        let mut weights = Weights::draw(&mut rng);
        weights.verbs = [0; VERBS.len()];
        weights.verbs[3] = 1;
        weights.verbs[12] = 2;
        let drawn: Vec<_> = (0..100).map(|_| weights.verb(&mut rng)).collect();
        assert!(drawn.iter().all(|verb| matches!(verb, Verb::Release | Verb::Session)));
        assert!(drawn.contains(&Verb::Release) && drawn.contains(&Verb::Session));
    }

    #[test]
    fn payloads_are_read_back() {
        let number = payload((3, 4), 2);
        assert_eq!(read_payload(&Body::new(&number.to_be_bytes())), Some(number));
        assert_eq!(read_payload(&packed(&Body::new(&number.to_be_bytes()))), Some(number));
        assert_eq!(read_payload(&Body::new(b"x")), None);
        let mut long = [&number.to_be_bytes()[..], &filler(&number.to_be_bytes(), 300)].concat();
        assert_eq!(read_payload(&Body::new(&long)), Some(number));
        long[200] ^= 1;
        assert_eq!(read_payload(&Body::new(&long)), None, "another payload");
    }
}

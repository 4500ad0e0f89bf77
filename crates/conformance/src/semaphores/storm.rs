//! Many clients at the same time, and what must be true when they are done.
//!
//! Clients come and go, heed events or lose them, let leases run out, decline, prolong, and change limits meanwhile. Half of
//! them crowd a few semaphores, so that much happens at each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};

use fastrand::Rng;
use taskyard_core::{
    Command, EnqueueItem, Error, EventId, EventKind, Execute, Grant, GrantFinish, GrantItem, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreReply,
    Span, Standing, Status, TaskId, Timestamp,
};

use super::ask::key;
use super::audit;

/// The tasks of each semaphore.
const TASKS: u64 = 40;
/// So many semaphores get half of all calls.
const CROWDED: usize = 8;
/// So many of the latest events a client can still act on.
const REMEMBERED: usize = 20;

/// What somebody was told: semaphore, task, grant and kind.
pub type Told = BTreeSet<(SemaphoreKey, TaskId, Grant, EventKind)>;

/// How long a lease lasts in a storm whose time is a [`Clock`].
pub const LEASE: Span = Span::from_secs(20);

/// The time of a storm on stores: it passes with the calls, so that leases end meanwhile.
pub struct Clock(AtomicI64);

impl Clock {
    /// One that stands where the clocks of other cases begin.
    pub fn new(beginning: Timestamp) -> Self {
        Clock(AtomicI64::new(beginning.as_micros()))
    }

    /// The moment of the next call, and whether what is due should be done before it.
    pub fn pass(&self) -> (Timestamp, bool) {
        let micros = self.0.fetch_add(100_000, Ordering::Relaxed);
        (Timestamp::from_micros(micros), micros % 1_000_000 == 0)
    }
}

fn keys(count: usize) -> Vec<SemaphoreKey> {
    (0..count).map(|number| key(&format!("storm {number}"))).collect()
}

async fn ask<E: Execute>(queue: &E, command: SemaphoreCommand) -> Result<SemaphoreReply, Error> {
    match queue.execute(vec![Command::Semaphore(command)]).await.remove(0)? {
        Reply::Semaphore(reply) => Ok(reply),
        other => panic!("a semaphore answered {other:?}"),
    }
}

/// How many may hold a grant of this semaphore, before and after the storm.
fn active(number: usize) -> i64 {
    (number % 5) as i64
}

/// Makes or changes all of them.
async fn configure<E: Execute>(
    queue: &E,
    keys: &[SemaphoreKey],
    change: impl Fn(usize) -> SemaphoreChange,
) {
    let configure = |(number, key): (usize, &SemaphoreKey)| {
        let (key, change) = (key.clone(), Box::new(change(number)));
        Command::Semaphore(SemaphoreCommand::Configure { key, change, only_new: false })
    };
    for reply in queue.execute(keys.iter().enumerate().map(configure).collect()).await {
        reply.expect("it can be made");
    }
}

/// Makes so many semaphores. Some have leases, want acknowledgements, or take grants away by force.
pub async fn prepare<E: Execute>(queue: &E, semaphores: usize, lease: Span) {
    let change = |number: usize| {
        let every = |count: usize, span| (number % count == 1).then_some(span);
        SemaphoreChange {
            lease: Some(every(2, lease)),
            ack_timeout: Some(every(3, lease)),
            cool_down: every(4, lease),
            revoke_grace: Some(lease),
            force: Some(number % 3 == 2),
            ..SemaphoreChange::limits(active(number), active(number))
        }
    };
    configure(queue, &keys(semaphores), change).await;
}

/// One client and what it remembers.
struct Player {
    rng: Rng,
    keys: Vec<SemaphoreKey>,
    told: Told,
    latest: Vec<SemaphoreEvent>,
}

/// One client: random calls, half of its acknowledgements are lost. A store that fails now and then is asked again.
/// What it was told.
pub async fn play<E: Execute>(queue: &E, seed: u64, semaphores: usize, calls: usize) -> Told {
    let (rng, keys) = (Rng::with_seed(seed), keys(semaphores));
    let mut player = Player { rng, keys, told: Told::new(), latest: Vec::new() };
    for _ in 0..calls {
        let command = player.command();
        match ask(queue, command).await {
            Ok(SemaphoreReply::Events(events)) => {
                player.told.extend(events.iter().map(heard));
                if player.rng.bool() {
                    let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
                    _ = ask(queue, SemaphoreCommand::Acknowledge { events }).await;
                }
                player.latest.extend(events);
                let surplus = player.latest.len().saturating_sub(REMEMBERED);
                player.latest.drain(..surplus);
            }
            Ok(_)
            | Err(Error::Store(_) | Error::StoreUnavailable(_) | Error::OutcomeUnknown(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    player.told
}

fn heard(event: &SemaphoreEvent) -> (SemaphoreKey, TaskId, Grant, EventKind) {
    (event.semaphore.clone(), event.task, event.grant, event.kind)
}

impl Player {
    fn command(&mut self) -> SemaphoreCommand {
        let crowd = if self.rng.bool() { CROWDED } else { self.keys.len() };
        let number = self.rng.usize(0..crowd.min(self.keys.len()));
        let key = self.keys[number].clone();
        match self.rng.u8(0..20) {
            0..7 => {
                let entries = (0..self.rng.usize(1..4)).map(|_| self.wish()).collect();
                SemaphoreCommand::Enqueue { key, entries }
            }
            7..9 => {
                let finish =
                    if self.rng.bool() { GrantFinish::Release } else { GrantFinish::Yield };
                let task = TaskId(self.rng.u64(0..TASKS));
                let items = vec![GrantItem { task, grant: None, finish }];
                SemaphoreCommand::Finish { key, items }
            }
            9..14 => self.heed().unwrap_or(SemaphoreCommand::List { key: Some(key) }),
            14 => {
                let change = Box::new(self.change(number));
                SemaphoreCommand::Configure { key, change, only_new: false }
            }
            _ => {
                let key = self.rng.bool().then_some(key);
                SemaphoreCommand::Events { key, count: 5, wait: Span::ZERO }
            }
        }
    }

    fn wish(&mut self) -> EnqueueItem {
        let (task, priority) = (TaskId(self.rng.u64(0..TASKS)), f64::from(self.rng.u8(0..20)));
        EnqueueItem { task, priority }
    }

    /// Does something with a grant that it heard of, and that may be over by now. Whoever prolongs a grant or declines
    /// knows of it: so only those that were told.
    fn heed(&mut self) -> Option<SemaphoreCommand> {
        let event = self.latest.get(self.rng.usize(0..REMEMBERED))?.clone();
        let finish = match self.rng.u8(0..8) {
            0..2 => GrantFinish::Release,
            2..4 => GrantFinish::Yield,
            4..6 => GrantFinish::Decline,
            _ => GrantFinish::Extend(Span::from_secs(self.rng.u64(0..40))),
        };
        let items = vec![GrantItem { task: event.task, grant: Some(event.grant), finish }];
        Some(SemaphoreCommand::Finish { key: event.semaphore, items })
    }

    fn change(&mut self, number: usize) -> SemaphoreChange {
        let active = self.rng.i64(0..=active(number) + 1);
        SemaphoreChange {
            margin: Some(f64::from(self.rng.u8(0..3))),
            shed: Some(self.rng.bool()),
            ..SemaphoreChange::limits(active, self.rng.i64(0..=active))
        }
    }
}

/// Panics unless every semaphore is as the rules want it, no grant was ever given to two, and every grant that is held and
/// every request to release one was told to somebody, or is told now. To be called when everything that was told and not
/// acknowledged is due again.
pub async fn judge<E: Execute>(queue: &E, semaphores: usize, mut told: Told) {
    let keys = keys(semaphores);
    for (number, (info, standings)) in look(queue, &keys).await.into_iter().enumerate() {
        let held = standings.iter().filter(|task| task.grant.is_some()).count();
        // Never more than were allowed at any time, however often that changed.
        assert!(held as i64 <= active(number) + 1, "{}: {held} hold a grant", info.key);
    }
    calm(queue, &keys, &mut told).await;
    let mut owners = BTreeMap::new();
    for (key, task, grant, _) in &told {
        let owner = owners.entry((key, grant)).or_insert(task);
        assert_eq!(*owner, task, "{key}: grant {grant} was given to two");
    }
    let mut grants = 0;
    for (info, standings) in look(queue, &keys).await {
        let key = &info.key;
        for holder in audit::check(&info, &standings) {
            let grant = holder.grant.expect("a holder has a grant");
            let was = |kind| told.contains(&(key.clone(), holder.task, grant, kind));
            assert!(was(EventKind::Acquired), "{key}: task {} was never told", holder.task);
            let is_asked = holder.status == Status::TryRelease;
            assert!(
                !is_asked || was(EventKind::TryRelease),
                "{key}: task {} was never asked",
                holder.task
            );
            grants += 1;
        }
    }
    assert!(grants > 0, "a storm in which nobody holds anything proves nothing");
    for kind in [EventKind::Acquired, EventKind::TryRelease, EventKind::Expired] {
        assert!(told.iter().any(|told| told.3 == kind), "nothing of the kind {kind:?} was told");
    }
}

/// Brings semaphores to where time changes nothing any more, so that they can be looked at: limits are as at the
/// beginning, who has a lease, stands back or is too many leaves, and everything is told.
async fn calm<E: Execute>(queue: &E, keys: &[SemaphoreKey], told: &mut Told) {
    let change = |number: usize| SemaphoreChange {
        lease: Some(None),
        ack_timeout: Some(None),
        cool_down: Some(Span::ZERO),
        // A holder that is asked again and again would be heard for ever.
        revoke_grace: Some(Span::from_secs(3600)),
        force: Some(false),
        shed: Some(false),
        margin: Some(0.0),
        ..SemaphoreChange::limits(active(number), active(number))
    };
    configure(queue, keys, change).await;
    loop {
        let heard = hear(queue, told).await;
        let mut releases = Vec::new();
        for (number, (info, standings)) in look(queue, keys).await.into_iter().enumerate() {
            let finish = GrantFinish::Release;
            let item = |task| GrantItem { task, grant: None, finish };
            let leave = who_leaves(&standings, active(number) as usize);
            let items: Vec<_> = leave.into_iter().map(item).collect();
            if !items.is_empty() {
                let release = SemaphoreCommand::Finish { key: info.key, items };
                releases.push(Command::Semaphore(release));
            }
        }
        if !heard && releases.is_empty() {
            return;
        }
        if !releases.is_empty() {
            let replies = queue.execute(releases).await;
            assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        }
    }
}

/// How all of them stand, looked at together.
async fn look<E: Execute>(queue: &E, keys: &[SemaphoreKey]) -> Vec<(SemaphoreInfo, Vec<Standing>)> {
    let mut looked = Vec::new();
    for some in keys.chunks(50) {
        looked.extend(audit::look(queue, some, 0..TASKS).await);
    }
    looked
}

fn who_leaves(standings: &[Standing], active: usize) -> Vec<TaskId> {
    let moves = |task: &&Standing| task.lease_until.is_some() || task.status == Status::Delayed;
    let (moving, still): (Vec<&Standing>, Vec<&Standing>) = standings.iter().partition(moves);
    let holders: Vec<_> = still.iter().filter(|task| task.grant.is_some()).collect();
    let surplus = holders.iter().take(holders.len().saturating_sub(active));
    moving.iter().map(|task| task.task).chain(surplus.map(|task| task.task)).collect()
}

/// Fetches and acknowledges everything that is due; whether there was something.
async fn hear<E: Execute>(queue: &E, told: &mut Told) -> bool {
    let mut any = false;
    loop {
        let fetch = SemaphoreCommand::Events { key: None, count: 1000, wait: Span::ZERO };
        let Ok(SemaphoreReply::Events(events)) = ask(queue, fetch).await else {
            panic!("events can be fetched");
        };
        if events.is_empty() {
            return any;
        }
        any = true;
        told.extend(events.iter().map(heard));
        let events = events.iter().map(|event| event.id).collect();
        ask(queue, SemaphoreCommand::Acknowledge { events }).await.expect("they are there");
    }
}

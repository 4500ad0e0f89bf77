//! Runs many concurrent clients and checks the invariants afterwards.
//!
//! Clients enqueue and release, act on events or lose them, let leases expire, decline, extend, and change limits meanwhile.
//! Half of the calls go to a few semaphores, so that much happens at each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};

use fastrand::Rng;
use taskyard_core::{
    Command, EnqueueItem, Error, EventId, EventKind, Execute, Grant, GrantFinish, GrantItem,
    MemberInfo, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo,
    SemaphoreKey, SemaphoreReply, Span, Status, TaskId, Timestamp,
};

use super::audit;
use super::commands::key;
use crate::random;

/// The tasks of each semaphore.
const TASKS: u64 = 40;
/// The number of semaphores that get half of all calls.
const BUSY_SEMAPHORES: usize = 8;
/// The number of latest events that a client can still act on.
const REMEMBERED: usize = 20;

/// The delivered events: semaphore, task, grant and kind.
pub type DeliveredEvents = BTreeSet<(SemaphoreKey, TaskId, Grant, EventKind)>;

/// The lease time in a storm with a [`Clock`].
pub const LEASE: Span = Span::from_secs(20);

/// The clock of a storm on stores: it advances with the calls, so that leases end meanwhile.
pub struct Clock(AtomicI64);

impl Clock {
    /// A clock with this initial time.
    pub fn new(start: Timestamp) -> Self {
        Clock(AtomicI64::new(start.as_micros()))
    }

    /// The time of the next call, and whether a tick should run before it.
    pub fn pass(&self) -> (Timestamp, bool) {
        let micros = self.0.fetch_add(100_000, Ordering::Relaxed);
        (Timestamp::from_micros(micros), micros % 1_000_000 == 0)
    }
}

fn keys(count: usize) -> Vec<SemaphoreKey> {
    (0..count).map(|number| key(&format!("storm {number}"))).collect()
}

async fn execute<E: Execute>(
    queue: &E,
    command: SemaphoreCommand,
) -> Result<SemaphoreReply, Error> {
    match queue.execute(vec![Command::Semaphore(command)]).await.remove(0)? {
        Reply::Semaphore(reply) => Ok(reply),
        other => panic!("unexpected reply: {other:?}"),
    }
}

/// The capacity of this semaphore, before and after the storm.
fn active(number: usize) -> i64 {
    (number % 5) as i64
}

/// Creates or changes all semaphores.
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
        reply.expect("the change is valid");
    }
}

/// Creates so many semaphores. Some have leases, require acknowledgements, or revoke grants by force.
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

/// One client with its latest events.
struct StormClient {
    rng: Rng,
    keys: Vec<SemaphoreKey>,
    delivered: DeliveredEvents,
    latest: Vec<SemaphoreEvent>,
}

/// The seeds of so many clients.
pub fn client_seeds(clients: u64) -> Vec<u64> {
    let first = random::first_seed();
    println!("repeat with TASKYARD_SEED={first}");
    (0..clients).map(|client| first.wrapping_add(client)).collect()
}

/// Runs one client with random calls, [`runs`](random::runs) times as many as given, of which half of the acknowledgements are lost,
/// and returns its events. Failed calls of the store are accepted.
pub async fn run_client<E: Execute>(
    queue: &E,
    seed: u64,
    semaphores: usize,
    calls: usize,
) -> DeliveredEvents {
    let (rng, keys) = (Rng::with_seed(seed), keys(semaphores));
    let mut client =
        StormClient { rng, keys, delivered: DeliveredEvents::new(), latest: Vec::new() };
    for _ in 0..calls * random::runs() {
        let command = client.command();
        match execute(queue, command).await {
            Ok(SemaphoreReply::Events(events)) => {
                client.delivered.extend(events.iter().map(event_key));
                if client.rng.bool() {
                    let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
                    _ = execute(queue, SemaphoreCommand::Acknowledge { events }).await;
                }
                client.latest.extend(events);
                let surplus = client.latest.len().saturating_sub(REMEMBERED);
                client.latest.drain(..surplus);
            }
            Ok(_)
            | Err(Error::Store(_) | Error::StoreUnavailable(_) | Error::OutcomeUnknown(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    client.delivered
}

fn event_key(event: &SemaphoreEvent) -> (SemaphoreKey, TaskId, Grant, EventKind) {
    (event.semaphore.clone(), event.task, event.grant, event.kind)
}

impl StormClient {
    fn command(&mut self) -> SemaphoreCommand {
        let choices = if self.rng.bool() { BUSY_SEMAPHORES } else { self.keys.len() };
        let number = self.rng.usize(0..choices.min(self.keys.len()));
        let key = self.keys[number].clone();
        match self.rng.u8(0..20) {
            0..7 => {
                let entries = (0..self.rng.usize(1..4)).map(|_| self.enqueue_item()).collect();
                SemaphoreCommand::Enqueue { key, entries }
            }
            7..9 => {
                let finish =
                    if self.rng.bool() { GrantFinish::Release } else { GrantFinish::Yield };
                let task = TaskId(self.rng.u64(0..TASKS));
                let items = vec![GrantItem { task, grant: None, finish }];
                SemaphoreCommand::Finish { key, items }
            }
            9..14 => self.act_on_event().unwrap_or(SemaphoreCommand::List { key: Some(key) }),
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

    fn enqueue_item(&mut self) -> EnqueueItem {
        let (task, priority) = (TaskId(self.rng.u64(0..TASKS)), f64::from(self.rng.u8(0..20)));
        EnqueueItem { task, priority }
    }

    /// Finishes or extends a grant that it received, and that may have ended. A client that extends or declines a grant knows of
    /// it: so only delivered ones are used.
    fn act_on_event(&mut self) -> Option<SemaphoreCommand> {
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

/// Panics unless every semaphore obeys the rules, no grant was given to two tasks, and every held grant and every request to
/// release one was delivered, or is delivered now. To be called when all unacknowledged events are due again.
pub async fn check_invariants<E: Execute>(
    queue: &E,
    semaphores: usize,
    mut delivered: DeliveredEvents,
) {
    let keys = keys(semaphores);
    for (number, (info, members)) in show(queue, &keys).await.into_iter().enumerate() {
        let held = members.iter().filter(|task| task.grant.is_some()).count();
        // Never more than the highest capacity of the storm.
        assert!(held as i64 <= active(number) + 1, "{}: {held} hold a grant", info.key);
    }
    stabilize(queue, &keys, &mut delivered).await;
    let mut owners = BTreeMap::new();
    for (key, task, grant, _) in &delivered {
        let owner = owners.entry((key, grant)).or_insert(task);
        assert_eq!(*owner, task, "{key}: grant {grant} was given to two tasks");
    }
    let mut grants = 0;
    for (info, members) in show(queue, &keys).await {
        let key = &info.key;
        for holder in audit::check(&info, &members) {
            let grant = holder.grant.expect("a holder has a grant");
            let was = |kind| delivered.contains(&(key.clone(), holder.task, grant, kind));
            assert!(
                was(EventKind::Acquired),
                "{key}: task {} never received its grant",
                holder.task
            );
            let is_asked = holder.status == Status::TryRelease;
            assert!(
                !is_asked || was(EventKind::TryRelease),
                "{key}: task {} was never asked",
                holder.task
            );
            grants += 1;
        }
    }
    assert!(grants > 0, "a storm without grants proves nothing");
    for kind in [EventKind::Acquired, EventKind::TryRelease, EventKind::Expired] {
        assert!(
            delivered.iter().any(|delivered| delivered.3 == kind),
            "no event of the kind {kind:?} was delivered"
        );
    }
}

/// Brings semaphores to where time changes nothing any more, so that they can be shown at: limits are as at the
/// tasks with a lease, a cool-down or above the limit leave, and all events are delivered.
async fn stabilize<E: Execute>(queue: &E, keys: &[SemaphoreKey], delivered: &mut DeliveredEvents) {
    let change = |number: usize| SemaphoreChange {
        lease: Some(None),
        ack_timeout: Some(None),
        cool_down: Some(Span::ZERO),
        // Repeated requests to a holder would never end.
        revoke_grace: Some(Span::from_secs(3600)),
        force: Some(false),
        shed: Some(false),
        margin: Some(0.0),
        ..SemaphoreChange::limits(active(number), active(number))
    };
    configure(queue, keys, change).await;
    loop {
        let event_key = drain_events(queue, delivered).await;
        let mut releases = Vec::new();
        for (number, (info, members)) in show(queue, keys).await.into_iter().enumerate() {
            let finish = GrantFinish::Release;
            let item = |task| GrantItem { task, grant: None, finish };
            let leave = tasks_that_leave(&members, active(number) as usize);
            let items: Vec<_> = leave.into_iter().map(item).collect();
            if !items.is_empty() {
                let release = SemaphoreCommand::Finish { key: info.key, items };
                releases.push(Command::Semaphore(release));
            }
        }
        if !event_key && releases.is_empty() {
            return;
        }
        if !releases.is_empty() {
            let replies = queue.execute(releases).await;
            assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        }
    }
}

/// Shows all semaphores and their tasks.
async fn show<E: Execute>(
    queue: &E,
    keys: &[SemaphoreKey],
) -> Vec<(SemaphoreInfo, Vec<MemberInfo>)> {
    let mut shown = Vec::new();
    for some in keys.chunks(50) {
        shown.extend(audit::show(queue, some, 0..TASKS).await);
    }
    shown
}

fn tasks_that_leave(members: &[MemberInfo], active: usize) -> Vec<TaskId> {
    let moves = |task: &&MemberInfo| task.lease_until.is_some() || task.status == Status::Delayed;
    let (moving, still): (Vec<&MemberInfo>, Vec<&MemberInfo>) = members.iter().partition(moves);
    let holders: Vec<_> = still.iter().filter(|task| task.grant.is_some()).collect();
    let surplus = holders.iter().take(holders.len().saturating_sub(active));
    moving.iter().map(|task| task.task).chain(surplus.map(|task| task.task)).collect()
}

/// Fetches and acknowledges all due events and returns whether there were any.
async fn drain_events<E: Execute>(queue: &E, delivered: &mut DeliveredEvents) -> bool {
    let mut any = false;
    loop {
        let fetch = SemaphoreCommand::Events { key: None, count: 1000, wait: Span::ZERO };
        let Ok(SemaphoreReply::Events(events)) = execute(queue, fetch).await else {
            panic!("events can be fetched");
        };
        if events.is_empty() {
            return any;
        }
        any = true;
        delivered.extend(events.iter().map(event_key));
        let events = events.iter().map(|event| event.id).collect();
        execute(queue, SemaphoreCommand::Acknowledge { events }).await.expect("the events exist");
    }
}

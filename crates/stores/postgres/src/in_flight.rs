//! Decides which batches run at the same time, each in a transaction of its own.
//!
//! While the database commits one batch, it can work on the next one, on another connection and so on another core. Batches
//! run at the same time only where callers see no difference: both consist of puts, acks by lease and takes without a session in tubes that
//! have neither sub-queues nor a capacity, and no tube gets tasks from one and loses tasks by the other. If both put into one
//! tube, the ids of the earlier batch must be reserved before the later one begins, which is done for large ones. If both take
//! from one tube, the later one begins when the earlier one has found and locked all its tasks, which the database reports before
//! that batch ends, so deliveries keep the order of arrival. All other batches wait until those before them have ended, and those
//! behind wait for them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::TubeName;
use tokio::sync::Notify;

use super::execute::ConnectionRole;

/// Maximum number of batches at the same time: one for each connection.
pub(super) const BATCHES_MAX: usize = 2;

/// The batches that have not ended, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    state: Mutex<InFlightState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct InFlightState {
    batches: VecDeque<InFlightBatch>,
    next: u64,
}

#[derive(Debug)]
struct InFlightBatch {
    number: u64,
    progress: BatchProgress,
    /// Which tubes it uses; `None` if it runs beside no other batch.
    footprint: Option<Footprint>,
    /// How many of its takes have not found all their tasks, if that is known before its end.
    searching: Option<usize>,
    role: ConnectionRole,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BatchProgress {
    Waiting,
    Started,
    /// The ids of its puts are reserved.
    Reserved,
}

/// The tubes that a batch uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint {
    pub puts: BTreeSet<TubeName>,
    pub takes: BTreeSet<TubeName>,
    /// Whether it has so many tasks to put that it reserves their ids.
    pub reserves: bool,
}

impl Footprint {
    /// Whether a batch may be formed that runs beside this earlier one.
    fn admits(&self, later: &Footprint) -> bool {
        self.puts.is_disjoint(&later.takes)
            && self.takes.is_disjoint(&later.puts)
            && (self.reserves || self.puts.is_disjoint(&later.puts))
    }
}

impl InFlightBatch {
    /// Whether a later batch may begin now.
    fn lets_begin(&self, later: &Footprint) -> bool {
        let Some(used) = &self.footprint else { return false };
        used.admits(later)
            && (self.progress == BatchProgress::Reserved || used.puts.is_disjoint(&later.puts))
            && (self.searching == Some(0) || used.takes.is_disjoint(&later.takes))
    }
}

/// The place of a batch among those in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct FlightTicket {
    in_flight: Arc<InFlight>,
    number: u64,
}

/// How a batch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchStart {
    pub role: ConnectionRole,
    /// Whether no other batch was running, so that it may use both connections.
    pub is_alone: bool,
    /// Whether later batches may begin once the ids of its puts are reserved.
    pub reserves: bool,
}

impl InFlight {
    /// Notes a batch that has arrived. Tasks of the runtime do not start in the order of arrival, so a batch enters first.
    pub fn enter(self: &Arc<Self>, footprint: Option<Footprint>) -> FlightTicket {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.batches.push_back(InFlightBatch {
            number,
            progress: BatchProgress::Waiting,
            footprint,
            searching: None,
            role: ConnectionRole::Main,
        });
        drop(state);
        FlightTicket { in_flight: Arc::clone(self), number }
    }

    /// Notes that a take of a batch on this connection has found all its tasks.
    pub fn note_found(&self, role: ConnectionRole) {
        let mut state = self.lock();
        let Some(batch) = state.batches.iter_mut().find(|batch| batch.role == role) else { return };
        batch.searching = batch.searching.map(|left| left.saturating_sub(1));
        let is_last = batch.searching == Some(0);
        drop(state);
        if is_last {
            self.changed.notify_waiters();
        }
    }

    /// Whether a batch with this footprint could run beside those in flight.
    pub fn admits(&self, later: &Footprint) -> bool {
        let admits = |earlier: &InFlightBatch| {
            earlier.footprint.as_ref().is_some_and(|used| used.admits(later))
        };
        self.lock().batches.iter().all(admits)
    }

    fn lock(&self) -> MutexGuard<'_, InFlightState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightState {
    /// Starts a batch, if it may run beside those before it. One that is not sound runs alone.
    fn try_start(&mut self, number: u64, is_sound: bool) -> Option<BatchStart> {
        let place = self.batches.iter().position(|batch| batch.number == number)?;
        if !is_sound {
            self.batches[place].footprint = None;
        }
        let before = || self.batches.range(..place);
        let own = &self.batches[place].footprint;
        let lets_begin = |earlier: &InFlightBatch| {
            earlier.progress != BatchProgress::Waiting
                && own.as_ref().is_some_and(|own| earlier.lets_begin(own))
        };
        if !before().all(lets_begin) {
            return None;
        }
        let is_main_used = before().any(|batch| batch.role == ConnectionRole::Main);
        let role = if is_main_used { ConnectionRole::Second } else { ConnectionRole::Main };
        let reserves = own.as_ref().is_some_and(|own| own.reserves);
        let batch = &mut self.batches[place];
        (batch.role, batch.progress) = (role, BatchProgress::Started);
        Some(BatchStart { role, is_alone: place == 0, reserves })
    }
}

impl FlightTicket {
    /// Waits until the batch may start.
    pub async fn start(&self, is_sound: impl Fn() -> bool) -> BatchStart {
        loop {
            let changed = self.in_flight.changed.notified();
            let is_sound = is_sound();
            let started = self.in_flight.lock().try_start(self.number, is_sound);
            if let Some(start) = started {
                self.in_flight.changed.notify_waiters();
                return start;
            }
            changed.await;
        }
    }

    /// Notes that the ids of its puts are reserved.
    pub fn note_reserved(&self) {
        self.change(|batch| batch.progress = BatchProgress::Reserved);
        self.in_flight.changed.notify_waiters();
    }

    /// Notes how many takes it makes on its connection, if it uses only one.
    pub fn note_takes(&self, count: usize) {
        self.change(|batch| batch.searching = Some(count));
    }

    fn change(&self, change: impl Fn(&mut InFlightBatch)) {
        let mut state = self.in_flight.lock();
        state.batches.iter_mut().filter(|batch| batch.number == self.number).for_each(change);
    }
}

impl Drop for FlightTicket {
    fn drop(&mut self) {
        self.in_flight.lock().batches.retain(|batch| batch.number != self.number);
        self.in_flight.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch that puts into these tubes and takes from those, each named by a letter. With capital letters it puts many.
    fn footprint(puts: &str, takes: &str) -> Option<Footprint> {
        let tubes = |names: &str| -> BTreeSet<TubeName> {
            let names = names.to_lowercase();
            names.chars().map(|name| TubeName::new(&name.to_string()).unwrap()).collect()
        };
        let reserves = puts.chars().any(char::is_uppercase);
        Some(Footprint { puts: tubes(puts), takes: tubes(takes), reserves })
    }

    fn begin(in_flight: &InFlight, ticket: &FlightTicket) -> Option<BatchStart> {
        in_flight.lock().try_start(ticket.number, true)
    }

    #[test]
    fn independent_batches_run_on_both_connections() {
        let in_flight = Arc::new(InFlight::default());
        let first = in_flight.enter(footprint("a", "b"));
        let second = in_flight.enter(footprint("", "c"));
        assert_eq!(begin(&in_flight, &second), None, "the first has not started");
        let started = begin(&in_flight, &first).unwrap();
        assert_eq!((started.role, started.is_alone), (ConnectionRole::Main, true));
        let started = begin(&in_flight, &second).unwrap();
        assert_eq!((started.role, started.is_alone), (ConnectionRole::Second, false));
        drop(first);
        let third = in_flight.enter(footprint("", ""));
        assert_eq!(begin(&in_flight, &third).unwrap().role, ConnectionRole::Main);
    }

    #[test]
    fn a_take_never_overtakes_a_put() {
        for (first, second) in
            [(footprint("a", ""), footprint("", "a")), (footprint("", "a"), footprint("a", ""))]
        {
            let in_flight = Arc::new(InFlight::default());
            let first = in_flight.enter(first);
            assert!(!in_flight.admits(second.as_ref().unwrap()));
            let second = in_flight.enter(second);
            begin(&in_flight, &first).unwrap();
            assert_eq!(begin(&in_flight, &second), None);
            drop(first);
            assert!(begin(&in_flight, &second).is_some_and(|start| start.is_alone));
        }
    }

    /// Ids are in the order of the batches.
    #[test]
    fn puts_into_one_tube_wait_for_the_ids_of_those_before() {
        let in_flight = Arc::new(InFlight::default());
        let large = in_flight.enter(footprint("A", ""));
        let small = footprint("a", "");
        assert!(in_flight.admits(small.as_ref().unwrap()));
        let small = in_flight.enter(small);
        begin(&in_flight, &large).unwrap();
        assert_eq!(begin(&in_flight, &small), None, "the ids are not reserved yet");
        large.note_reserved();
        assert!(begin(&in_flight, &small).is_some());
        drop(large);
        assert!(!in_flight.admits(&footprint("A", "").unwrap()), "few tasks reserve no ids");
    }

    /// Deliveries are in the order of the batches.
    #[test]
    fn takes_from_one_tube_wait_until_those_before_have_found_their_tasks() {
        let in_flight = Arc::new(InFlight::default());
        let first = in_flight.enter(footprint("", "ab"));
        let second = in_flight.enter(footprint("", "b"));
        begin(&in_flight, &first).unwrap();
        assert_eq!(begin(&in_flight, &second), None, "nothing is known of its takes");
        first.note_takes(2);
        for role in [ConnectionRole::Second, ConnectionRole::Main] {
            in_flight.note_found(role);
            assert_eq!(begin(&in_flight, &second), None);
        }
        in_flight.note_found(ConnectionRole::Main);
        assert!(begin(&in_flight, &second).is_some_and(|start| !start.is_alone));
    }

    #[test]
    fn other_batches_run_alone() {
        let in_flight = Arc::new(InFlight::default());
        let first = in_flight.enter(footprint("", "a"));
        let other = in_flight.enter(None);
        let third = in_flight.enter(footprint("", "b"));
        begin(&in_flight, &first).unwrap();
        assert_eq!(begin(&in_flight, &other), None);
        assert!(!in_flight.admits(&footprint("", "b").unwrap()));
        drop(first);
        begin(&in_flight, &other).unwrap();
        assert_eq!(begin(&in_flight, &third), None);
        drop(other);
        let unsound = in_flight.lock().try_start(third.number, false).unwrap();
        assert!(unsound.is_alone && !in_flight.admits(&Footprint::default()));
    }
}

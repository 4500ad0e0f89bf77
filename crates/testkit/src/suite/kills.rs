//! The database is killed while servers use it, and started again: nothing acknowledged is lost, nothing delivered twice.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use fastrand::Rng;
use taskyard_conformance::audit::{Call, Operation, Recorder, Unrecorded};
use taskyard_conformance::random::{new_seed, runs};
use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, SemaphoreChange,
    SemaphoreCommand, SemaphoreKey, Span, State, Take, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store::remote::{Clock, RemoteStore};

use crate::calls::{NOW, ask, make_tube, put};
use crate::{OwnServer, SharedDatabase};

/// About how many calls are answered before and after each kill.
const STEPS: usize = 300;
/// How often the database is killed; `TASKYARD_RUNS` multiplies it.
const KILLS: usize = 2;
const SERVERS: usize = 3;
/// The most tasks that a server puts before it takes one.
const PUTS_MAX: usize = 3;

pub fn no_task_is_lost_or_delivered_twice<D: SharedDatabase>() {
    storm::<D>(TubeOptions::new(Kind::Utube));
}

pub fn no_task_behind_a_semaphore_is_lost<D: SharedDatabase>() {
    let semaphore = Some(SemaphoreKey::new("door").expect("a key"));
    storm::<D>(TubeOptions { semaphore, ..TubeOptions::new(Kind::Utube) });
}

crate::suite::suite! {
    /// Runs the cases about kills on a [`SharedDatabase`].
    kill_suite, kills, $:
    no_task_is_lost_or_delivered_twice
    no_task_behind_a_semaphore_is_lost
}

fn storm<D: SharedDatabase>(options: TubeOptions) {
    let Some(database) = D::server() else { return };
    let url = database.url();
    let open = || RemoteStore::<D::Backend>::open(&url, Clock::Caller).expect("the store opens");
    let store = open();
    if let Some(key) = options.semaphore.clone() {
        let change = Box::new(SemaphoreChange::limits(2, 2));
        let configure = SemaphoreCommand::Configure { key, change, only_new: true };
        ask(&store, Command::Semaphore(configure)).expect("there is a semaphore");
    }
    let tube = make_tube(&store, options);
    let (recorder, known, stop) = (Recorder::default(), Mutex::default(), AtomicBool::new(false));
    let (steps, done) = channel();
    let mut rng = Rng::with_seed(new_seed());
    let mut answered = 0;
    thread::scope(|scope| {
        for _ in 0..SERVERS {
            let load = Load {
                store: open(),
                tube: &tube,
                recorder: &recorder,
                known: &known,
                steps: steps.clone(),
            };
            let (stop, rng) = (&stop, rng.fork());
            scope.spawn(move || load.run(stop, rng));
        }
        let mut wait = || {
            let count = rng.usize(STEPS / 2..=STEPS * 3 / 2);
            done.iter().take(count).for_each(drop);
            answered += count;
        };
        for _ in 0..KILLS * runs() {
            wait();
            database.kill();
            database.start();
        }
        wait();
        stop.store(true, Ordering::Relaxed);
    });
    database.audit(&tube);
    let known = known.into_inner().expect("no thread failed");
    judge(&store, &tube, &recorder, &known, D::LEASES_INCREASE);
    // Of the calls at least one in `PUTS_MAX` is a put, but the replies of some are lost.
    assert!(known.len() > answered / (PUTS_MAX + 1), "{} tasks, {answered} calls", known.len());
}

/// A server under load, and what it saw.
struct Load<'a, S> {
    store: S,
    tube: &'a TubeName,
    recorder: &'a Recorder,
    /// Ids whose put was answered.
    known: &'a Mutex<HashSet<TaskId>>,
    steps: Sender<()>,
}

impl<S: Store> Load<'_, S> {
    fn run(&self, stop: &AtomicBool, mut rng: Rng) {
        while !stop.load(Ordering::Relaxed) {
            (0..rng.usize(1..=PUTS_MAX)).for_each(|_| self.put());
            if let Some((id, holder)) = self.take() {
                self.ack(id, holder);
            }
        }
    }

    /// Repeats a command until the database answers; `None` when its outcome is unknown. An answer is a step.
    fn ask(&self, command: Command) -> Option<Reply> {
        loop {
            match ask(&self.store, command.clone()) {
                Ok(reply) => {
                    // The test may have seen enough.
                    let _ = self.steps.send(());
                    return Some(reply);
                }
                Err(Error::StoreUnavailable(_)) => thread::yield_now(),
                Err(Error::OutcomeUnknown(_)) => return None,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn put(&self) {
        let begin = self.recorder.begin();
        let Some(Reply::Put(placed)) = self.ask(put(self.tube, 1)) else { return };
        for placed in placed {
            self.recorder.end(begin, self.tube, placed.id, Operation::Put(placed.state));
            self.known.lock().expect("no thread failed").insert(placed.id);
        }
    }

    fn take(&self) -> Option<(TaskId, Holder)> {
        let begin = self.recorder.begin();
        let tube = self.tube.clone();
        let take =
            Take { tube, count: 1, session: None, lease: None, worker: None, wait: Span::ZERO };
        let Reply::Taken(tasks) = self.ask(Command::Take(take))? else { return None };
        let task = tasks.first()?;
        let lease = task.lease?;
        let (start, until) = (task.start?, task.lease_until?);
        self.recorder.end(begin, self.tube, task.id, Operation::Take { lease, start, until });
        Some((task.id, Holder::Lease(lease)))
    }

    /// Acks until it is answered: an ack whose outcome is unknown may have been done.
    fn ack(&self, id: TaskId, holder: Holder) {
        let Holder::Lease(lease) = holder else { return };
        let mut lost = false;
        loop {
            let begin = self.recorder.begin();
            let items = vec![FinishItem { id, holder, finish: Finish::Ack }];
            let finish = Command::Finish { tube: self.tube.clone(), items, show: false };
            let Some(Reply::Finished(outcomes)) = self.ask(finish) else {
                self.recorder.interrupt(begin, self.tube, id, Operation::Ack(lease));
                lost = true;
                continue;
            };
            match &outcomes[0] {
                Outcome::Done(_) => self.recorder.end(begin, self.tube, id, Operation::Ack(lease)),
                other => assert!(lost && *other == Outcome::Missing, "{id}: {other:?}"),
            }
            return;
        }
    }
}

/// Compares what the servers saw with what is left.
fn judge(
    store: &impl Store,
    tube: &TubeName,
    recorder: &Recorder,
    known: &HashSet<TaskId>,
    leases_increase: bool,
) {
    let mut history = recorder.history();
    // Ids near a known one may have been used by puts that were cut off. Redis leaves out a million with each of its starts.
    let near = known.iter().flat_map(|id| (id.0.saturating_sub(100)..id.0 + 100).map(TaskId));
    let ids: Vec<TaskId> = near.collect::<BTreeSet<_>>().into_iter().collect();
    let mut left = HashMap::new();
    for ids in ids.chunks(1000) {
        let peek = Command::Peek { tube: tube.clone(), ids: ids.to_vec() };
        let Ok(Reply::Tasks(tasks)) = ask(store, peek) else { panic!("a peek shows tasks") };
        for task in tasks {
            left.insert(task.id, task.state);
            history.record_final_state(tube, task.id, task.state);
        }
    }
    let all: Vec<TaskId> = history.tasks().map(|(_, id)| id).collect();
    for id in all {
        if !known.contains(&id) {
            // The reply that would have said whether it waits for a semaphore was lost.
            let waits = left.get(&id) == Some(&State::Delayed);
            let put = Operation::Put(if waits { State::Delayed } else { State::Ready });
            history.record(tube, id, Call { begin: 0, end: None, operation: put });
        }
        if !left.contains_key(&id) {
            history.record_final_state(tube, id, State::Done);
        }
    }
    let ended = Timestamp::from_micros(NOW.as_micros() + 1);
    let violations = history.check(Unrecorded { lost_takes: true, ..Unrecorded::until(ended) });
    assert!(violations.is_empty(), "{}", violations[0]);
    if leases_increase {
        let disorder = history.check_lease_order();
        assert!(disorder.is_empty(), "{}", disorder[0]);
    }
}

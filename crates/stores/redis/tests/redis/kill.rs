//! Redis is killed while servers use it, and comes back.

use std::collections::{BTreeSet, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use taskyard_conformance::audit::{Call, Did, Recorder, Unseen};
use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, Span, State, Take, TaskId,
    Timestamp, TubeName, TubeOptions,
};
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::redis::open;
use taskyard_testkit::redis::{Instance, program};

/// How many things must have been done before and after each kill.
const STEPS: usize = 300;
const KILLS: usize = 2;
const SERVERS: usize = 3;

/// A server under load, and what it saw.
struct Load<'a> {
    store: RedisStore,
    tube: &'a TubeName,
    recorder: &'a Recorder,
    /// Ids whose put was answered.
    known: &'a Mutex<HashSet<TaskId>>,
    steps: Sender<()>,
}

impl Load<'_> {
    fn run(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.put();
            self.put();
            if let Some((id, holder)) = self.take() {
                self.ack(id, holder);
            }
        }
    }

    /// Asks until Redis is there; nothing when what was asked may have been done. Notes a step when it was
    /// answered.
    fn ask(&self, command: Command) -> Option<Reply> {
        loop {
            match ask(&self.store, command.clone()) {
                Ok(reply) => {
                    // The test may have seen enough.
                    let _ = self.steps.send(());
                    return Some(reply);
                }
                Err(Error::StoreAway(_)) => thread::yield_now(),
                Err(Error::OutcomeUnknown(_)) => return None,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn put(&self) {
        let begin = self.recorder.begin();
        let Some(Reply::Put(placed)) = self.ask(put(self.tube, 1)) else { return };
        for placed in placed {
            self.recorder.end(begin, self.tube, placed.id, Did::Put(placed.state));
            self.known.lock().expect("no thread failed").insert(placed.id);
        }
    }

    fn take(&self) -> Option<(TaskId, Holder)> {
        let begin = self.recorder.begin();
        let tube = self.tube.clone();
        let take = Take { tube, count: 1, session: None, lease: None, wait: Span::ZERO };
        let Reply::Taken(tasks) = self.ask(Command::Take(take))? else { return None };
        let task = tasks.first()?;
        let lease = task.lease?;
        let (start, until) = (task.start?, task.lease_until?);
        self.recorder.end(begin, self.tube, task.id, Did::Take { lease, start, until });
        Some((task.id, Holder::Lease(lease)))
    }

    /// Acks until it is answered: what was lost on the way may have been done.
    fn ack(&self, id: TaskId, holder: Holder) {
        let Holder::Lease(lease) = holder else { return };
        let mut lost = false;
        loop {
            let begin = self.recorder.begin();
            let items = vec![FinishItem { id, holder, finish: Finish::Ack }];
            let finish = Command::Finish { tube: self.tube.clone(), items, show: false };
            let Some(Reply::Finished(outcomes)) = self.ask(finish) else {
                self.recorder.cut_off(begin, self.tube, id, Did::Ack(lease));
                lost = true;
                continue;
            };
            match &outcomes[0] {
                Outcome::Done(_) => self.recorder.end(begin, self.tube, id, Did::Ack(lease)),
                other => assert!(lost && *other == Outcome::Missing, "{id}: {other:?}"),
            }
            return;
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_given_twice() {
    let Some(program) = program() else { return };
    let redis = Instance::new(program);
    let url = format!("{}?prefix=kill", redis.url());
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Utube));
    let (recorder, known, stop) = (Recorder::default(), Mutex::default(), AtomicBool::new(false));
    let (steps, done) = channel();
    thread::scope(|scope| {
        for _ in 0..SERVERS {
            let load = Load {
                store: open(&url),
                tube: &tube,
                recorder: &recorder,
                known: &known,
                steps: steps.clone(),
            };
            let stop = &stop;
            scope.spawn(move || load.run(stop));
        }
        for _ in 0..KILLS {
            done.iter().take(STEPS).for_each(drop);
            redis.kill();
            redis.start();
        }
        done.iter().take(STEPS).for_each(drop);
        stop.store(true, Ordering::Relaxed);
    });
    redis.audit("kill", "mail");
    judge(&store, &tube, &recorder, &known.into_inner().expect("no thread failed"));
}

fn judge(store: &RedisStore, tube: &TubeName, recorder: &Recorder, known: &HashSet<TaskId>) {
    let mut history = recorder.history();
    // Ids near a known one may have been used by puts that were cut off. With each start of Redis a million are left out.
    let near = known.iter().flat_map(|id| (id.0.saturating_sub(100)..id.0 + 100).map(TaskId));
    let ids: Vec<TaskId> = near.collect::<BTreeSet<_>>().into_iter().collect();
    let mut left = HashSet::new();
    for ids in ids.chunks(1000) {
        let peek = Command::Peek { tube: tube.clone(), ids: ids.to_vec() };
        let Ok(Reply::Tasks(tasks)) = ask(store, peek) else { panic!("a peek shows tasks") };
        for task in tasks {
            left.insert(task.id);
            history.found(tube, task.id, task.state);
        }
    }
    let all: Vec<TaskId> = history.tasks().map(|(_, id)| id).collect();
    for id in all {
        if !known.contains(&id) {
            let call = Call { begin: 0, end: None, did: Did::Put(State::Ready) };
            history.record(tube, id, call);
        }
        if !left.contains(&id) {
            history.found(tube, id, State::Done);
        }
    }
    let ended = Timestamp::from_micros(NOW.as_micros() + 1);
    let violations = history.check(Unseen { lost_takes: true, ..Unseen::until(ended) });
    assert!(violations.is_empty(), "{}", violations[0]);
    assert!(known.len() > KILLS * STEPS / 4, "only {} tasks were put", known.len());
}

//! The loop itself: one turn after the other, on a thread of its own.
//!
//! A turn picks up what has arrived, runs it as one batch, and then runs smaller batches until
//! nobody who waits can be served any more. How commands enter a batch is in `admit`, how those who
//! wait are served in `serve`.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use taskyard_core::{Command, Effects, Error, News, Reply, Result, Timestamp, TubeName};
use taskyard_store::{Executed, Store};

use crate::admit::Gate;
use crate::answer::unanswered;
use crate::clock::Clock;
use crate::inbox::{Inbox, Job, Question, Rumours, Work};
use crate::jobs::{Jobs, Place};
use crate::listeners::{ListenerId, Listeners, in_vain};
use crate::tick::Ticks;
use crate::timeline::Timeline;
use crate::waiters::{Side, WaiterId, Waiters, Waiting};

/// Everything that is under way, owned by the loop's thread.
pub(crate) struct Running {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) timeline: Timeline,
    waker: Waker,
    /// Wakes the loop where it also waits for commands.
    pub(crate) bell: Waker,
    pub(crate) ticks: Ticks,
    /// When to look what other servers did, if there may be any.
    next_poll: Option<Timestamp>,
    pub(crate) now: Timestamp,
    pub(crate) stopping: bool,
    pub(crate) jobs: Jobs,
    pub(crate) waiters: Waiters,
    pub(crate) listeners: Listeners,
    /// The batch that is being put together.
    pub(crate) round: Round,
    pub(crate) takes: Gate,
    pub(crate) puts: Gate,
    /// Drops of tubes that must first see who still waits there at the end of the turn.
    pub(crate) late_drops: Vec<(Place, Command)>,
    /// Parked commands that do not wait longer than this turn.
    pub(crate) impatient: Vec<WaiterId>,
    /// Commands that give back what nobody received.
    pub(crate) returns: Vec<Command>,
    /// In which tubes there were how many tasks after the latest of several batches under way.
    pub(crate) plenty: Vec<(TubeName, u64)>,
}

/// A batch for the store, and where each of its replies belongs.
#[derive(Default)]
pub(crate) struct Round {
    commands: Vec<Command>,
    origins: Vec<Origin>,
    /// Copies of the commands that may have to wait, in their order.
    tries: Vec<Command>,
}

/// Where a command of a batch comes from.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    /// From a job; its reply is final.
    Job(Place),
    /// From a job; it is parked when its reply is a refusal that may pass.
    Try(Place),
    /// From a waiter; it stays parked when its reply is a refusal that may pass.
    Waiter(Place, WaiterId),
    /// From somebody who waits for events; goes on waiting when there are none.
    Listener(ListenerId),
    /// From the loop: time has something to do.
    Tick,
    /// From the loop: nobody received these tasks.
    Return,
}

impl Running {
    /// Everything the loop needs. To be called on the thread that will run it.
    pub fn new(inbox: Arc<Inbox>, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let timeline = Timeline::new(clock, store.time());
        let now = timeline.now();
        let ears = inbox.clone();
        store.watch(Arc::new(move |what| ears.hear(what)));
        Running {
            next_poll: store.poll_every().map(|every| now + every),
            bell: Waker::from(inbox.clone()),
            inbox,
            store,
            timeline,
            waker: Waker::from(Arc::new(Unpark(thread::current()))),
            ticks: Ticks::new(now),
            now,
            stopping: false,
            jobs: Jobs::default(),
            waiters: Waiters::default(),
            listeners: Listeners::default(),
            round: Round::default(),
            takes: Gate::default(),
            puts: Gate::default(),
            late_drops: Vec::new(),
            impatient: Vec::new(),
            returns: Vec::new(),
            plenty: Vec::new(),
        }
    }

    /// Runs until the engine is stopped, then closes the store.
    pub fn run(mut self) -> Result<()> {
        let mut spare = VecDeque::new();
        loop {
            let work = self.inbox.gather(&self.timeline, self.next_deadline(), spare);
            let last = work.last;
            spare = self.turn(work);
            if last {
                return block_on(self.store.close(), &self.waker);
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let waiting = [self.waiters.next_deadline(), self.listeners.next_deadline()];
        let deadlines = [self.ticks.next(), self.next_poll].into_iter().chain(waiting);
        deadlines.flatten().min()
    }

    /// One turn. Hands back the queue of jobs, empty, to be used again.
    fn turn(&mut self, mut work: Work) -> VecDeque<Job> {
        self.now = self.timeline.now();
        self.follow_wall_clock();
        self.stopping = work.stopping;
        self.let_go(work.gone);
        self.listen(work.elsewhere);
        if self.stopping {
            self.dismiss_everybody();
        } else if let Some(tick) = self.ticks.due(self.now) {
            self.round.push(Origin::Tick, tick);
        }
        for job in work.jobs.drain(..) {
            self.admit(job);
        }
        self.execute();
        self.settle();
        self.dismiss_impatient();
        self.admit_late_drops();
        self.settle();
        for question in work.questions {
            self.answer_question(question);
        }
        work.jobs
    }

    /// When the wall clock was set: tells a store that goes by the engine's time, in which everything lasts as long as it was to
    /// last; only tasks with a start time follow the wall clock.
    fn follow_wall_clock(&mut self) {
        let Some(wall_ahead) = self.timeline.step(self.now) else { return };
        if self.timeline.tells() {
            let told = block_on(self.store.set_wall_ahead(self.now, wall_ahead), &self.waker);
            if let Err(error) = told {
                tracing::warn!(%error, "the wall clock was set, which cannot be written down; trying again in a second");
                return self.timeline.put_off(self.now);
            }
        }
        let by = self.timeline.adopt(wall_ahead);
        let (seconds, way) =
            (by.unsigned_abs() / 1_000_000, if by < 0 { "back" } else { "forward" });
        tracing::warn!(
            "the wall clock was set {way} by {seconds} s; leases, waits and delays keep their remaining time, tasks with a \
             start time follow the wall clock"
        );
        self.ticks.ask(self.now);
    }

    /// Notes where other servers may have something for those who wait here.
    fn listen(&mut self, mut elsewhere: Rumours) {
        if let (Some(due), Some(every)) = (self.next_poll, self.store.poll_every())
            && due <= self.now
        {
            self.next_poll = Some(self.now + every);
            elsewhere.anything = true;
        }
        if elsewhere.events || elsewhere.anything {
            self.listeners.news.add(News::All);
        }
        if elsewhere.anything {
            self.ticks.ask(self.now);
            elsewhere.tubes.extend(self.waiters.tubes());
        }
        for tube in elsewhere.tubes {
            self.want(Side::Take, tube.clone(), None);
            self.want(Side::Put, tube, None);
        }
    }

    /// Runs batches until nobody who waits can be served any more.
    fn settle(&mut self) {
        loop {
            self.stage();
            if self.round.commands.is_empty() {
                return;
            }
            if !self.execute() {
                // Nobody was served: what the store believes to have is not there for them.
                self.takes.wanted.clear();
                self.puts.wanted.clear();
            }
        }
    }

    /// Runs the batch that was put together and gives everybody their reply. Tells whether it did
    /// more than to let waiters try in vain.
    fn execute(&mut self) -> bool {
        if self.store.batches_max() > 1 {
            return self.fly();
        }
        let mut progress = false;
        if !self.round.commands.is_empty() {
            self.now = self.timeline.now();
            let mut round = std::mem::take(&mut self.round);
            let commands = round.take_commands();
            let count = commands.len();
            let now = self.timeline.to_store(self.now);
            let executed = block_on(self.store.execute(now, commands), &self.waker);
            progress = self.take_in(&mut round, count, executed);
            // It has room for the next one.
            self.round = round;
        }
        self.takes.open();
        self.puts.open();
        self.send_finished();
        progress
    }

    /// Takes in what came of a batch of so many commands.
    pub(crate) fn take_in(
        &mut self,
        round: &mut Round,
        count: usize,
        mut executed: Executed,
    ) -> bool {
        if executed.replies.len() != count {
            tracing::error!(count, answered = executed.replies.len(), "replies are missing");
            let missing = || Err(unanswered());
            executed.replies.resize_with(count, missing);
        }
        self.distribute(round, executed)
    }

    /// Gives everybody their reply, and takes in what the store says about the time and the tubes.
    fn distribute(&mut self, round: &mut Round, executed: Executed) -> bool {
        let Executed { replies, effects, unloaded } = executed;
        for unloaded in unloaded {
            if let Some(place) = round.origins.get(unloaded.reply).and_then(Origin::place) {
                self.jobs.lacks_body(place, unloaded);
            }
        }
        let alone = replies.len() == 1;
        let (mut failed, mut progress, mut ticked) = (false, false, None);
        let mut tries = round.tries.drain(..);
        for (origin, reply) in round.origins.drain(..).zip(replies) {
            failed |= is_failure(&reply);
            progress |= match origin {
                Origin::Waiter(..) => !may_pass(&reply),
                Origin::Listener(_) => !in_vain(&reply),
                _ => true,
            };
            match origin {
                Origin::Job(place) => self.jobs.answer(place, reply),
                Origin::Try(place) => match tries.next() {
                    Some(command) if may_pass(&reply) => self.park(place, command, reply),
                    _ => self.jobs.answer(place, reply),
                },
                Origin::Waiter(_, id) => self.serve(id, reply),
                Origin::Listener(id) => self.serve_listener(id, reply),
                Origin::Tick => ticked = Some(reply),
                Origin::Return => report(&reply),
            }
        }
        drop(tries);
        // A batch that failed as a whole knows nothing about the time.
        if !failed || effects.next_wakeup.is_some() {
            let next = effects.next_wakeup.map(|moment| self.timeline.of_store(moment));
            self.ticks.learn(next);
        }
        if let Some(reply) = ticked {
            self.ticks.ticked(self.now, &reply, alone);
        }
        self.heed(effects);
        progress
    }

    /// Notes for whom there may be something now.
    fn heed(&mut self, effects: Effects) {
        self.listeners.news.add(effects.events);
        for (tube, takeable) in effects.ready {
            self.want(Side::Take, tube, Some(takeable));
        }
        for (tube, room) in effects.room {
            self.want(Side::Put, tube, Some(room));
        }
    }

    /// Sends what is complete. What nobody receives goes back in the next batch.
    pub(crate) fn send_finished(&mut self) {
        let returns = &mut self.returns;
        self.jobs.send_finished(|answer| returns.extend(answer.returns()));
    }

    fn answer_question(&self, question: Question) {
        // Whoever asked may be gone; then nobody needs the answer.
        match question {
            Question::Waiting(reply) => {
                let mut waiting = self.waiters.list();
                for Waiting { since, until, .. } in &mut waiting {
                    *since = self.timeline.to_wall(*since);
                    *until = self.timeline.to_wall(*until);
                }
                drop(reply.send(waiting));
            }
            Question::Counts(reply) => drop(reply.send(self.waiters.counts())),
            Question::Health(reply) => {
                let now = self.timeline.to_store(self.now);
                drop(reply.send(block_on(self.store.health(now), &self.waker)));
            }
        }
    }
}

impl Round {
    /// Makes room for as many commands more.
    pub fn reserve(&mut self, count: usize) {
        self.commands.reserve(count);
        self.origins.reserve(count);
    }

    /// Adds a command.
    pub fn push(&mut self, origin: Origin, command: Command) {
        self.commands.push(command);
        self.origins.push(origin);
    }

    /// Adds a command that is parked when it is refused for now.
    pub fn push_try(&mut self, place: Place, command: Command) {
        self.tries.push(command.clone());
        self.push(Origin::Try(place), command);
    }

    /// Its commands, which leave it.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Where the next command will stand.
    pub fn len(&self) -> usize {
        self.commands.len()
    }
}

impl Origin {
    fn place(&self) -> Option<Place> {
        match self {
            Origin::Job(place) | Origin::Try(place) | Origin::Waiter(place, _) => Some(*place),
            Origin::Listener(_) | Origin::Tick | Origin::Return => None,
        }
    }
}

/// Whether waiting may change this reply: nothing to take, no room, or a store that is away.
pub(crate) fn may_pass(reply: &Result<Reply>) -> bool {
    match reply {
        Ok(Reply::Taken(tasks)) => tasks.is_empty(),
        Err(Error::TubeFull { .. } | Error::StoreAway(_)) => true,
        _ => false,
    }
}

/// Whether the store failed, and with it the whole batch.
fn is_failure(reply: &Result<Reply>) -> bool {
    matches!(reply, Err(Error::Store(_) | Error::StoreAway(_) | Error::OutcomeUnknown(_)))
}

fn report(reply: &Result<Reply>) {
    if let Err(error) = reply {
        tracing::warn!(%error, "could not give tasks back; they return when their lease is over");
    }
}

/// Drives a future of the store on this thread. Those of embedded stores are ready at once.
fn block_on<F: Future>(future: F, waker: &Waker) -> F::Output {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

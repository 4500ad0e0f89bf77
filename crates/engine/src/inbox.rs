//! The queue through which callers submit commands to the event loop.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use taskyard_core::limits::{
    BATCH_BYTES_MAX, PENDING_BYTES_MAX, PENDING_COMMANDS_MAX, PENDING_ITEMS_MAX,
};
use taskyard_core::{Command, Error, Result, Timestamp, TubeName};
use taskyard_store::RemoteChange;
use tokio::sync::oneshot;

use crate::reply::{JobReply, engine_stopped};
use crate::request::{Job, JobId, OneOrMany, Query, items_of};
use crate::timeline::Timeline;

/// Most items in one turn of the loop, so that the first of them do not wait for the last.
const TURN_ITEMS_MAX: usize = 10_000;
/// Most payload bytes in one turn of the loop.
const TURN_BYTES_MAX: usize = BATCH_BYTES_MAX;

/// Changes that other servers made to a shared store.
#[derive(Debug, Default)]
pub(crate) struct RemoteChanges {
    /// Tubes where tasks may have become ready or capacity free.
    pub tubes: BTreeSet<TubeName>,
    /// There may be new events of semaphores.
    pub events: bool,
    /// Anything may have changed.
    pub anything: bool,
}

/// The input of one turn.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Jobs in the order of their arrival.
    pub jobs: VecDeque<Job>,
    /// Jobs whose callers are gone.
    pub gone: Vec<JobId>,
    /// Changes made by other servers.
    pub remote_changes: RemoteChanges,
    /// Queries, answered after the jobs; every job submitted before a query is done by then.
    pub queries: Vec<Query>,
    /// The loop is stopping: no command may wait.
    pub stopping: bool,
    /// This is the last turn.
    pub last: bool,
}

/// The queue through which callers submit commands.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pending: Mutex<Pending>,
    wakeup: Condvar,
    /// Incremented by every arrival, so that the loop can check without the lock.
    arrivals: AtomicU64,
    /// The number of jobs so far that wait for nothing but the loop. Like `arrivals` only changed with the lock, so that a change
    /// needs no atomic addition, for which cores would wait for each other.
    called: AtomicUsize,
    /// The number of these whose callers have their reply.
    answered: AtomicUsize,
    /// The loop has no thread of its own: no caller may spin for its reply.
    is_stepped: bool,
}

/// How long the loop spins for a next command before it sleeps: about the time of a wake-up. A
/// caller that sends one command after the other does not have to wake the loop each time.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// After this many consecutive uncontended calls there is probably a single caller.
const UNCONTENDED_MIN: usize = 16;

/// A job that is queued.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// Identifies the job.
    pub id: JobId,
    /// Receives the reply.
    pub receiver: oneshot::Receiver<JobReply>,
    /// Whether it and those before it came one after the other, and it does not wait.
    pub alone: bool,
}

#[derive(Debug, Default)]
struct Pending {
    jobs: VecDeque<Job>,
    commands: usize,
    items: usize,
    bytes: usize,
    next_job: JobId,
    /// The number of consecutive calls that found no other caller.
    uncontended_calls: usize,
    gone: Vec<JobId>,
    remote_changes: RemoteChanges,
    /// Each with the id of the first job that was submitted after it.
    queries: VecDeque<(JobId, Query)>,
    phase: Phase,
    /// The loop sleeps and must be notified.
    sleeping: bool,
    /// Wakes a sleeping loop that has no thread of its own.
    waker: Option<Waker>,
    /// While it sleeps, it is notified only by an explicit wake-up or by this many commands.
    wake_at_commands: usize,
    /// Woken without any input: time has moved.
    woken: bool,
}

/// The lifecycle of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Running,
    Stopping,
    Stopped,
    /// The loop ended by a panic.
    Broken,
}

impl Inbox {
    /// The inbox of a loop that has no thread of its own.
    pub fn stepped() -> Self {
        Inbox { is_stepped: true, ..Inbox::default() }
    }

    /// Submits a job. Refused when too much is queued or the loop is stopping.
    pub fn submit(
        &self,
        commands: OneOrMany<Command>,
        bytes: usize,
        takes: OneOrMany<(usize, TubeName)>,
        may_wait: bool,
    ) -> Result<Submitted> {
        let (reply, receiver) = oneshot::channel();
        let (count, items) = (commands.as_slice().len(), items_of_all(&commands));
        let mut pending = self.lock();
        pending.phase.check()?;
        if pending.commands + count > PENDING_COMMANDS_MAX {
            return Err(Error::Overloaded("too many queued commands"));
        }
        if pending.items + items > PENDING_ITEMS_MAX.max(items) {
            return Err(Error::Overloaded("too many tasks in queued commands"));
        }
        if pending.bytes + bytes > PENDING_BYTES_MAX {
            return Err(Error::Overloaded("too many payload bytes in queued commands"));
        }
        let id = pending.next_job;
        pending.next_job += 1;
        let alone = !may_wait && self.begin_call(&mut pending);
        pending.push(Job { id, commands, items, bytes, takes, may_wait, reply: Some(reply) });
        self.wake_loop(pending);
        Ok(Submitted { id, receiver, alone })
    }

    /// Returns tasks that no caller received. Applies no limit: tasks already taken must not stay
    /// taken.
    pub fn give_back(&self, commands: Vec<Command>) {
        let mut pending = self.lock();
        if commands.is_empty() || !pending.phase.is_alive() {
            return;
        }
        let id = pending.next_job;
        pending.next_job += 1;
        let commands = OneOrMany::from(commands);
        let (items, takes) = (items_of_all(&commands), OneOrMany::none());
        pending.push(Job { id, commands, items, bytes: 0, takes, may_wait: false, reply: None });
        self.wake_loop(pending);
    }

    /// Counts one more caller that waits for the loop. Returns whether it and those before it came
    /// one after the other.
    fn begin_call(&self, pending: &mut Pending) -> bool {
        let called = self.called.load(Ordering::Relaxed);
        self.called.store(called.wrapping_add(1), Ordering::Relaxed);
        if called != self.answered.load(Ordering::Relaxed) {
            pending.uncontended_calls = 0;
            return false;
        }
        pending.uncontended_calls += 1;
        pending.uncontended_calls > UNCONTENDED_MIN && !self.is_stepped
    }

    /// Whether no second caller waits for the loop. The only one is counted out just before its reply is sent.
    pub fn has_single_caller(&self) -> bool {
        let (called, answered) =
            (self.called.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed));
        called.wrapping_sub(answered) <= 1
    }

    /// Counts callers out that receive their replies next. Only the loop calls it.
    pub fn note_answered(&self, callers: usize) {
        if callers > 0 {
            self.answered.fetch_add(callers, Ordering::Relaxed);
        }
    }

    /// Reports that the caller of this job is gone.
    pub fn cancel(&self, job: JobId) {
        let mut pending = self.lock();
        if pending.phase.is_alive() {
            pending.gone.push(job);
            self.wake_loop(pending);
        }
    }

    /// Reports a change by another server.
    pub fn note_remote_change(&self, what: RemoteChange) {
        let mut pending = self.lock();
        match what {
            RemoteChange::Tube(tube) => _ = pending.remote_changes.tubes.insert(tube),
            RemoteChange::Events => pending.remote_changes.events = true,
            RemoteChange::Anything => pending.remote_changes.anything = true,
        }
        self.wake_loop(pending);
    }

    /// Sends a query; dropped when the loop has ended.
    pub fn query(&self, query: Query) {
        let mut pending = self.lock();
        if pending.phase.is_alive() {
            let asked_before = pending.next_job;
            pending.queries.push_back((asked_before, query));
            self.wake_loop(pending);
        }
    }

    /// Whether the store may still be used.
    pub fn is_alive(&self) -> bool {
        self.lock().phase.is_alive()
    }

    /// Refuses new commands from now on; the loop finishes what is queued and ends.
    pub fn stop(&self) {
        let mut pending = self.lock();
        if pending.phase == Phase::Running {
            pending.phase = Phase::Stopping;
            self.wake_loop(pending);
        }
    }

    /// Marks the loop as ended and drops everything queued, which wakes the waiting callers.
    pub fn end(&self, orderly: bool) {
        let mut pending = self.lock();
        pending.phase = if orderly { Phase::Stopped } else { Phase::Broken };
        let jobs = std::mem::take(&mut pending.jobs);
        let queries = std::mem::take(&mut pending.queries);
        // Dropping a job wakes its caller, which may need this lock.
        drop(pending);
        drop((jobs, queries));
    }

    /// Sleeps until there is something to do, at most until `until`. `spare` is an empty queue for
    /// reuse.
    pub fn gather(
        &self,
        timeline: &Timeline,
        until: Option<Timestamp>,
        spare: VecDeque<Job>,
    ) -> Work {
        let mut pending = self.lock();
        if pending.is_idle() && !self.is_stepped {
            drop(pending);
            self.spin();
            pending = self.lock();
        }
        while pending.is_idle() {
            let sleep_max = until.and_then(|until| timeline.sleep_max(until));
            let stepped = || timeline.step(timeline.now()).is_some();
            if sleep_max.is_some_and(|sleep| sleep.is_zero()) || stepped() {
                break;
            }
            pending.sleeping = true;
            pending = match sleep_max {
                Some(sleep) => {
                    let waited = self.wakeup.wait_timeout(pending, sleep);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wakeup.wait(pending).unwrap_or_else(PoisonError::into_inner),
            };
            pending.sleeping = false;
        }
        pending.pick_up(spare)
    }

    /// How long a loop without a thread may wait for something to do: `None` if there is something now, `Some(None)` if only a
    /// wake-up can bring it.
    pub fn idle_for(
        &self,
        timeline: &Timeline,
        until: Option<Timestamp>,
    ) -> Option<Option<Duration>> {
        if !self.lock().is_idle() || timeline.step(timeline.now()).is_some() {
            return None;
        }
        let sleep_max = until.and_then(|until| timeline.sleep_max(until));
        sleep_max.is_none_or(|sleep| !sleep.is_zero()).then_some(sleep_max)
    }

    /// Is ready when something has arrived for a loop without a thread.
    pub fn poll_arrival(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pending = self.lock();
        if pending.is_idle() {
            return pending.suspend(cx);
        }
        Poll::Ready(())
    }

    /// The same as [`Inbox::wait`] for a loop without a thread.
    pub fn poll_wait(&self, cx: &mut Context<'_>, commands: usize) -> Poll<()> {
        let mut pending = self.lock();
        if !pending.woken && pending.commands < commands {
            pending.wake_at_commands = commands;
            return pending.suspend(cx);
        }
        pending.wake_at_commands = 0;
        pending.woken = false;
        Poll::Ready(())
    }

    /// Sleeps until it is woken, or this many commands are queued.
    pub fn wait(&self, commands: usize) {
        let mut pending = self.lock();
        pending.wake_at_commands = commands;
        while !pending.woken && pending.commands < commands {
            pending.sleeping = true;
            pending = self.wakeup.wait(pending).unwrap_or_else(PoisonError::into_inner);
            pending.sleeping = false;
        }
        pending.wake_at_commands = 0;
        pending.woken = false;
    }

    /// Picks up the first jobs that may be dispatched beside batches in flight. `None` if fewer
    /// than `commands` commands are queued; empty if anything but jobs is queued.
    pub fn pick_up_pipelined(
        &self,
        commands: usize,
        may: impl Fn(&Job) -> bool,
    ) -> Option<VecDeque<Job>> {
        let mut pending = self.lock();
        if pending.commands < commands.max(1) {
            return None;
        }
        if !pending.has_only_jobs() {
            return Some(VecDeque::new());
        }
        Some(pending.pick_up_while(VecDeque::new(), may))
    }

    /// Spins for a moment until something arrives.
    fn spin(&self) {
        let seen = self.arrivals.load(Ordering::Relaxed);
        let begin = Instant::now();
        while self.arrivals.load(Ordering::Relaxed) == seen && begin.elapsed() < SPIN_MAX {
            std::hint::spin_loop();
        }
    }

    /// Wakes the loop if it sleeps; a running loop checks the inbox before it sleeps.
    fn wake_loop(&self, mut pending: MutexGuard<'_, Pending>) {
        // All changes are made with the lock.
        let arrivals = self.arrivals.load(Ordering::Relaxed);
        self.arrivals.store(arrivals.wrapping_add(1), Ordering::Relaxed);
        let wanted = pending.woken || pending.commands >= pending.wake_at_commands;
        if wanted && std::mem::take(&mut pending.sleeping) {
            let waker = pending.waker.take();
            drop(pending);
            match waker {
                Some(waker) => waker.wake(),
                None => self.wakeup.notify_one(),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a clock wake the loop.
impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut pending = self.lock();
        pending.woken = true;
        self.wake_loop(pending);
    }
}

impl RemoteChanges {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.tubes.is_empty() && !self.events && !self.anything
    }
}

impl Pending {
    fn push(&mut self, job: Job) {
        self.commands += job.commands.as_slice().len();
        self.items += job.items;
        self.bytes += job.bytes;
        self.jobs.push_back(job);
    }

    /// Lets the next arrival wake a loop without a thread.
    fn suspend(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.sleeping = true;
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && !self.woken && self.has_only_jobs()
    }

    fn has_only_jobs(&self) -> bool {
        self.gone.is_empty()
            && self.remote_changes.is_empty()
            && self.queries.is_empty()
            && self.phase == Phase::Running
    }

    /// Picks up as many jobs as fit in one turn, and everything else that is queued.
    fn pick_up(&mut self, spare: VecDeque<Job>) -> Work {
        self.woken = false;
        let jobs = self.pick_up_jobs(spare);
        let queries = self.pick_up_queries();
        let all = self.jobs.is_empty();
        let stopping = self.phase == Phase::Stopping;
        Work {
            jobs,
            gone: std::mem::take(&mut self.gone),
            remote_changes: std::mem::take(&mut self.remote_changes),
            queries,
            stopping,
            last: stopping && all,
        }
    }

    /// Picks up the queries whose earlier jobs are all done after this turn. Remaining jobs that
    /// came later do not delay them.
    fn pick_up_queries(&mut self) -> Vec<Query> {
        let first_left = self.jobs.front().map_or(self.next_job, |job| job.id);
        let answerable =
            self.queries.partition_point(|(asked_before, _)| *asked_before <= first_left);
        self.queries.drain(..answerable).map(|(_, query)| query).collect()
    }

    fn pick_up_jobs(&mut self, spare: VecDeque<Job>) -> VecDeque<Job> {
        if self.items <= TURN_ITEMS_MAX && self.bytes <= TURN_BYTES_MAX {
            (self.commands, self.items, self.bytes) = (0, 0, 0);
            return std::mem::replace(&mut self.jobs, spare);
        }
        self.pick_up_while(spare, |_| true)
    }

    /// Picks up as many jobs as fit in one turn, up to the first that fails the check.
    fn pick_up_while(
        &mut self,
        mut spare: VecDeque<Job>,
        may: impl Fn(&Job) -> bool,
    ) -> VecDeque<Job> {
        let (mut items, mut bytes) = (0, 0);
        while let Some(job) = self.jobs.front().filter(|job| may(job)) {
            items += job.items;
            bytes += job.bytes;
            // A job larger than a turn gets its own turn.
            if !spare.is_empty() && (items > TURN_ITEMS_MAX || bytes > TURN_BYTES_MAX) {
                break;
            }
            self.commands -= job.commands.as_slice().len();
            self.items -= job.items;
            self.bytes -= job.bytes;
            spare.extend(self.jobs.pop_front());
        }
        spare
    }
}

impl Phase {
    fn is_alive(self) -> bool {
        matches!(self, Phase::Running | Phase::Stopping)
    }

    fn check(self) -> Result<()> {
        match self {
            Phase::Running => Ok(()),
            Phase::Stopping | Phase::Stopped => Err(Error::ShuttingDown),
            Phase::Broken => Err(engine_stopped()),
        }
    }
}

fn items_of_all(commands: &OneOrMany<Command>) -> usize {
    commands.as_slice().iter().map(items_of).sum()
}

#[cfg(test)]
mod tests {
    use taskyard_core::limits::BATCH_TASKS_MAX;

    use taskyard_core::TaskId;

    use super::*;
    use crate::clock::ManualClock;

    fn read(count: usize) -> OneOrMany<Command> {
        vec![Command::Tubes { tube: None }; count].into()
    }

    fn submit(inbox: &Inbox, commands: OneOrMany<Command>, bytes: usize) -> Result<Submitted> {
        inbox.submit(commands, bytes, OneOrMany::none(), false)
    }

    fn gather(inbox: &Inbox) -> Work {
        let timeline = Timeline::new(Arc::new(ManualClock::new(Timestamp::EPOCH)), None);
        inbox.gather(&timeline, Some(Timestamp::EPOCH), VecDeque::new())
    }

    #[test]
    fn too_many_commands_are_refused_until_some_are_picked_up() {
        let inbox = Inbox::default();
        let _first = submit(&inbox, read(PENDING_COMMANDS_MAX), 0).unwrap();
        let refused = submit(&inbox, read(1), 0).unwrap_err();
        assert!(matches!(refused, Error::Overloaded(_)), "{refused}");
        assert_eq!(gather(&inbox).jobs.len(), 1);
        submit(&inbox, read(1), 0).unwrap();
    }

    // Only commands were counted: ten thousand deletes of ten thousand tasks each were one turn,
    // and ten times as many were accepted.
    #[test]
    fn a_command_counts_as_many_times_as_it_has_items() {
        let inbox = Inbox::default();
        let ids = vec![TaskId(0); BATCH_TASKS_MAX];
        let delete = Command::Delete { tube: TubeName::new("mail").unwrap(), ids, show: false };
        let one = || submit(&inbox, OneOrMany::One(delete.clone()), 0);
        let taken_in = std::iter::from_fn(|| one().ok()).count();
        assert_eq!(taken_in, PENDING_ITEMS_MAX / BATCH_TASKS_MAX);
        assert!(matches!(one(), Err(Error::Overloaded(_))));
        for _ in 0..taken_in {
            assert_eq!(gather(&inbox).jobs.len(), TURN_ITEMS_MAX / BATCH_TASKS_MAX);
        }
        assert_eq!(inbox.lock().items, 0);
        let all = vec![delete.clone(); taken_in + 1];
        let ids = vec![TaskId(0); 7];
        let tube = TubeName::new("mail").unwrap();
        assert_eq!(items_of(&Command::KickTasks { tube, ids, reset_attempts: false }), 7);
        submit(&inbox, all.into(), 0)
            .expect("a job larger than the limit is accepted when nothing else is queued");
    }

    // A caller spins for its reply only if no other waits for the loop.
    #[test]
    fn callers_are_alone_while_they_come_one_after_the_other() {
        let inbox = Inbox::default();
        let one_after_the_other = || {
            let alone = submit(&inbox, read(1), 0).unwrap().alone;
            assert!(inbox.has_single_caller());
            inbox.note_answered(1);
            assert!(inbox.has_single_caller(), "it spins until it has its reply");
            alone
        };
        for turn in 0..=UNCONTENDED_MIN {
            assert_eq!(one_after_the_other(), turn == UNCONTENDED_MIN);
        }
        let waiting = inbox.submit(read(1), 0, OneOrMany::none(), true).unwrap();
        assert!(!waiting.alone && one_after_the_other(), "a job that waits is not counted");
        let _unanswered = submit(&inbox, read(1), 0).unwrap();
        assert!(!submit(&inbox, read(1), 0).unwrap().alone && !inbox.has_single_caller());
        inbox.note_answered(2);
        assert!(!one_after_the_other());
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let inbox = Inbox::default();
        let _first = submit(&inbox, read(1), PENDING_BYTES_MAX).unwrap();
        let refused = submit(&inbox, read(1), 1).unwrap_err();
        assert!(matches!(refused, Error::Overloaded(_)), "{refused}");
    }

    #[test]
    fn a_turn_is_bounded_and_keeps_the_order() {
        let inbox = Inbox::default();
        for _ in 0..5 {
            submit(&inbox, read(TURN_ITEMS_MAX / 2), 0).unwrap();
        }
        let ids = |work: Work| work.jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(ids(gather(&inbox)), [0, 1]);
        assert_eq!(ids(gather(&inbox)), [2, 3]);
        assert_eq!(ids(gather(&inbox)), [4]);
        let pending = inbox.lock();
        assert_eq!((pending.commands, pending.items), (0, 0));
    }

    // Queries were answered only when no job was left over: under constant overload, never.
    #[test]
    fn a_query_waits_for_earlier_jobs_only() {
        let inbox = Inbox::default();
        let turns = || {
            submit(&inbox, read(TURN_ITEMS_MAX), 0).unwrap();
            submit(&inbox, read(TURN_ITEMS_MAX), 0).unwrap();
            inbox.query(Query::Waiting(oneshot::channel().0));
            submit(&inbox, read(TURN_ITEMS_MAX), 0).unwrap();
            inbox.query(Query::Counts(oneshot::channel().0));
            [gather(&inbox), gather(&inbox), gather(&inbox)].map(|work| work.queries.len())
        };
        assert_eq!(turns(), [0, 1, 1]);
        assert_eq!(turns(), [0, 1, 1]);
        inbox.query(Query::Counts(oneshot::channel().0));
        assert_eq!(gather(&inbox).queries.len(), 1, "also without any job");
    }

    #[test]
    fn the_last_turn_is_marked() {
        let inbox = Inbox::default();
        submit(&inbox, read(TURN_ITEMS_MAX), 0).unwrap();
        submit(&inbox, read(1), 0).unwrap();
        inbox.stop();
        assert_eq!(submit(&inbox, read(1), 0).unwrap_err(), Error::ShuttingDown);
        let first = gather(&inbox);
        assert!(first.stopping && !first.last);
        assert!(gather(&inbox).last);
    }
}

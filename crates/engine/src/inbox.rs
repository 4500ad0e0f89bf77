//! Where callers leave their commands and the loop picks them up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::{Duration, Instant};

use taskyard_core::limits::{
    BATCH_BYTES_MAX, PENDING_BYTES_MAX, PENDING_COMMANDS_MAX, PENDING_ITEMS_MAX,
};
use taskyard_core::{Command, Error, Result, Timestamp, TubeName};
use taskyard_store::{RemoteChange, StoreHealth};
use tokio::sync::oneshot;

use crate::answer::{Answer, engine_stopped};
use crate::timeline::Timeline;
use crate::waiters::{Waiting, WaitingCount};

/// Most items in one turn of the loop, so that the first of them do not wait for the last.
const TURN_ITEMS_MAX: usize = 10_000;
/// Most payload bytes in one turn of the loop.
const TURN_BYTES_MAX: usize = BATCH_BYTES_MAX;

/// The number of a job: never used twice.
pub(crate) type JobId = u64;

/// The commands of one caller.
#[derive(Debug)]
pub(crate) struct Job {
    /// Its number.
    pub id: JobId,
    /// What is asked.
    pub commands: Vec<Command>,
    /// How many tasks it is about, at least one for each command.
    pub items: usize,
    /// How many payload bytes it carries.
    pub bytes: usize,
    /// Which of the commands take from which tube.
    pub takes: Vec<(usize, TubeName)>,
    /// Where the answer goes; `None` when nobody waits for it.
    pub reply: Option<oneshot::Sender<Answer>>,
}

/// Something a page wants to know from the loop.
#[derive(Debug)]
pub(crate) enum Question {
    /// Everybody who waits.
    Waiting(oneshot::Sender<Vec<Waiting>>),
    /// How many wait on which tube.
    Counts(oneshot::Sender<BTreeMap<TubeName, WaitingCount>>),
    /// Whether the store can do its work.
    Health(oneshot::Sender<Result<StoreHealth>>),
}

/// In which tubes other servers may have made something takeable or room.
#[derive(Debug, Default)]
pub(crate) struct Rumours {
    /// These.
    pub tubes: BTreeSet<TubeName>,
    /// There may be new events of semaphores.
    pub events: bool,
    /// Or any.
    pub anything: bool,
}

/// What the loop has to do next.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// In the order of their arrival.
    pub jobs: VecDeque<Job>,
    /// Jobs whose callers are gone.
    pub gone: Vec<JobId>,
    /// What other servers did.
    pub elsewhere: Rumours,
    /// Answered when the jobs are done: nothing is left of what was asked before them.
    pub questions: Vec<Question>,
    /// Nothing may wait any more.
    pub stopping: bool,
    /// Nothing will come after this.
    pub last: bool,
}

/// Where callers leave their commands.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pending: Mutex<Pending>,
    bell: Condvar,
    /// Changes whenever something is left here, so that the loop can look without the lock.
    arrivals: AtomicU64,
    /// Callers whose jobs do not wait for anything but the loop.
    asking: AtomicUsize,
    /// How many of the latest found nobody else asking.
    single_file: AtomicUsize,
}

/// How long the loop looks out for a next command before it sleeps: about what it takes to wake it.
/// A caller that asks one thing after the other then need not wake it each time.
const LOOKOUT: Duration = Duration::from_micros(50);

/// So many callers one after the other are believed to be one.
const SINGLE_FILE: usize = 16;

#[derive(Debug, Default)]
struct Pending {
    jobs: VecDeque<Job>,
    commands: usize,
    items: usize,
    bytes: usize,
    next_job: JobId,
    gone: Vec<JobId>,
    elsewhere: Rumours,
    /// Each with the number of the first job that came after it.
    questions: VecDeque<(JobId, Question)>,
    phase: Phase,
    /// The loop sleeps and wants the bell.
    sleeping: bool,
    /// It wants it only when it is woken, or when there are so many commands.
    enough: usize,
    /// Somebody rang without leaving anything: time has moved.
    rung: bool,
}

/// How far the life of the loop has come.
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
    /// Leaves a job for the loop. Refused when too much waits already or the loop is stopping.
    pub fn submit(
        &self,
        commands: Vec<Command>,
        bytes: usize,
        takes: Vec<(usize, TubeName)>,
    ) -> Result<(JobId, oneshot::Receiver<Answer>)> {
        let (reply, receiver) = oneshot::channel();
        let items = commands.iter().map(items_of).sum();
        let mut pending = self.lock();
        pending.phase.check()?;
        if pending.commands + commands.len() > PENDING_COMMANDS_MAX {
            return Err(Error::Overloaded("too many commands are waiting"));
        }
        if pending.items + items > PENDING_ITEMS_MAX.max(items) {
            return Err(Error::Overloaded("too many tasks of commands are waiting"));
        }
        if pending.bytes + bytes > PENDING_BYTES_MAX {
            return Err(Error::Overloaded("too many payload bytes are waiting"));
        }
        let id = pending.next_job;
        pending.next_job += 1;
        pending.push(Job { id, commands, items, bytes, takes, reply: Some(reply) });
        self.ring(pending);
        Ok((id, receiver))
    }

    /// Gives tasks back that nobody received. Heeds no limit: what is taken already must not stick.
    pub fn give_back(&self, commands: Vec<Command>) {
        let items = commands.iter().map(items_of).sum();
        let mut pending = self.lock();
        if commands.is_empty() || !pending.phase.is_alive() {
            return;
        }
        let id = pending.next_job;
        pending.next_job += 1;
        pending.push(Job { id, commands, items, bytes: 0, takes: Vec::new(), reply: None });
        self.ring(pending);
    }

    /// Notes one more caller who waits for the loop; whether it and those before it came one after the
    /// other.
    pub fn begin_asking(&self) -> bool {
        if self.asking.fetch_add(1, Ordering::Relaxed) > 0 {
            self.single_file.store(0, Ordering::Relaxed);
            return false;
        }
        self.single_file.fetch_add(1, Ordering::Relaxed) >= SINGLE_FILE
    }

    /// Whether only one caller waits for the loop.
    pub fn is_asked_by_one(&self) -> bool {
        self.asking.load(Ordering::Relaxed) == 1
    }

    /// Notes that such a caller has its answer, or left.
    pub fn end_asking(&self) {
        self.asking.fetch_sub(1, Ordering::Relaxed);
    }

    /// Tells the loop that the caller of this job is gone.
    pub fn leave(&self, job: JobId) {
        let mut pending = self.lock();
        if pending.phase.is_alive() {
            pending.gone.push(job);
            self.ring(pending);
        }
    }

    /// Tells the loop what another server did.
    pub fn hear(&self, what: RemoteChange) {
        let mut pending = self.lock();
        match what {
            RemoteChange::Tube(tube) => _ = pending.elsewhere.tubes.insert(tube),
            RemoteChange::Events => pending.elsewhere.events = true,
            RemoteChange::Anything => pending.elsewhere.anything = true,
        }
        self.ring(pending);
    }

    /// Asks the loop something; a loop that is no more drops the question.
    pub fn ask(&self, question: Question) {
        let mut pending = self.lock();
        if pending.phase.is_alive() {
            let asked_before = pending.next_job;
            pending.questions.push_back((asked_before, question));
            self.ring(pending);
        }
    }

    /// Whether the store may still be asked.
    pub fn is_alive(&self) -> bool {
        self.lock().phase.is_alive()
    }

    /// Refuses new commands from now on; the loop finishes what is here and ends.
    pub fn stop(&self) {
        let mut pending = self.lock();
        if pending.phase == Phase::Running {
            pending.phase = Phase::Stopping;
            self.ring(pending);
        }
    }

    /// Says that nobody will pick up anything any more; who still waits learns it.
    pub fn end(&self, orderly: bool) {
        let mut pending = self.lock();
        pending.phase = if orderly { Phase::Stopped } else { Phase::Broken };
        let jobs = std::mem::take(&mut pending.jobs);
        let questions = std::mem::take(&mut pending.questions);
        // Dropping a job wakes its caller, who may want this lock.
        drop(pending);
        drop((jobs, questions));
    }

    /// Sleeps until there is something to do, at the longest until the moment `until`.
    /// `spare` is an empty queue to be used again.
    pub fn gather(
        &self,
        timeline: &Timeline,
        until: Option<Timestamp>,
        spare: VecDeque<Job>,
    ) -> Work {
        let mut pending = self.lock();
        if pending.is_idle() {
            drop(pending);
            self.look_out();
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
                    let waited = self.bell.wait_timeout(pending, sleep);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.bell.wait(pending).unwrap_or_else(PoisonError::into_inner),
            };
            pending.sleeping = false;
        }
        pending.pick_up(spare)
    }

    /// Sleeps until it is woken, or so many commands are here.
    pub fn wait(&self, commands: usize) {
        let mut pending = self.lock();
        pending.enough = commands;
        while !pending.rung && pending.commands < commands {
            pending.sleeping = true;
            pending = self.bell.wait(pending).unwrap_or_else(PoisonError::into_inner);
            pending.sleeping = false;
        }
        pending.enough = 0;
        pending.rung = false;
    }

    /// The first jobs, as far as they may be begun beside what is under way: nothing when there is anything else here, or fewer commands
    /// than this.
    pub fn pick_up_behind(
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

    /// Waits a moment for something to arrive, without sleeping.
    fn look_out(&self) {
        let seen = self.arrivals.load(Ordering::Relaxed);
        let begin = Instant::now();
        while self.arrivals.load(Ordering::Relaxed) == seen && begin.elapsed() < LOOKOUT {
            std::hint::spin_loop();
        }
    }

    /// Wakes the loop if it sleeps; a loop at work looks here by itself before it sleeps.
    fn ring(&self, mut pending: MutexGuard<'_, Pending>) {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        let wanted = pending.rung || pending.commands >= pending.enough;
        if wanted && std::mem::take(&mut pending.sleeping) {
            drop(pending);
            self.bell.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a clock ring the bell.
impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut pending = self.lock();
        pending.rung = true;
        self.ring(pending);
    }
}

impl Rumours {
    fn is_empty(&self) -> bool {
        self.tubes.is_empty() && !self.events && !self.anything
    }
}

impl Pending {
    fn push(&mut self, job: Job) {
        self.commands += job.commands.len();
        self.items += job.items;
        self.bytes += job.bytes;
        self.jobs.push_back(job);
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && !self.rung && self.has_only_jobs()
    }

    fn has_only_jobs(&self) -> bool {
        self.gone.is_empty()
            && self.elsewhere.is_empty()
            && self.questions.is_empty()
            && self.phase == Phase::Running
    }

    /// As many jobs as fit in one turn, and everything else that waits.
    fn pick_up(&mut self, spare: VecDeque<Job>) -> Work {
        self.rung = false;
        let jobs = self.pick_up_jobs(spare);
        let questions = self.pick_up_questions();
        let all = self.jobs.is_empty();
        let stopping = self.phase == Phase::Stopping;
        Work {
            jobs,
            gone: std::mem::take(&mut self.gone),
            elsewhere: std::mem::take(&mut self.elsewhere),
            questions,
            stopping,
            last: stopping && all,
        }
    }

    /// The questions that see, after this turn, everything that was asked before them. Jobs left over
    /// that came later do not hold them up.
    fn pick_up_questions(&mut self) -> Vec<Question> {
        let first_left = self.jobs.front().map_or(self.next_job, |job| job.id);
        let ripe = self.questions.partition_point(|(asked_before, _)| *asked_before <= first_left);
        self.questions.drain(..ripe).map(|(_, question)| question).collect()
    }

    fn pick_up_jobs(&mut self, spare: VecDeque<Job>) -> VecDeque<Job> {
        if self.items <= TURN_ITEMS_MAX && self.bytes <= TURN_BYTES_MAX {
            (self.commands, self.items, self.bytes) = (0, 0, 0);
            return std::mem::replace(&mut self.jobs, spare);
        }
        self.pick_up_while(spare, |_| true)
    }

    /// As many jobs as fit in one turn, up to the first that may not be picked up.
    fn pick_up_while(
        &mut self,
        mut spare: VecDeque<Job>,
        may: impl Fn(&Job) -> bool,
    ) -> VecDeque<Job> {
        let (mut items, mut bytes) = (0, 0);
        while let Some(job) = self.jobs.front().filter(|job| may(job)) {
            items += job.items;
            bytes += job.bytes;
            // A job larger than a turn is a turn of its own.
            if !spare.is_empty() && (items > TURN_ITEMS_MAX || bytes > TURN_BYTES_MAX) {
                break;
            }
            self.commands -= job.commands.len();
            self.items -= job.items;
            self.bytes -= job.bytes;
            spare.extend(self.jobs.pop_front());
        }
        spare
    }
}

/// How many tasks a command is about: what it costs, more or less.
fn items_of(command: &Command) -> usize {
    let items = match command {
        Command::Put { tasks, .. } => tasks.len(),
        Command::Finish { items, .. } => items.len(),
        Command::Delete { ids, .. } | Command::Peek { ids, .. } => ids.len(),
        Command::Semaphore(command) => command.items(),
        _ => 1,
    };
    items.max(1)
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

#[cfg(test)]
mod tests {
    use taskyard_core::limits::BATCH_TASKS_MAX;

    use taskyard_core::TaskId;

    use super::*;
    use crate::clock::HandClock;

    fn read(count: usize) -> Vec<Command> {
        vec![Command::Tubes { tube: None }; count]
    }

    fn gather(inbox: &Inbox) -> Work {
        let timeline = Timeline::new(Arc::new(HandClock::new(Timestamp::EPOCH)), None);
        inbox.gather(&timeline, Some(Timestamp::EPOCH), VecDeque::new())
    }

    #[test]
    fn too_many_commands_are_refused_until_some_are_picked_up() {
        let inbox = Inbox::default();
        let _first = inbox.submit(read(PENDING_COMMANDS_MAX), 0, Vec::new()).unwrap();
        let refused = inbox.submit(read(1), 0, Vec::new()).unwrap_err();
        assert!(matches!(refused, Error::Overloaded(_)), "{refused}");
        assert_eq!(gather(&inbox).jobs.len(), 1);
        inbox.submit(read(1), 0, Vec::new()).unwrap();
    }

    // Only commands were counted: ten thousand deletes of ten thousand tasks each were one turn, and ten
    // times as many of them were let in.
    #[test]
    fn a_command_counts_as_many_times_as_it_has_items() {
        let inbox = Inbox::default();
        let ids = vec![TaskId(0); BATCH_TASKS_MAX];
        let delete = Command::Delete { tube: TubeName::new("mail").unwrap(), ids, show: false };
        let submit = || inbox.submit(vec![delete.clone()], 0, Vec::new());
        let taken_in = std::iter::from_fn(|| submit().ok()).count();
        assert_eq!(taken_in, PENDING_ITEMS_MAX / BATCH_TASKS_MAX);
        assert!(matches!(submit(), Err(Error::Overloaded(_))));
        for _ in 0..taken_in {
            assert_eq!(gather(&inbox).jobs.len(), TURN_ITEMS_MAX / BATCH_TASKS_MAX);
        }
        assert_eq!(inbox.lock().items, 0);
        let all = vec![delete.clone(); taken_in + 1];
        inbox.submit(all, 0, Vec::new()).expect("what is too much for ever is not overload");
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let inbox = Inbox::default();
        let _first = inbox.submit(read(1), PENDING_BYTES_MAX, Vec::new()).unwrap();
        let refused = inbox.submit(read(1), 1, Vec::new()).unwrap_err();
        assert!(matches!(refused, Error::Overloaded(_)), "{refused}");
    }

    #[test]
    fn a_turn_is_bounded_and_keeps_the_order() {
        let inbox = Inbox::default();
        for _ in 0..5 {
            inbox.submit(read(TURN_ITEMS_MAX / 2), 0, Vec::new()).unwrap();
        }
        let ids = |work: Work| work.jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(ids(gather(&inbox)), [0, 1]);
        assert_eq!(ids(gather(&inbox)), [2, 3]);
        assert_eq!(ids(gather(&inbox)), [4]);
        let pending = inbox.lock();
        assert_eq!((pending.commands, pending.items), (0, 0));
    }

    // Questions were answered only when no job was left over: never, under constant overload.
    #[test]
    fn a_question_waits_for_what_was_asked_before_it_and_for_nothing_else() {
        let inbox = Inbox::default();
        let turns = || {
            inbox.submit(read(TURN_ITEMS_MAX), 0, Vec::new()).unwrap();
            inbox.submit(read(TURN_ITEMS_MAX), 0, Vec::new()).unwrap();
            inbox.ask(Question::Waiting(oneshot::channel().0));
            inbox.submit(read(TURN_ITEMS_MAX), 0, Vec::new()).unwrap();
            inbox.ask(Question::Counts(oneshot::channel().0));
            [gather(&inbox), gather(&inbox), gather(&inbox)].map(|work| work.questions.len())
        };
        assert_eq!(turns(), [0, 1, 1]);
        assert_eq!(turns(), [0, 1, 1]);
        inbox.ask(Question::Counts(oneshot::channel().0));
        assert_eq!(gather(&inbox).questions.len(), 1, "without any job, too");
    }

    #[test]
    fn the_last_work_is_marked() {
        let inbox = Inbox::default();
        inbox.submit(read(TURN_ITEMS_MAX), 0, Vec::new()).unwrap();
        inbox.submit(read(1), 0, Vec::new()).unwrap();
        inbox.stop();
        assert_eq!(inbox.submit(read(1), 0, Vec::new()).unwrap_err(), Error::ShuttingDown);
        let first = gather(&inbox);
        assert!(first.stopping && !first.last);
        assert!(gather(&inbox).last);
    }
}

//! Ends a run after its faults: everything left must become ready in time, is drained in order, and the servers are probed.

use std::rc::Rc;
use std::time::Duration;

use taskyard_core::schedule::TimingRule;
use taskyard_core::{
    Body, CatchUp, Command, Counts, Finish, FinishItem, Holder, NewTask, Reply, ScheduleCommand,
    ScheduleName, ScheduleReply, Span, StoredSchedule, Take, Task, TaskId, Timestamp, TubeChange,
    TubeName,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::history::{ADMIN, CallReply};
use crate::judges::DAILY;
use crate::operations::read_payload;
use crate::server_stops::ServerStop;
use crate::tubes::{KEEP_DONE, TubeRole};
use crate::workers::{HandlerRun, WorkerStop};
use crate::world::World;

/// After the faults everything is ready within this time: leases, extensions and delays are shorter.
const READY_MAX: Duration = Duration::from_secs(600);

/// How long workers may need for each task that is left.
const WORK_MAX: Duration = Duration::from_secs(60);

/// How long a probing take waits.
const PROBE_WAIT: Span = Span::from_secs(60);

/// The names of the schedules, which are also the payloads of their tasks.
pub const SCHEDULES: [&str; 3] = ["daily", "cron", "every"];

/// The calls of the admin, and what it found.
pub struct FinalPhase {
    world: Rc<World>,
    calls: u32,
    /// What it found.
    pub facts: Facts,
}

/// What the final phase found.
#[derive(Debug, Default)]
pub struct Facts {
    /// The tasks that were left, in the order of their deliveries at a time when nothing else happened.
    pub drained: Vec<DrainedTask>,
    /// The schedules.
    pub schedules: Vec<ScheduleFacts>,
    /// When the daily schedule fired, by the ids of its tasks.
    pub daily: Vec<Timestamp>,
    /// When the schedules were paused.
    pub schedules_ended: Option<Timestamp>,
    /// What did not happen in time.
    pub late: Option<String>,
    /// What the handlers of workers did.
    pub runs: Vec<HandlerRun>,
    /// The graceful stops of servers.
    pub server_stops: Vec<ServerStop>,
    /// The stops of workers.
    pub stops: Vec<WorkerStop>,
    /// What is wrong with how many consumers of a semaphore ran at the same time.
    pub excess: Option<String>,
}

/// A task that was left.
#[derive(Clone, Debug)]
pub struct DrainedTask {
    /// Its tube.
    pub tube: TubeName,
    /// Its id.
    pub id: TaskId,
    /// Its priority, as the delivery showed it.
    pub pri: u64,
    /// The number in its payload.
    pub payload: Option<u64>,
}

/// A schedule at the begin and at the end.
#[derive(Clone, Debug)]
pub struct ScheduleFacts {
    /// When it was set.
    pub first: StoredSchedule,
    /// When it was removed.
    pub last: StoredSchedule,
}

/// Stops the final phase: the sentence says what did not happen.
type Late = String;

impl FinalPhase {
    /// The admin of a run.
    pub fn new(world: Rc<World>) -> Self {
        FinalPhase { world, calls: 0, facts: Facts::default() }
    }

    /// Creates tubes and schedules, before anything else happens.
    pub async fn prepare(&mut self) {
        let mut roles = self.world.plan.tubes.clone();
        roles.extend([TubeRole::Scheduled, TubeRole::Probed]);
        let limit = self.world.plan.semaphore_limit;
        for command in roles.iter().flat_map(|role| role.create(limit)) {
            let reply = self.call(0, command).await;
            assert!(matches!(reply, CallReply::Replied(_)), "a tube is not created: {reply:?}");
        }
        if self.world.plan.lasts_days {
            let daily = TimingRule::Cron { cron: DAILY.into(), zone: "Europe/Berlin".into() };
            self.set_schedule("daily", &daily, CatchUp::All).await;
        } else if self.world.plan.schedules {
            let cron =
                TimingRule::Cron { cron: "*/5 * * * *".into(), zone: "Europe/Berlin".into() };
            let every = TimingRule::Every { every: Span::from_secs(7), start: None };
            for (name, rule, catch_up) in
                [("cron", cron, CatchUp::All), ("every", every, CatchUp::Last)]
            {
                self.set_schedule(name, &rule, catch_up).await;
            }
        }
    }

    async fn set_schedule(&mut self, name: &str, rule: &TimingRule, catch_up: CatchUp) {
        let template = NewTask::new(Body::new(name.as_bytes()));
        let tube = TubeRole::Scheduled.name();
        let schedule = StoredSchedule::new(name, tube, template, rule).expect("the name is good");
        let schedule = StoredSchedule { catch_up, ..schedule };
        let set = ScheduleCommand::Set { schedule, only_new: true, keep_paused: false };
        self.call(0, Command::Schedule(Box::new(set))).await;
        if let Some(first) = self.schedule(name).await {
            let last = first.clone();
            self.facts.schedules.push(ScheduleFacts { first, last });
        }
    }

    async fn schedule(&mut self, name: &str) -> Option<StoredSchedule> {
        let name = ScheduleName::new(name).ok()?;
        let get = Command::Schedule(Box::new(ScheduleCommand::Get { name }));
        match self.call(0, get).await {
            CallReply::Replied(Reply::Schedule(ScheduleReply::Schedules(mut found))) => found.pop(),
            _ => None,
        }
    }

    /// Runs the final phase.
    pub async fn finish(&mut self) {
        self.facts.late = self.try_finish().await.err();
    }

    async fn try_finish(&mut self) -> Result<(), Late> {
        if !self.world.plan.workers.is_empty() {
            let ended = self.end_workers().await;
            (self.facts.runs, self.facts.stops) = self.world.workers.end();
            ended?;
        }
        self.end_schedules().await?;
        let mut roles = self.world.plan.tubes.clone();
        roles.push(TubeRole::Scheduled);
        if self.world.plan.is_extended {
            for role in &roles {
                self.pause(0, *role, false).await;
            }
        }
        for role in &roles {
            self.wait_until_ready(*role).await?;
        }
        for role in &roles {
            self.call(0, Command::Kick { tube: role.tube(), count: 100_000 }).await;
        }
        for role in roles {
            self.drain(role).await?;
        }
        if self.world.plan.tubes.contains(&TubeRole::Kept) {
            self.probe_done().await?;
        }
        self.probe().await
    }

    /// Lets the workers do what is left, and stops them.
    async fn end_workers(&mut self) -> Result<(), Late> {
        for role in self.world.plan.tubes.clone() {
            let begun = Instant::now();
            let mut most = READY_MAX;
            loop {
                let Counts { ready, taken, delayed, .. } = self.counts(role).await?;
                let left = ready + taken + delayed;
                if left == 0 {
                    break;
                }
                most = most.max(WORK_MAX * u32::try_from(left).unwrap_or(u32::MAX));
                if begun.elapsed() > most {
                    return Err(format!(
                        "the workers left {left} tasks in '{}' after {} s without faults",
                        role.name(),
                        begun.elapsed().as_secs()
                    ));
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        }
        self.world.workers.wait_for_plans().await?;
        self.world.workers.stop_all().await?;
        self.facts.excess = self.world.workers.end_consumers().await?;
        Ok(())
    }

    /// Pauses the schedules, so that no fire is under way, and notes what they did.
    async fn end_schedules(&mut self) -> Result<(), Late> {
        for index in 0..self.facts.schedules.len() {
            let name = self.facts.schedules[index].first.name.clone();
            let pause = ScheduleCommand::Pause { name: name.clone(), paused: true };
            self.call(0, Command::Schedule(Box::new(pause))).await;
            let last = self.schedule(name.as_str()).await.ok_or("a schedule is not shown")?;
            self.facts.schedules[index].last = last;
            self.facts.schedules_ended = Some(self.world.history.borrow_mut().moment().at);
            self.call(0, Command::Schedule(Box::new(ScheduleCommand::Remove { name }))).await;
        }
        Ok(())
    }

    /// Waits until no task of a tube is taken or delayed.
    async fn wait_until_ready(&mut self, role: TubeRole) -> Result<(), Late> {
        let begun = Instant::now();
        loop {
            let counts = self.counts(role).await?;
            let waits = if role == TubeRole::Gated { 0 } else { counts.delayed };
            if counts.taken == 0 && waits == 0 {
                return Ok(());
            }
            if begun.elapsed() > READY_MAX {
                return Err(format!(
                    "tube '{}' still has {} taken and {} delayed tasks {} s after the faults and the last client",
                    role.name(),
                    counts.taken,
                    counts.delayed,
                    begun.elapsed().as_secs()
                ));
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    async fn counts(&mut self, role: TubeRole) -> Result<Counts, Late> {
        match self.call(0, Command::Tubes { tube: Some(role.tube()) }).await {
            CallReply::Replied(Reply::Tubes(tubes)) if tubes.len() == 1 => Ok(tubes[0].stats.tasks),
            other => Err(format!("tube '{}' is not shown: {other:?}", role.name())),
        }
    }

    /// Takes and acks all tasks of a tube, one after the other.
    async fn drain(&mut self, role: TubeRole) -> Result<(), Late> {
        let begun = Instant::now();
        loop {
            let taken = self.call(0, take(role, Span::from_secs(60), Span::from_secs(2))).await;
            let CallReply::Replied(Reply::Taken(tasks)) = taken else {
                return Err(format!("a take from '{}' failed: {taken:?}", role.name()));
            };
            for task in &tasks {
                if task.body.as_ref().is_some_and(|body| body.payload() == b"daily") {
                    self.facts.daily.push(task.created);
                }
                self.facts.drained.push(DrainedTask {
                    tube: role.tube(),
                    id: task.id,
                    pri: task.pri,
                    payload: task.body.as_ref().and_then(read_payload),
                });
                self.call(0, ack(role, task)).await;
            }
            if !tasks.is_empty() {
                continue;
            }
            let Counts { ready, taken, delayed, buried, .. } = self.counts(role).await?;
            if ready + taken + delayed + buried == 0 {
                return Ok(());
            }
            if begun.elapsed() > READY_MAX {
                return Err(format!(
                    "a take from '{}' finds nothing, although it has {ready} ready, {taken} taken, {delayed} delayed and \
                     {buried} buried tasks",
                    role.name()
                ));
            }
        }
    }

    /// Checks that waiting takes are served in time, by a put, the end of a delay and the end of a lease.
    async fn probe(&mut self) -> Result<(), Late> {
        for server in 0..self.world.plan.servers {
            let other = (server + 1) % self.world.plan.servers;
            let lease = Span::from_secs(600);
            self.probe_take("a put", server, server, None, lease).await?;
            self.probe_take("a put at another server", other, server, None, lease).await?;
            let delay = Some(Span::from_secs(2));
            self.probe_take("the end of a delay", other, server, delay, lease).await?;
            let short = Span::from_secs(2);
            self.probe_take("the end of a lease", server, other, None, short).await?;
            if self.world.plan.is_extended {
                self.probe_resume(server, other).await?;
            }
        }
        Ok(())
    }

    /// A take waits at a paused tube with a task until another server resumes it.
    async fn probe_resume(&mut self, take_at: usize, resume_at: usize) -> Result<(), Late> {
        self.pause(resume_at, TubeRole::Probed, true).await;
        let body = Body::new(&crate::operations::payload((ADMIN, self.calls), 0).to_be_bytes());
        let (tube, tasks) = (TubeRole::Probed.tube(), vec![NewTask::new(body)]);
        self.call(resume_at, Command::Put { tube, tasks, wait: Span::ZERO }).await;
        let waiting = self.start_take(take_at, Span::from_secs(600));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let resumed = Instant::now();
        self.pause(resume_at, TubeRole::Probed, false).await;
        let reply = waiting.await.map_err(|error| format!("a call failed: {error}"))?;
        let most = self.wake_max(take_at == resume_at);
        let tasks = self.check_probe("a resume", reply, resumed.elapsed(), most)?;
        for task in &tasks {
            self.call(resume_at, ack(TubeRole::Probed, task)).await;
        }
        Ok(())
    }

    /// Shows a task after its ack: while its tube must keep it, and when it must not any more.
    async fn probe_done(&mut self) -> Result<(), Late> {
        let role = TubeRole::Kept;
        let body = Body::new(&crate::operations::payload((ADMIN, self.calls), 0).to_be_bytes());
        let (tube, tasks) = (role.tube(), vec![NewTask::new(body)]);
        self.call(0, Command::Put { tube, tasks, wait: Span::ZERO }).await;
        let taken = self.call(0, take(role, Span::from_secs(60), Span::from_secs(2))).await;
        let CallReply::Replied(Reply::Taken(tasks)) = taken else {
            return Err(format!("a take from '{}' failed: {taken:?}", role.name()));
        };
        for task in &tasks {
            let (holder, result) = (task.lease.map_or(Holder::Any, Holder::Lease), b"\x07");
            let items = vec![FinishItem { id: task.id, holder, finish: Finish::ack_with(result) }];
            self.call(0, Command::Finish { tube: role.tube(), items, show: false }).await;
            for part in [KEEP_DONE.as_secs_f64() * 0.75, KEEP_DONE.as_secs_f64()] {
                tokio::time::sleep(Duration::from_secs_f64(part)).await;
                self.call(0, Command::Peek { tube: role.tube(), ids: vec![task.id] }).await;
            }
        }
        Ok(())
    }

    async fn pause(&mut self, server: usize, role: TubeRole, paused: bool) {
        let change = TubeChange { paused: Some(paused), ..TubeChange::default() };
        self.call(server, Command::AlterTube { tube: role.tube(), change }).await;
    }

    /// Starts a take from the probed tube that waits for a minute.
    fn start_take(&mut self, server: usize, lease: Span) -> JoinHandle<CallReply> {
        let operation = (ADMIN, self.calls);
        self.calls += 1;
        let (world, take) = (self.world.clone(), take(TubeRole::Probed, lease, PROBE_WAIT));
        tokio::task::spawn_local(async move { world.call(operation, server, take).await })
    }

    /// The tasks of a take that waited, if it was served in time.
    fn check_probe(
        &self,
        what: &str,
        reply: CallReply,
        late: Duration,
        most: Duration,
    ) -> Result<Vec<Task>, Late> {
        let CallReply::Replied(Reply::Taken(tasks)) = reply else {
            return Err(format!("a take that waits for {what} failed: {reply:?}"));
        };
        if tasks.is_empty() || late > most {
            return Err(format!(
                "a take that waits for {what} got {} tasks after {} ms; it must be served within {} ms",
                tasks.len(),
                late.as_millis(),
                most.as_millis()
            ));
        }
        Ok(tasks)
    }

    /// A take waits at one server while a task is put at another one. If the lease is short, the first take leaves the task and
    /// a second one waits for it.
    async fn probe_take(
        &mut self,
        what: &str,
        put_at: usize,
        take_at: usize,
        delay: Option<Span>,
        lease: Span,
    ) -> Result<(), Late> {
        let (operation, wait) = ((ADMIN, self.calls), PROBE_WAIT);
        let waiting = self.start_take(take_at, lease);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let body = Body::new(&crate::operations::payload(operation, 0).to_be_bytes());
        let tasks = vec![NewTask { delay, ..NewTask::new(body) }];
        let mut ready = Instant::now() + Duration::from(delay.unwrap_or(Span::ZERO));
        self.call(put_at, Command::Put { tube: TubeRole::Probed.tube(), tasks, wait: Span::ZERO })
            .await;
        let mut reply = waiting.await.map_err(|error| format!("a call failed: {error}"))?;
        if lease < wait {
            ready = Instant::now() + Duration::from(lease);
            reply = self.call(put_at, take(TubeRole::Probed, Span::from_secs(600), wait)).await;
        }
        let late = ready.elapsed();
        let most = self.wake_max(put_at == take_at && delay.is_none() && lease > wait);
        for task in &self.check_probe(what, reply, late, most)? {
            self.call(put_at, ack(TubeRole::Probed, task)).await;
        }
        Ok(())
    }

    /// How late a waiting take may be served. A server that shares its database notices changes of others, and what is due for
    /// them, when it polls; its clock may be wrong, so that it tries too early and waits for another second.
    fn wake_max(&self, at_once: bool) -> Duration {
        // Over a network the first call also connects.
        let count = if self.world.network.is_some() { 24 } else { 8 };
        let ways = count * self.world.plan.latency_max + Duration::from_millis(20);
        let is_alone = self.world.storage.shows_wall_time();
        if at_once || is_alone { ways } else { ways + Duration::from_millis(2_200) }
    }

    async fn call(&mut self, server: usize, command: Command) -> CallReply {
        let operation = (ADMIN, self.calls);
        self.calls += 1;
        self.world.call(operation, server, command).await
    }
}

fn take(role: TubeRole, lease: Span, wait: Span) -> Command {
    let (tube, lease) = (role.tube(), Some(lease));
    Command::Take(Take { tube, count: 1, session: None, lease, worker: None, wait })
}

fn ack(role: TubeRole, task: &Task) -> Command {
    let holder = task.lease.map_or(Holder::Any, Holder::Lease);
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
    Command::Finish { tube: role.tube(), items, show: false }
}

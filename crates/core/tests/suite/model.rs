//! The rules of tubes in their simplest form: one list of tasks for each tube, searched from end to
//! end. A reader checks this file against the rules; the tests check the machine against this file.

mod schedules;
mod tube;

use taskyard_core::*;

use tube::ModelTube;

/// All tubes, tasks and sessions, in lists.
pub struct Model {
    now: Timestamp,
    tubes: Vec<ModelTube>,
    /// By name.
    schedules: Vec<StoredSchedule>,
    sessions: Vec<ModelSession>,
    session_ttr: Span,
    next_lease: u64,
}

struct ModelSession {
    id: SessionId,
    connections: u32,
    ends: Option<Timestamp>,
}

impl Model {
    pub fn new() -> Self {
        Model {
            now: Timestamp::from_micros(i64::MIN),
            tubes: Vec::new(),
            schedules: Vec::new(),
            sessions: Vec::new(),
            session_ttr: Span::ZERO,
            next_lease: 0,
        }
    }

    /// The reply of a command. Time never runs backwards.
    pub fn apply(&mut self, now: Timestamp, command: Command) -> Result<Reply> {
        self.now = self.now.max(now);
        let now = self.now;
        match command {
            Command::CreateTube { tube, options, if_not_exists } => {
                self.create(tube, options, if_not_exists)
            }
            Command::AlterTube { tube, change } => self.alter(&tube, &change),
            Command::NameTube { tube, name, queue_num } => self.name(&tube, name, queue_num),
            Command::DropTube { tube } => {
                // Ready, delayed and buried tasks do not prevent a drop; taken ones do.
                if self.tube(&tube)?.count(State::Taken) > 0 {
                    return Err(Error::TubeHasTaken(tube));
                }
                self.tubes.retain(|each| each.name != tube);
                Ok(Reply::Nothing)
            }
            Command::Tubes { tube: Some(tube) } => {
                Ok(Reply::Tubes(vec![self.tube(&tube)?.info(now)]))
            }
            Command::Tubes { tube: None } => {
                let mut tubes: Vec<_> = self.tubes.iter().map(|tube| tube.info(now)).collect();
                tubes.sort_by_key(|info| info.name.clone());
                Ok(Reply::Tubes(tubes))
            }
            Command::Put { tube, tasks, .. } => self.put(&tube, tasks),
            Command::Take(take) => self.take(&take),
            Command::Finish { tube, items, .. } => self.finish(&tube, &items),
            Command::Kick { tube, count } => Ok(self.tube(&tube)?.kick(now, count)),
            Command::KickTasks { tube, ids, reset_attempts } => {
                Ok(self.tube(&tube)?.kick_tasks(now, &ids, reset_attempts))
            }
            Command::Delete { tube, ids, .. } => {
                let tube = self.tube(&tube)?;
                Ok(Reply::Finished(ids.iter().map(|id| tube.delete(now, *id)).collect()))
            }
            Command::Peek { tube, ids } => {
                let tube = self.tube(&tube)?;
                Ok(Reply::Tasks(ids.iter().filter_map(|id| tube.view_whole(now, *id)).collect()))
            }
            Command::Deliveries { tube, count } => {
                let tube = self.tube(&tube)?;
                let taken = tube.entries.iter().filter(|entry| entry.task.state == State::Taken);
                let tasks =
                    taken.filter_map(|entry| tube.view_held(now, entry.task.id)).take(count);
                Ok(Reply::Tasks(tasks.map(|task| Task { body: None, ..task }).collect()))
            }
            Command::List(list) => {
                list.check()?;
                Ok(Reply::Listed(self.tube(&list.tube)?.list(now, &list)))
            }
            Command::Search(search) => {
                search.check()?;
                let tube = self.tube(&search.tube)?;
                let tasks = search.ids().filter_map(|id| tube.view_whole(now, id)).collect();
                let mut found = search.among(tasks);
                let has_run = |task: &Task| {
                    let payload = task.body.as_ref().map_or(&[][..], Body::payload);
                    payload.windows(search.run.len()).any(|bytes| bytes == &*search.run)
                };
                let mut kept = found.tasks.iter().map(has_run).collect::<Vec<_>>().into_iter();
                found.ranks.retain(|_| kept.next().unwrap());
                found.tasks.retain(has_run);
                Ok(Reply::Found(found))
            }
            Command::Positions { tube, ids } => {
                let tube = self.tube(&tube)?;
                let positions = ids.iter().filter_map(|id| tube.position(now, *id));
                Ok(Reply::Positions(positions.collect()))
            }
            Command::Truncate { tube } => {
                let tube = self.tube(&tube)?;
                tube.entries.clear();
                tube.kept.clear();
                tube.ended.clear();
                Ok(Reply::Nothing)
            }
            Command::ReleaseAll { tube } => {
                let tube = self.tube(&tube)?;
                tube.release_where(now, None, |task| task.state == State::Taken);
                Ok(Reply::Nothing)
            }
            Command::JoinSession { session, create } => self.join(session, create),
            Command::LeaveSession { session } => self.leave(session),
            Command::ConfigureSessions { ttr } => {
                self.session_ttr = ttr;
                Ok(Reply::Nothing)
            }
            Command::Schedule(command) => self.schedule(*command).map(Reply::Schedule),
            Command::Semaphore(_) => panic!("semaphores have a model of their own"),
            Command::Tick { seed, .. } => Ok(Reply::Ticked(self.tick(seed))),
        }
    }

    fn put(&mut self, tube: &TubeName, tasks: Vec<NewTask>) -> Result<Reply> {
        let now = self.now;
        if tasks.iter().any(|task| task.attempts_max == Some(0)) {
            return Err(Error::Invalid("zero".into()));
        }
        self.tube(tube)?.put(now, tasks)
    }

    fn tube(&mut self, name: &TubeName) -> Result<&mut ModelTube> {
        let found = self.tubes.iter_mut().find(|tube| tube.name == *name);
        found.ok_or_else(|| Error::TubeNotFound(name.clone()))
    }

    fn create(&mut self, name: TubeName, options: TubeOptions, lenient: bool) -> Result<Reply> {
        check_options(&options)?;
        if self.tube(&name).is_ok() {
            // The options of an existing tube are not compared.
            return if lenient { Ok(Reply::Created(false)) } else { Err(Error::TubeExists(name)) };
        }
        let free = |number: &u32| self.tubes.iter().all(|tube| tube.number != *number);
        let number = (0..).find(free).unwrap();
        self.tubes.push(ModelTube::new(number, name, options));
        Ok(Reply::Created(true))
    }

    /// Names and numbers belong to one tube each; an existing number stays.
    fn name(&mut self, tube: &TubeName, name: TubeName, num: Option<u32>) -> Result<Reply> {
        let now = self.now;
        let known = self.tube(tube)?.options.queue_num;
        if name != *tube && self.tube(&name).is_ok() {
            return Err(Error::TubeExists(name));
        }
        if let (Some(known), Some(num)) = (known, num)
            && known != num
        {
            return Err(Error::TubeExists(tube.clone()));
        }
        let other =
            self.tubes.iter().find(|each| each.name != *tube && each.options.queue_num == num);
        if let (Some(_), Some(other)) = (num, other) {
            return Err(Error::TubeExists(other.name.clone()));
        }
        let tube = self.tube(tube)?;
        tube.name = name;
        tube.options.queue_num = known.or(num);
        Ok(Reply::Tubes(vec![tube.info(now)]))
    }

    fn alter(&mut self, name: &TubeName, change: &TubeChange) -> Result<Reply> {
        let now = self.now;
        check_options(&changed(TubeOptions::new(Kind::Fifo), change))?;
        let tube = self.tube(name)?;
        let options = changed(tube.options.clone(), change);
        tube.change_rate(now, options.rate.as_deref());
        tube.options = options;
        Ok(Reply::Tubes(vec![tube.info(now)]))
    }

    fn take(&mut self, take: &Take) -> Result<Reply> {
        let now = self.now;
        let mut lease = self.next_lease;
        let known = take.session.is_none_or(|session| self.is_alive(session));
        let tube = self.tube(&take.tube)?;
        if !known {
            return Err(Error::SessionUnknown(take.session.unwrap()));
        }
        let mut tasks = Vec::new();
        while tasks.len() < take.count && tube.tokens(now) > 0 {
            let Some(id) = tube.takeable(now).first().copied() else { break };
            let until_ttl = tube.options.ttl_kills_taken;
            let entry = tube.entry(id).unwrap();
            let until = now + take.lease.unwrap_or(entry.task.ttr);
            entry.explicit = take.lease.is_some();
            entry.task.state = State::Taken;
            entry.task.start = Some(now);
            entry.task.session = take.session;
            entry.worker = take.worker.clone();
            entry.task.lease = Some(Lease(lease));
            entry.task.lease_until =
                Some(if until_ttl { until.min(entry.task.expires) } else { until });
            lease += 1;
            tube.calls.take += 1;
            tube.spend(now);
            tasks.push(tube.view_with_due(now, id).unwrap());
        }
        self.next_lease = lease;
        Ok(Reply::Taken(tasks))
    }

    fn finish(&mut self, name: &TubeName, items: &[FinishItem]) -> Result<Reply> {
        let now = self.now;
        let alive: Vec<_> = self.sessions.iter().map(|session| session.id).collect();
        let alive: Vec<_> = alive.into_iter().filter(|id| self.is_alive(*id)).collect();
        let tube = self.tube(name)?;
        for item in items {
            let touch = matches!(item.finish, Finish::Touch(_));
            let held = tube.entry(item.id).filter(|entry| entry.is_held(now, item.holder, &alive));
            if touch && held.is_some_and(|entry| !entry.explicit) && !tube.options.kind.has_times()
            {
                return Err(Error::Unsupported { kind: tube.options.kind.name(), verb: "touch" });
            }
        }
        Ok(Reply::Finished(items.iter().map(|item| tube.finish(now, item, &alive)).collect()))
    }

    fn is_alive(&self, id: SessionId) -> bool {
        let session = self.sessions.iter().find(|session| session.id == id);
        session.is_some_and(|session| session.ends.is_none_or(|ends| ends > self.now))
    }

    fn join(&mut self, id: SessionId, create: bool) -> Result<Reply> {
        if !self.is_alive(id) {
            if !create {
                return Err(Error::SessionUnknown(id));
            }
            self.end(id);
            self.sessions.push(ModelSession { id, connections: 0, ends: None });
        }
        let session = self.sessions.iter_mut().find(|session| session.id == id).unwrap();
        session.connections += 1;
        session.ends = None;
        Ok(Reply::Session(id))
    }

    fn leave(&mut self, id: SessionId) -> Result<Reply> {
        if !self.is_alive(id) {
            return Err(Error::SessionUnknown(id));
        }
        let ends = self.now + self.session_ttr;
        let at_once = self.session_ttr.is_zero();
        let session = self.sessions.iter_mut().find(|session| session.id == id).unwrap();
        session.connections = session.connections.saturating_sub(1);
        if session.connections == 0 {
            session.ends = Some(ends);
            if at_once {
                self.end(id);
            }
        }
        Ok(Reply::Nothing)
    }

    /// Ends a session: its tasks are released. Returns the number of tasks.
    fn end(&mut self, id: SessionId) -> usize {
        self.sessions.retain(|session| session.id != id);
        let mut given_back = 0;
        for tube in &mut self.tubes {
            given_back += tube
                .release_where(self.now, Some("session ended"), |task| task.session == Some(id));
        }
        given_back
    }

    /// Sessions end first: their tasks count as released, even if the lease is over too.
    fn tick(&mut self, seed: u32) -> usize {
        let mut moved = 0;
        let all: Vec<_> = self.sessions.iter().map(|session| session.id).collect();
        for id in all {
            if !self.is_alive(id) {
                moved += 1 + self.end(id);
            }
        }
        for tube in &mut self.tubes {
            moved += tube.tick(self.now, seed);
        }
        moved
    }

    /// The nearest moment at which a tick would change something; `None` when there is none.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let sessions = self.sessions.iter().filter_map(|session| session.ends);
        let tubes = self.tubes.iter().filter_map(|tube| tube.next_wakeup(self.now));
        sessions.chain(tubes).filter(|at| *at != Timestamp::NEVER).min()
    }

    /// Applies the effects of a stop and a new start.
    pub fn restart(&mut self) {
        self.sessions.clear();
        self.session_ttr = Span::ZERO;
        for tube in &mut self.tubes {
            tube.release_where(self.now, None, |task| task.state == State::Taken);
            tube.calls = Calls::default();
            tube.done = 0;
            if tube.options.temporary {
                tube.entries.clear();
                tube.kept.clear();
                tube.ended.clear();
            }
        }
    }
}

fn changed(mut options: TubeOptions, change: &TubeChange) -> TubeOptions {
    set(&mut options.paused, change.paused);
    set(&mut options.capacity, change.capacity);
    set(&mut options.ttl, change.ttl);
    set(&mut options.ttr, change.ttr);
    set(&mut options.delay, change.delay);
    set(&mut options.pri, change.pri);
    set(&mut options.attempts_max, change.attempts_max);
    set(&mut options.retry, change.retry.clone());
    set(&mut options.rate, change.rate.clone());
    set(&mut options.keep_done, change.keep_done);
    set(&mut options.keep_done_max, change.keep_done_max);
    options
}

fn set<T>(option: &mut T, change: Option<T>) {
    if let Some(value) = change {
        *option = value;
    }
}

fn check_options(options: &TubeOptions) -> Result<()> {
    let zero = options.attempts_max == Some(0)
        || options.keep_done == Some(Span::ZERO)
        || options.keep_done_max == 0;
    options.retry.as_ref().map_or(Ok(()), |retry| retry.check())?;
    options.rate.as_ref().map_or(Ok(()), |rate| rate.check())?;
    if zero { Err(Error::Invalid("zero".into())) } else { Ok(()) }
}

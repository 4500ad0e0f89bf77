//! The tasks of one tube in the model.

use std::sync::Arc;

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::DELAYED_PERIODS;
use taskyard_core::*;

/// A tube and its tasks.
pub(super) struct ModelTube {
    pub number: u32,
    pub name: TubeName,
    pub options: TubeOptions,
    /// In the order of their ids.
    pub entries: Vec<ModelTask>,
    pub next_id: u64,
    pub calls: Calls,
    pub done: u64,
    /// Done tasks that are kept, in the order of their ids.
    pub kept: Vec<Task>,
    /// The keys of ended tasks.
    pub ended: Vec<EndedKey>,
    /// The parts of tokens in the bucket and when they were counted: a token has as many parts as `per` has microseconds. A
    /// new bucket is full.
    bucket: Option<(u64, Timestamp)>,
}

/// A task, and what replies do not show about it.
pub(super) struct ModelTask {
    pub task: Task,
    /// Since when it could be taken, or could be when it was.
    pub since: Timestamp,
    /// Whether its taker named the lease time.
    pub explicit: bool,
    /// The name of the worker that holds it.
    pub worker: Option<Arc<str>>,
    /// Its latest failures, oldest first.
    pub failures: Vec<Failure>,
    /// Whether it was buried because its attempts were used up.
    pub dead_letter: bool,
    /// For how long its key is held after its end.
    pub unique_for: Span,
    /// How many attempts its put allowed.
    pub attempts_max: Option<u32>,
}

impl ModelTube {
    pub fn new(number: u32, name: TubeName, options: TubeOptions) -> Self {
        ModelTube {
            number,
            name,
            options,
            entries: Vec::new(),
            next_id: 0,
            calls: Calls::default(),
            done: 0,
            kept: Vec::new(),
            ended: Vec::new(),
            bucket: None,
        }
    }

    pub fn entry(&mut self, id: TaskId) -> Option<&mut ModelTask> {
        self.entries.iter_mut().find(|entry| entry.task.id == id)
    }

    pub fn count(&self, state: State) -> u64 {
        self.entries.iter().filter(|entry| entry.task.state == state).count() as u64
    }

    pub fn put(&mut self, now: Timestamp, tasks: Vec<NewTask>) -> Result<Reply> {
        let capacity = self.options.capacity.unwrap_or(u64::MAX);
        let mut new: Vec<&Key> = Vec::new();
        let mut added = 0;
        for task in &tasks {
            let key = task.key.as_ref().map(|request| &request.held.key);
            if key.is_some_and(|key| new.contains(&key) || self.is_held(now, key)) {
                continue;
            }
            new.extend(key);
            added += 1;
        }
        if added > 0 && (self.entries.len() + added) as u64 > capacity {
            return Err(Error::TubeFull { tube: self.name.clone(), capacity });
        }
        Ok(Reply::Put(tasks.into_iter().map(|task| self.put_one(now, task)).collect()))
    }

    /// Whether a task has the key, or had it a short time ago.
    fn is_held(&self, now: Timestamp, key: &Key) -> bool {
        let living = self.entries.iter().find(|entry| entry.task.key.as_deref() == Some(key));
        let ended = self.ended.iter().any(|ended| ended.key == *key && ended.until > now);
        ended || living.is_some_and(|entry| !is_over(now, &entry.task) || entry.key_until() > now)
    }

    fn put_one(&mut self, now: Timestamp, mut new: NewTask) -> Placed {
        let request = new.key.take();
        if let Some(request) = &request {
            let key = &request.held.key;
            let over = |task: &&Task| task.key.as_deref() == Some(key) && is_over(now, task);
            let over = self.tasks().find(over).map(|task| task.id);
            if let Some(id) = over {
                self.delete(now, id);
                self.calls.ttl += 1;
            }
            self.ended.retain(|ended| ended.key != *key || ended.until > now);
            if let Some(ended) = self.ended.iter().find(|ended| ended.key == *key) {
                return Placed { id: ended.id, state: State::Done, existing: true };
            }
            let holder = self.tasks().find(|task| task.key.as_deref() == Some(key));
            if let Some((id, state)) = holder.map(|task| (task.id, task.state)) {
                let replaces = request.on_conflict == OnConflict::Replace
                    && matches!(state, State::Ready | State::Delayed);
                if replaces {
                    self.replace(now, id, new, request.held.unique_for);
                }
                let state = self.entry(id).unwrap().task.state;
                return Placed { id, state, existing: true };
            }
        }
        let id = TaskId(self.next_id);
        self.add(now, id, new);
        let entry = self.entry(id).unwrap();
        entry.unique_for = request.as_ref().map_or(Span::ZERO, |request| request.held.unique_for);
        entry.task.key = request.map(|request| Box::new(request.held.key));
        let state = entry.task.state;
        self.next_id += 1;
        self.calls.put += 1;
        Placed { id, state, existing: false }
    }

    /// A holder is as if it were put now, but keeps what a put does not say.
    fn replace(&mut self, now: Timestamp, id: TaskId, new: NewTask, unique_for: Span) {
        let place = self.tasks().position(|task| task.id == id).unwrap();
        let old = self.entries.remove(place);
        self.add(now, id, new);
        let entry = self.entries.pop().unwrap();
        let task = Task {
            created: old.task.created,
            subqueue: old.task.subqueue,
            attempts: old.task.attempts,
            previous_start: old.task.previous_start,
            key: old.task.key,
            ..entry.task
        };
        let (failures, attempts_max) = (old.failures, old.attempts_max);
        let entry = ModelTask { task, failures, unique_for, attempts_max, ..entry };
        self.entries.insert(place, entry);
    }

    fn add(&mut self, now: Timestamp, id: TaskId, new: NewTask) {
        let mut task = Task {
            id,
            state: State::Ready,
            pri: 0,
            created: now,
            due: None,
            expires: Timestamp::NEVER,
            ttr: Span::FOREVER,
            attempts: 0,
            start: None,
            previous_start: None,
            subqueue: None,
            attempts_max: None,
            semaphore_priority: None,
            key: None,
            session: None,
            worker: None,
            failures: None,
            finished: None,
            lease: None,
            lease_until: None,
            reason: Reason::WaitsForConsumer,
            body: Some(new.body),
        };
        if self.options.kind.has_subqueues() {
            task.subqueue = Some(new.subqueue.unwrap_or(Arc::from("nil")));
        }
        if self.options.kind.has_times() {
            let ttl = new.ttl.or(self.options.ttl).unwrap_or(Span::FOREVER);
            let delay = new.delay.or(self.options.delay).unwrap_or(Span::ZERO);
            let begins = new.at.unwrap_or(now + delay).max(now);
            task.pri = new.pri.unwrap_or(self.options.pri);
            task.ttr = new.ttr.or(self.options.ttr).unwrap_or(ttl);
            task.expires = begins + ttl;
            if begins > now {
                task.state = State::Delayed;
                task.due = Some(begins);
            }
        }
        self.entries.push(ModelTask {
            task,
            since: now,
            explicit: false,
            worker: None,
            failures: Vec::new(),
            dead_letter: false,
            unique_for: Span::ZERO,
            attempts_max: new.attempts_max,
        });
    }

    /// What a take would deliver, in order: ready and not expired, by (pri, id), one of each
    /// sub-queue in which nothing runs.
    pub fn takeable(&self, now: Timestamp) -> Vec<TaskId> {
        if self.options.paused { Vec::new() } else { self.free(now) }
    }

    /// The same regardless of a pause.
    fn free(&self, now: Timestamp) -> Vec<TaskId> {
        let fresh = |task: &&Task| task.state == State::Ready && task.expires > now;
        let mut ready: Vec<&Task> = self.tasks().filter(fresh).collect();
        ready.sort_by_key(|task| (task.pri, task.id));
        let mut chosen: Vec<&Task> = Vec::new();
        for task in ready {
            let twin = |other: &&Task| task.subqueue.is_some() && other.subqueue == task.subqueue;
            let taken = self.tasks().filter(|task| task.state == State::Taken);
            if !taken.chain(chosen.iter().copied()).any(|other| twin(&other)) {
                chosen.push(task);
            }
        }
        chosen.iter().map(|task| task.id).collect()
    }

    /// A page of a list.
    pub fn list(&self, now: Timestamp, list: &List) -> Vec<ListedTask> {
        let listed = |task: &Task| ListedTask { id: task.id, pri: task.pri };
        let is_expired =
            |task: &Task| matches!(task.state, State::Ready | State::Buried) && task.expires <= now;
        let is_named =
            |task: &Task| list.key.as_ref().is_none_or(|key| task.key.as_deref() == Some(key));
        let tasks: Vec<ListedTask> = match list.order {
            ListOrder::Id { states, after } => {
                let page = self.tasks().filter(|task| after.is_none_or(|after| task.id > after));
                let page = page.filter(|task| states.contains(task.state) && !is_expired(task));
                let done = self.kept.iter().filter(|task| {
                    states.contains(State::Done)
                        && after.is_none_or(|after| task.id > after)
                        && self.is_visible(now, task)
                });
                let page = page.chain(done).filter(|task| is_named(task));
                let mut page: Vec<_> = page.map(listed).collect();
                page.sort_by_key(|task| task.id);
                page
            }
            ListOrder::Queue { after } => {
                let free = self.free(now);
                let free = free.iter().filter_map(|id| self.tasks().find(|task| task.id == *id));
                let page = free.map(listed);
                page.filter(|task| after.is_none_or(|after| (task.pri, task.id) > after)).collect()
            }
        };
        tasks.into_iter().take(list.limit).collect()
    }

    pub fn position(&self, now: Timestamp, id: TaskId) -> Option<Position> {
        let is_ready = |task: &Task| task.state == State::Ready && task.expires > now;
        let waits = |task: &&Task| is_ready(task) || task.state == State::Delayed;
        let own = self.tasks().find(|task| task.id == id).filter(waits)?;
        let goes_first = |task: &&Task| (task.pri, task.id) < (own.pri, own.id);
        let ready = |task: &&Task| is_ready(task) && goes_first(task);
        let is_near = |task: &&Task| task.subqueue == own.subqueue;
        let delayed = self.tasks().filter(|task| task.state == State::Delayed);
        let waits = delayed.filter(goes_first).filter_map(|task| Some(task.due?.since(now)));
        let mut delayed_ahead = vec![0; DELAYED_PERIODS];
        for wait in waits {
            let seconds = |period: usize| Span::from_secs(1 << period);
            let later = (0..DELAYED_PERIODS).filter(|period| wait <= seconds(*period));
            later.for_each(|period| delayed_ahead[period] += 1);
        }
        // What is like the number before is omitted.
        while let [.., before, last] = delayed_ahead[..]
            && before == last
        {
            delayed_ahead.pop();
        }
        if delayed_ahead == [0] {
            delayed_ahead.clear();
        }
        Some(Position {
            id,
            pri: own.pri,
            due: own.due.filter(|_| own.state == State::Delayed),
            ahead: self.tasks().filter(ready).count() as u64,
            delayed_ahead,
            subqueue: own.subqueue.is_some().then(|| SubqueuePosition {
                ahead: self.tasks().filter(is_near).filter(ready).count() as u64,
                is_busy: self.tasks().filter(is_near).any(|task| task.state == State::Taken),
            }),
            gate_ahead: None,
            is_exact: true,
            estimate: None,
        })
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.entries.iter().map(|entry| &entry.task)
    }

    pub fn finish(&mut self, now: Timestamp, item: &FinishItem, alive: &[SessionId]) -> Outcome {
        let has_times = self.options.kind.has_times();
        let retry = self.options.retry.clone();
        let Some(entry) = self.entry(item.id) else { return Outcome::Missing };
        let buries = match &item.finish {
            Finish::Bury => true,
            Finish::Fail(fail) => fail.then == AfterFailure::Bury,
            _ => false,
        };
        let is_unowned_bury = buries && item.holder == Holder::Any;
        if !is_unowned_bury && !entry.is_held(now, item.holder, alive) {
            return Outcome::Stale;
        }
        match &item.finish {
            Finish::Ack | Finish::AckWithResult(_) => {
                self.calls.ack += 1;
                let shown = self.entry(item.id).unwrap().task.clone();
                self.end_key(now, item.id);
                self.keep(now, item.id, item.finish.result());
                self.remove(item.id);
                let (state, reason, key) = (State::Done, Reason::Finished, None);
                return Outcome::Done(Some(Box::new(Task { state, reason, key, ..shown })));
            }
            Finish::Release { delay, counted } => {
                self.calls.release += 1;
                let delay = if has_times { *delay } else { Span::ZERO };
                self.give_back(now, item.id, delay, *counted);
            }
            Finish::Fail(fail) if buries => {
                if entry.task.state != State::Buried {
                    entry.fail(now, &fail.error);
                    entry.to(State::Buried);
                    self.calls.bury += 1;
                }
            }
            Finish::Fail(fail) => {
                entry.fail(now, &fail.error);
                let attempt = entry.task.attempts + 1;
                self.calls.release += 1;
                let delay = match (fail.then, retry) {
                    (AfterFailure::Policy { seed, .. }, Some(retry)) => {
                        Some(retry.delay_after(attempt, seed, item.id))
                    }
                    (then, _) => then.delay(),
                };
                let delay = delay.filter(|_| has_times).unwrap_or(Span::ZERO);
                self.give_back(now, item.id, delay, true);
            }
            Finish::Bury if entry.task.state == State::Buried => {}
            Finish::Bury => {
                entry.to(State::Buried);
                self.calls.bury += 1;
            }
            Finish::Touch(Span::ZERO) => {}
            Finish::Touch(more) => {
                let more = *more;
                entry.task.lease_until = entry.task.lease_until.map(|until| until + more);
                entry.task.expires = entry.task.expires + more;
                entry.task.ttr = entry.task.ttr + more;
                self.calls.touch += 1;
            }
        }
        Outcome::Done(Some(Box::new(self.view(now, item.id).unwrap())))
    }

    /// Ends a delivery without ack or bury.
    fn give_back(&mut self, now: Timestamp, id: TaskId, delay: Span, counted: bool) {
        let tube_max = self.options.attempts_max;
        let entry = self.entry(id).unwrap();
        let attempts_max = entry.attempts_max.or(tube_max);
        if counted {
            entry.task.attempts += 1;
            entry.task.previous_start = Some(entry.since);
            entry.since = now;
        }
        if counted && attempts_max.is_some_and(|max| entry.task.attempts >= max) {
            entry.to(State::Buried);
            entry.dead_letter = true;
            self.calls.bury += 1;
        } else if delay.is_zero() {
            entry.to(State::Ready);
        } else {
            entry.to(State::Delayed);
            entry.task.due = Some(now + delay);
            entry.task.expires = entry.task.expires + delay;
        }
    }

    /// Releases the tasks that match `which`; returns how many.
    pub fn release_where(
        &mut self,
        now: Timestamp,
        error: Option<&str>,
        which: impl Fn(&Task) -> bool,
    ) -> usize {
        let ids: Vec<_> = self.tasks().filter(|task| which(task)).map(|task| task.id).collect();
        for id in &ids {
            if let Some(error) = error {
                self.entry(*id).unwrap().fail(now, error);
            }
            self.calls.release += 1;
            self.give_back(now, *id, Span::ZERO, true);
        }
        ids.len()
    }

    pub fn kick(&mut self, now: Timestamp, count: u64) -> Reply {
        let buried = self.entries.iter_mut().filter(|entry| entry.task.state == State::Buried);
        let mut buried: Vec<&mut ModelTask> = buried.collect();
        buried.sort_by_key(|entry| (entry.task.pri, entry.task.id));
        let mut kicked = 0;
        for entry in buried.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX)) {
            entry.to(State::Ready);
            entry.since = now;
            kicked += 1;
        }
        self.calls.kick += kicked;
        Reply::Kicked(kicked)
    }

    pub fn kick_tasks(&mut self, now: Timestamp, ids: &[TaskId], reset_attempts: bool) -> Reply {
        let mut outcomes = Vec::new();
        for id in ids {
            let outcome = match self.entry(*id) {
                Some(entry) if entry.task.state == State::Buried => {
                    entry.to(State::Ready);
                    entry.since = now;
                    if reset_attempts {
                        entry.task.attempts = 0;
                    }
                    self.calls.kick += 1;
                    Outcome::Done(None)
                }
                Some(_) => Outcome::Stale,
                None => Outcome::Missing,
            };
            outcomes.push(outcome);
        }
        Reply::Finished(outcomes)
    }

    /// The key of a task that ends now stays held for some time.
    fn end_key(&mut self, now: Timestamp, id: TaskId) {
        let Some(entry) = self.entries.iter().find(|entry| entry.task.id == id) else { return };
        let Some(key) = entry.task.key.clone() else { return };
        let is_over = is_over(now, &entry.task);
        let until = if is_over { entry.key_until() } else { now + entry.unique_for };
        if until > now {
            self.ended.push(EndedKey { id, key: *key, until });
        }
    }

    /// Keeps a task that ends now, if the tube keeps done tasks.
    fn keep(&mut self, now: Timestamp, id: TaskId, result: Option<&[u8]>) {
        if self.options.keep_done.is_none() {
            return;
        }
        let entry = self.entry(id).unwrap();
        let (run, worker) = (now.since(entry.task.start.unwrap()), entry.worker.clone());
        let finished = Finished::new(now, run, worker.as_deref(), result.unwrap_or(&[]));
        entry.to(State::Done);
        let whole = self.view_whole(now, id).unwrap();
        let reason = Reason::Finished;
        self.kept.push(Task { finished: Some(finished), reason, ..whole });
        self.kept.sort_by_key(|task| task.id);
    }

    /// Whether a done task is not over age.
    fn is_visible(&self, now: Timestamp, task: &Task) -> bool {
        self.options.keep_done.is_some_and(|keep| ended(task) + keep > now)
    }

    pub fn delete(&mut self, now: Timestamp, id: TaskId) -> Outcome {
        if let Some(place) = self.kept.iter().position(|task| task.id == id) {
            if !self.is_visible(now, &self.kept[place]) {
                return Outcome::Missing;
            }
            self.calls.delete += 1;
            let task = self.kept.remove(place);
            return Outcome::Done(Some(Box::new(Task { failures: None, key: None, ..task })));
        }
        self.end_key(now, id);
        let outcome = self.remove(id);
        if outcome != Outcome::Missing {
            self.calls.delete += 1;
        }
        outcome
    }

    /// Removes a task; the reply shows it as it was, but done.
    fn remove(&mut self, id: TaskId) -> Outcome {
        let Some(place) = self.tasks().position(|task| task.id == id) else {
            return Outcome::Missing;
        };
        self.done += 1;
        let task = self.entries.remove(place).task;
        let (state, reason, key) = (State::Done, Reason::Finished, None);
        Outcome::Done(Some(Box::new(Task { state, reason, key, ..task })))
    }

    /// Processes all that is due; returns the number of steps.
    pub fn tick(&mut self, now: Timestamp, seed: u32) -> usize {
        let mut moved = 0;
        while let Some((id, state)) = self.first_due(now) {
            match state {
                State::Delayed => {
                    let entry = self.entry(id).unwrap();
                    entry.since = entry.task.due.unwrap();
                    entry.to(State::Ready);
                    self.calls.delay += 1;
                }
                State::Taken => {
                    self.calls.ttr += 1;
                    let entry = self.entry(id).unwrap();
                    let over = entry.task.lease_until.unwrap();
                    entry.fail(over, "lease expired");
                    let attempt = entry.task.attempts + 1;
                    let retry = self.options.retry.as_ref().filter(|retry| retry.retry_lost);
                    let has_times = self.options.kind.has_times();
                    let delay = retry
                        .filter(|_| has_times)
                        .map_or(Span::ZERO, |retry| retry.delay_after(attempt, seed, id));
                    self.give_back(over, id, delay, true);
                    let entry = self.entry(id).unwrap();
                    // The delay begins with the tick.
                    entry.task.due = entry.task.due.map(|_| now + delay);
                }
                _ => {
                    self.delete(now, id);
                    self.calls.ttl += 1;
                }
            }
            moved += 1;
        }
        moved + self.trim(now) + self.trim_keys(now)
    }

    /// Removes done tasks that are over age or too many; returns how many.
    fn trim(&mut self, now: Timestamp) -> usize {
        let before = self.kept.len();
        let most = self.options.keep_done_max as usize;
        let over_count = before > most + most / 8;
        let mut by_age: Vec<_> = self.kept.iter().map(|task| (ended(task), task.id)).collect();
        by_age.sort();
        let excess = if over_count { before - most } else { 0 };
        let oldest: Vec<_> = by_age.into_iter().take(excess).map(|(_, id)| id).collect();
        let keep_done = self.options.keep_done;
        self.kept.retain(|task| {
            !oldest.contains(&task.id) && keep_done.is_some_and(|keep| ended(task) + keep > now)
        });
        before - self.kept.len()
    }

    /// Forgets keys that are free, at the next multiple of ten seconds; returns how many.
    fn trim_keys(&mut self, now: Timestamp) -> usize {
        let before = self.ended.len();
        self.ended.retain(|ended| cleanup_at(ended) > now);
        before - self.ended.len()
    }

    fn keys_due(&self) -> Option<Timestamp> {
        self.ended.iter().map(cleanup_at).min()
    }

    fn first_due(&self, now: Timestamp) -> Option<(TaskId, State)> {
        let due = self.tasks().find(|task| deadline(task) <= now);
        due.map(|task| (task.id, task.state))
    }

    /// When a tick has something to do.
    pub fn next_wakeup(&self, now: Timestamp) -> Option<Timestamp> {
        let most = self.options.keep_done_max as usize;
        let kept = self.options.keep_done.filter(|_| self.kept.len() <= most + most / 8);
        let done = self.kept.iter().map(|task| ended(task) + kept.unwrap_or(Span::ZERO));
        done.chain(self.next_change(now))
            .chain(self.keys_due())
            .filter(|at| *at != Timestamp::NEVER)
            .min()
    }

    /// When the next task changes that is not done, or can be taken because there is a token.
    fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let token = self.next_token(now).filter(|_| !self.takeable(now).is_empty());
        self.tasks().map(deadline).chain(token).filter(|at| *at != Timestamp::NEVER).min()
    }

    /// The parts of tokens at this moment: each microsecond adds `count` of them.
    fn parts(&self, rate: &RateLimit, now: Timestamp) -> u64 {
        let full = rate.per.as_micros() as u64 * u64::from(rate.burst);
        let Some((mut parts, at)) = self.bucket else { return full };
        for _ in at.as_micros()..now.as_micros() {
            parts = full.min(parts + u64::from(rate.count));
            if parts == full {
                break;
            }
        }
        parts
    }

    /// How many tasks the rate limit allows to take.
    pub fn tokens(&self, now: Timestamp) -> usize {
        let Some(rate) = &self.options.rate else { return usize::MAX };
        (self.parts(rate, now) / rate.per.as_micros() as u64) as usize
    }

    /// When the rate limit allows to take a task, if it allows none now.
    fn next_token(&self, now: Timestamp) -> Option<Timestamp> {
        let rate = self.options.rate.as_ref().filter(|_| self.tokens(now) == 0)?;
        let (mut parts, mut at) = (self.parts(rate, now), now);
        while parts < rate.per.as_micros() as u64 {
            parts += u64::from(rate.count);
            at = at.moved(1);
        }
        Some(at)
    }

    /// Uses a token.
    pub fn spend(&mut self, now: Timestamp) {
        let Some(rate) = &self.options.rate else { return };
        self.bucket = Some((self.parts(rate, now) - rate.per.as_micros() as u64, now));
    }

    /// Another limit keeps the whole tokens; a limit where there was none begins full.
    pub fn change_rate(&mut self, now: Timestamp, rate: Option<&RateLimit>) {
        if self.options.rate.as_deref() == rate {
            return;
        }
        let tokens = self.tokens(now) as u64;
        let had_limit = self.options.rate.is_some();
        self.bucket = rate
            .filter(|_| had_limit)
            .map(|rate| (tokens.min(u64::from(rate.burst)) * rate.per.as_micros() as u64, now));
    }

    pub fn info(&self, now: Timestamp) -> TubeInfo {
        let tasks = Counts {
            ready: self.count(State::Ready),
            taken: self.count(State::Taken),
            buried: self.count(State::Buried),
            delayed: self.count(State::Delayed),
            done: self.done,
            kept: self.kept.len() as u64,
        };
        TubeInfo {
            name: self.name.clone(),
            number: self.number,
            options: self.options.clone(),
            stats: TubeStats { tasks, calls: self.calls },
            takeable: self.takeable(now).len().min(self.tokens(now)) as u64,
            next_wakeup: self.next_change(now),
            oldest_ready: self.oldest_ready(now),
        }
    }

    /// A pause does not matter, a task of the same sub-queue that runs does.
    fn oldest_ready(&self, now: Timestamp) -> Option<Timestamp> {
        let free = self.free(now);
        let waiting = self.entries.iter().filter(|entry| free.contains(&entry.task.id));
        waiting.map(|entry| entry.since).min()
    }

    /// A task as a peek shows it, with its story.
    pub fn view_whole(&self, now: Timestamp, id: TaskId) -> Option<Task> {
        if let Some(task) = self.kept.iter().find(|task| task.id == id) {
            return self.is_visible(now, task).then(|| task.clone());
        }
        let task = self.view_held(now, id)?;
        let entry = self.entries.iter().find(|entry| entry.task.id == id)?;
        let add = |list: Option<Failures>, one: &Failure| Some(Failures::with(list.as_ref(), one));
        let failures = entry.failures.iter().fold(None, add);
        let (key, attempts_max) = (entry.task.key.clone(), entry.attempts_max);
        Some(Task { failures, key, attempts_max, ..task })
    }

    /// A task as the list of deliveries shows it, with its worker.
    pub fn view_held(&self, now: Timestamp, id: TaskId) -> Option<Task> {
        let task = self.view_with_due(now, id)?;
        let entry = self.entries.iter().find(|entry| entry.task.id == id)?;
        Some(Task { worker: entry.worker.clone(), ..task })
    }

    /// A task as a take, a peek and the list of deliveries show it.
    pub fn view_with_due(&self, now: Timestamp, id: TaskId) -> Option<Task> {
        let task = self.view(now, id)?;
        let since = self.entries.iter().find(|entry| entry.task.id == id)?.since;
        let due = if task.state == State::Taken { Some(since) } else { task.due };
        Some(Task { due, ..task })
    }

    pub fn view(&self, now: Timestamp, id: TaskId) -> Option<Task> {
        let entry = self.entries.iter().find(|entry| entry.task.id == id)?;
        let task = &entry.task;
        let runs = |other: &Task| {
            other.state == State::Taken
                && other.subqueue.is_some()
                && other.subqueue == task.subqueue
        };
        let reason = match task.state {
            State::Taken => Reason::Running,
            State::Delayed => Reason::NotDue(task.due?),
            _ if task.expires <= now => Reason::Expired,
            State::Buried if entry.dead_letter => Reason::AttemptsUsedUp,
            State::Buried => Reason::Buried,
            _ if self.options.paused => Reason::TubePaused,
            _ if self.tasks().any(runs) => Reason::SubqueueBusy,
            _ => self.next_token(now).map_or(Reason::WaitsForConsumer, Reason::RateLimited),
        };
        Some(Task { reason, key: None, ..task.clone() })
    }
}

impl ModelTask {
    /// Whether `holder` holds the current delivery, and it has not expired.
    pub fn is_held(&self, now: Timestamp, holder: Holder, alive: &[SessionId]) -> bool {
        let holds = match holder {
            Holder::Lease(lease) => self.task.lease == Some(lease),
            Holder::Session(id) => self.task.session == Some(id) && alive.contains(&id),
            Holder::Any => true,
        };
        holds && self.task.lease_until.is_some_and(|until| until > now)
    }

    /// Until when its key is held if it ended when its time to live was over.
    fn key_until(&self) -> Timestamp {
        self.task.expires + self.unique_for
    }

    /// Adds a failure of the current delivery, if there is one.
    fn fail(&mut self, at: Timestamp, error: &str) {
        let run = self.task.start.map_or(Span::ZERO, |start| at.since(start));
        let (attempt, worker) = (self.task.attempts + 1, self.worker.clone());
        self.failures.push(Failure { at, attempt, run, worker, error: error.into() });
        if self.failures.len() > 5 {
            self.failures.remove(0);
        }
    }

    /// Changes the state and clears the data of the old one.
    fn to(&mut self, state: State) {
        self.task.state = state;
        self.task.due = None;
        self.task.start = None;
        self.task.session = None;
        self.task.lease = None;
        self.task.lease_until = None;
        self.dead_letter = false;
        self.worker = None;
    }
}

/// Whether the time to live of a task that is not taken is over.
fn is_over(now: Timestamp, task: &Task) -> bool {
    task.state != State::Taken && task.expires <= now
}

/// When a tick forgets the key of an ended task.
fn cleanup_at(ended: &EndedKey) -> Timestamp {
    let until = ended.until.as_micros();
    Timestamp::from_micros((until + 9_999_999) / 10_000_000 * 10_000_000)
}

/// When a done task ended.
fn ended(task: &Task) -> Timestamp {
    task.finished.as_ref().unwrap().at()
}

/// When the next change of the task is due.
fn deadline(task: &Task) -> Timestamp {
    match task.state {
        State::Delayed => task.due.unwrap(),
        State::Taken => task.lease_until.unwrap(),
        _ => task.expires,
    }
}

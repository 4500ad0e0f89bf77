//! The rules in their simplest form: lists that are sorted on every access.

use crate::semaphore::{
    EventKind, GrantFinish, GrantItem, GrantOutcome, SemaphoreChange, SemaphoreOptions, Status,
};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// One semaphore.
#[derive(Clone, Debug)]
pub(super) struct Naive {
    pub options: SemaphoreOptions,
    pub people: Vec<NaiveMember>,
    pub events: Vec<NaiveEvent>,
    pub grants: u64,
    arrivals: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NaiveMember {
    pub task: TaskId,
    pub priority: f64,
    pub arrival: u64,
    pub status: Status,
    pub grant: u64,
    pub granted: Timestamp,
    pub lease_until: Timestamp,
    pub ack_by: Timestamp,
    pub moment: Timestamp,
    pub pinned: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NaiveEvent {
    pub task: TaskId,
    pub grant: u64,
    pub kind: EventKind,
    pub attempts: u32,
    pub next_at: Timestamp,
}

const NEVER: Timestamp = Timestamp::NEVER;

impl Naive {
    pub fn new(change: &SemaphoreChange) -> Self {
        let options = SemaphoreOptions::default().changed(change).expect("a good change");
        Naive { options, people: Vec::new(), events: Vec::new(), grants: 0, arrivals: 0 }
    }

    pub fn configure(&mut self, now: Timestamp, change: &SemaphoreChange) {
        self.options = self.options.changed(change).expect("a good change");
        self.admit_waiters(now);
    }

    pub fn enqueue(&mut self, now: Timestamp, entries: &[(TaskId, f64)]) {
        for (task, priority) in entries {
            match self.people.iter_mut().find(|person| person.task == *task) {
                Some(person) => person.priority = *priority,
                None => {
                    self.arrivals += 1;
                    self.people.push(NaiveMember {
                        task: *task,
                        priority: *priority,
                        arrival: self.arrivals,
                        status: Status::Wait,
                        grant: 0,
                        granted: now,
                        lease_until: NEVER,
                        ack_by: NEVER,
                        moment: NEVER,
                        pinned: false,
                    });
                }
            }
        }
        self.admit_waiters(now);
    }

    pub fn finish(&mut self, now: Timestamp, items: &[GrantItem]) -> Vec<GrantOutcome> {
        let outcomes = items.iter().map(|item| self.finish_one(now, item)).collect();
        self.admit_waiters(now);
        outcomes
    }

    fn finish_one(&mut self, now: Timestamp, item: &GrantItem) -> GrantOutcome {
        let Some(at) = self.people.iter().position(|person| person.task == item.task) else {
            return GrantOutcome::Missing;
        };
        let person = &mut self.people[at];
        let holds = matches!(person.status, Status::Acquired | Status::TryRelease);
        let grant = person.grant;
        if item.grant.is_some_and(|named| !holds || named.0 != grant) {
            return GrantOutcome::Stale;
        }
        match item.finish {
            GrantFinish::Release => {
                self.people.remove(at);
                self.events.retain(|event| !holds || event.grant != grant);
            }
            GrantFinish::Yield if holds => self.leave(now, at, self.options.cool_down),
            GrantFinish::Yield => {}
            GrantFinish::Decline | GrantFinish::Extend(_) if !holds => return GrantOutcome::Stale,
            GrantFinish::Decline if person.status == Status::Acquired => {
                return if person.pinned { GrantOutcome::Done } else { GrantOutcome::NotAsked };
            }
            GrantFinish::Decline => {
                (person.status, person.pinned) = (Status::Acquired, true);
                (person.moment, person.ack_by) = (NEVER, NEVER);
                self.events.retain(|event| event.grant != grant);
            }
            GrantFinish::Extend(span) => {
                (person.lease_until, person.ack_by) = (now + span, NEVER);
                let told =
                    |event: &NaiveEvent| event.grant == grant && event.kind == EventKind::Acquired;
                self.events.retain(|event| !told(event));
            }
        }
        GrantOutcome::Done
    }

    /// Puts a holder back into the queue after this time.
    fn leave(&mut self, now: Timestamp, at: usize, pause: Span) {
        let grant = self.people[at].grant;
        self.events.retain(|event| event.grant != grant || event.kind == EventKind::Expired);
        let person = &mut self.people[at];
        (person.status, person.moment) =
            if pause.is_zero() { (Status::Wait, NEVER) } else { (Status::Delayed, now + pause) };
        (person.pinned, person.lease_until, person.ack_by) = (false, NEVER, NEVER);
    }

    pub fn fetch(&mut self, now: Timestamp, count: usize) -> Vec<NaiveEvent> {
        let mut due: Vec<usize> = (0..self.events.len())
            .filter(|at| {
                let event = &self.events[*at];
                let first = self.events.iter().position(|other| other.grant == event.grant);
                event.next_at <= now && first == Some(*at)
            })
            .collect();
        due.sort_by_key(|at| (self.events[*at].next_at, *at));
        due.truncate(count);
        let hand_out = |at: usize| {
            let event = &mut self.events[at];
            event.attempts += 1;
            let seconds = (30_u64 << (event.attempts - 1).min(10)).min(600);
            event.next_at = now + Span::from_secs(seconds);
            event.clone()
        };
        due.into_iter().map(hand_out).collect()
    }

    pub fn acknowledge(&mut self, arrived: &NaiveEvent) {
        let Some(at) = self.find(arrived.grant, arrived.kind) else { return };
        self.events.remove(at);
        if arrived.kind == EventKind::Acquired {
            let holder = self.people.iter_mut().find(|person| {
                person.grant == arrived.grant
                    && matches!(person.status, Status::Acquired | Status::TryRelease)
            });
            if let Some(holder) = holder {
                holder.ack_by = NEVER;
            }
        }
    }

    fn find(&self, grant: u64, kind: EventKind) -> Option<usize> {
        self.events.iter().position(|event| event.grant == grant && event.kind == kind)
    }

    fn add_event(&mut self, now: Timestamp, at: usize, kind: EventKind, attempts: u32) {
        let NaiveMember { task, grant, .. } = self.people[at];
        self.events.push(NaiveEvent { task, grant, kind, attempts, next_at: now });
    }

    pub fn tick(&mut self, now: Timestamp) {
        let mut due: Vec<(Timestamp, TaskId)> = self
            .people
            .iter()
            .map(|person| (person.moment.min(person.lease_until).min(person.ack_by), person.task))
            .filter(|(moment, _)| *moment <= now)
            .collect();
        due.sort();
        for (_, task) in due {
            let at = self.people.iter().position(|person| person.task == task).expect("is there");
            self.end_wait(now, at);
        }
        self.admit_waiters(now);
    }

    fn end_wait(&mut self, now: Timestamp, at: usize) {
        let person = self.people[at].clone();
        if person.status == Status::Delayed {
            let person = &mut self.people[at];
            (person.status, person.moment) = (Status::Wait, NEVER);
        } else if person.lease_until.min(person.ack_by) <= now {
            let in_time = person.lease_until > now;
            let pause = if in_time { self.options.ack_timeout } else { None };
            let untold = self.find(person.grant, EventKind::Acquired);
            let untold = untold.is_some_and(|event| self.events[event].attempts == 0);
            self.events.retain(|event| event.grant != person.grant);
            if !untold {
                self.add_event(now, at, EventKind::Expired, 0);
            }
            if self.options.drop_expired && !in_time && !untold {
                self.people.remove(at);
            } else {
                self.leave(now, at, pause.unwrap_or(Span::ZERO));
            }
        } else if self.options.force {
            self.leave(now, at, self.options.cool_down);
            self.add_event(now, at, EventKind::Revoked, 0);
        } else {
            if self.find(person.grant, EventKind::TryRelease).is_none() {
                self.add_event(now, at, EventKind::TryRelease, 1);
            }
            self.people[at].moment = now + self.options.revoke_grace;
        }
    }

    /// The members with this status, the best first.
    fn sorted(&self, status: Status) -> Vec<usize> {
        let mut found: Vec<usize> =
            (0..self.people.len()).filter(|at| self.people[*at].status == status).collect();
        self.sort(&mut found);
        found
    }

    fn sort(&self, people: &mut [usize]) {
        people.sort_by(|a, b| {
            let (a, b) = (&self.people[*a], &self.people[*b]);
            b.priority.total_cmp(&a.priority).then(a.arrival.cmp(&b.arrival))
        });
    }

    fn admit_waiters(&mut self, now: Timestamp) {
        while self.step(now) {}
    }

    fn step(&mut self, now: Timestamp) -> bool {
        let waiting = self.sorted(Status::Wait);
        let (acquired, revoking) = (self.sorted(Status::Acquired), self.sorted(Status::TryRelease));
        let (active, held) = (self.options.active as usize, acquired.len() + revoking.len());
        if let (Some(best), true) = (waiting.first(), held < active) {
            self.admit(now, *best);
            return true;
        }
        let to_shed = if self.options.shed { held.saturating_sub(active) } else { 0 };
        if revoking.len() > to_shed {
            let waiter = waiting.get(revoking.len() - to_shed - 1);
            let holder = revoking[0];
            let better =
                |waiter: &usize| self.people[*waiter].priority > self.people[holder].priority;
            if !waiter.is_some_and(better) {
                self.unrevoke(now, holder);
                return true;
            }
        }
        // A decline is over when its request would be.
        let best_waits = waiting.first().map(|at| self.people[*at].priority);
        let over = |at: &&usize| {
            let NaiveMember { pinned, priority, .. } = self.people[**at];
            pinned && to_shed == 0 && best_waits.is_none_or(|best| best <= priority)
        };
        if let Some(at) = acquired.iter().find(over).copied() {
            self.people[at].pinned = false;
            return true;
        }
        // The best of all holders are never asked, and of the others those that declined are passed over.
        let mut holders: Vec<usize> = acquired.iter().chain(&revoking).copied().collect();
        self.sort(&mut holders);
        let tail = holders.get(self.options.protected()..).unwrap_or_default();
        let may_be_asked =
            |at: &&usize| self.people[**at].status == Status::Acquired && !self.people[**at].pinned;
        let Some(worst) = tail.iter().rev().find(may_be_asked).copied() else { return false };
        let for_waiter = held == active
            && revoking.len() < self.options.revoking_limit()
            && waiting.get(revoking.len()).is_some_and(|waiter| {
                let least = self.people[worst].priority + self.options.margin.value();
                self.people[*waiter].priority > least
            })
            && self.people[worst].granted + self.options.min_hold <= now;
        let for_shedding = self.options.shed
            && acquired.len() > active
            && revoking.len() < self.options.shedding_limit();
        if for_waiter || for_shedding {
            self.revoke(now, worst);
            return true;
        }
        false
    }

    fn admit(&mut self, now: Timestamp, at: usize) {
        self.grants += 1;
        let until = |span: Option<Span>| span.map_or(NEVER, |span| now + span);
        let (lease, ack) = (until(self.options.lease), until(self.options.ack_timeout));
        let person = &mut self.people[at];
        (person.status, person.grant, person.granted) = (Status::Acquired, self.grants, now);
        (person.lease_until, person.ack_by, person.moment) = (lease, ack, NEVER);
        self.add_event(now, at, EventKind::Acquired, 0);
    }

    fn revoke(&mut self, now: Timestamp, at: usize) {
        let grant = self.people[at].grant;
        if let Some(event) = self.find(grant, EventKind::Acquired)
            && self.events[event].attempts == 0
        {
            return self.leave(now, at, Span::ZERO);
        }
        self.people[at].status = Status::TryRelease;
        self.people[at].moment = now + self.options.revoke_grace;
        // It may have received the request that is withdrawn with that.
        let sent = self.find(grant, EventKind::Keep).is_some();
        self.events.retain(|event| event.grant != grant || event.kind != EventKind::Keep);
        self.add_event(now, at, EventKind::TryRelease, u32::from(sent));
    }

    fn unrevoke(&mut self, now: Timestamp, at: usize) {
        let grant = self.people[at].grant;
        (self.people[at].status, self.people[at].moment) = (Status::Acquired, NEVER);
        let request = self.find(grant, EventKind::TryRelease);
        let request = request.map(|event| self.events.remove(event));
        if request.is_none_or(|request| request.attempts > 0) {
            self.add_event(now, at, EventKind::Keep, 0);
        }
    }
}

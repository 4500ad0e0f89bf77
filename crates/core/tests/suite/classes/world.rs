//! A simulated pool with random tasks. Every decision is checked as it is made.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use taskyard_core::classes::estimate::StartModel;
use taskyard_core::classes::*;
use taskyard_core::estimate::GivenEstimate;
use taskyard_core::{Reason, Span, Timestamp};

/// What may happen beside arrivals and ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Troubles {
    /// Backends start and die, tasks are queued again, the pool pauses.
    pub losses: bool,
    /// Clients leave and lower their tasks.
    pub leaving: bool,
    /// The longest time a task takes to end when it is stopped.
    pub ending: Span,
    /// Interactive tasks are spared while others are about to end.
    pub patient: bool,
}

pub struct World {
    pub rng: Rng,
    pub classes: Classes,
    pub log: Vec<(Timestamp, Decision)>,
    pub now: Timestamp,
    troubles: Troubles,
    tasks: BTreeMap<Ticket, Job>,
    ends: BTreeSet<(Timestamp, Ticket)>,
    next: u64,
    /// How many starts there were, and how many ends.
    pub held: u64,
    pub freed: u64,
    model: StartModel,
    /// How many likely starts were compared with real ones.
    pub likely: u64,
}

#[derive(Clone, Debug)]
struct Job {
    ask: RunRequest,
    /// How long it would run if it were not stopped.
    natural: Span,
    lowered: bool,
    running: Option<RunningJob>,
    /// The latest estimated start so far.
    bound: Option<Timestamp>,
    /// Its first likely start.
    likely: Option<GivenEstimate>,
}

#[derive(Clone, Copy, Debug)]
struct RunningJob {
    started: Timestamp,
    end: Timestamp,
    class: Option<u8>,
}

/// Random rules with one to four classes, and how many backends there are.
pub fn rules(rng: &mut Rng) -> (Rules, u32) {
    let mut duration = 0;
    let mut limit = 100;
    let classes = (0..rng.usize(1..=4)).map(|at| {
        duration += rng.i64(1..=9) * 1_000_000;
        limit = if at == 0 { 100 } else { rng.u32(1..=limit) };
        Class::new(&format!("c{at}"), Span::from_micros(duration), Limit::Percent(limit))
    });
    (Rules::new(classes.collect()).unwrap(), rng.u32(1..=8))
}

impl World {
    pub fn new(seed: u64, troubles: Troubles) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (mut rules, backends) = rules(&mut rng);
        rules.policy = [Policy::Random, Policy::Youngest, Policy::Oldest][rng.usize(..3)];
        rules.patient = troubles.patient;
        let mut classes = Classes::new(rules, seed);
        let now = Timestamp::from_micros(1_000);
        assert_eq!(classes.set_backends(now, backends), []);
        World {
            rng,
            classes,
            now,
            troubles,
            log: Vec::new(),
            tasks: BTreeMap::new(),
            ends: BTreeSet::new(),
            next: 0,
            held: 0,
            freed: 0,
            model: StartModel::default(),
            likely: 0,
        }
    }

    /// Some arrivals and other events, then nothing new until all tasks are done.
    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let pause = Span::from_micros(self.rng.i64(..2_500_000));
            self.until(self.now + pause);
            self.happen();
        }
        let decisions = self.classes.set_paused(self.now, false);
        self.apply(decisions);
        let backends = self.classes.backends().max(1);
        let decisions = self.classes.set_backends(self.now, backends);
        self.apply(decisions);
        self.until(Timestamp::NEVER);
        assert_eq!((self.classes.queued(), self.classes.load().running(0)), (0, 0));
        assert_eq!(self.held, self.freed);
    }

    /// Ends everything that ends by then.
    fn until(&mut self, moment: Timestamp) {
        while let Some((end, ticket)) = self.ends.first().copied()
            && end <= moment
        {
            self.now = end;
            let job = self.forget(ticket);
            self.learn(&job);
            let decisions = self.classes.remove(end, ticket);
            self.apply(decisions);
        }
        if moment < Timestamp::NEVER {
            self.now = moment;
        }
    }

    fn learn(&mut self, job: &Job) {
        let Some(RunningJob { started, class: Some(class), .. }) = job.running else { return };
        let kind = match job.ask {
            RunRequest::Timed(_) => TaskKind::Explicit,
            RunRequest::Default => TaskKind::Default,
            RunRequest::Interactive => TaskKind::Interactive,
        };
        self.model.add_run(self.now, kind, class, self.now.since(started));
    }

    fn happen(&mut self) {
        let decisions = match self.rng.u8(..20) {
            0 if self.troubles.losses => {
                let backends = self.rng.u32(0..=8);
                self.forget_bounds();
                self.classes.set_backends(self.now, backends)
            }
            1 if self.troubles.losses => {
                let paused = self.rng.bool();
                self.forget_bounds();
                self.classes.set_paused(self.now, paused)
            }
            2 | 3 if self.troubles.losses => self.lose(),
            4 if self.troubles.leaving => self.leave(),
            5 | 6 if self.troubles.leaving => self.lower(),
            _ => self.arrive(),
        };
        self.apply(decisions);
    }

    fn arrive(&mut self) -> Vec<Decision> {
        let ticket = Ticket(self.next);
        self.next += 1;
        let longest = self.classes.rules().longest().as_micros();
        let ask = match self.rng.u8(..10) {
            0 => RunRequest::Interactive,
            1..4 => RunRequest::Default,
            _ => RunRequest::Timed(Span::from_micros(self.rng.i64(1..longest + 1_000_000))),
        };
        let natural = match self.rng.u8(..3) {
            0 => Span::FOREVER,
            _ => Span::from_micros(self.rng.i64(..longest)),
        };
        // Shells end at some time, or a pool of shells would never be done.
        let natural = natural.min(Span::from_secs(600));
        let job = Job { ask, natural, lowered: false, running: None, bound: None, likely: None };
        self.tasks.insert(ticket, job);
        self.classes.arrive(self.now, ticket, ask)
    }

    fn any(&mut self, runs: bool) -> Option<Ticket> {
        let some = self.tasks.iter().filter(|(_, job)| job.running.is_some() == runs);
        let some: Vec<Ticket> = some.map(|(ticket, _)| *ticket).collect();
        self.rng.choice(some)
    }

    /// A backend dies under its task.
    fn lose(&mut self) -> Vec<Decision> {
        let Some(ticket) = self.any(true) else { return Vec::new() };
        self.forget_bounds();
        let job = self.forget(ticket);
        if job.ask != RunRequest::Interactive {
            self.tasks.insert(ticket, Job { running: None, ..job });
        }
        self.classes.put_back(self.now, ticket)
    }

    fn leave(&mut self) -> Vec<Decision> {
        let runs = self.rng.bool();
        let Some(ticket) = self.any(runs) else { return Vec::new() };
        self.forget(ticket);
        self.classes.remove(self.now, ticket)
    }

    fn lower(&mut self) -> Vec<Decision> {
        let runs = self.rng.bool();
        let Some(ticket) = self.any(runs) else { return Vec::new() };
        let wish = Span::from_micros(self.rng.i64(..5_000_000));
        let done = self.classes.lower(self.now, ticket, wish);
        let job = self.tasks.get_mut(&ticket).unwrap();
        if done.is_ok() {
            job.lowered = true;
            if let RunRequest::Timed(_) = job.ask {
                job.ask = RunRequest::Timed(wish);
            }
        }
        done.unwrap_or_default()
    }

    fn forget(&mut self, ticket: Ticket) -> Job {
        let job = self.tasks.remove(&ticket).unwrap();
        if let Some(run) = job.running {
            self.freed += 1;
            assert!(self.ends.remove(&(run.end, ticket)));
        }
        job
    }

    /// Estimates are void when the pool itself changes.
    fn forget_bounds(&mut self) {
        self.tasks.values_mut().for_each(|job| job.bound = None);
    }

    fn apply(&mut self, decisions: Vec<Decision>) {
        self.check_halts(&decisions);
        self.check_limits(&decisions);
        for decision in decisions {
            self.log.push((self.now, decision));
            match decision {
                Decision::Start { ticket, class, limit } => self.start(ticket, class, limit),
                Decision::Lower { ticket, limit, stop, .. } => self.cut(ticket, limit, stop),
                Decision::Halt { ticket } => {
                    assert_eq!(self.forget(ticket).ask, RunRequest::Interactive);
                }
                Decision::Deny { ticket, .. } => {
                    assert_eq!(self.forget(ticket).ask, RunRequest::Interactive);
                }
            }
        }
        self.classes.audit().unwrap();
        let running = self.tasks.values().filter(|job| job.running.is_some()).count();
        assert_eq!(running, self.classes.running(), "every start and every end was decided");
        self.check_waiting();
    }

    /// Interactive tasks are halted only if a task starts in their place.
    fn check_halts(&self, decisions: &[Decision]) {
        for (at, decision) in decisions.iter().enumerate() {
            if let Decision::Halt { .. } = decision {
                let later =
                    decisions[at..].iter().find(|other| !matches!(other, Decision::Halt { .. }));
                assert!(matches!(later, Some(Decision::Start { .. })), "{decisions:?}");
            }
        }
    }

    /// Whatever starts is within the limit of its class and of all shorter ones.
    fn check_limits(&self, decisions: &[Decision]) {
        let load = self.classes.load();
        for decision in decisions {
            if let Decision::Start { class, .. } = decision {
                for level in 0..=usize::from(class.unwrap_or(0)) {
                    assert!(load.running(level) <= load.limit(level), "{decision:?}: {load:?}");
                }
            }
        }
    }

    fn start(&mut self, ticket: Ticket, class: Option<u8>, limit: Span) {
        self.held += 1;
        for (other, waiting) in self.tasks.range(..ticket) {
            // The order of arrival holds among those that the same limits hold back.
            let same = self.admission(waiting.ask) == self.admission(self.tasks[&ticket].ask);
            assert!(waiting.running.is_some() || !same, "{ticket} starts before {other}");
        }
        let ending = Span::from_micros(self.rng.i64(0..=self.troubles.ending.as_micros()));
        let job = self.tasks.get_mut(&ticket).unwrap();
        assert_eq!(class.is_none(), job.ask == RunRequest::Interactive);
        if let Some(bound) = job.bound {
            assert!(self.now <= bound, "{ticket} was estimate {bound:?}, starts {:?}", self.now);
        }
        let cut = if job.natural > limit { limit + ending } else { job.natural };
        let end = self.now + cut;
        job.running = Some(RunningJob { started: self.now, end, class });
        if let Some(given) = job.likely.take() {
            let waited_for = self.admission(self.tasks[&ticket].ask).unwrap();
            self.model.start(self.now, waited_for, given);
            self.likely += 1;
        }
        self.ends.insert((end, ticket));
    }

    fn cut(&mut self, ticket: Ticket, limit: Span, stop: bool) {
        let fast = self.classes.rules().duration(0);
        let ending = Span::from_micros(self.rng.i64(0..=self.troubles.ending.as_micros()));
        let now = self.now;
        let job = self.tasks.get_mut(&ticket).unwrap();
        let run = job.running.as_mut().unwrap();
        assert_eq!(stop, run.started + limit <= now);
        if !job.lowered {
            assert_eq!(job.ask, RunRequest::Default, "only default tasks are lowered");
            assert!(limit >= fast, "a default task may run as long as a fast one");
        }
        self.ends.remove(&(run.end, ticket));
        run.end = run.end.min((run.started + limit).max(now) + ending);
        self.ends.insert((run.end, ticket));
    }

    /// The class whose limits hold such a task back.
    fn admission(&self, ask: RunRequest) -> Option<u8> {
        match ask {
            RunRequest::Timed(wish) => Some(self.classes.rules().class_for(wish)),
            RunRequest::Default => Some(0),
            RunRequest::Interactive => None,
        }
    }

    /// No waiting task could start, each has its reason, and no estimate becomes later.
    fn check_waiting(&mut self) {
        let waiting = self.classes.waiting(self.now, self.troubles.ending, &self.model);
        let count = self.tasks.values().filter(|job| job.running.is_none()).count();
        assert_eq!(waiting.len(), count);
        if self.log.len().is_multiple_of(16) {
            self.check_forecast(&waiting);
        }
        for (ahead, one) in waiting.into_iter().enumerate() {
            assert_eq!(one.ahead, ahead);
            let class = self.admission(self.tasks[&one.ticket].ask).unwrap();
            match one.reason {
                Reason::LimitReached { class: full } => {
                    assert!(full <= class && self.classes.load().is_full(full.into()));
                }
                Reason::PoolPaused => {}
                Reason::NoBackend => assert_eq!(self.classes.backends(), 0),
                other => panic!("{} could start: {other:?}", one.ticket),
            }
            let job = self.tasks.get_mut(&one.ticket).unwrap();
            if let Some((likely, at_most)) =
                one.estimate.and_then(|estimate| Some((estimate.likely?, estimate.at_most)))
            {
                assert!(likely.p50() <= likely.p90() && likely.p90() <= at_most, "{one:?}");
                job.likely = job.likely.or(Some(likely.given(self.now)));
            }
            let estimate = one.estimate.map(|estimate| self.now + estimate.at_most);
            // With tasks that end slowly, only the first estimate is always met.
            if let (Some(estimate), Some(bound)) = (estimate, job.bound)
                && self.troubles.ending.is_zero()
            {
                assert!(
                    estimate <= bound,
                    "{} has the estimate {estimate:?} after {bound:?}",
                    one.ticket
                );
            }
            job.bound = job.bound.or(estimate);
        }
    }

    /// Added one by one, waiting tasks get the same estimates.
    fn check_forecast(&self, waiting: &[Waiting]) {
        let (ending, model) = (self.troubles.ending, &self.model);
        let mut forecast = self.classes.forecast(self.now, ending, model);
        for one in waiting {
            let state = self.classes.add_to_forecast(self.now, one.ticket, &mut forecast, model);
            assert_eq!(state.as_ref(), Some(one));
        }
    }
}

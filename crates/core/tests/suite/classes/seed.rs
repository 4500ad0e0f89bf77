//! Three classes compared with their specification: a second scheduler, written sentence by
//! sentence from its text, makes the same decisions.

use fastrand::Rng;
use taskyard_core::classes::*;
use taskyard_core::{Span, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Duration {
    Fast,
    Medium,
    Slow,
}

use Duration::*;

impl Duration {
    fn seconds(self) -> u64 {
        match self {
            Fast => 3,
            Medium => 10,
            Slow => 30,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Specific(Duration),
    Default,
    Interactive,
}

#[derive(Clone, Copy, Debug)]
struct Executing {
    id: u64,
    sort: Sort,
    /// What it counts as; nothing of the longer limits once it was stopped.
    duration: Duration,
    started: u64,
}

/// The text as a program. "A random one" is the one that started first, in both.
struct Text {
    queue: Vec<(u64, Sort)>,
    executing: Vec<Executing>,
    /// The fast, medium and slow limit.
    limits: [usize; 3],
    said: Vec<String>,
}

impl Text {
    fn reached(&self, limit: Duration) -> bool {
        let counted = self.executing.iter().filter(|task| task.duration >= limit).count();
        counted >= self.limits[limit as usize]
    }

    /// Some default task that is running with this duration.
    fn some_default(&self, duration: Duration) -> Option<u64> {
        let of = |task: &&Executing| task.sort == Sort::Default && task.duration == duration;
        let first = self.executing.iter().filter(of).min_by_key(|task| (task.started, task.id));
        first.map(|task| task.id)
    }

    fn downgrade(&mut self, now: u64, id: u64, to: Duration) {
        let task = self.executing.iter_mut().find(|task| task.id == id).unwrap();
        let over = task.started + to.seconds() <= now;
        // A stopped task counts towards the fast limit alone, until it is gone.
        task.duration = if over { Fast } else { to };
        if over {
            task.sort = Sort::Specific(Fast);
        }
        self.said.push(format!("lower {id} to {to:?}{}", if over { ", stop" } else { "" }));
    }

    fn cycle(&mut self, now: u64) {
        while !self.queue.is_empty() {
            let mut ignored: Vec<Duration> = Vec::new();
            // If a slow task is the first in queue and the slow limit is reached:
            if self.first(&ignored) == Some(Slow) && self.reached(Slow) {
                if let Some(id) = self.some_default(Slow) {
                    let to = if self.reached(Medium) { Fast } else { Medium };
                    self.downgrade(now, id, to);
                }
                if self.reached(Slow) {
                    ignored = vec![Slow];
                }
            }
            // If any unignored tasks remain, a medium-to-slow task is the first in queue, and the
            // medium limit is reached:
            if self.first(&ignored) >= Some(Medium) && self.reached(Medium) {
                if let Some(id) = self.some_default(Slow).or(self.some_default(Medium)) {
                    self.downgrade(now, id, Fast);
                }
                if self.reached(Medium) {
                    ignored = vec![Medium, Slow];
                }
            }
            if self.first(&ignored).is_none() {
                return;
            }
            // If any unignored tasks remain and the fast limit is reached:
            if self.reached(Fast) {
                while let Some(id) = self.some_default(Slow).or(self.some_default(Medium)) {
                    self.downgrade(now, id, Fast);
                }
                self.halt();
            }
            // The text takes it for granted that a backend is free now; without an interactive task
            // to halt it is not.
            if self.reached(Fast) {
                return;
            }
            self.assign(now, &ignored);
        }
    }

    fn halt(&mut self) {
        let interactive = self.executing.iter().filter(|task| task.sort == Sort::Interactive);
        let Some(id) = interactive.min_by_key(|task| (task.started, task.id)).map(|task| task.id)
        else {
            return;
        };
        self.executing.retain(|task| task.id != id);
        self.said.push(format!("halt {id}"));
    }

    /// What the first unignored task in the queue counts as.
    fn first(&self, ignored: &[Duration]) -> Option<Duration> {
        self.first_at(ignored).map(|at| wanted(self.queue[at].1))
    }

    fn first_at(&self, ignored: &[Duration]) -> Option<usize> {
        self.queue.iter().position(|(_, sort)| !ignored.contains(&wanted(*sort)))
    }

    fn assign(&mut self, now: u64, ignored: &[Duration]) {
        let (id, sort) = self.queue.remove(self.first_at(ignored).unwrap());
        let duration = match sort {
            Sort::Specific(duration) => duration,
            // As large a duration as possible without violating limits.
            _ if self.reached(Medium) => Fast,
            _ if self.reached(Slow) => Medium,
            _ => Slow,
        };
        self.executing.push(Executing { id, sort, duration, started: now });
        self.said.push(format!("start {id} as {duration:?}"));
    }

    fn arrive(&mut self, now: u64, id: u64, sort: Sort) {
        if sort != Sort::Interactive {
            self.queue.push((id, sort));
            return self.cycle(now);
        }
        if !self.reached(Fast) {
            self.executing.push(Executing { id, sort, duration: Fast, started: now });
            return self.said.push(format!("start {id}"));
        }
        self.said.push(format!("deny {id}"));
        if let Some(id) = self.some_default(Slow) {
            self.downgrade(now, id, Medium);
        } else if let Some(id) = self.some_default(Medium) {
            self.downgrade(now, id, Fast);
        }
        self.cycle(now);
    }

    fn finish(&mut self, now: u64, id: u64) {
        self.executing.retain(|task| task.id != id);
        self.cycle(now);
    }
}

fn wanted(sort: Sort) -> Duration {
    match sort {
        Sort::Specific(duration) => duration,
        _ => Fast,
    }
}

fn said(decision: &Decision) -> String {
    let name = |class: u8| [Fast, Medium, Slow][usize::from(class)];
    match decision {
        Decision::Start { ticket, class: Some(class), .. } => {
            format!("start {ticket} as {:?}", name(*class))
        }
        Decision::Start { ticket, .. } => format!("start {ticket}"),
        Decision::Lower { ticket, class, stop, .. } => {
            format!("lower {ticket} to {:?}{}", name(*class), if *stop { ", stop" } else { "" })
        }
        Decision::Halt { ticket } => format!("halt {ticket}"),
        Decision::Deny { ticket, .. } => format!("deny {ticket}"),
    }
}

fn pool(limits: [usize; 3]) -> Classes {
    let count = |at: usize| Limit::Count(limits[at] as u32);
    let second = |duration: Duration| Span::from_secs(duration.seconds());
    let classes = vec![
        Class::new("fast", second(Fast), Limit::Percent(100)),
        Class::new("medium", second(Medium), count(1)),
        Class::new("slow", second(Slow), count(2)),
    ];
    let mut rules = Rules::new(classes).unwrap();
    rules.policy = Policy::Oldest;
    let mut classes = Classes::new(rules, 0);
    classes.set_backends(Timestamp::EPOCH, limits[0] as u32);
    classes
}

/// Compares a run of random arrivals and ends; returns all decisions.
fn compare(seed: u64) -> Vec<String> {
    let mut rng = Rng::with_seed(seed);
    let slow = rng.usize(1..=3);
    let medium = rng.usize(slow..=slow + 2);
    let limits = [rng.usize(medium..=medium + 3), medium, slow];
    let mut text = Text { queue: Vec::new(), executing: Vec::new(), limits, said: Vec::new() };
    let mut classes = pool(limits);
    let (mut ours, mut next) = (Vec::new(), 0);
    for now in 1..200_u64 {
        let moment = Timestamp::from_micros(now as i64 * 1_000_000);
        let ending = rng.choice(&text.executing).filter(|_| rng.u8(..5) < 2).map(|task| task.id);
        let decisions = match ending {
            Some(id) => {
                text.finish(now, id);
                classes.remove(moment, Ticket(id))
            }
            None => {
                let all = [Fast, Medium, Slow].map(Sort::Specific);
                let sort = match rng.usize(..6) {
                    at @ 0..3 => all[at],
                    5 => Sort::Interactive,
                    _ => Sort::Default,
                };
                let ask = match sort {
                    Sort::Specific(duration) => {
                        RunRequest::Timed(Span::from_secs(duration.seconds()))
                    }
                    Sort::Default => RunRequest::Default,
                    Sort::Interactive => RunRequest::Interactive,
                };
                next += 1;
                text.arrive(now, next, sort);
                classes.arrive(moment, Ticket(next), ask)
            }
        };
        ours.extend(decisions.iter().map(said));
        assert_eq!(ours, text.said, "seed {seed}, second {now}, limits {limits:?}");
    }
    ours
}

#[test]
fn three_classes_follow_the_specification() {
    let mut all = Vec::new();
    for seed in 0..500 {
        all.extend(compare(seed));
    }
    // Every decision of the specification has occurred, or the comparison would prove nothing.
    for word in ["start", "lower", "stop", "halt", "deny", "as Slow", "as Medium", "to Medium"] {
        let count = all.iter().filter(|line| line.contains(word)).count();
        assert!(count > 100, "{word}: {count}");
    }
}

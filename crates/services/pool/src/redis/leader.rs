//! The scheduler: one of several leads, and carries events from Redis to the desk and orders back.

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::time::Duration;

use taskyard_core::classes::{Ask, Ticket};
use taskyard_core::{Span, Timestamp};
use taskyard_redis::{Answer, Failure};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::events::{Event, Gathered};
use super::orders::{Attempt, Orders, Step};
use super::wire::{Heard, Wire, listen, texts};
use super::{LOOK, RETURN_SPARE, RedisError, Site, WORDS_IN_LEASE, millis, secret};
use crate::config::Config;
use crate::scheduler::{Counts, Desk, Ended, Freed, Order};

/// Most events of each sort that are taken at once.
const EVENTS_AT_ONCE: usize = 500;
/// Those who wait that are looked at in each sweep, and when a scheduler begins to lead.
const PAGE: usize = 1_000;
const PAGE_AT_FIRST: usize = 5_000;
/// How often one that does not lead asks for the lead.
const FOLLOW: Duration = Duration::from_millis(500);

/// A scheduler.
#[derive(Debug)]
pub struct Leader {
    config: Config,
    wire: Wire,
    wake: mpsc::Receiver<Heard>,
    /// Who asks for the lead.
    name: String,
    /// Which memory of Redis it knows.
    life: String,
    /// What was counted under earlier leads of this process.
    counts: Option<Counts>,
}

/// Why a lead is over.
#[derive(Debug)]
enum Over {
    /// This process is told to end.
    Stopped,
    /// Another leads, or nobody does.
    Deposed,
    /// Nobody knows what Redis has done, so all is read anew.
    Unsure(String),
}

impl From<Failure> for Over {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(text) if text.starts_with("DEPOSED") => Over::Deposed,
            other => Over::Unsure(other.text()),
        }
    }
}

/// A lead, from the moment when it is got.
struct Lead {
    number: String,
    desk: Desk,
    attempts: HashMap<Ticket, Attempt>,
    /// How long what clients are told is kept, in milliseconds.
    lease: String,
    /// How many backends live.
    backends: u32,
    /// The clock of Redis at a moment of ours.
    clock: (Timestamp, Instant),
    /// The task after which to look on at those who wait.
    cursor: String,
    /// Until then at least nothing starts: backends may still have to say what they run.
    unsettled: Option<Instant>,
}

impl Leader {
    /// One that may lead; `name` says where it runs. It does nothing before [`Leader::run`].
    pub fn new(config: Config, site: &Site, name: &str) -> Result<Self, RedisError> {
        config.rules()?;
        let wire = Wire::open(site);
        let wake = listen(site, "scheduler.wake");
        // The name has no spaces in Redis, and no two processes have the same.
        let name = format!("{}#{}", name.replace(char::is_whitespace, "_"), &secret()[..8]);
        Ok(Leader { config, wire, wake, name, life: String::new(), counts: None })
    }

    /// Leads or waits to lead until told to stop.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut last = String::new();
        loop {
            match self.ask_for_lead("", "").await {
                Ok((Some(number), clock)) => {
                    tracing::info!(number, "this scheduler leads");
                    match self.lead(number.clone(), clock, stop.as_mut()).await {
                        Over::Stopped => {
                            let _ = self.wire.call("resign", vec![number]).await;
                            return;
                        }
                        Over::Deposed => tracing::warn!("this scheduler leads no more"),
                        Over::Unsure(why) => tracing::warn!(why, "reading everything anew"),
                    }
                }
                Ok(_) => last.clear(),
                Err(failure) => {
                    let why = failure.text();
                    if why != last {
                        tracing::warn!(why, "cannot ask for the lead");
                    }
                    last = why;
                }
            }
            tokio::select! {
                () = sleep(FOLLOW) => {}
                () = stop.as_mut() => return,
            }
            while self.wake.try_recv().is_ok() {}
        }
    }

    /// How often the one that leads says so.
    fn refresh(&self) -> Duration {
        self.config.leases.leader() / WORDS_IN_LEASE
    }

    /// How long nothing starts after Redis lost everything: as long as a backend may be silent; and where nobody remembers
    /// that there was anything, until those would have said so who do.
    fn settling(&self) -> [String; 2] {
        let lease = self.config.leases.backend();
        let word = lease / WORDS_IN_LEASE + RETURN_SPARE;
        [millis(lease.max(word)), millis(word)]
    }

    /// Asks for the lead, or keeps the one of this number. Answers its number if it is ours, and the clock of Redis.
    async fn ask_for_lead(
        &mut self,
        number: &str,
        status: &str,
    ) -> Result<(Option<String>, Timestamp), Failure> {
        let lease = millis(self.config.leases.leader());
        let [number, status] = [number, status].map(str::to_owned);
        let args = vec![self.name.clone(), lease, status, self.life.clone(), number];
        let said = texts(self.wire.call("lead", args).await?);
        let [number, clock, life, _] = &said[..] else {
            return Err(Failure::Refused("not the answer to a scheduler".into()));
        };
        if !self.life.is_empty() && self.life != *life {
            let seconds = self.config.leases.backend().as_secs_f64();
            tracing::warn!(seconds, "Redis has lost everything: nothing starts for so long");
        }
        self.life.clone_from(life);
        let number = (number != "0").then(|| number.clone());
        Ok((number, Timestamp::from_micros(clock.parse().unwrap_or_default())))
    }

    async fn lead(
        &mut self,
        number: String,
        clock: Timestamp,
        stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Over {
        let begun = Instant::now();
        let mut desk = match Desk::new(&self.config) {
            Ok(desk) => desk,
            Err(error) => return Over::Unsure(error.to_string()),
        };
        if let Some(counts) = self.counts.take() {
            desk.go_on_counting(counts);
        }
        let (attempts, cursor) = (HashMap::new(), "0".into());
        let lease = millis(self.config.leases.task());
        let clock = (clock, begun);
        let (backends, unsettled) = (0, None);
        let mut lead = Lead { number, desk, attempts, lease, backends, clock, cursor, unsettled };
        let over = self.serve(&mut lead, stop).await;
        self.counts = Some(lead.desk.status().counts);
        match over {
            Ok(()) => Over::Stopped,
            Err(over) => over,
        }
    }

    async fn serve(
        &mut self,
        lead: &mut Lead,
        mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Over> {
        self.read_all(lead).await?;
        let (mut refresh, mut sweep) = (Instant::now(), Instant::now() + LOOK);
        loop {
            if refresh <= Instant::now() {
                self.keep(lead).await?;
                refresh = Instant::now() + self.refresh();
            }
            let settles = lead.unsettled.is_some_and(|until| until <= Instant::now());
            let sweeps = settles || sweep <= Instant::now();
            if sweeps {
                sweep = Instant::now() + LOOK;
            }
            let more = self.step(lead, sweeps, refresh).await?;
            let look = lead.desk.next_look().map(|moment| lead.at(moment));
            let next = [Some(refresh), Some(sweep), look, lead.unsettled].into_iter().flatten();
            let next = next.min().unwrap_or(sweep);
            tokio::select! {
                heard = self.wake.recv() => {
                    if heard.is_none() {
                        return Err(Over::Unsure("nothing is heard any more".into()));
                    }
                    while self.wake.try_recv().is_ok() {}
                }
                () = ready(()), if more => {}
                () = sleep_until(next) => {}
                () = stop.as_mut() => return Ok(()),
            }
        }
    }

    /// Everybody who runs and who waits, before anything is decided.
    async fn read_all(&mut self, lead: &mut Lead) -> Result<(), Over> {
        let begun = Instant::now();
        let mut kept = begun;
        let mut orders = lead.desk.set_paused(lead.now(), true);
        loop {
            let gathered = self.gather(lead, true, PAGE_AT_FIRST).await?;
            let done = gathered.cursor == "0";
            lead.cursor.clone_from(&gathered.cursor);
            lead.unsettled = gathered.unsettled_until();
            let steps = lead.apply(&self.wire, gathered);
            self.make(lead, steps).await?;
            if done {
                break;
            }
            // The lease does not wait for a long queue.
            if kept.elapsed() > self.refresh() {
                self.keep(lead).await?;
                kept = Instant::now();
            }
        }
        let status = lead.desk.status();
        let took = begun.elapsed().as_secs_f64();
        tracing::info!(waiting = status.queued, running = status.running, took, "all is read");
        if lead.unsettled.is_none() {
            orders.extend(lead.desk.set_paused(lead.now(), false));
        }
        let steps = lead.calls(&self.wire, orders);
        self.make(lead, steps).await
    }

    async fn keep(&mut self, lead: &Lead) -> Result<(), Over> {
        let mut status = serde_json::to_value(lead.desk.status()).unwrap_or_default();
        status["leader"] = self.name.as_str().into();
        let (number, ..) = self.ask_for_lead(&lead.number, &status.to_string()).await?;
        if number.as_ref() == Some(&lead.number) { Ok(()) } else { Err(Over::Deposed) }
    }

    async fn gather(&self, lead: &Lead, sweep: bool, page: usize) -> Result<Gathered, Over> {
        let most = EVENTS_AT_ONCE.to_string();
        let sweep = u8::from(sweep).to_string();
        let mut args =
            vec![lead.number.clone(), most, sweep, lead.cursor.clone(), page.to_string()];
        args.extend(self.settling());
        Ok(Gathered::read(self.wire.call("gather", args).await?))
    }

    /// Takes what happened and does what comes of it, until nothing more happened or the lead has to be kept. Answers
    /// whether there is more.
    async fn step(&mut self, lead: &mut Lead, sweeps: bool, until: Instant) -> Result<bool, Over> {
        let mut sweeps = sweeps;
        loop {
            let gathered = self.gather(lead, sweeps, PAGE).await?;
            if sweeps {
                lead.cursor.clone_from(&gathered.cursor);
            }
            sweeps = false;
            let more = gathered.events.len() >= EVENTS_AT_ONCE && !gathered.swept;
            let unsettled = gathered.unsettled_until();
            let settles = lead.unsettled.is_some() && unsettled.is_none();
            lead.unsettled = unsettled;
            let mut steps = lead.apply(&self.wire, gathered);
            // The call that settles it names all who hold a backend, so nobody is passed over.
            if settles {
                let orders = lead.desk.set_paused(lead.now(), false);
                steps.extend(lead.calls(&self.wire, orders));
            }
            lead.desk.plan_look(lead.now());
            if lead.desk.next_look().is_some_and(|moment| moment <= lead.now()) {
                let begun = Instant::now();
                let orders = lead.desk.look(lead.now());
                lead.desk.note_look(begun.elapsed().into());
                steps.extend(lead.calls(&self.wire, orders));
            }
            self.make(lead, steps).await?;
            if !more || until <= Instant::now() {
                return Ok(more);
            }
        }
    }

    /// Makes the calls. A start that came too late, because its client has gone, frees its place for the next.
    async fn make(&self, lead: &mut Lead, steps: Vec<Step>) -> Result<(), Over> {
        let mut steps = steps;
        while !steps.is_empty() {
            let (calls, starts): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
            let answers: Vec<Answer> = self.wire.make(calls).await;
            let mut orders = Vec::new();
            for (answer, start) in answers.into_iter().zip(starts) {
                let done = answer?.int();
                if let Some(ticket) = start.filter(|_| done == Some(0)) {
                    orders.extend(lead.forget(ticket));
                }
            }
            steps = lead.calls(&self.wire, orders);
        }
        Ok(())
    }
}

impl Lead {
    fn now(&self) -> Timestamp {
        self.clock.0 + Span::from(self.clock.1.elapsed())
    }

    /// A moment of Redis by our clock.
    fn at(&self, moment: Timestamp) -> Instant {
        self.clock.1 + Duration::from(moment.since(self.clock.0))
    }

    fn calls(&mut self, wire: &Wire, orders: Vec<Order>) -> Vec<Step> {
        let halted = orders.iter().filter_map(|order| match order {
            Order::Halt(ticket, _) => Some((*ticket, self.attempts.get(ticket)?.number)),
            _ => None,
        });
        let halted: Vec<(Ticket, u64)> = halted.collect();
        let mut all = Orders {
            wire,
            lead: &self.number,
            lease: self.lease.clone(),
            attempts: &mut self.attempts,
        };
        let mut steps = all.calls(&self.desk, orders);
        for (ticket, run) in halted {
            // What is halted holds nothing any more in Redis, so nobody tells of its end.
            let orders = self.desk.free(self.now(), nothing(ticket, run, Ended::Done));
            steps.extend(self.calls(wire, orders));
        }
        steps
    }

    /// Tells the desk everything that happened, and answers what is to be done.
    fn apply(&mut self, wire: &Wire, gathered: Gathered) -> Vec<Step> {
        let missing = if gathered.swept { self.missing(&gathered) } else { Vec::new() };
        let mut steps = Vec::new();
        // Before anything else: the place of a backend that is gone goes with it, not to the next who waits.
        if self.backends != gathered.backends {
            self.backends = gathered.backends;
            let orders = self.desk.set_backends(self.now(), gathered.backends);
            steps.extend(self.calls(wire, orders));
        }
        for event in gathered.events {
            let lost = match &event {
                Event::Lost { ticket, attempt, .. } => Some((*ticket, attempt.clone())),
                _ => None,
            };
            let mut orders = self.hear(event);
            if let Some((ticket, attempt)) = lost {
                let known = orders.len();
                orders.retain(|order| *order != Order::Lost(ticket));
                let gives_up = orders.len() < known;
                let all = Orders {
                    wire,
                    lead: &self.number,
                    lease: self.lease.clone(),
                    attempts: &mut self.attempts,
                };
                steps.push(match gives_up {
                    true => all.lose(ticket, &attempt),
                    false => all.put_back(ticket, &attempt),
                });
            }
            steps.extend(self.calls(wire, orders));
        }
        for (ticket, attempt) in missing {
            if self.attempts.get(&ticket) == Some(&attempt) {
                let orders = self.forget(ticket);
                steps.extend(self.calls(wire, orders));
            }
        }
        steps
    }

    /// Those who hold a backend here and were not named although everybody was.
    fn missing(&self, gathered: &Gathered) -> Vec<(Ticket, Attempt)> {
        let named: HashSet<Ticket> = gathered.events.iter().map(Event::ticket).collect();
        let held = self.attempts.iter().filter(|(ticket, _)| !named.contains(ticket));
        held.map(|(ticket, attempt)| (*ticket, attempt.clone())).collect()
    }

    fn hear(&mut self, event: Event) -> Vec<Order> {
        let now = self.now();
        match event {
            Event::Waits { ticket, .. } if self.desk.knows(ticket) => Vec::new(),
            Event::Waits { ticket, ask, arrived, tries, wish, new } => {
                let mut orders = match new && tries == 0 {
                    true => self.desk.arrive(now, ticket, ask),
                    false => self.desk.readmit(now, ticket, (ask, arrived), tries),
                };
                if let (Ask::Default, Some(wish)) = (ask, wish) {
                    orders.extend(self.desk.lower(now, ticket, wish).unwrap_or_default());
                }
                orders
            }
            Event::Wish { ticket, wish } => {
                // What the client may not wish it was told by its gateway.
                self.desk.lower(now, ticket, wish).unwrap_or_default()
            }
            Event::Runs { ticket, .. } if self.desk.knows(ticket) => Vec::new(),
            Event::Runs { ticket, attempt, task, tries } => {
                let number = self.desk.resume(now, ticket, task, tries);
                self.attempts.insert(ticket, Attempt { name: attempt, number });
                Vec::new()
            }
            Event::Ended { ticket, attempt, ended, took, stopping } => {
                let freed = |run| Freed { took, stopping, ..nothing(ticket, run, ended) };
                self.free(ticket, &attempt, freed)
            }
            Event::Lost { ticket, attempt, seen } => {
                let freed = |run| Freed { seen, ..nothing(ticket, run, Ended::Lost) };
                self.free(ticket, &attempt, freed)
            }
            Event::Gone { ticket, attempt } => {
                let known = self.attempts.get(&ticket).is_some_and(|own| own.name == attempt);
                if known { self.forget(ticket) } else { Vec::new() }
            }
            Event::Unclaimed { ticket, attempt } => {
                match self.attempts.get(&ticket).is_some_and(|own| own.name == attempt) {
                    true => {
                        self.attempts.remove(&ticket);
                        self.desk.take_back(now, ticket)
                    }
                    false => Vec::new(),
                }
            }
            Event::Left { ticket } => self.desk.leave(now, ticket),
        }
    }

    /// A run ended; one that is not the task's current one changes nothing.
    fn free(
        &mut self,
        ticket: Ticket,
        attempt: &str,
        freed: impl FnOnce(u64) -> Freed,
    ) -> Vec<Order> {
        match self.attempts.get(&ticket) {
            Some(own) if own.name == attempt => {
                let number = own.number;
                self.attempts.remove(&ticket);
                self.desk.free(self.now(), freed(number))
            }
            _ => Vec::new(),
        }
    }

    /// A task that holds a backend here has gone with its client.
    fn forget(&mut self, ticket: Ticket) -> Vec<Order> {
        let now = self.now();
        let Some(attempt) = self.attempts.remove(&ticket) else { return Vec::new() };
        let mut orders = self.desk.leave(now, ticket);
        orders.extend(self.desk.free(now, nothing(ticket, attempt.number, Ended::Lost)));
        orders
    }
}

impl Event {
    fn ticket(&self) -> Ticket {
        match self {
            Event::Waits { ticket, .. }
            | Event::Wish { ticket, .. }
            | Event::Runs { ticket, .. }
            | Event::Ended { ticket, .. }
            | Event::Lost { ticket, .. }
            | Event::Gone { ticket, .. }
            | Event::Unclaimed { ticket, .. }
            | Event::Left { ticket } => *ticket,
        }
    }
}

/// A run that ended without anything to tell.
fn nothing(ticket: Ticket, attempt: u64, ended: Ended) -> Freed {
    let (took, stopping) = (Duration::ZERO, None);
    Freed { ticket, attempt, ended, seen: false, took, stopping }
}

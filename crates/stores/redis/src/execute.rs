//! A batch on its way to Redis and back.
//!
//! What is asked of tubes goes out together, one call for each tube however many commands it carries; what is about
//! all tubes, or about sessions, stands between such rounds. Each call is atomic, the batch is not: when Redis is lost in
//! the middle of it, what was answered before is answered.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use taskyard_core::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX};
use taskyard_core::{Command, Error, Holder, Reply, SessionId, TubeName};

use taskyard_redis::{Call, Failure, Link, Value};

use super::answers::Head;
use super::codec;
use super::failure::error;
use super::refuse::refusal;
use super::results::{Leases, Results, Taken};
use super::runs::{self, Placed};
use super::semaphores::Pending;
use super::tubes::Home;
use super::{Clock, Redis};

/// How many lease numbers are reserved together.
const LEASES: u64 = 1 << 20;

/// A batch that has Redis to itself.
pub(super) struct Batch<'a> {
    pub shared: &'a Redis,
    pub link: &'a mut Link,
    pub results: Results<'a>,
}

impl<'a> Deref for Batch<'a> {
    type Target = Results<'a>;

    fn deref(&self) -> &Self::Target {
        &self.results
    }
}

impl DerefMut for Batch<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.results
    }
}

/// Commands of a batch that ask the same tube, with their places.
pub(super) struct Group {
    pub tube: TubeName,
    pub commands: Vec<Placed>,
    tasks: usize,
    bytes: usize,
    /// Whether the registry was asked where it lives.
    sought: bool,
    /// Whether single commands are put together.
    straight: bool,
}

impl<'a> Batch<'a> {
    /// One of which nobody waits for replies.
    pub fn new(shared: &'a Redis, link: &'a mut Link) -> Self {
        Batch { shared, link, results: Results::new(shared, 0) }
    }
}

impl Batch<'_> {
    pub async fn run(&mut self, commands: Vec<Command>) {
        let cluster = self.shared.reach.url.cluster;
        let (mut tubes, mut semaphores) = (Vec::new(), Pending::default());
        for (place, command) in commands.into_iter().enumerate() {
            if let Some(refusal) = refusal(&command, cluster) {
                self.answer(place, Err(refusal));
            } else if tube_of(&command).is_some() {
                self.ask_semaphores(std::mem::take(&mut semaphores)).await;
                tubes.push((place, command));
            } else {
                self.ask_tubes(std::mem::take(&mut tubes)).await;
                let Some(command) = semaphores.add(place, command) else { continue };
                self.ask_semaphores(std::mem::take(&mut semaphores)).await;
                self.ask_alone(place, command).await;
            }
        }
        self.ask_semaphores(semaphores).await;
        self.ask_tubes(tubes).await;
    }

    async fn ask_alone(&mut self, place: usize, command: Command) {
        let done = if self.lost { Err(unasked()) } else { self.try_alone(command).await };
        let reply = done.unwrap_or_else(|failure| {
            self.note(&failure);
            Err(error(&failure))
        });
        let reply = self.doubt_reply(reply);
        self.answer(place, reply);
    }

    async fn try_alone(&mut self, command: Command) -> Result<Result<Reply, Error>, Failure> {
        match command {
            Command::CreateTube { tube, options, if_not_exists } => {
                self.create_tube(tube, &options, if_not_exists).await
            }
            Command::NameTube { tube, name, queue_num } => {
                self.name_tube(tube, name, queue_num).await
            }
            Command::DropTube { tube } => self.drop_tube(tube).await,
            Command::Tubes { .. } => self.show_tubes().await,
            Command::JoinSession { session, create } => self.join(session, create).await,
            Command::LeaveSession { session } => self.leave(session).await,
            Command::ConfigureSessions { ttr } => {
                let ttr = ttr.as_micros().to_string().into_bytes();
                self.registry_again("configure", vec![ttr]).await?;
                Ok(Ok(Reply::Nothing))
            }
            Command::Semaphore(command) => self.ask_all_semaphores(command).await,
            Command::Tick { limit } => Ok(Ok(Reply::Ticked(self.tick(limit).await?))),
            other => {
                let what = format!("'{}' is asked of a tube", other.verb());
                Ok(Err(Error::Store(what)))
            }
        }
    }

    async fn ask_tubes(&mut self, commands: Vec<(usize, Command)>) {
        let waves = waves(commands, &self.shared.known().gated);
        for mut groups in waves {
            for group in &mut groups {
                if self.shared.known().straight.contains(&group.tube) {
                    group.straighten();
                }
            }
            self.wave(groups).await;
        }
    }

    /// Asks tubes, each once.
    pub async fn wave(&mut self, groups: Vec<Group>) {
        let groups = self.refuse_disorder(groups);
        let prepared = if self.lost { Err(unasked()) } else { self.prepare(&groups).await };
        let (calls, ranges) = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => {
                self.note(&failure);
                // The tubes were not even asked.
                let error = error(&Failure::Unreachable(failure.text()));
                for (place, _) in groups.into_iter().flat_map(|group| group.commands) {
                    self.answer(place, Err(error.clone()));
                }
                return;
            }
        };
        let mut answers = self.link.call(&calls).await;
        self.look_again(&groups, &calls, &mut answers).await;
        let mut again = Vec::new();
        let mut absent = Vec::new();
        let mut leases = Leases::of(&ranges);
        for ((group, answer), range) in groups.into_iter().zip(answers).zip(ranges) {
            match self.take_in(&group, answer, range, &mut leases) {
                Taken::In => {}
                Taken::Absent(head) if !group.sought => absent.push((group, head)),
                Taken::Absent(head) => self.miss(&group, &head),
                Taken::Not(Failure::Full) if group.has_put() => {
                    again.extend(self.without_puts(group));
                }
                Taken::Not(failure) => self.fail(&group, &failure),
            }
        }
        self.shared.known().return_leases(&leases);
        again.extend(self.seek(absent).await);
        if !again.is_empty() {
            Box::pin(self.wave(again)).await;
        }
    }

    /// Tubes that were not found may live elsewhere: answers whom to ask again.
    async fn seek(&mut self, absent: Vec<(Group, Head)>) -> Vec<Group> {
        let mut again = Vec::new();
        if absent.is_empty() {
            return again;
        }
        let names: Vec<TubeName> = absent.iter().map(|(group, _)| group.tube.clone()).collect();
        let moved = self.has_moved(&names).await;
        for (place, (mut group, head)) in absent.into_iter().enumerate() {
            match &moved {
                Ok(moved) if moved[place] => {
                    group.sought = true;
                    again.push(group);
                }
                Ok(_) => self.miss(&group, &head),
                Err(failure) => {
                    self.note(failure);
                    let error = error(&Failure::Unreachable(failure.text()));
                    group.places().for_each(|place| self.answer(place, Err(error.clone())));
                }
            }
        }
        again
    }

    /// The calls, and the lease numbers that each may use.
    async fn prepare(&mut self, groups: &[Group]) -> Result<(Vec<Call>, Vec<(u64, u64)>), Failure> {
        let alive = self.alive(groups).await?;
        self.hold(groups, &alive).await?;
        self.reserve_leases(groups).await?;
        Ok(self.shared.encode(groups, &alive))
    }

    /// Which of the sessions that are named live. Those that are connected here do.
    async fn alive(&mut self, groups: &[Group]) -> Result<HashMap<SessionId, bool>, Failure> {
        let mut alive = HashMap::new();
        let mut unknown = Vec::new();
        {
            let known = self.shared.known();
            for session in groups.iter().flat_map(Group::sessions) {
                let here = known.sessions.connections.contains_key(&session);
                if alive.insert(session, here).is_none() && !here {
                    unknown.push(session);
                }
            }
        }
        if !unknown.is_empty() {
            let words = unknown.iter().map(|session| session.0.to_vec()).collect();
            let lives = self.registry_again("lives", words).await?;
            for (session, lives) in unknown.into_iter().zip(lives) {
                alive.insert(session, lives.int() == Some(1));
            }
        }
        Ok(alive)
    }

    /// Tells the registry from which tubes sessions take, before they do for the first time.
    async fn hold(
        &mut self,
        groups: &[Group],
        alive: &HashMap<SessionId, bool>,
    ) -> Result<(), Failure> {
        let mut new: HashMap<SessionId, Vec<Home>> = HashMap::new();
        for group in groups {
            let home = self.shared.whom(&group.tube).home;
            let known = self.shared.known();
            for (_, command) in &group.commands {
                if let Command::Take(take) = command
                    && let Some(session) = take.session
                    && alive.get(&session) == Some(&true)
                    && known.sessions.is_new_to(session, &home)
                {
                    new.entry(session).or_default().push(home.clone());
                }
            }
        }
        for (session, homes) in new {
            self.tell_held(session, &homes).await?;
            self.shared.known().sessions.held.entry(session).or_default().extend(homes);
        }
        Ok(())
    }

    /// Sees to it that there are as many lease numbers as these may use.
    async fn reserve_leases(&mut self, groups: &[Group]) -> Result<(), Failure> {
        let wanted: u64 = groups.iter().map(Group::leases).sum();
        if self.shared.known().has_leases(wanted) {
            return Ok(());
        }
        let size = wanted.max(LEASES);
        let answer = self.registry_again("leases", vec![size.to_string().into_bytes()]).await?;
        let first = answer.first().and_then(Value::int).and_then(|first| u64::try_from(first).ok());
        let Some(first) = first else { return Err(unreadable_registry()) };
        self.shared.known().leases = first..first + size;
        Ok(())
    }
}

impl Redis {
    /// The moment as functions are told: nothing is the clock of Redis.
    pub(crate) fn now_word(&self) -> Vec<u8> {
        match self.clock {
            Clock::Caller => self.known().now.to_string().into_bytes(),
            Clock::Database => Vec::new(),
        }
    }

    /// The calls, and the lease numbers that each may use, which are taken from those of this server.
    pub(crate) fn encode(
        &self,
        groups: &[Group],
        alive: &HashMap<SessionId, bool>,
    ) -> (Vec<Call>, Vec<(u64, u64)>) {
        let mut lease = self.known().leases.start;
        let (mut calls, mut ranges) = (Vec::new(), Vec::new());
        for group in groups {
            let first = lease;
            let mut context = codec::Context { alive, lease };
            let words = group.runs().flat_map(|run| codec::encode_run(run, &mut context));
            let words: Vec<_> = words.collect();
            lease = context.lease;
            ranges.push((first, lease));
            let function = if group.has_put() { "ask" } else { "free" };
            let mut call = self.tube_call(function, &self.whom(&group.tube), words);
            call.replicate = !group.only_looks();
            calls.push(call);
        }
        self.known().leases.start = lease;
        (calls, ranges)
    }
}

impl Group {
    fn new(tube: TubeName) -> Self {
        Group { tube, commands: Vec::new(), tasks: 0, bytes: 0, sought: false, straight: false }
    }

    /// Whether one more would make it too large for one call, which nobody else gets between.
    fn is_full(&self, tasks: usize, bytes: usize) -> bool {
        !self.commands.is_empty()
            && (self.tasks + tasks > BATCH_TASKS_MAX || self.bytes + bytes > BATCH_BYTES_MAX)
    }

    /// Lets single commands be put together.
    pub fn straighten(&mut self) {
        self.straight = true;
        runs::arrange(&mut self.commands);
    }

    /// What is asked as one command each.
    pub fn runs(&self) -> impl Iterator<Item = &[Placed]> {
        let (together, alone) =
            self.commands.split_at(if self.straight { self.commands.len() } else { 0 });
        runs::runs(together).chain(alone.chunks(1))
    }

    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.commands.iter().map(|(place, _)| *place)
    }

    fn has_put(&self) -> bool {
        self.commands.iter().any(|(_, command)| matches!(command, Command::Put { .. }))
    }

    pub fn only_looks(&self) -> bool {
        self.commands.iter().all(|(_, command)| only_looks(command))
    }

    /// How many lease numbers its takes may use.
    fn leases(&self) -> u64 {
        self.commands.iter().map(|(_, command)| leases_of(command)).sum()
    }

    /// The sessions it names.
    fn sessions(&self) -> Vec<SessionId> {
        self.commands.iter().flat_map(|(_, command)| sessions_of(command)).collect()
    }
}

/// How many lease numbers a command may use.
pub(super) fn leases_of(command: &Command) -> u64 {
    match command {
        Command::Take(take) => take.count as u64,
        _ => 0,
    }
}

/// The sessions that a command names.
pub(super) fn sessions_of(command: &Command) -> Vec<SessionId> {
    match command {
        Command::Take(take) => take.session.into_iter().collect(),
        Command::Finish { items, .. } => {
            let sessions = items.iter().filter_map(|item| match item.holder {
                Holder::Session(session) => Some(session),
                _ => None,
            });
            sessions.collect()
        }
        _ => Vec::new(),
    }
}

/// Puts commands together by tube; those that do not fit into one call come in the next round.
pub(super) fn waves(commands: Vec<Placed>, gated: &HashSet<TubeName>) -> Vec<Vec<Group>> {
    let mut waves: Vec<Vec<Group>> = Vec::new();
    let mut open: HashMap<TubeName, (usize, usize)> = HashMap::new();
    let mut before: Option<TubeName> = None;
    for (place, command) in commands {
        let Some(tube) = tube_of(&command).cloned() else { continue };
        let (tasks, bytes) = (tasks_in(&command), command.payload_bytes());
        // Tubes may have one semaphore, where the order of arrival counts.
        let behind_other = gated.contains(&tube)
            && before.replace(tube.clone()).is_some_and(|before| before != tube);
        let found = open.get(&tube).copied();
        let (wave, group) = match found {
            Some((wave, group)) if !behind_other && !waves[wave][group].is_full(tasks, bytes) => {
                (wave, group)
            }
            other => {
                let next = other.map_or(0, |(wave, _)| wave + 1);
                let wave = if behind_other { waves.len() } else { next };
                if waves.len() <= wave {
                    waves.push(Vec::new());
                }
                waves[wave].push(Group::new(tube.clone()));
                let at = (wave, waves[wave].len() - 1);
                open.insert(tube, at);
                at
            }
        };
        let group = &mut waves[wave][group];
        group.tasks += tasks;
        group.bytes += bytes;
        group.commands.push((place, command));
    }
    waves
}

pub(super) fn tasks_in(command: &Command) -> usize {
    match command {
        Command::Put { tasks, .. } => tasks.len(),
        Command::Take(take) => take.count,
        Command::Finish { items, .. } => items.len(),
        Command::Delete { ids, .. } | Command::Peek { ids, .. } => ids.len(),
        _ => 1,
    }
}

/// The tube that a command is about, if that is all it is about.
pub(super) fn tube_of(command: &Command) -> Option<&TubeName> {
    match command {
        Command::Put { tube, .. }
        | Command::Finish { tube, .. }
        | Command::Kick { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Peek { tube, .. }
        | Command::Deliveries { tube, .. }
        | Command::Truncate { tube }
        | Command::ReleaseAll { tube }
        | Command::AlterTube { tube, .. }
        | Command::Tubes { tube: Some(tube) } => Some(tube),
        Command::Take(take) => Some(&take.tube),
        _ => None,
    }
}

pub(super) fn only_looks(command: &Command) -> bool {
    matches!(command, Command::Peek { .. } | Command::Deliveries { .. } | Command::Tubes { .. })
}

pub(super) fn unasked() -> Failure {
    Failure::Unreachable("it was lost before".into())
}

pub(super) fn unreadable_registry() -> Failure {
    Failure::Refused("its registry answered something strange".into())
}

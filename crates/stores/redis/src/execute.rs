//! Runs a batch as calls to Redis.
//!
//! Commands of tubes are sent in rounds, one call for each tube however many commands it has; commands about all tubes or
//! about sessions run between such rounds. Each call is atomic, the batch is not: when the connection is lost during a batch,
//! earlier answers stay.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use taskyard_core::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX};
use taskyard_core::{Command, Error, Holder, List, Reply, Search, SessionId, TubeName};

use taskyard_redis::{Call, Failure, Link, Value};

use super::answers::TubeHead;
use super::checks::refusal;
use super::codec;
use super::failure::error;
use super::merge::{self, IndexedCommand};
use super::results::{CallResult, Leases, Results};
use super::semaphores::SemaphoreBatch;
use super::tubes::HashTag;
use super::{Clock, Redis};

/// How many lease numbers are reserved together.
const LEASES: u64 = 1 << 20;

/// A batch that runs while no other does.
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

/// The commands of a batch for one tube, with their indexes in the batch.
pub(super) struct TubeGroup {
    pub tube: TubeName,
    pub commands: Vec<IndexedCommand>,
    tasks: usize,
    bytes: usize,
    /// Whether the registry was asked for its tag.
    is_located: bool,
    /// Whether single commands are merged.
    mergeable: bool,
}

impl<'a> Batch<'a> {
    /// A batch without commands, for internal calls.
    pub fn new(shared: &'a Redis, link: &'a mut Link) -> Self {
        Batch { shared, link, results: Results::new(shared, 0) }
    }
}

impl Batch<'_> {
    pub async fn run(&mut self, commands: Vec<Command>) {
        let cluster = self.shared.connector.url.cluster;
        let (mut tubes, mut semaphores) = (Vec::new(), SemaphoreBatch::default());
        for (place, command) in commands.into_iter().enumerate() {
            if let Some(refusal) = refusal(&command, cluster) {
                self.answer(place, Err(refusal));
            } else if tube_of(&command).is_some() {
                self.call_semaphores(std::mem::take(&mut semaphores)).await;
                tubes.push((place, command));
            } else {
                self.call_tubes(std::mem::take(&mut tubes)).await;
                let Some(command) = semaphores.add(place, command) else { continue };
                self.call_semaphores(std::mem::take(&mut semaphores)).await;
                self.run_single(place, command).await;
            }
        }
        self.call_semaphores(semaphores).await;
        self.call_tubes(tubes).await;
    }

    async fn run_single(&mut self, place: usize, command: Command) {
        let done = if self.lost { Err(not_sent()) } else { self.try_single(command).await };
        let reply = done.unwrap_or_else(|failure| {
            self.note(&failure);
            Err(error(&failure))
        });
        let reply = self.check_replicated(reply);
        self.answer(place, reply);
    }

    async fn try_single(&mut self, command: Command) -> Result<Result<Reply, Error>, Failure> {
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
                self.registry_with_retry("configure", vec![ttr]).await?;
                Ok(Ok(Reply::Nothing))
            }
            Command::Semaphore(command) => self.run_semaphore_command(command).await,
            Command::Schedule(command) => self.run_schedule(*command).await,
            Command::Tick { limit, seed } => Ok(Ok(Reply::Ticked(self.tick(limit, seed).await?))),
            other => {
                let what = format!("'{}' is a command of a tube", other.verb());
                Ok(Err(Error::Store(what)))
            }
        }
    }

    async fn call_tubes(&mut self, commands: Vec<(usize, Command)>) {
        let rounds = rounds(commands, &self.shared.cache().gated);
        for mut groups in rounds {
            for group in &mut groups {
                if self.shared.cache().mergeable.contains(&group.tube) {
                    group.merge_commands();
                }
            }
            self.run_round(groups).await;
        }
    }

    /// Sends one call to each tube.
    pub async fn run_round(&mut self, groups: Vec<TubeGroup>) {
        let groups = self.refuse_unsynced(groups);
        let prepared = if self.lost { Err(not_sent()) } else { self.prepare(&groups).await };
        let (calls, ranges) = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => {
                self.note(&failure);
                // The calls were not sent.
                let error = error(&Failure::Unreachable(failure.text()));
                for (place, _) in groups.into_iter().flat_map(|group| group.commands) {
                    self.answer(place, Err(error.clone()));
                }
                return;
            }
        };
        let mut answers = self.link.call(&calls).await;
        self.retry_reads(&groups, &calls, &mut answers).await;
        let mut again = Vec::new();
        let mut absent = Vec::new();
        let mut leases = Leases::of(&ranges);
        for ((group, answer), range) in groups.into_iter().zip(answers).zip(ranges) {
            match self.apply_answer(&group, answer, range, &mut leases) {
                CallResult::SemaphoreAnswer => {}
                CallResult::Absent(head) if !group.is_located => absent.push((group, head)),
                CallResult::Absent(head) => self.answer_missing(&group, &head),
                CallResult::Failed(Failure::Full) if group.has_put() => {
                    again.extend(self.without_puts(group));
                }
                CallResult::Failed(failure) => self.fail(&group, &failure),
            }
        }
        self.shared.cache().return_leases(&leases);
        again.extend(self.locate(absent).await);
        if !again.is_empty() {
            Box::pin(self.run_round(again)).await;
        }
    }

    /// Tubes that were not found may have another tag: answers the groups to send again.
    async fn locate(&mut self, absent: Vec<(TubeGroup, TubeHead)>) -> Vec<TubeGroup> {
        let mut again = Vec::new();
        if absent.is_empty() {
            return again;
        }
        let names: Vec<TubeName> = absent.iter().map(|(group, _)| group.tube.clone()).collect();
        let moved = self.update_tags(&names).await;
        for (place, (mut group, head)) in absent.into_iter().enumerate() {
            match &moved {
                Ok(moved) if moved[place] => {
                    group.is_located = true;
                    again.push(group);
                }
                Ok(_) => self.answer_missing(&group, &head),
                Err(failure) => {
                    self.note(failure);
                    let error = error(&Failure::Unreachable(failure.text()));
                    group.indexes().for_each(|place| self.answer(place, Err(error.clone())));
                }
            }
        }
        again
    }

    /// The calls, and the lease numbers that each may use.
    async fn prepare(
        &mut self,
        groups: &[TubeGroup],
    ) -> Result<(Vec<Call>, Vec<(u64, u64)>), Failure> {
        let alive = self.alive(groups).await?;
        self.record_new_sessions(groups, &alive).await?;
        self.reserve_leases(groups).await?;
        Ok(self.shared.encode(groups, &alive))
    }

    /// Which of the named sessions are alive. Those that are connected here are.
    async fn alive(&mut self, groups: &[TubeGroup]) -> Result<HashMap<SessionId, bool>, Failure> {
        let mut alive = HashMap::new();
        let mut unknown = Vec::new();
        {
            let cache = self.shared.cache();
            for session in groups.iter().flat_map(TubeGroup::sessions) {
                let here = cache.sessions.connections.contains_key(&session);
                if alive.insert(session, here).is_none() && !here {
                    unknown.push(session);
                }
            }
        }
        if !unknown.is_empty() {
            let words = unknown.iter().map(|session| session.0.to_vec()).collect();
            let lives = self.registry_with_retry("alive", words).await?;
            for (session, lives) in unknown.into_iter().zip(lives) {
                alive.insert(session, lives.int() == Some(1));
            }
        }
        Ok(alive)
    }

    /// Records in the registry from which tubes sessions take, before the first take.
    async fn record_new_sessions(
        &mut self,
        groups: &[TubeGroup],
        alive: &HashMap<SessionId, bool>,
    ) -> Result<(), Failure> {
        let mut new: HashMap<SessionId, Vec<HashTag>> = HashMap::new();
        for group in groups {
            let tag = self.shared.address(&group.tube).tag;
            let cache = self.shared.cache();
            for (_, command) in &group.commands {
                if let Command::Take(take) = command
                    && let Some(session) = take.session
                    && alive.get(&session) == Some(&true)
                    && cache.sessions.is_new_to(session, &tag)
                {
                    new.entry(session).or_default().push(tag.clone());
                }
            }
        }
        for (session, tags) in new {
            self.record_held(session, &tags).await?;
            self.shared.cache().sessions.held.entry(session).or_default().extend(tags);
        }
        Ok(())
    }

    /// Reserves as many lease numbers as these may use.
    async fn reserve_leases(&mut self, groups: &[TubeGroup]) -> Result<(), Failure> {
        let wanted: u64 = groups.iter().map(TubeGroup::leases).sum();
        if self.shared.cache().has_leases(wanted) {
            return Ok(());
        }
        let size = wanted.max(LEASES);
        let answer =
            self.registry_with_retry("leases", vec![size.to_string().into_bytes()]).await?;
        let first = answer.first().and_then(Value::int).and_then(|first| u64::try_from(first).ok());
        let Some(first) = first else { return Err(unreadable_registry()) };
        self.shared.cache().leases = first..first + size;
        Ok(())
    }
}

impl Redis {
    /// The moment as an argument of calls: empty is the clock of Redis.
    pub(crate) fn now_word(&self) -> Vec<u8> {
        match self.clock {
            Clock::Caller => self.cache().now.to_string().into_bytes(),
            Clock::Database => Vec::new(),
        }
    }

    /// The calls, and the lease numbers that each may use, out of those that are reserved.
    pub(crate) fn encode(
        &self,
        groups: &[TubeGroup],
        alive: &HashMap<SessionId, bool>,
    ) -> (Vec<Call>, Vec<(u64, u64)>) {
        let mut lease = self.cache().leases.start;
        let (mut calls, mut ranges) = (Vec::new(), Vec::new());
        for group in groups {
            let first = lease;
            let mut context = codec::Context { alive, lease };
            let words = group.runs().flat_map(|run| codec::encode_run(run, &mut context));
            let words: Vec<_> = words.collect();
            lease = context.lease;
            ranges.push((first, lease));
            let function = if group.has_put() { "grow" } else { "call" };
            let mut call = self.tube_call(function, &self.address(&group.tube), words);
            call.replicate = !group.is_read_only();
            calls.push(call);
        }
        self.cache().leases.start = lease;
        (calls, ranges)
    }
}

impl TubeGroup {
    fn new(tube: TubeName) -> Self {
        TubeGroup {
            tube,
            commands: Vec::new(),
            tasks: 0,
            bytes: 0,
            is_located: false,
            mergeable: false,
        }
    }

    /// Whether one more would make it too large for one call, which blocks Redis while it runs.
    fn is_full(&self, tasks: usize, bytes: usize) -> bool {
        !self.commands.is_empty()
            && (self.tasks + tasks > BATCH_TASKS_MAX || self.bytes + bytes > BATCH_BYTES_MAX)
    }

    /// Allows single commands to be merged.
    pub fn merge_commands(&mut self) {
        self.mergeable = true;
        merge::move_acks_first(&mut self.commands);
    }

    /// The runs of commands that are sent as one command each.
    pub fn runs(&self) -> impl Iterator<Item = &[IndexedCommand]> {
        let (together, alone) =
            self.commands.split_at(if self.mergeable { self.commands.len() } else { 0 });
        merge::runs(together).chain(alone.chunks(1))
    }

    pub fn indexes(&self) -> impl Iterator<Item = usize> {
        self.commands.iter().map(|(place, _)| *place)
    }

    fn has_put(&self) -> bool {
        self.commands.iter().any(|(_, command)| matches!(command, Command::Put { .. }))
    }

    pub fn is_read_only(&self) -> bool {
        self.commands.iter().all(|(_, command)| is_read_only(command))
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

/// Groups commands by tube; those that do not fit into one call go to the next round.
pub(super) fn rounds(
    commands: Vec<IndexedCommand>,
    gated: &HashSet<TubeName>,
) -> Vec<Vec<TubeGroup>> {
    let mut rounds: Vec<Vec<TubeGroup>> = Vec::new();
    let mut open: HashMap<TubeName, (usize, usize)> = HashMap::new();
    let mut before: Option<TubeName> = None;
    for (place, command) in commands {
        let Some(tube) = tube_of(&command).cloned() else { continue };
        let (tasks, bytes) = (tasks_in(&command), command.payload_bytes());
        // Tubes may share a semaphore, where the order of arrival counts.
        let behind_other = gated.contains(&tube)
            && before.replace(tube.clone()).is_some_and(|before| before != tube);
        let found = open.get(&tube).copied();
        let (round, group) = match found {
            Some((round, group))
                if !behind_other && !rounds[round][group].is_full(tasks, bytes) =>
            {
                (round, group)
            }
            other => {
                let next = other.map_or(0, |(round, _)| round + 1);
                let round = if behind_other { rounds.len() } else { next };
                if rounds.len() <= round {
                    rounds.push(Vec::new());
                }
                rounds[round].push(TubeGroup::new(tube.clone()));
                let at = (round, rounds[round].len() - 1);
                open.insert(tube, at);
                at
            }
        };
        let group = &mut rounds[round][group];
        group.tasks += tasks;
        group.bytes += bytes;
        group.commands.push((place, command));
    }
    rounds
}

pub(super) fn tasks_in(command: &Command) -> usize {
    match command {
        Command::Put { tasks, .. } => tasks.len(),
        Command::Take(take) => take.count,
        Command::Finish { items, .. } => items.len(),
        Command::KickTasks { ids, .. }
        | Command::Delete { ids, .. }
        | Command::Peek { ids, .. }
        | Command::Positions { ids, .. } => ids.len(),
        // More are refused.
        Command::List(list) => list.limit.min(BATCH_TASKS_MAX),
        Command::Search(search) => search.count.min(BATCH_TASKS_MAX),
        _ => 1,
    }
}

/// The tube of a command, if it is about one tube only.
pub(super) fn tube_of(command: &Command) -> Option<&TubeName> {
    match command {
        Command::Put { tube, .. }
        | Command::Finish { tube, .. }
        | Command::Kick { tube, .. }
        | Command::KickTasks { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Peek { tube, .. }
        | Command::Deliveries { tube, .. }
        | Command::List(List { tube, .. })
        | Command::Search(Search { tube, .. })
        | Command::Positions { tube, .. }
        | Command::Truncate { tube }
        | Command::ReleaseAll { tube }
        | Command::AlterTube { tube, .. }
        | Command::Tubes { tube: Some(tube) } => Some(tube),
        Command::Take(take) => Some(&take.tube),
        _ => None,
    }
}

pub(super) fn is_read_only(command: &Command) -> bool {
    matches!(
        command,
        Command::Peek { .. }
            | Command::Deliveries { .. }
            | Command::List(_)
            | Command::Search(_)
            | Command::Positions { .. }
            | Command::Tubes { .. }
    )
}

pub(super) fn not_sent() -> Failure {
    Failure::Unreachable("the connection was lost earlier in this batch".into())
}

pub(super) fn unreadable_registry() -> Failure {
    Failure::Refused("the registry sent an unreadable answer".into())
}

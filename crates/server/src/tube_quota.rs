//! Limits how many tubes one user may create.
//!
//! Each server remembers the owners of tubes, and keeps them in the store ([`tube_owners`]), so that
//! the limit counts tubes from before a restart and of other servers of the store. As long as no
//! limit is near, nothing is queried before a tube is created: a server learns of the tubes that a
//! user created through other servers with the next tube that the user creates here. So with several
//! servers a user can exceed the limit by one request to each of them. In addition only an
//! administrator can create the last tubes of a store.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use taskyard_core::limits::{TUBES_MAX, TUBES_RESERVED};
use taskyard_core::{Command, Error, Execute, Reply, Result, TaskId, TubeName};
use taskyard_engine::Capabilities;

use crate::tube_owners::{self, StoredOwners};

/// A user at the limit causes at most one reading of all owners in this time.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The user that creates a tube.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TubeCreator<'a> {
    /// The name.
    pub name: &'a str,
    /// Whether the user may use the reserve.
    pub is_admin: bool,
}

/// Where the owners of tubes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerRecords {
    /// In this server, until it stops.
    Memory,
    /// In a store that only this server uses.
    Store,
    /// In a store that other servers use too.
    SharedStore,
}

impl OwnerRecords {
    /// What is best in a store. A queue of Tarantool that other programs use gets no internal tubes.
    pub fn in_store(store: Capabilities) -> Self {
        match store {
            Capabilities { imports: false, .. } => OwnerRecords::Memory,
            Capabilities { shared: true, .. } => OwnerRecords::SharedStore,
            Capabilities { durable: true, .. } => OwnerRecords::Store,
            _ => OwnerRecords::Memory,
        }
    }
}

/// The tubes that users created.
#[derive(Debug)]
pub(crate) struct TubeQuota {
    each_max: usize,
    records: OwnerRecords,
    known: Mutex<TubeCounts>,
    /// Held while all owners are read.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct TubeCounts {
    /// The owners of tubes.
    owners: HashMap<TubeName, Ownership>,
    /// The number of tubes of each user, by the tube that stores them.
    counts: HashMap<TubeName, UserCount>,
    /// The number of tubes in the store when they were last counted, plus those created and minus
    /// those dropped here since then.
    total: usize,
    /// When all owners were read.
    read_at: Option<Instant>,
    /// Whether a tube was dropped since then whose entry is still there.
    has_stale: bool,
}

/// Who created a tube.
#[derive(Clone, Debug)]
struct Ownership {
    /// The tube that stores the tubes of the user.
    owner: TubeName,
    /// The entry, if it is stored.
    entry: Option<TaskId>,
}

#[derive(Debug, Default)]
struct UserCount {
    /// Tubes of which the user is known to be the owner.
    owned: usize,
    /// Tubes that are being created.
    reserved: usize,
    /// Entries in the store, of all servers, when they were last counted.
    stored: usize,
    /// Whether the tube that stores them is known to exist.
    has_tube: bool,
}

impl TubeQuota {
    /// Each user may create `each_max` tubes.
    pub fn new(each_max: usize, records: OwnerRecords) -> Self {
        // Without a limit the owners do not matter.
        let records = if each_max < TUBES_MAX { records } else { OwnerRecords::Memory };
        TubeQuota { each_max, records, known: Mutex::default(), reading: Default::default() }
    }

    /// Whether a command may change the set of tubes.
    pub fn concerns(command: &Command) -> bool {
        matches!(
            command,
            Command::CreateTube { .. } | Command::DropTube { .. } | Command::NameTube { .. }
        )
    }

    /// Reads the owners of existing tubes, when a server starts.
    pub async fn load(&self, queue: &impl Execute) {
        if self.is_stored() {
            self.read(queue).await;
        }
    }

    /// Runs commands of a user; refuses those that would create a tube too many.
    pub async fn execute(
        &self,
        queue: &impl Execute,
        user: TubeCreator<'_>,
        commands: Vec<Command>,
    ) -> Vec<Result<Reply>> {
        let owner = tube_owners::owner_tube(user.name);
        let mut accepted = Vec::with_capacity(commands.len());
        let mut changes = Vec::with_capacity(commands.len());
        let mut counted = TubeReservation { quota: self, owner: &owner, tubes: 0 };
        let mut refused = Vec::new();
        for (index, command) in commands.into_iter().enumerate() {
            match self.begin(queue, user, &command, &mut counted).await {
                Ok(change) => {
                    changes.push(change);
                    accepted.push(command);
                }
                Err(error) => refused.push((index, error)),
            }
        }
        let mut replies = match accepted.is_empty() {
            true => Vec::new(),
            false => self.run(queue, &mut counted, accepted, changes).await,
        };
        for (index, error) in refused {
            replies.insert(index, Err(error));
        }
        replies
    }

    /// Records the number of tubes in the store.
    pub fn counted(&self, tubes: usize) {
        self.known().total = tubes;
    }

    fn known(&self) -> MutexGuard<'_, TubeCounts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stored(&self) -> bool {
        self.records != OwnerRecords::Memory
    }

    /// Counts a tube before it is created, so that concurrent creations stay within the limit.
    async fn begin(
        &self,
        queue: &impl Execute,
        user: TubeCreator<'_>,
        command: &Command,
        counted: &mut TubeReservation<'_>,
    ) -> Result<Change> {
        let change = Change::of(command);
        if let Change::Rename(from, _) = &change
            && self.is_stored()
            && !self.known().owners.contains_key(from)
        {
            // Otherwise the tube would belong to no user under its new name.
            self.read(queue).await;
        }
        let Change::Create(tube) = &change else { return Ok(change) };
        let refusal = match self.count(queue, counted).await {
            Err(refusal) => refusal,
            Ok(()) => match self.check_reserve(queue, user).await {
                Ok(()) => return Ok(change),
                Err(refusal) => {
                    counted.uncount();
                    refusal
                }
            },
        };
        // Nothing is created if the tube already exists.
        let there = Command::Tubes { tube: Some(tube.clone()) };
        match queue.execute(vec![there]).await.pop() {
            Some(Ok(_)) => Ok(Change::None),
            _ => Err(refusal),
        }
    }

    /// Counts one more tube of the user. The owners are read again if there seem to be too many.
    async fn count(&self, queue: &impl Execute, counted: &mut TubeReservation<'_>) -> Result<()> {
        let refused = counted.count();
        if refused.is_ok() || !self.is_stored() {
            return refused;
        }
        let _one_reads = self.reading.lock().await;
        if self.known().may_read() {
            self.read(queue).await;
        }
        counted.count()
    }

    /// Reads all owners from the store.
    async fn read(&self, queue: &impl Execute) {
        if let Some(stored) = tube_owners::read(queue).await {
            self.known().replace(stored);
        }
    }

    /// Refuses when only the reserve is left. The tubes are counted again when there may be that
    /// many.
    async fn check_reserve(&self, queue: &impl Execute, user: TubeCreator<'_>) -> Result<()> {
        let most = TUBES_MAX - TUBES_RESERVED;
        if user.is_admin || self.each_max >= TUBES_MAX || self.known().total < most {
            return Ok(());
        }
        let listed = queue.execute(vec![Command::Tubes { tube: None }]).await.pop();
        let Some(Ok(Reply::Tubes(tubes))) = listed else { return Ok(()) };
        self.counted(tubes.len());
        if tubes.len() < most { Ok(()) } else { Err(Error::TooManyTubes(most)) }
    }

    /// Runs accepted commands, and stores the owners that they change in the same batch: the caller
    /// may be gone before the reply.
    async fn run(
        &self,
        queue: &impl Execute,
        counted: &mut TubeReservation<'_>,
        commands: Vec<Command>,
        changes: Vec<Change>,
    ) -> Vec<Result<Reply>> {
        let entries = self.entries(counted.owner, &changes);
        let owners: HashSet<&TubeName> = entries.iter().flatten().map(|new| &new.owner).collect();
        let mut batch = self.missing(&owners);
        let (first, count) = (batch.len(), commands.len());
        batch.extend(commands);
        batch.extend(entries.iter().flatten().map(|new| tube_owners::put(&new.owner, &new.tube)));
        if !owners.is_empty() {
            batch.push(Command::Tubes { tube: Some(counted.owner.clone()) });
        }
        let mut replies = queue.execute(batch).await;
        counted.end();
        replies.drain(..first.min(replies.len()));
        let stored = replies.split_off(count.min(replies.len()));
        let changes = changes.into_iter().zip(&replies).zip(entries);
        let surplus = self.end(counted.owner, changes, stored);
        if self.is_stored() && !surplus.is_empty() {
            queue.execute(surplus.into_iter().map(tube_owners::delete).collect()).await;
        }
        replies
    }

    /// Applies changes after their replies; `stored` are the replies to the entries and the tube
    /// that stores them. Returns the entries that are out of date.
    fn end<'a>(
        &self,
        user: &TubeName,
        changes: impl Iterator<Item = ((Change, &'a Result<Reply>), Option<NewEntry>)>,
        stored: Vec<Result<Reply>>,
    ) -> Vec<(TubeName, TaskId)> {
        let mut stored = stored.into_iter();
        let mut surplus = Vec::new();
        let mut known = self.known();
        for ((change, reply), entry) in changes {
            let entry = entry.and_then(|entry| {
                let id = tube_owners::entry_of(stored.next().as_ref());
                // If there is no entry, the tube that stores it may have been dropped.
                let has_tube = id.is_some();
                known.counts.entry(entry.owner.clone()).or_default().has_tube = has_tube;
                Some((entry.owner, id?))
            });
            surplus.extend(known.end(user, change, reply, entry));
        }
        if let Some(Ok(Reply::Tubes(tubes))) = stored.next()
            && let Some(tube) = tubes.first()
        {
            let surplus = surplus.iter().filter(|(owner, _)| owner == user).count();
            let stored = tube.stats.tasks.total() as usize;
            known.counts.entry(user.clone()).or_default().stored = stored.saturating_sub(surplus);
        }
        surplus
    }

    /// The entry that each change adds.
    fn entries(&self, user: &TubeName, changes: &[Change]) -> Vec<Option<NewEntry>> {
        let known = self.known();
        // What is known of a store without other servers is right: its tubes exist.
        let is_known = |tube: &TubeName| {
            self.records == OwnerRecords::Store && known.owners.contains_key(tube)
        };
        let entry = |change: &Change| match change {
            _ if !self.is_stored() => None,
            Change::Create(tube) if !is_known(tube) => {
                Some(NewEntry { owner: user.clone(), tube: tube.clone() })
            }
            Change::Rename(from, to) => {
                let owner = known.owners.get(from)?.owner.clone();
                Some(NewEntry { owner, tube: to.clone() })
            }
            _ => None,
        };
        changes.iter().map(entry).collect()
    }

    /// Commands that create those of these tubes that may not exist yet.
    fn missing(&self, owners: &HashSet<&TubeName>) -> Vec<Command> {
        let known = self.known();
        let has_tube = |owner: &TubeName| known.counts.get(owner).is_some_and(|user| user.has_tube);
        let missing = owners.iter().filter(|owner| !has_tube(owner));
        missing.map(|owner| tube_owners::create(owner)).collect()
    }
}

/// An entry that is stored when a tube is created or renamed.
struct NewEntry {
    /// The tube that stores it.
    owner: TubeName,
    tube: TubeName,
}

/// Tubes that are counted and not created yet. They are uncounted if the caller is gone before the
/// reply.
struct TubeReservation<'a> {
    quota: &'a TubeQuota,
    /// The tube that stores the tubes of the user.
    owner: &'a TubeName,
    tubes: usize,
}

impl TubeReservation<'_> {
    fn count(&mut self) -> Result<()> {
        self.quota.known().reserve(self.owner, self.quota.each_max)?;
        self.tubes += 1;
        Ok(())
    }

    fn uncount(&mut self) {
        self.tubes -= 1;
        self.quota.known().unreserve(self.owner, 1);
    }

    /// The tubes are created or refused.
    fn end(&mut self) {
        self.quota.known().unreserve(self.owner, std::mem::take(&mut self.tubes));
    }
}

impl Drop for TubeReservation<'_> {
    fn drop(&mut self) {
        let mut known = self.quota.known();
        known.unreserve(self.owner, self.tubes);
        // They may have been created. If the user seems to have too many then, they are counted.
        if self.quota.is_stored() && self.tubes > 0 {
            known.counts.entry(self.owner.clone()).or_default().stored += self.tubes;
        }
    }
}

impl UserCount {
    fn tubes(&self) -> usize {
        self.owned.max(self.stored) + self.reserved
    }
}

impl TubeCounts {
    /// Counts one more tube of the user, unless that is too many.
    fn reserve(&mut self, owner: &TubeName, most: usize) -> Result<()> {
        let count = self.counts.entry(owner.clone()).or_default();
        if count.tubes() >= most {
            return Err(Error::TooManyTubes(most));
        }
        count.reserved += 1;
        Ok(())
    }

    fn unreserve(&mut self, owner: &TubeName, tubes: usize) {
        if let Some(count) = self.counts.get_mut(owner) {
            count.reserved = count.reserved.saturating_sub(tubes);
        }
    }

    /// Whether reading all owners may show that a user has fewer tubes.
    fn may_read(&self) -> bool {
        self.has_stale || self.read_at.is_none_or(|at| at.elapsed() >= READ_INTERVAL)
    }

    /// Applies a change; returns an entry that is out of date.
    fn end(
        &mut self,
        user: &TubeName,
        change: Change,
        reply: &Result<Reply>,
        entry: Option<(TubeName, TaskId)>,
    ) -> Option<(TubeName, TaskId)> {
        let id = entry.as_ref().map(|(_, id)| *id);
        match (change, reply) {
            // If it is unknown whether the tube was created, the user keeps the count.
            (Change::Create(tube), Ok(Reply::Created(true)) | Err(Error::OutcomeUnknown(_))) => {
                self.total += 1;
                self.own(tube, Ownership { owner: user.clone(), entry: id })
            }
            (Change::Drop(tube), Ok(_)) => {
                self.total = self.total.saturating_sub(1);
                let before = self.disown(&tube);
                self.has_stale |= before.is_none();
                before
            }
            (Change::Rename(from, to), Ok(_)) => {
                let owner = self.owners.get(&from)?.owner.clone();
                let before = self.disown(&from);
                self.own(to, Ownership { owner, entry: id }).or(before)
            }
            _ => entry,
        }
    }

    /// Records an owner; returns the entry of an owner before, whose tube was dropped through
    /// another server.
    fn own(&mut self, tube: TubeName, ownership: Ownership) -> Option<(TubeName, TaskId)> {
        let before = self.disown(&tube);
        let count = self.counts.entry(ownership.owner.clone()).or_default();
        count.owned += 1;
        count.stored += usize::from(ownership.entry.is_some());
        self.owners.insert(tube, ownership);
        before
    }

    /// Removes an owner; returns its entry.
    fn disown(&mut self, tube: &TubeName) -> Option<(TubeName, TaskId)> {
        let Ownership { owner, entry } = self.owners.remove(tube)?;
        if let Some(count) = self.counts.get_mut(&owner) {
            count.owned = count.owned.saturating_sub(1);
            count.stored = count.stored.saturating_sub(usize::from(entry.is_some()));
        }
        entry.map(|entry| (owner, entry))
    }

    /// Replaces what is known by what was read from the store.
    fn replace(&mut self, stored: StoredOwners) {
        self.total = stored.total;
        (self.read_at, self.has_stale) = (Some(Instant::now()), false);
        let mut owners: HashMap<TubeName, Ownership> = HashMap::new();
        // Entries that were added after the reading began are kept.
        for (tube, ownership) in self.owners.drain() {
            let latest = stored.latest.get(&ownership.owner).copied().flatten();
            if ownership.entry.is_none_or(|entry| Some(entry) > latest) {
                owners.insert(tube, ownership);
            }
        }
        for (tube, (owner, entry)) in stored.owners {
            owners.entry(tube).or_insert(Ownership { owner, entry: Some(entry) });
        }
        self.counts.retain(|_, count| count.reserved > 0);
        for count in self.counts.values_mut() {
            *count = UserCount { reserved: count.reserved, ..UserCount::default() };
        }
        for owner in stored.latest.into_keys() {
            self.counts.entry(owner).or_default().has_tube = true;
        }
        for ownership in owners.values() {
            let count = self.counts.entry(ownership.owner.clone()).or_default();
            count.owned += 1;
            count.stored += usize::from(ownership.entry.is_some());
        }
        self.owners = owners;
    }
}

/// How a command changes the set of tubes.
enum Change {
    None,
    Create(TubeName),
    Drop(TubeName),
    Rename(TubeName, TubeName),
}

impl Change {
    fn of(command: &Command) -> Self {
        match command {
            Command::CreateTube { tube, .. } => Change::Create(tube.clone()),
            Command::DropTube { tube } => Change::Drop(tube.clone()),
            Command::NameTube { tube, name, .. } if tube != name => {
                Change::Rename(tube.clone(), name.clone())
            }
            _ => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use taskyard_core::{Kind, TubeOptions};
    use taskyard_engine::{Engine, Settings, SystemClock};
    use taskyard_store::MemoryStore;

    use super::*;

    const ANN: TubeCreator<'static> = TubeCreator { name: "ann", is_admin: false };
    const BOB: TubeCreator<'static> = TubeCreator { name: "bob", is_admin: false };
    const ADMIN: TubeCreator<'static> = TubeCreator { name: "admin", is_admin: true };

    fn engine() -> Engine {
        let clock = Arc::new(SystemClock::new());
        Engine::start(Box::new(MemoryStore::default()), clock, Settings::default())
    }

    fn tube(name: &str) -> TubeName {
        TubeName::new(name).unwrap()
    }

    fn create(name: &str) -> Command {
        let options = TubeOptions::new(Kind::Fifo);
        Command::CreateTube { tube: tube(name), options, if_not_exists: true }
    }

    async fn run(
        quota: &TubeQuota,
        engine: &Engine,
        user: TubeCreator<'_>,
        command: Command,
    ) -> Result<Reply> {
        quota.execute(engine, user, vec![command]).await.pop().unwrap()
    }

    // One client with invented names created all the tubes that a store may have, and no other
    // client could create any.
    #[tokio::test]
    async fn a_user_at_the_limit_does_not_block_other_users() {
        let (quota, engine) = (TubeQuota::new(2, OwnerRecords::Memory), engine());
        let batch = ["a", "b", "c"].map(create).to_vec();
        let replies = quota.execute(&engine, ANN, batch).await;
        assert_eq!(replies[..2], [Ok(Reply::Created(true)), Ok(Reply::Created(true))]);
        assert_eq!(replies[2], Err(Error::TooManyTubes(2)));
        assert_eq!(run(&quota, &engine, BOB, create("d")).await, Ok(Reply::Created(true)));
        assert_eq!(run(&quota, &engine, ANN, create("d")).await, Ok(Reply::Created(false)));
        assert!(run(&quota, &engine, ANN, create("e")).await.is_err());
        // An existing tube is not counted again, nor under another name.
        let name = Command::NameTube { tube: tube("a"), name: tube("f"), queue_num: None };
        run(&quota, &engine, BOB, name).await.unwrap();
        let dropped = run(&quota, &engine, BOB, Command::DropTube { tube: tube("f") }).await;
        assert_eq!(dropped, Ok(Reply::Nothing));
        assert_eq!(run(&quota, &engine, ANN, create("e")).await, Ok(Reply::Created(true)));
    }

    // Each create whose caller was gone before the reply was counted forever, even for an existing
    // tube.
    #[tokio::test]
    async fn a_caller_that_is_gone_is_not_counted() {
        struct NeverReplies;
        impl Execute for NeverReplies {
            async fn execute(&self, _: Vec<Command>) -> Vec<Result<Reply>> {
                std::future::pending().await
            }
        }
        let (quota, engine) = (TubeQuota::new(1, OwnerRecords::Memory), engine());
        for _ in 0..3 {
            let mut asking = Box::pin(quota.execute(&NeverReplies, ANN, vec![create("a")]));
            assert!(futures_util::poll!(asking.as_mut()).is_pending());
        }
        assert_eq!(run(&quota, &engine, ANN, create("a")).await, Ok(Reply::Created(true)));
    }

    #[tokio::test]
    async fn the_last_tubes_are_for_an_administrator() {
        let (quota, engine) = (TubeQuota::new(TUBES_MAX - 1, OwnerRecords::Memory), engine());
        let names: Vec<String> = (0..TUBES_MAX - TUBES_RESERVED).map(|n| n.to_string()).collect();
        let creates = names.iter().map(|name| create(name)).collect();
        assert!(engine.execute(creates).await.iter().all(Result::is_ok));
        quota.counted(names.len());
        let refused = run(&quota, &engine, ANN, create("more")).await;
        assert_eq!(refused, Err(Error::TooManyTubes(names.len())));
        assert_eq!(run(&quota, &engine, ANN, create("7")).await, Ok(Reply::Created(false)));
        assert_eq!(run(&quota, &engine, ADMIN, create("more")).await, Ok(Reply::Created(true)));
        // Tubes dropped by other servers are noticed before a create is refused.
        let drops = [tube("more"), tube("1")].map(|tube| Command::DropTube { tube });
        assert!(engine.execute(drops.to_vec()).await.iter().all(Result::is_ok));
        assert_eq!(run(&quota, &engine, ANN, create("more")).await, Ok(Reply::Created(true)));
    }

    async fn tubes(engine: &Engine) -> Vec<String> {
        let listed = engine.execute(vec![Command::Tubes { tube: None }]).await.pop();
        let Some(Ok(Reply::Tubes(tubes))) = listed else { panic!("{listed:?}") };
        tubes.into_iter().filter(|t| !t.name.is_internal()).map(|t| t.name.to_string()).collect()
    }

    fn drop_tube(name: &str) -> Command {
        Command::DropTube { tube: tube(name) }
    }

    // A user at the limit could create as many tubes again after each restart.
    #[tokio::test]
    async fn the_limit_counts_tubes_from_before_a_restart() {
        for records in [OwnerRecords::Store, OwnerRecords::SharedStore] {
            let engine = engine();
            let quota = TubeQuota::new(2, records);
            let batch = ["a", "b", "c"].map(create).to_vec();
            let replies = quota.execute(&engine, ANN, batch).await;
            assert_eq!(replies[2], Err(Error::TooManyTubes(2)));
            run(&quota, &engine, BOB, create("d")).await.unwrap();
            let quota = TubeQuota::new(2, records);
            quota.load(&engine).await;
            assert_eq!(run(&quota, &engine, ANN, create("c")).await, Err(Error::TooManyTubes(2)));
            // An existing tube is not counted, whichever user created it.
            for name in ["a", "d"] {
                let created = run(&quota, &engine, BOB, create(name)).await;
                assert_eq!(created, Ok(Reply::Created(false)));
            }
            run(&quota, &engine, BOB, create("e")).await.unwrap();
            assert!(run(&quota, &engine, BOB, create("f")).await.is_err());
            run(&quota, &engine, BOB, drop_tube("a")).await.unwrap();
            run(&quota, &engine, ANN, create("c")).await.unwrap();
            assert_eq!(tubes(&engine).await, ["b", "c", "d", "e"]);
        }
    }

    // Each server of a store counted only the tubes that were created through it.
    #[tokio::test]
    async fn the_limit_counts_tubes_of_other_servers() {
        let engine = engine();
        let one = TubeQuota::new(3, OwnerRecords::SharedStore);
        let two = TubeQuota::new(3, OwnerRecords::SharedStore);
        for (server, name) in [(&one, "a"), (&two, "b"), (&two, "c"), (&one, "d")] {
            // The last exceeds the limit: the first server learns of the others with it.
            run(server, &engine, ANN, create(name)).await.unwrap();
        }
        for server in [&one, &two, &one] {
            let refused = run(server, &engine, ANN, create("e")).await;
            assert_eq!(refused, Err(Error::TooManyTubes(3)));
        }
        // A renamed tube still belongs to its creator, and dropped ones do not.
        let name = Command::NameTube { tube: tube("a"), name: tube("x"), queue_num: None };
        run(&two, &engine, BOB, name).await.unwrap();
        run(&two, &engine, BOB, drop_tube("b")).await.unwrap();
        let three = TubeQuota::new(3, OwnerRecords::SharedStore);
        three.load(&engine).await;
        assert!(run(&three, &engine, ANN, create("e")).await.is_err(), "c, d and x are there");
        run(&three, &engine, BOB, drop_tube("x")).await.unwrap();
        run(&three, &engine, ANN, create("e")).await.unwrap();
        assert_eq!(tubes(&engine).await, ["c", "d", "e"]);
    }

    // Entries of tubes that were dropped without a server would have been counted forever.
    #[tokio::test]
    async fn tubes_that_were_dropped_without_a_server_are_not_counted() {
        let (quota, engine) = (TubeQuota::new(2, OwnerRecords::SharedStore), engine());
        for name in ["a", "b"] {
            run(&quota, &engine, ANN, create(name)).await.unwrap();
        }
        engine.execute(vec![drop_tube("a")]).await;
        run(&quota, &engine, ANN, create("c")).await.unwrap();
        assert!(run(&quota, &engine, ANN, create("d")).await.is_err());
    }

    // A client that disconnected before the reply created tubes that were not counted.
    #[tokio::test]
    async fn tubes_of_a_caller_that_is_gone_are_counted() {
        struct RepliesNever<'a>(&'a Engine);
        impl Execute for RepliesNever<'_> {
            async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply>> {
                self.0.execute(commands).await;
                std::future::pending().await
            }
        }
        let (quota, engine) = (TubeQuota::new(2, OwnerRecords::Store), engine());
        let silent = RepliesNever(&engine);
        for name in ["a", "b", "c", "d"] {
            let mut asking = Box::pin(quota.execute(&silent, ANN, vec![create(name)]));
            assert!(futures_util::poll!(asking.as_mut()).is_pending());
            // The engine has run what was submitted before.
            tubes(&engine).await;
        }
        assert_eq!(tubes(&engine).await, ["a", "b"]);
        assert_eq!(run(&quota, &engine, ANN, create("c")).await, Err(Error::TooManyTubes(2)));
    }
}

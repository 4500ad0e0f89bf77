//! Limits how many tubes one user may create.
//!
//! A store does not know which user created a tube: storing that would change the format of every
//! store. So each server counts the tubes that its users created since it started and that still
//! exist. What that does not cover (earlier tubes, other servers of the store) is bounded by a
//! reserve: only an administrator can create the last tubes of a store. As long as no limit is
//! near, the store is not queried.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::limits::{TUBES_MAX, TUBES_RESERVED};
use taskyard_core::{Command, Error, Execute, Reply, Result, TubeName};

/// The user that creates a tube.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TubeCreator<'a> {
    /// The name.
    pub name: &'a str,
    /// Whether the user may use the reserve.
    pub is_admin: bool,
}

/// The tubes that users created.
#[derive(Debug)]
pub(crate) struct TubeQuota {
    each_max: usize,
    known: Mutex<TubeCounts>,
}

#[derive(Debug, Default)]
struct TubeCounts {
    /// Tubes that were created through this server, and their creators.
    owners: HashMap<TubeName, Arc<str>>,
    /// The number of tubes that users have or are creating.
    counts: HashMap<Arc<str>, usize>,
    /// The number of tubes in the store when they were last counted, plus those created and minus
    /// those dropped here since then.
    total: usize,
}

impl TubeQuota {
    /// Each user may create `each_max` tubes.
    pub fn new(each_max: usize) -> Self {
        TubeQuota { each_max, known: Mutex::default() }
    }

    /// Whether a command may change the set of tubes.
    pub fn concerns(command: &Command) -> bool {
        matches!(
            command,
            Command::CreateTube { .. } | Command::DropTube { .. } | Command::NameTube { .. }
        )
    }

    /// Runs commands of a user; refuses those that would create a tube too many.
    pub async fn execute(
        &self,
        queue: &impl Execute,
        user: TubeCreator<'_>,
        commands: Vec<Command>,
    ) -> Vec<Result<Reply>> {
        let mut accepted = Vec::with_capacity(commands.len());
        let mut changes = Vec::with_capacity(commands.len());
        let mut counted = TubeReservation { quota: self, user: user.name, tubes: 0 };
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
            false => queue.execute(accepted).await,
        };
        counted.tubes = 0;
        for (change, reply) in changes.into_iter().zip(&replies) {
            self.end(user.name, change, reply);
        }
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

    /// Counts a tube before it is created, so that concurrent creations stay within the limit.
    async fn begin(
        &self,
        queue: &impl Execute,
        user: TubeCreator<'_>,
        command: &Command,
        counted: &mut TubeReservation<'_>,
    ) -> Result<Change> {
        let change = Change::of(command);
        let Change::Create(tube) = &change else { return Ok(change) };
        let refusal = match counted.count() {
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

    fn end(&self, user: &str, change: Change, reply: &Result<Reply>) {
        let mut known = self.known();
        match (change, reply) {
            (Change::Create(tube), Ok(Reply::Created(true))) => known.created(tube, user),
            // It is unknown whether the tube was created: the user keeps the count.
            (Change::Create(tube), Err(Error::OutcomeUnknown(_))) => known.created(tube, user),
            (Change::Create(_), _) => known.uncount(user),
            (Change::Drop(tube), Ok(_)) => known.dropped(&tube),
            (Change::Rename(from, to), Ok(_)) => known.renamed(&from, to),
            (Change::Drop(_) | Change::Rename(..) | Change::None, _) => {}
        }
    }
}

/// Tubes that are counted and not created yet. They are uncounted if the caller is gone before the
/// reply.
struct TubeReservation<'a> {
    quota: &'a TubeQuota,
    user: &'a str,
    tubes: usize,
}

impl TubeReservation<'_> {
    fn count(&mut self) -> Result<()> {
        self.quota.known().count(self.user, self.quota.each_max)?;
        self.tubes += 1;
        Ok(())
    }

    fn uncount(&mut self) {
        self.tubes -= 1;
        self.quota.known().uncount(self.user);
    }
}

impl Drop for TubeReservation<'_> {
    fn drop(&mut self) {
        while self.tubes > 0 {
            self.uncount();
        }
    }
}

impl TubeCounts {
    /// Counts one more tube of the user, unless that is too many.
    fn count(&mut self, user: &str, most: usize) -> Result<()> {
        match self.counts.get_mut(user) {
            Some(count) if *count < most => *count += 1,
            None if most > 0 => _ = self.counts.insert(user.into(), 1),
            _ => return Err(Error::TooManyTubes(most)),
        }
        Ok(())
    }

    fn created(&mut self, tube: TubeName, user: &str) {
        self.total += 1;
        let user = match self.counts.get_key_value(user) {
            Some((user, _)) => user.clone(),
            None => user.into(),
        };
        // It was dropped through another server in between.
        if let Some(before) = self.owners.insert(tube, user) {
            self.uncount(&before);
        }
    }

    fn dropped(&mut self, tube: &TubeName) {
        self.total = self.total.saturating_sub(1);
        if let Some(owner) = self.owners.remove(tube) {
            self.uncount(&owner);
        }
    }

    fn renamed(&mut self, from: &TubeName, to: TubeName) {
        if let Some(owner) = self.owners.remove(from) {
            self.owners.insert(to, owner);
        }
    }

    fn uncount(&mut self, user: &str) {
        if let Some(count) = self.counts.get_mut(user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(user);
            }
        }
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
            Command::NameTube { tube, name, .. } => Change::Rename(tube.clone(), name.clone()),
            _ => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
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
        let (quota, engine) = (TubeQuota::new(2), engine());
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
        let (quota, engine) = (TubeQuota::new(1), engine());
        for _ in 0..3 {
            let mut asking = Box::pin(quota.execute(&NeverReplies, ANN, vec![create("a")]));
            assert!(futures_util::poll!(asking.as_mut()).is_pending());
        }
        assert_eq!(run(&quota, &engine, ANN, create("a")).await, Ok(Reply::Created(true)));
    }

    #[tokio::test]
    async fn the_last_tubes_are_for_an_administrator() {
        let (quota, engine) = (TubeQuota::new(TUBES_MAX - 1), engine());
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
}

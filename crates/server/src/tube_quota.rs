//! Limits how many tubes one user may create.
//!
//! A store does not know who created a tube: to keep that would change the format of every store. So each server
//! counts the tubes that its users created since it started and that are still there. What that leaves open
//! (earlier tubes, other servers of the store) is bounded by a reserve: the last tubes of a store can be created
//! by an administrator alone. As long as no limit is near, nothing is asked of the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::limits::{TUBES_MAX, TUBES_RESERVED};
use taskyard_core::{Command, Error, Execute, Reply, Result, TubeName};

/// A user, as far as tubes are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User<'a> {
    /// The name.
    pub name: &'a str,
    /// Whether the reserve is open to this user.
    pub is_admin: bool,
}

/// The tubes that users created.
#[derive(Debug)]
pub(crate) struct TubeQuota {
    each_max: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Tubes that were created here, and by whom.
    owners: HashMap<TubeName, Arc<str>>,
    /// How many tubes users have or are creating.
    counts: HashMap<Arc<str>, usize>,
    /// How many tubes the store had when they were counted, with what was created and dropped here since then.
    total: usize,
}

impl TubeQuota {
    /// Each user may create so many tubes.
    pub fn new(each_max: usize) -> Self {
        TubeQuota { each_max, known: Mutex::default() }
    }

    /// Whether a command may change which tubes there are.
    pub fn concerns(command: &Command) -> bool {
        matches!(
            command,
            Command::CreateTube { .. } | Command::DropTube { .. } | Command::NameTube { .. }
        )
    }

    /// Runs commands of a user; those are refused that would create one tube too many.
    pub async fn execute(
        &self,
        queue: &impl Execute,
        user: User<'_>,
        commands: Vec<Command>,
    ) -> Vec<Result<Reply>> {
        let mut accepted = Vec::with_capacity(commands.len());
        let mut changes = Vec::with_capacity(commands.len());
        let mut counted = Counted { quota: self, user: user.name, tubes: 0 };
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

    /// Notes how many tubes the store has.
    pub fn counted(&self, tubes: usize) {
        self.known().total = tubes;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a tube before it is created, so that many at once stay within the limit too.
    async fn begin(
        &self,
        queue: &impl Execute,
        user: User<'_>,
        command: &Command,
        counted: &mut Counted<'_>,
    ) -> Result<Change> {
        let change = Change::of(command);
        let Change::Create(tube) = &change else { return Ok(change) };
        let refusal = match counted.count() {
            Err(refusal) => refusal,
            Ok(()) => match self.check_reserve(queue, user).await {
                Ok(()) => return Ok(change),
                Err(refusal) => {
                    counted.forget_one();
                    refusal
                }
            },
        };
        // Nothing is created where there is such a tube already.
        let there = Command::Tubes { tube: Some(tube.clone()) };
        match queue.execute(vec![there]).await.pop() {
            Some(Ok(_)) => Ok(Change::None),
            _ => Err(refusal),
        }
    }

    /// Refuses when only the reserve is left. The tubes are counted again when there may be that many.
    async fn check_reserve(&self, queue: &impl Execute, user: User<'_>) -> Result<()> {
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
            // It is not known whether the tube is there: the user keeps the count.
            (Change::Create(tube), Err(Error::OutcomeUnknown(_))) => known.created(tube, user),
            (Change::Create(_), _) => known.forget_one(user),
            (Change::Drop(tube), Ok(_)) => known.dropped(&tube),
            (Change::Rename(from, to), Ok(_)) => known.renamed(&from, to),
            (Change::Drop(_) | Change::Rename(..) | Change::None, _) => {}
        }
    }
}

/// Tubes that are counted and not created yet. They are forgotten when the caller is gone before the answer.
struct Counted<'a> {
    quota: &'a TubeQuota,
    user: &'a str,
    tubes: usize,
}

impl Counted<'_> {
    fn count(&mut self) -> Result<()> {
        self.quota.known().count(self.user, self.quota.each_max)?;
        self.tubes += 1;
        Ok(())
    }

    fn forget_one(&mut self) {
        self.tubes -= 1;
        self.quota.known().forget_one(self.user);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        while self.tubes > 0 {
            self.forget_one();
        }
    }
}

impl Known {
    /// Counts one more tube of the user, if that is not too many.
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
        // It was dropped over another server in between.
        if let Some(before) = self.owners.insert(tube, user) {
            self.forget_one(&before);
        }
    }

    fn dropped(&mut self, tube: &TubeName) {
        self.total = self.total.saturating_sub(1);
        if let Some(owner) = self.owners.remove(tube) {
            self.forget_one(&owner);
        }
    }

    fn renamed(&mut self, from: &TubeName, to: TubeName) {
        if let Some(owner) = self.owners.remove(from) {
            self.owners.insert(to, owner);
        }
    }

    fn forget_one(&mut self, user: &str) {
        if let Some(count) = self.counts.get_mut(user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(user);
            }
        }
    }
}

/// What a command does to the tubes there are.
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

    const ANN: User<'static> = User { name: "ann", is_admin: false };
    const BOB: User<'static> = User { name: "bob", is_admin: false };
    const ADMIN: User<'static> = User { name: "admin", is_admin: true };

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
        user: User<'_>,
        command: Command,
    ) -> Result<Reply> {
        quota.execute(engine, user, vec![command]).await.pop().unwrap()
    }

    // One client that made up names created all the tubes a store may have, and no other could create any.
    #[tokio::test]
    async fn a_user_with_many_tubes_does_not_keep_others_from_theirs() {
        let (quota, engine) = (TubeQuota::new(2), engine());
        let batch = ["a", "b", "c"].map(create).to_vec();
        let replies = quota.execute(&engine, ANN, batch).await;
        assert_eq!(replies[..2], [Ok(Reply::Created(true)), Ok(Reply::Created(true))]);
        assert_eq!(replies[2], Err(Error::TooManyTubes(2)));
        assert_eq!(run(&quota, &engine, BOB, create("d")).await, Ok(Reply::Created(true)));
        assert_eq!(run(&quota, &engine, ANN, create("d")).await, Ok(Reply::Created(false)));
        assert!(run(&quota, &engine, ANN, create("e")).await.is_err());
        // A tube that is there already counts for none, also not under another name.
        let name = Command::NameTube { tube: tube("a"), name: tube("f"), queue_num: None };
        run(&quota, &engine, BOB, name).await.unwrap();
        let dropped = run(&quota, &engine, BOB, Command::DropTube { tube: tube("f") }).await;
        assert_eq!(dropped, Ok(Reply::Nothing));
        assert_eq!(run(&quota, &engine, ANN, create("e")).await, Ok(Reply::Created(true)));
    }

    // Each create whose caller was gone before the answer was counted for ever, also of a tube that was there.
    #[tokio::test]
    async fn a_caller_that_is_gone_is_not_counted() {
        struct Silent;
        impl Execute for Silent {
            async fn execute(&self, _: Vec<Command>) -> Vec<Result<Reply>> {
                std::future::pending().await
            }
        }
        let (quota, engine) = (TubeQuota::new(1), engine());
        for _ in 0..3 {
            let mut asking = Box::pin(quota.execute(&Silent, ANN, vec![create("a")]));
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
        // What other servers dropped is noticed before anything is refused.
        let drops = [tube("more"), tube("1")].map(|tube| Command::DropTube { tube });
        assert!(engine.execute(drops.to_vec()).await.iter().all(Result::is_ok));
        assert_eq!(run(&quota, &engine, ANN, create("more")).await, Ok(Reply::Created(true)));
    }
}

//! Assigns each program a user id of its own, so that process limits and the final kill affect no other program.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::users::ClaimedUsers;

/// The free user ids.
#[derive(Clone, Debug)]
pub(crate) struct UserSlots {
    free: Arc<Mutex<VecDeque<Option<u32>>>>,
    permits: Arc<Semaphore>,
    users: Option<Arc<ClaimedUsers>>,
}

/// A user id for one program; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct UserSlot {
    /// `None` where programs run as the pool's own user.
    pub uid: Option<u32>,
    free: Arc<Mutex<VecDeque<Option<u32>>>>,
    /// Another pool may claim the users only when no slot of this one is left.
    _users: Option<Arc<ClaimedUsers>>,
    _permit: OwnedSemaphorePermit,
}

impl UserSlots {
    /// `count` slots, with these users if there are some.
    pub fn new(count: u32, users: Option<ClaimedUsers>) -> Self {
        let first = users.as_ref().map(ClaimedUsers::first);
        let uids = (0..count).map(|at| first.map(|first| first + at)).collect();
        let permits = Arc::new(Semaphore::new(count as usize));
        UserSlots { free: Arc::new(Mutex::new(uids)), permits, users: users.map(Arc::new) }
    }

    /// Waits for a free slot.
    pub async fn take(&self) -> Option<UserSlot> {
        self.take_with(self.permits.clone().acquire_owned().await.ok()?)
    }

    /// A free slot, if there is one that no task waits for.
    pub fn take_now(&self) -> Option<UserSlot> {
        self.take_with(self.permits.clone().try_acquire_owned().ok()?)
    }

    fn take_with(&self, permit: OwnedSemaphorePermit) -> Option<UserSlot> {
        let uid = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        Some(UserSlot { uid, free: self.free.clone(), _users: self.users.clone(), _permit: permit })
    }
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.uid);
    }
}

//! The users that programs run under: each has one of its own, so that limits on processes and a
//! last sweep touch nobody else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::users::Users;

/// The free users.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    free: Arc<Mutex<VecDeque<Option<u32>>>>,
    room: Arc<Semaphore>,
    users: Option<Arc<Users>>,
}

/// A user that nobody else has now; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Nothing where programs run as the pool's own user.
    pub uid: Option<u32>,
    free: Arc<Mutex<VecDeque<Option<u32>>>>,
    /// Another pool may have them only when nobody of this one is left.
    _users: Option<Arc<Users>>,
    _permit: OwnedSemaphorePermit,
}

impl Lanes {
    /// So many, of these users if there are some.
    pub fn new(count: u32, users: Option<Users>) -> Self {
        let first = users.as_ref().map(Users::first);
        let lanes = (0..count).map(|at| first.map(|first| first + at)).collect();
        let room = Arc::new(Semaphore::new(count as usize));
        Lanes { free: Arc::new(Mutex::new(lanes)), room, users: users.map(Arc::new) }
    }

    /// A free user, as soon as there is one.
    pub async fn take(&self) -> Option<Lane> {
        self.give(self.room.clone().acquire_owned().await.ok()?)
    }

    /// A free user, if there is one that nobody waits for.
    pub fn take_now(&self) -> Option<Lane> {
        self.give(self.room.clone().try_acquire_owned().ok()?)
    }

    fn give(&self, permit: OwnedSemaphorePermit) -> Option<Lane> {
        let uid = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        Some(Lane { uid, free: self.free.clone(), _users: self.users.clone(), _permit: permit })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.uid);
    }
}

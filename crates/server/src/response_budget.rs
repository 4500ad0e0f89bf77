//! Limits the bytes of responses that clients have not read yet.
//!
//! A small response is free. Bytes for a large one are reserved before its command runs, estimated
//! from earlier responses of the same tube, and corrected when the reply is known. They are
//! released when they are written to the socket.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use taskyard_core::limits::{BATCH_BYTES_MAX, SMALL_BYTES_MAX};
use taskyard_core::{Body, Error, Task, TubeName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::timeout;

/// Bytes of a task in a response beside its payload.
const TASK_BYTES: usize = 320;
/// Estimated size of a task in a tube without earlier responses.
const TASK_BYTES_DEFAULT: usize = 16 << 10;
/// Responses up to this many bytes may use the reserved part of the budget.
const MEDIUM_BYTES_MAX: usize = 1 << 20;
/// One part in this many is reserved for them, if that is enough for several.
const RESERVED_PART: usize = 8;

/// Number of size estimates; tubes share them by hash.
const ESTIMATES: usize = 256;

/// The budget for responses of all connections.
pub(crate) struct ResponseBudget {
    permits: Arc<Semaphore>,
    /// Reserved for responses of medium size: clients that read large ones slowly do not block
    /// them.
    reserved: Arc<Semaphore>,
    bytes_total_max: usize,
    bytes_max: usize,
    wait_max: Duration,
    /// The estimated size of a task, by the hash of the tube's name; 0 is unknown.
    estimates: [AtomicUsize; ESTIMATES],
}

/// A part of the budget. It is released when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct ResponsePermit(Option<OwnedSemaphorePermit>);

impl ResponseBudget {
    /// A budget of this many bytes in total and in one response. A large request waits for it up to
    /// `wait_max`.
    pub fn new(bytes_total_max: usize, bytes_max: usize, wait_max: Duration) -> Self {
        let bytes_total_max = bytes_total_max.min(u32::MAX as usize);
        let reserved = bytes_total_max / RESERVED_PART;
        let reserved = if reserved < 4 * MEDIUM_BYTES_MAX { 0 } else { reserved };
        let unreserved = bytes_total_max - reserved;
        ResponseBudget {
            permits: Arc::new(Semaphore::new(unreserved)),
            reserved: Arc::new(Semaphore::new(reserved)),
            bytes_total_max,
            bytes_max: bytes_max.min(unreserved),
            wait_max,
            estimates: std::array::from_fn(|_| AtomicUsize::new(0)),
        }
    }

    /// How many bytes are reserved or not sent yet.
    pub fn bytes(&self) -> usize {
        let free = self.permits.available_permits() + self.reserved.available_permits();
        self.bytes_total_max.saturating_sub(free)
    }

    /// The expected bytes of a response with `count` tasks of the tube.
    pub fn expected(&self, tube: &TubeName, count: usize) -> usize {
        let task = match self.estimate(tube).load(Ordering::Relaxed) {
            0 => TASK_BYTES_DEFAULT,
            bytes => bytes,
        };
        task.saturating_mul(count).min(BATCH_BYTES_MAX)
    }

    /// Reserves bytes for a response of this size; waits for them if necessary.
    pub async fn reserve(&self, bytes: usize) -> Result<ResponsePermit, Error> {
        if is_small(bytes) {
            return Ok(ResponsePermit::default());
        }
        let bytes = self.amount(bytes.min(self.bytes_max))?;
        match self.try_acquire(bytes) {
            Ok(permit) => return Ok(ResponsePermit(Some(permit))),
            Err(TryAcquireError::NoPermits) if !self.wait_max.is_zero() => {}
            Err(_) => return Err(too_many_unread_bytes()),
        }
        match timeout(self.wait_max, self.permits.clone().acquire_many_owned(bytes)).await {
            Ok(Ok(permit)) => Ok(ResponsePermit(Some(permit))),
            _ => Err(too_many_unread_bytes()),
        }
    }

    /// Resizes the permit to the size of the response. If that fails, it stays as it is.
    pub fn resize(&self, permit: &mut ResponsePermit, bytes: usize) -> Result<(), Error> {
        if is_small(bytes) {
            permit.0 = None;
            return Ok(());
        }
        if bytes > self.bytes_max {
            return Err(Error::TooLarge {
                what: "the response, in bytes,",
                size: bytes,
                limit: self.bytes_max,
                advice: "ask for fewer entries at a time",
            });
        }
        let held = permit.bytes();
        if bytes <= held {
            drop(permit.split(held - bytes));
            return Ok(());
        }
        let more = self.amount(bytes - held)?;
        match &mut permit.0 {
            Some(permit) => {
                // Both parts must come from the same semaphore.
                let pool = permit.semaphore().clone();
                permit
                    .merge(pool.try_acquire_many_owned(more).map_err(|_| too_many_unread_bytes())?);
            }
            None => permit.0 = Some(self.try_acquire(more).map_err(|_| too_many_unread_bytes())?),
        }
        Ok(())
    }

    fn try_acquire(&self, bytes: u32) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        let acquired = self.permits.clone().try_acquire_many_owned(bytes);
        if acquired.is_err() && bytes as usize <= MEDIUM_BYTES_MAX {
            return self.reserved.clone().try_acquire_many_owned(bytes);
        }
        acquired
    }

    /// Resizes the permit to a response with these tasks, and updates the estimate of their size.
    pub fn resize_to_tasks(
        &self,
        permit: &mut ResponsePermit,
        tube: &TubeName,
        tasks: &[Task],
    ) -> Result<(), Error> {
        let bytes: usize = tasks.iter().map(bytes_of).sum();
        if !tasks.is_empty() {
            let estimate = self.estimate(tube);
            let estimated = estimate.load(Ordering::Relaxed);
            // The estimate grows at once and shrinks slowly.
            let now = (bytes / tasks.len()).max(estimated - estimated / 8);
            if now != estimated {
                estimate.store(now, Ordering::Relaxed);
            }
        }
        self.resize(permit, bytes)
    }

    fn estimate(&self, tube: &TubeName) -> &AtomicUsize {
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(tube);
        &self.estimates[hash as usize % ESTIMATES]
    }

    fn amount(&self, bytes: usize) -> Result<u32, Error> {
        u32::try_from(bytes).map_err(|_| too_many_unread_bytes())
    }
}

impl ResponsePermit {
    /// The bytes of this permit.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Splits off `bytes`, or everything.
    pub fn split(&mut self, bytes: usize) -> ResponsePermit {
        if bytes >= self.bytes() {
            return ResponsePermit(self.0.take());
        }
        ResponsePermit(self.0.as_mut().and_then(|permit| permit.split(bytes)))
    }
}

/// The bytes of a task in a response: its payload as base64 and the other fields.
pub(crate) fn bytes_of(task: &Task) -> usize {
    task.body.as_ref().map_or(0, |body: &Body| body.bytes() as usize) / 3 * 4 + TASK_BYTES
}

/// Whether a response is so small that it needs no permit.
pub(crate) const fn is_small(bytes: usize) -> bool {
    bytes <= SMALL_BYTES_MAX
}

fn too_many_unread_bytes() -> Error {
    Error::Overloaded("too many unread response bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    fn budget() -> ResponseBudget {
        ResponseBudget::new(1000 * KIB, 600 * KIB, Duration::ZERO)
    }

    fn tube(name: &str) -> TubeName {
        TubeName::new(name).unwrap()
    }

    #[tokio::test]
    async fn shares_stay_within_the_room_and_come_back() {
        let budget = budget();
        let mut one = budget.reserve(500 * KIB).await.unwrap();
        let mut two = budget.reserve(400 * KIB).await.unwrap();
        assert!(matches!(budget.reserve(200 * KIB).await, Err(Error::Overloaded(_))));
        assert_eq!(
            budget.reserve(SMALL_BYTES_MAX).await.unwrap().bytes(),
            0,
            "small ones are free"
        );
        assert!(budget.resize(&mut two, 600 * KIB).is_err());
        assert_eq!(two.bytes(), 400 * KIB, "it keeps what it had");
        let part = one.split(300 * KIB);
        drop(one);
        assert_eq!(budget.bytes(), 700 * KIB);
        budget.resize(&mut two, 600 * KIB).unwrap();
        drop(part);
        budget.resize(&mut two, 10).unwrap();
        assert_eq!(budget.bytes(), 0);
        assert!(matches!(budget.resize(&mut two, 601 * KIB), Err(Error::TooLarge { .. })));
    }

    // Two clients that read 128 MiB each as slowly as allowed blocked takes of a few tasks for
    // hours.
    #[tokio::test]
    async fn large_answers_leave_room_for_others() {
        const MIB: usize = 1 << 20;
        let budget = ResponseBudget::new(256 * MIB, 128 * MIB, Duration::ZERO);
        let mut large = vec![budget.reserve(128 * MIB).await.unwrap()];
        large.push(budget.reserve(96 * MIB).await.unwrap());
        assert!(budget.reserve(2 * MIB).await.is_err());
        let mut medium = budget.reserve(MIB).await.unwrap();
        budget.resize(&mut medium, MIB + 1).unwrap();
        assert_eq!(budget.bytes(), 225 * MIB + 1);
        drop((large, medium));
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn tasks_are_believed_to_be_like_those_before_them() {
        let budget = budget();
        let mut permit = ResponsePermit::default();
        assert_eq!(budget.expected(&tube("a"), 2), 2 * TASK_BYTES_DEFAULT);
        budget.estimate(&tube("a")).store(1000, Ordering::Relaxed);
        assert_eq!(budget.expected(&tube("a"), 3), 3000);
        assert_eq!(budget.expected(&tube("a"), usize::MAX), BATCH_BYTES_MAX);
        budget.resize_to_tasks(&mut permit, &tube("a"), &[]).unwrap();
        assert_eq!(budget.expected(&tube("a"), 1), 1000, "no task says nothing");
    }
}

//! Limits the bytes of answers that clients have not read yet.
//!
//! A small answer is free. Room for a large one is reserved before its command runs, by what earlier answers
//! of the same tube were like, and corrected when the reply is there. It is free again when the bytes are
//! written to the socket.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use taskyard_core::limits::{BATCH_BYTES_MAX, SMALL_BYTES_MAX};
use taskyard_core::{Body, Error, Task, TubeName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::timeout;

/// Bytes of a task in an answer beside its payload.
const TASK_BYTES: usize = 320;
/// How large a task of a tube that was not seen yet is believed to be.
const FIRST_TASK_BYTES: usize = 16 << 10;
/// Answers up to this many bytes may use the room that is kept free of larger ones.
const MEDIUM_BYTES_MAX: usize = 1 << 20;
/// One part in so many of the room is kept for them, where that is room for several.
const RESERVED_PART: usize = 8;

/// How many tubes are told apart; others share what is believed of these.
const BELIEFS: usize = 256;

/// The room for answers of all connections.
pub(crate) struct Answers {
    room: Arc<Semaphore>,
    /// Kept for answers of medium size: clients that read large ones slowly do not keep them out.
    reserved: Arc<Semaphore>,
    bytes_total_max: usize,
    bytes_max: usize,
    wait_max: Duration,
    /// How large a task of a tube is believed to be, by the hash of the tube's name; 0 is not known.
    beliefs: [AtomicUsize; BELIEFS],
}

/// A part of the room. It is free again when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Share(Option<OwnedSemaphorePermit>);

impl Answers {
    /// Room for this many bytes in total and in one answer. A large request waits for room for `wait_max`.
    pub fn new(bytes_total_max: usize, bytes_max: usize, wait_max: Duration) -> Self {
        let bytes_total_max = bytes_total_max.min(u32::MAX as usize);
        let reserved = bytes_total_max / RESERVED_PART;
        let reserved = if reserved < 4 * MEDIUM_BYTES_MAX { 0 } else { reserved };
        let room = bytes_total_max - reserved;
        Answers {
            room: Arc::new(Semaphore::new(room)),
            reserved: Arc::new(Semaphore::new(reserved)),
            bytes_total_max,
            bytes_max: bytes_max.min(room),
            wait_max,
            beliefs: std::array::from_fn(|_| AtomicUsize::new(0)),
        }
    }

    /// How many bytes are reserved or not sent yet.
    pub fn bytes(&self) -> usize {
        let free = self.room.available_permits() + self.reserved.available_permits();
        self.bytes_total_max.saturating_sub(free)
    }

    /// How many bytes an answer with so many tasks of the tube is expected to have.
    pub fn expected(&self, tube: &TubeName, count: usize) -> usize {
        let task = match self.belief(tube).load(Ordering::Relaxed) {
            0 => FIRST_TASK_BYTES,
            bytes => bytes,
        };
        task.saturating_mul(count).min(BATCH_BYTES_MAX)
    }

    /// Reserves room for an answer of this size; waits for it if need be.
    pub async fn reserve(&self, bytes: usize) -> Result<Share, Error> {
        if is_small(bytes) {
            return Ok(Share::default());
        }
        let bytes = self.amount(bytes.min(self.bytes_max))?;
        match self.try_acquire(bytes) {
            Ok(permit) => return Ok(Share(Some(permit))),
            Err(TryAcquireError::NoPermits) if !self.wait_max.is_zero() => {}
            Err(_) => return Err(no_room()),
        }
        match timeout(self.wait_max, self.room.clone().acquire_many_owned(bytes)).await {
            Ok(Ok(permit)) => Ok(Share(Some(permit))),
            _ => Err(no_room()),
        }
    }

    /// Makes the share as large as the answer is. Without room for that it stays as it is.
    pub fn resize(&self, share: &mut Share, bytes: usize) -> Result<(), Error> {
        if is_small(bytes) {
            share.0 = None;
            return Ok(());
        }
        if bytes > self.bytes_max {
            return Err(Error::TooLarge {
                what: "the answer, in bytes,",
                size: bytes,
                limit: self.bytes_max,
                advice: "ask for fewer entries at a time",
            });
        }
        let held = share.bytes();
        if bytes <= held {
            drop(share.split(held - bytes));
            return Ok(());
        }
        let more = self.amount(bytes - held)?;
        match &mut share.0 {
            Some(permit) => {
                // Both parts must be of the same room.
                let room = permit.semaphore().clone();
                permit.merge(room.try_acquire_many_owned(more).map_err(|_| no_room())?);
            }
            None => share.0 = Some(self.try_acquire(more).map_err(|_| no_room())?),
        }
        Ok(())
    }

    fn try_acquire(&self, bytes: u32) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        let acquired = self.room.clone().try_acquire_many_owned(bytes);
        if acquired.is_err() && bytes as usize <= MEDIUM_BYTES_MAX {
            return self.reserved.clone().try_acquire_many_owned(bytes);
        }
        acquired
    }

    /// Makes the share as large as an answer with these tasks is, and remembers how large they were.
    pub fn resize_to_tasks(
        &self,
        share: &mut Share,
        tube: &TubeName,
        tasks: &[Task],
    ) -> Result<(), Error> {
        let bytes: usize = tasks.iter().map(bytes_of).sum();
        if !tasks.is_empty() {
            let belief = self.belief(tube);
            let believed = belief.load(Ordering::Relaxed);
            // What is larger is believed at once, what is smaller slowly.
            let now = (bytes / tasks.len()).max(believed - believed / 8);
            if now != believed {
                belief.store(now, Ordering::Relaxed);
            }
        }
        self.resize(share, bytes)
    }

    fn belief(&self, tube: &TubeName) -> &AtomicUsize {
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(tube);
        &self.beliefs[hash as usize % BELIEFS]
    }

    fn amount(&self, bytes: usize) -> Result<u32, Error> {
        u32::try_from(bytes).map_err(|_| no_room())
    }
}

impl Share {
    /// How large it is.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Takes so much out of it, or all there is.
    pub fn split(&mut self, bytes: usize) -> Share {
        if bytes >= self.bytes() {
            return Share(self.0.take());
        }
        Share(self.0.as_mut().and_then(|permit| permit.split(bytes)))
    }
}

/// How many bytes of an answer the task is: its payload as base64 and what stands around it.
pub(crate) fn bytes_of(task: &Task) -> usize {
    task.body.as_ref().map_or(0, |body: &Body| body.bytes() as usize) / 3 * 4 + TASK_BYTES
}

/// Whether an answer is so small that it needs no room.
pub(crate) const fn is_small(bytes: usize) -> bool {
    bytes <= SMALL_BYTES_MAX
}

fn no_room() -> Error {
    Error::Overloaded("too many bytes of answers are not read yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    fn answers() -> Answers {
        Answers::new(1000 * KIB, 600 * KIB, Duration::ZERO)
    }

    fn tube(name: &str) -> TubeName {
        TubeName::new(name).unwrap()
    }

    #[tokio::test]
    async fn shares_stay_within_the_room_and_come_back() {
        let answers = answers();
        let mut one = answers.reserve(500 * KIB).await.unwrap();
        let mut two = answers.reserve(400 * KIB).await.unwrap();
        assert!(matches!(answers.reserve(200 * KIB).await, Err(Error::Overloaded(_))));
        assert_eq!(
            answers.reserve(SMALL_BYTES_MAX).await.unwrap().bytes(),
            0,
            "small ones are free"
        );
        assert!(answers.resize(&mut two, 600 * KIB).is_err());
        assert_eq!(two.bytes(), 400 * KIB, "it keeps what it had");
        let part = one.split(300 * KIB);
        drop(one);
        assert_eq!(answers.bytes(), 700 * KIB);
        answers.resize(&mut two, 600 * KIB).unwrap();
        drop(part);
        answers.resize(&mut two, 10).unwrap();
        assert_eq!(answers.bytes(), 0);
        assert!(matches!(answers.resize(&mut two, 601 * KIB), Err(Error::TooLarge { .. })));
    }

    // Two clients that read 128 MiB each as slowly as they may kept takes of a few tasks out for hours.
    #[tokio::test]
    async fn large_answers_leave_room_for_others() {
        const MIB: usize = 1 << 20;
        let answers = Answers::new(256 * MIB, 128 * MIB, Duration::ZERO);
        let mut large = vec![answers.reserve(128 * MIB).await.unwrap()];
        large.push(answers.reserve(96 * MIB).await.unwrap());
        assert!(answers.reserve(2 * MIB).await.is_err());
        let mut medium = answers.reserve(MIB).await.unwrap();
        answers.resize(&mut medium, MIB + 1).unwrap();
        assert_eq!(answers.bytes(), 225 * MIB + 1);
        drop((large, medium));
        assert_eq!(answers.bytes(), 0);
    }

    #[test]
    fn tasks_are_believed_to_be_like_those_before_them() {
        let answers = answers();
        let mut share = Share::default();
        assert_eq!(answers.expected(&tube("a"), 2), 2 * FIRST_TASK_BYTES);
        answers.belief(&tube("a")).store(1000, Ordering::Relaxed);
        assert_eq!(answers.expected(&tube("a"), 3), 3000);
        assert_eq!(answers.expected(&tube("a"), usize::MAX), BATCH_BYTES_MAX);
        answers.resize_to_tasks(&mut share, &tube("a"), &[]).unwrap();
        assert_eq!(answers.expected(&tube("a"), 1), 1000, "no task says nothing");
    }
}

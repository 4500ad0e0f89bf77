//! Drops semaphores: first the keys on its node, then its entry in the registry.

use taskyard_core::{Error, SemaphoreCommand, SemaphoreKey, SemaphoreReply, TubeName};
use taskyard_redis::Failure;

use super::super::codec::ByteReader;
use super::super::execute::{Batch, unreadable_registry};
use super::super::replicas;
use super::super::tubes::unreadable;
use super::{MISSING, codec};

/// The status of a drop while the semaphore has entries, or a tube uses it.
const IN_USE: u8 = 5;
const HAS_TUBE: u8 = 6;

impl Batch<'_> {
    /// Drops a semaphore, then its entry in the registry. If this is interrupted between the two steps, the next drop of the key, or
    /// the next call that creates a semaphore of the key, does the second one.
    pub(super) async fn drop_semaphore(
        &mut self,
        key: &SemaphoreKey,
        command: &SemaphoreCommand,
    ) -> Result<Result<SemaphoreReply, Error>, Failure> {
        let mut call = self.shared.semaphore_call(key, vec![codec::encode(command)], false);
        call.replicate = true;
        let answer = self.link.call(&[call]).await.pop();
        let answer = answer.unwrap_or_else(|| Err(unreadable_registry()));
        let (answer, short) = replicas::split(answer);
        self.short = short;
        let (_, mut parts) = self.read_semaphore(key, answer?).map_err(unreadable)?;
        let text = parts.bytes().map_err(unreadable)?;
        self.learn_others(&mut parts);
        let mut bytes = ByteReader(&text);
        let key = key.clone();
        Ok(match bytes.byte().map_err(unreadable)? {
            MISSING if !bytes.has_more() => Err(Error::SemaphoreNotFound(key)),
            0 | MISSING => {
                let remains = codec::Remains::read(bytes).map_err(unreadable)?;
                self.end_drop(&key, &remains).await?;
                Ok(SemaphoreReply::Dropped)
            }
            IN_USE => Err(Error::SemaphoreInUse(key)),
            HAS_TUBE => {
                let tube = std::str::from_utf8(bytes.rest()).ok();
                let tube = tube.and_then(|tube| TubeName::new(tube).ok());
                Err(Error::SemaphoreHasTube { key, tube: tube.ok_or_else(unreadable_registry)? })
            }
            _ => return Err(unreadable_registry()),
        })
    }

    /// The number of a dropped semaphore becomes free.
    pub(super) async fn end_drop(
        &mut self,
        key: &SemaphoreKey,
        remains: &codec::Remains,
    ) -> Result<(), Failure> {
        let codec::Remains { number, event, grant, .. } = remains;
        let numbers = [number.to_string(), event.to_string(), grant.to_string()];
        let mut words = vec![key.as_str().as_bytes().to_vec()];
        words.extend(numbers.map(String::into_bytes));
        self.registry_with_retry("unlist_semaphore", words).await?;
        let mut call = self.shared.semaphore_call(key, vec![remains.forget()], false);
        call.replicate = true;
        self.call_with_retry(&call).await.map(drop)
    }
}

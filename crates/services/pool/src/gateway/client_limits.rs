//! Limits the tasks of each client address; further tasks wait outside the queue, in order.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The tasks of each client address.
#[derive(Clone, Debug)]
pub(crate) struct ClientLimits {
    tasks_max: Option<usize>,
    clients: Arc<Mutex<HashMap<IpAddr, Arc<Semaphore>>>>,
}

/// A task that counts towards the limit of its client until this is dropped.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    permit: Option<OwnedSemaphorePermit>,
    address: IpAddr,
    limits: ClientLimits,
}

/// Waits until one of the client's tasks ends.
#[derive(Debug)]
pub(crate) struct ClientSlotWait {
    semaphore: Arc<Semaphore>,
    address: IpAddr,
    limits: ClientLimits,
}

impl ClientSlotWait {
    /// Waits for a free slot.
    pub async fn take(self) -> Option<ClientSlot> {
        let permit = self.semaphore.acquire_owned().await.ok()?;
        Some(self.limits.slot(self.address, permit))
    }
}

impl ClientLimits {
    /// Without a number there is no limit.
    pub fn new(tasks_max: Option<usize>) -> Self {
        ClientLimits { tasks_max, clients: Arc::default() }
    }

    /// Returns a slot if one is free, otherwise a way to wait for one. There are no slots where the address is
    /// unknown or clients are not limited.
    pub fn take(&self, address: Option<IpAddr>) -> Result<Option<ClientSlot>, ClientSlotWait> {
        let (Some(tasks_max), Some(address)) = (self.tasks_max, address) else { return Ok(None) };
        let mut clients = self.lock();
        let semaphore =
            clients.entry(address).or_insert_with(|| Arc::new(Semaphore::new(tasks_max))).clone();
        match semaphore.clone().try_acquire_owned() {
            Ok(permit) => Ok(Some(self.slot(address, permit))),
            Err(_) => Err(ClientSlotWait { semaphore, address, limits: self.clone() }),
        }
    }

    fn slot(&self, address: IpAddr, permit: OwnedSemaphorePermit) -> ClientSlot {
        ClientSlot { permit: Some(permit), address, limits: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Semaphore>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut clients = self.limits.lock();
        drop(self.permit.take());
        // No other task of this client runs or waits.
        if clients.get(&self.address).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            clients.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_client_has_its_own_slots_and_nothing_is_kept_afterwards() {
        let limits = ClientLimits::new(Some(1));
        let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let first = limits.take(Some(one)).unwrap();
        let other = limits.take(Some(two)).unwrap();
        let semaphore = limits.take(Some(one)).unwrap_err();
        drop(first);
        let second = semaphore.take().await.unwrap();
        assert!(limits.take(Some(one)).is_err());
        drop((second, other));
        assert!(limits.lock().is_empty());
        assert!(limits.take(None).unwrap().is_none());
        assert!(ClientLimits::new(None).take(Some(one)).unwrap().is_none());
    }
}

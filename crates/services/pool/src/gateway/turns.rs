//! How many tasks one client may have at once; the rest wait outside the queue, each in its turn.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tasks of each client.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    most: Option<usize>,
    clients: Arc<Mutex<HashMap<IpAddr, Arc<Semaphore>>>>,
}

/// A task of a client that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    address: IpAddr,
    turns: Turns,
}

/// A client that waits for one of its tasks to end.
#[derive(Debug)]
pub(crate) struct NextTurn {
    own: Arc<Semaphore>,
    address: IpAddr,
    turns: Turns,
}

impl NextTurn {
    /// A turn as soon as another task of the client has ended.
    pub async fn take(self) -> Option<Turn> {
        let permit = self.own.acquire_owned().await.ok()?;
        Some(self.turns.turn(self.address, permit))
    }
}

impl Turns {
    /// Without a number there is no limit.
    pub fn new(most: Option<usize>) -> Self {
        Turns { most, clients: Arc::default() }
    }

    /// A turn at once, if the client has one left, or else the way to wait for it. Nothing where clients are not
    /// known or not limited.
    pub fn take(&self, address: Option<IpAddr>) -> Result<Option<Turn>, NextTurn> {
        let (Some(most), Some(address)) = (self.most, address) else { return Ok(None) };
        let mut clients = self.lock();
        let own = clients.entry(address).or_insert_with(|| Arc::new(Semaphore::new(most))).clone();
        match own.clone().try_acquire_owned() {
            Ok(permit) => Ok(Some(self.turn(address, permit))),
            Err(_) => Err(NextTurn { own, address, turns: self.clone() }),
        }
    }

    fn turn(&self, address: IpAddr, permit: OwnedSemaphorePermit) -> Turn {
        Turn { permit: Some(permit), address, turns: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Semaphore>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut clients = self.turns.lock();
        drop(self.permit.take());
        // Nobody else of this client is here or waits.
        if clients.get(&self.address).is_some_and(|own| Arc::strong_count(own) == 1) {
            clients.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_client_has_its_own_turns_and_nothing_is_kept_of_those_who_left() {
        let turns = Turns::new(Some(1));
        let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let first = turns.take(Some(one)).unwrap();
        let other = turns.take(Some(two)).unwrap();
        let own = turns.take(Some(one)).unwrap_err();
        drop(first);
        let second = own.take().await.unwrap();
        assert!(turns.take(Some(one)).is_err());
        drop((second, other));
        assert!(turns.lock().is_empty());
        assert!(turns.take(None).unwrap().is_none());
        assert!(Turns::new(None).take(Some(one)).unwrap().is_none());
    }
}

//! Records where named workers connect from, and with which version of the client.
//!
//! A connection notes this once for a name, not with each take. A worker without a name of its own is
//! called by its address, so nothing is noted for it unless its version is known.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::failure::{is_client_version, is_worker_name};
use taskyard_engine::WORKERS_MAX;

/// How many names are noted before the older half is removed.
const NAMES_MAX: usize = 2 * WORKERS_MAX;
/// What the `User-Agent` of Taskyard's client begins with.
const CLIENT_AGENT: &str = "taskyard/";

/// The origin of each named worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerOrigins {
    names: Mutex<HashMap<Arc<str>, NotedOrigin>>,
    /// The number of removals: after one, connections note their names again.
    removals: AtomicU64,
    /// The number of notes so far.
    notes: AtomicU64,
}

#[derive(Debug)]
struct NotedOrigin {
    address: IpAddr,
    version: Option<Box<str>>,
    /// The number of the note.
    number: u64,
}

/// The name with which a connection last took, so that it is noted and allocated once.
#[derive(Debug, Default)]
pub(crate) struct LatestWorker {
    /// The name, and the number of removals when it was noted.
    noted: Option<(Arc<str>, u64)>,
    /// The address of the client as a name.
    address: Option<Arc<str>>,
}

impl LatestWorker {
    /// The name of a worker that gives none.
    pub fn address(&mut self, address: IpAddr) -> Arc<str> {
        let name = || address.to_canonical().to_string().into();
        self.address.get_or_insert_with(name).clone()
    }

    /// The shared form of a name; its origin is noted if that is not done yet.
    pub fn name(
        &mut self,
        origins: &WorkerOrigins,
        name: &str,
        address: IpAddr,
        version: impl FnOnce() -> Option<Box<str>>,
    ) -> Arc<str> {
        let removals = origins.removals.load(Ordering::Relaxed);
        if let Some((latest, noted)) = &self.noted
            && &**latest == name
            && *noted == removals
        {
            return latest.clone();
        }
        let name: Arc<str> = name.into();
        // The engine refuses a take with a wrong name.
        if is_worker_name(&name) {
            origins.note(&name, address, version());
            self.noted = Some((name.clone(), removals));
        }
        name
    }
}

impl WorkerOrigins {
    fn note(&self, name: &Arc<str>, address: IpAddr, version: Option<Box<str>>) {
        let number = self.notes.fetch_add(1, Ordering::Relaxed);
        let mut names = self.lock();
        let address = address.to_canonical();
        names.insert(name.clone(), NotedOrigin { address, version, number });
        if names.len() > NAMES_MAX {
            names.retain(|_, origin| origin.number + WORKERS_MAX as u64 > number);
            self.removals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The address and the version of a worker, as far as they are known. A name that is an address
    /// stands for itself.
    pub fn find(&self, name: &str) -> (Option<IpAddr>, Option<String>) {
        if let Some(origin) = self.lock().get(name) {
            return (Some(origin.address), origin.version.as_deref().map(str::to_owned));
        }
        let with_port = || name.parse().map(|address: SocketAddr| address.ip());
        (name.parse().or_else(|_| with_port()).ok(), None)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, NotedOrigin>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version in the `User-Agent` of Taskyard's client.
pub(crate) fn client_version(agent: &str) -> Option<Box<str>> {
    let version = agent.strip_prefix(CLIENT_AGENT)?.split(' ').next()?;
    is_client_version(version).then(|| version.into())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_version_is_that_of_our_client() {
        assert_eq!(client_version("taskyard/0.1.0").as_deref(), Some("0.1.0"));
        assert_eq!(client_version("taskyard/1.2.3-rc.1 (x)").as_deref(), Some("1.2.3-rc.1"));
        for other in ["curl/8.0", "taskyard", "taskyard/", "taskyard/<b>", ""] {
            assert_eq!(client_version(other), None, "{other}");
        }
    }

    #[test]
    fn an_address_stands_for_itself() {
        let origins = WorkerOrigins::default();
        assert_eq!(origins.find("10.0.0.7").0, Some(Ipv4Addr::new(10, 0, 0, 7).into()));
        assert_eq!(origins.find("127.0.0.1:3301").0, Some(HOME));
        assert_eq!(origins.find("web1:7:mailer"), (None, None));
    }

    #[test]
    fn a_name_that_was_removed_is_noted_again() {
        let origins = WorkerOrigins::default();
        let mut kept = LatestWorker::default();
        let version = || Some("0.1.0".into());
        let first = kept.name(&origins, "kept", HOME, version);
        for number in 0..=NAMES_MAX {
            LatestWorker::default().name(&origins, &format!("w{number}"), HOME, || None);
            assert!(origins.lock().len() <= NAMES_MAX);
        }
        assert_eq!(origins.find("kept"), (None, None));
        assert_eq!(kept.name(&origins, "kept", HOME, version), first);
        assert_eq!(origins.find("kept"), (Some(HOME), Some("0.1.0".into())));
        let again = kept.name(&origins, "kept", HOME, || panic!("it is noted"));
        assert!(Arc::ptr_eq(&again, &kept.name(&origins, "kept", HOME, || None)));
    }
}

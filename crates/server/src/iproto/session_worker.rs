//! The name under which a connection takes tasks: the one that it set, or its address.

use std::net::SocketAddr;
use std::sync::Arc;

use super::server::IprotoServer;
use crate::worker_origins::LatestWorker;

/// The name of a connection's worker.
pub(super) struct SessionWorker {
    peer: Option<SocketAddr>,
    /// The name that the connection set.
    own: Option<Arc<str>>,
    /// The version of the client, if the connection gave it.
    version: Option<Box<str>>,
    /// The address as a name, made by the first take.
    address: Option<Arc<str>>,
    /// The latest name whose origin is noted.
    latest: LatestWorker,
}

impl SessionWorker {
    /// The worker of a connection from this address.
    pub fn new(peer: Option<SocketAddr>) -> Self {
        let canonical = |peer: SocketAddr| SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let peer = peer.map(canonical);
        SessionWorker {
            peer,
            own: None,
            version: None,
            address: None,
            latest: LatestWorker::default(),
        }
    }

    /// Sets the name of later takes.
    pub fn set_name(&mut self, name: Arc<str>) {
        self.own = Some(name);
    }

    /// Sets the version of the client.
    pub fn set_version(&mut self, version: Box<str>) {
        self.version = Some(version);
        // A name that is noted already gets it with the next take.
        self.latest = LatestWorker::default();
    }

    /// The name of a take that gives none; `None` if also the address is unknown.
    pub fn name(&mut self, server: &IprotoServer) -> Option<Arc<str>> {
        if let Some(own) = self.own.clone() {
            return Some(self.native_name(server, own));
        }
        if self.address.is_none() {
            self.address = self.peer.map(|peer| peer.to_string().into());
        }
        let address = self.address.clone()?;
        // Without a version there is nothing to note: the name is the address.
        Some(if self.version.is_some() { self.native_name(server, address) } else { address })
    }

    /// The name that a native take gives.
    pub fn native_name(&mut self, server: &IprotoServer, name: Arc<str>) -> Arc<str> {
        match self.peer {
            Some(peer) => {
                let version = || self.version.clone();
                self.latest.name(&server.worker_origins, &name, peer.ip(), version)
            }
            None => name,
        }
    }
}

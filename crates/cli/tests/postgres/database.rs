//! Creates a database and starts servers on it.

use taskyard_testkit::postgres::{Cluster, Database, sql};

use crate::fixture::{StormServer, serve};
use crate::process::Serving;

/// A database and the servers on it.
pub struct DatabaseFixture {
    pub database: Database,
}

impl DatabaseFixture {
    /// A database on the cluster that tests share.
    pub fn new() -> Self {
        DatabaseFixture { database: Database::new() }
    }

    /// A database on its own cluster, which can be killed.
    pub fn on(cluster: &'static Cluster) -> Self {
        DatabaseFixture { database: Database::on(cluster) }
    }

    /// Starts a server.
    pub fn serve(&self) -> StormServer {
        serve(&self.database.url())
    }

    /// Starts a server process without connecting to it.
    pub fn start(&self) -> Serving {
        crate::fixture::start(&self.database.url())
    }

    /// The ids of the servers in the database, in hexadecimal.
    pub fn server_ids(&self) -> Vec<String> {
        let ids = "SELECT string_agg(encode(id, 'hex'), ',') FROM taskyard.server";
        let ids = sql(&self.database.url(), ids).unwrap_or_default();
        ids.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect()
    }
}

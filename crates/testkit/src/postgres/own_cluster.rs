//! A cluster that one test may kill, and what storms do with it.

use std::net::SocketAddr;

use taskyard_core::TubeName;

use super::cluster::{Cluster, programs};
use super::database::{Database, check_counts, cluster, prepare, server_count, sql};
use crate::OwnServer;
use crate::faulty_proxy::Target;
use crate::storm::StormDatabase;

/// Terminates the database sessions of servers.
const TERMINATE: &str = "
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'taskyard'";

/// Lists leaked rows, as text.
const LEAKS: &str = "
SELECT string_agg(what, '; ') FROM (
    SELECT 'sub-queue ' || k.key || ' runs ' || k.taken AS what FROM (
        SELECT subqueue AS key, count(*) AS taken FROM taskyard.task
        WHERE state = 1 AND subqueue IS NOT NULL GROUP BY tube, subqueue) k WHERE k.taken > 1
    UNION ALL
    SELECT 'sub-queue ' || coalesce(s.key, t.subqueue) || ' has the head '
        || coalesce(s.head_id::text, 'none') || ' instead of ' || coalesce(t.head::text, 'none')
    FROM taskyard.subqueue s FULL JOIN (
        SELECT tube, subqueue, CASE WHEN bool_or(state = 1) THEN NULL
            ELSE min(id) FILTER (WHERE state = 0) END AS head
        FROM taskyard.task WHERE subqueue IS NOT NULL GROUP BY tube, subqueue) t
        ON s.tube = t.tube AND s.key = t.subqueue
    WHERE s.key IS NULL OR t.subqueue IS NULL OR s.head_id IS DISTINCT FROM t.head
    UNION ALL
    SELECT 'task ' || t.id || ' is held by an absent session' FROM taskyard.task t
    WHERE t.state = 1 AND t.session IS NOT NULL
        AND t.session NOT IN (SELECT id FROM taskyard.session)
    UNION ALL
    SELECT 'a connection of an absent server' FROM taskyard.connection
    WHERE server NOT IN (SELECT id FROM taskyard.server)
    UNION ALL
    SELECT 'a session without connections does not end' FROM taskyard.session
    WHERE ends IS NULL AND id NOT IN (SELECT session FROM taskyard.connection)) leaks";

/// A cluster, with a database in it.
pub struct OwnCluster {
    /// The cluster.
    pub cluster: &'static Cluster,
    /// The database.
    pub database: Database,
}

impl OwnCluster {
    /// Starts one; `None` when the tests may be skipped.
    pub fn new() -> Option<Self> {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::new(programs()?)));
        prepare(cluster);
        Some(OwnCluster { cluster, database: Database::on(cluster) })
    }
}

impl OwnServer for OwnCluster {
    fn url(&self) -> String {
        self.database.url()
    }

    fn kill(&self) {
        self.cluster.kill();
    }

    fn start(&self) {
        self.cluster.start();
    }

    fn audit(&self, _: &TubeName) {
        check_counts(&self.database.url());
    }
}

impl StormDatabase for OwnCluster {
    fn steady() -> Option<Self> {
        programs().map(|_| OwnCluster { cluster: cluster(), database: Database::new() })
    }

    fn freeze(&self) {
        self.cluster.signal("STOP");
    }

    fn thaw(&self) {
        self.cluster.signal("CONT");
    }

    fn close_connections(&self) {
        sql(&self.database.url(), TERMINATE);
    }

    fn target(&self) -> Target {
        Target::Socket(self.cluster.socket())
    }

    fn url_by(&self, proxy: SocketAddr) -> String {
        format!("postgres://postgres@{proxy}/{}", self.database.name())
    }

    fn server_count(&self) -> usize {
        server_count(&self.database.url())
    }

    fn audit_sessions(&self) {
        assert_eq!(sql(&self.database.url(), LEAKS), None, "leaked rows");
    }

    fn audit_semaphores(&self) {
        assert_eq!(sql(&self.database.url(), "SELECT * FROM taskyard.semaphore_audit"), None);
    }
}

//! The health check of a database that answers but refuses writes.

use taskyard_store::Store;
use taskyard_testkit::calls::{NOW, health_becomes};
use taskyard_testkit::postgres::{Database, cluster, run, sql};

// A read-only database was shown as healthy, because the check only read.
#[test]
fn a_read_only_database_is_unhealthy() {
    run(async {
        let database = Database::new();
        let store = database.open();
        assert_eq!(taskyard_conformance::block_on(store.health(NOW)), Ok(Default::default()));
        let name = sql(&database.url(), "SELECT current_database()").expect("its name");
        let set = |setting: &str| {
            sql(&cluster().url("postgres"), &format!("ALTER DATABASE \"{name}\" {setting}"));
            // The setting is read by new connections.
            let end =
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname =";
            sql(&cluster().url("postgres"), &format!("{end} '{name}'"));
        };
        set("SET default_transaction_read_only = on");
        let why = health_becomes(&store, false);
        assert!(why.contains("read-only"), "{why}");
        set("RESET default_transaction_read_only");
        health_becomes(&store, true);
    });
}

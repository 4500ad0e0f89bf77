//! Creates and upgrades the schema, under a lock.
//!
//! Tables change by numbered migrations, whose statements are never edited. The functions are replaced as a whole when
//! this version's set is newer than the installed one. Running servers of an older version then call the newer functions,
//! so an incompatible function gets a new name.

use std::sync::LazyLock;

use taskyard_packed::Texts;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::connection::describe;
use super::presence::heartbeat_timeout;
use taskyard_core::failure::{LEASE_EXPIRED, SERVER_LOST, SESSION_ENDED};
use taskyard_store::limits::with_limits;
use taskyard_store::template::substitute;

/// All statements, packed by the build script.
static STATEMENTS: LazyLock<Texts> =
    LazyLock::new(|| Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/statements"))));

/// The files with the tables; the version of the tables is their number.
const MIGRATIONS: &[&str] = &[
    "migrations/0001_tables.sql",
    "migrations/0002_counters.sql",
    "migrations/0003_taken.sql",
    "migrations/0004_semaphores.sql",
    "migrations/0005_gates.sql",
    "migrations/0006_semaphore_indexes.sql",
    "migrations/0007_queues.sql",
    "migrations/0008_semaphore_priority.sql",
    "migrations/0009_semaphore_heads.sql",
    "migrations/0010_since.sql",
    "migrations/0011_incarnation.sql",
    "migrations/0012_semaphore_declines.sql",
    "migrations/0013_failures.sql",
    "migrations/0014_done.sql",
    "migrations/0015_kept.sql",
    "migrations/0016_keys_and_schedules.sql",
    "migrations/0017_ended_keys.sql",
];

/// The version of the functions in the files below; to be raised with every change of them.
const FUNCTIONS: i32 = 39;

const VERBS: &[&str] = &[
    "verbs/moments.sql",
    "verbs/subqueues.sql",
    "verbs/oldest.sql",
    "verbs/done.sql",
    "verbs/pace.sql",
    "verbs/tubes.sql",
    "verbs/queues.sql",
    "verbs/show.sql",
    "verbs/search.sql",
    "verbs/list.sql",
    "verbs/failures.sql",
    "verbs/keys.sql",
    "verbs/put.sql",
    "verbs/put_keyed.sql",
    "verbs/schedules.sql",
    "verbs/take.sql",
    "verbs/finish.sql",
    "verbs/kick.sql",
    "verbs/give_back.sql",
    "verbs/sessions.sql",
    "verbs/tick.sql",
    "verbs/counters.sql",
    "verbs/servers.sql",
    "verbs/resync.sql",
    "verbs/plain.sql",
    "verbs/gates.sql",
    "verbs/semaphore_heads.sql",
    "verbs/semaphore_declines.sql",
    "verbs/semaphore_advance.sql",
    "verbs/semaphore_configure.sql",
    "verbs/semaphore_drop.sql",
    "verbs/semaphore_members.sql",
    "verbs/semaphore_enqueue.sql",
    "verbs/semaphore_finish.sql",
    "verbs/semaphore_many.sql",
    "verbs/semaphore_events.sql",
    "verbs/semaphore_tick.sql",
    "verbs/positions.sql",
    "verbs/copy.sql",
];

/// Keeps two servers from migrating at the same time.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1952543591)";

const VERSIONS: &str = "CREATE SCHEMA IF NOT EXISTS taskyard; \
    CREATE TABLE IF NOT EXISTS taskyard.version (tables integer NOT NULL, functions integer NOT NULL)";

/// Why the schema cannot be used.
#[derive(Debug)]
pub(super) enum MigrateError {
    /// It was created by a newer version of the program.
    TooNew {
        /// The version of the tables.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The user lacks a privilege.
    NoRight {
        /// The message of the database.
        why: String,
        /// What to do.
        advice: String,
    },
    /// The database refused.
    Database(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for MigrateError {
    fn from(error: tokio_postgres::Error) -> Self {
        MigrateError::Database(error)
    }
}

/// Brings the schema to this version.
pub(super) async fn migrate(client: &Client) -> Result<(), MigrateError> {
    if is_current(client).await {
        return Ok(());
    }
    client.batch_execute("BEGIN; SET LOCAL lock_timeout = 0").await?;
    let done = apply(client).await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await;
    match done {
        Err(MigrateError::Database(error))
            if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) =>
        {
            return Err(MigrateError::NoRight {
                why: describe(&error),
                advice: advice(client).await?,
            });
        }
        done => done?,
    }
    Ok(ended?)
}

/// What an administrator has to do so that this user has the privilege.
async fn advice(client: &Client) -> Result<String, tokio_postgres::Error> {
    let text = "SELECT quote_ident(current_user), quote_ident(current_database()), \
        (SELECT quote_ident(pg_get_userbyid(nspowner)) FROM pg_namespace WHERE nspname = 'taskyard')";
    let rows = client.query_typed(text, &[]).await?;
    let Some(row) = rows.first() else { return Ok(String::new()) };
    let (user, database): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    Ok(match row.try_get::<_, Option<String>>(2)? {
        Some(owner) => format!(
            "the schema taskyard belongs to {owner}: run `taskyard migrate --store URL` as {owner}, and give \
             this user the same privileges with GRANT {owner} TO {user}"
        ),
        None => format!(
            "run GRANT CREATE ON DATABASE {database} TO {user} as its owner, or `taskyard migrate --store \
             URL` as a user with that privilege and then GRANT that user TO {user}"
        ),
    })
}

/// Whether the schema is current. Reads without a lock: most of the time there is nothing to do.
async fn is_current(client: &Client) -> bool {
    let found = client.query_typed("SELECT tables, functions FROM taskyard.version", &[]).await;
    let Ok(rows) = found else { return false };
    let [row] = rows.as_slice() else { return false };
    let (tables, functions): (i32, i32) = (row.get(0), row.get(1));
    tables as usize == MIGRATIONS.len() && functions >= FUNCTIONS
}

async fn apply(client: &Client) -> Result<(), MigrateError> {
    client.batch_execute(LOCK).await?;
    client.batch_execute(VERSIONS).await?;
    let rows = client.query_typed("SELECT tables, functions FROM taskyard.version", &[]).await?;
    let (tables, functions) = match rows.first() {
        Some(row) => (row.try_get::<_, i32>(0)?, row.try_get::<_, i32>(1)?),
        None => (0, 0),
    };
    let tables = usize::try_from(tables).unwrap_or(0);
    if tables > MIGRATIONS.len() {
        return Err(MigrateError::TooNew { found: tables as i64, known: MIGRATIONS.len() as i64 });
    }
    for migration in &MIGRATIONS[tables..] {
        client.batch_execute(STATEMENTS.text(migration)).await?;
    }
    if functions < FUNCTIONS || tables < MIGRATIONS.len() {
        for verbs in VERBS {
            client.batch_execute(&filled(STATEMENTS.text(verbs))).await?;
        }
    }
    let (tables, functions) = (MIGRATIONS.len(), FUNCTIONS.max(functions));
    let version = format!(
        "DELETE FROM taskyard.version; INSERT INTO taskyard.version VALUES ({tables}, {functions})"
    );
    client.batch_execute(&version).await?;
    Ok(())
}

/// The text with the limits and error texts of the core filled in.
fn filled(verbs: &str) -> String {
    let own = [
        ("LEASE_EXPIRED", LEASE_EXPIRED.to_owned()),
        ("SESSION_ENDED", SESSION_ENDED.to_owned()),
        ("SERVER_LOST", SERVER_LOST.to_owned()),
        ("HEARTBEAT_TIMEOUT", heartbeat_timeout().to_string()),
    ];
    substitute(&with_limits(verbs), &own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_store::limits::typed_limits;

    /// A file that no list names would be packed and never sent to the database.
    #[test]
    fn every_statement_is_used() {
        let packed = Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/statements")));
        let packed: Vec<String> = packed.into_texts().map(|(name, _)| name).collect();
        let mut used = [MIGRATIONS, VERBS].concat();
        used.sort_unstable();
        assert_eq!(packed, used);
    }

    // A change of the functions without a new version reached only new databases: all others kept the old functions.
    #[test]
    fn the_version_of_the_functions_is_raised_with_every_change() {
        let fnv = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let texts = VERBS.iter().map(|name| filled(STATEMENTS.text(name)));
        let sum = texts.flat_map(String::into_bytes).fold(0xcbf2_9ce4_8422_2325, fnv);
        assert_eq!(
            (FUNCTIONS, format!("{sum:016x}").as_str()),
            (39, "be8a4de9efa7bc9d"),
            "raise FUNCTIONS, then write both here"
        );
    }

    #[test]
    fn limits_come_from_the_core() {
        for verbs in VERBS.iter().map(|name| STATEMENTS.text(name)) {
            assert_eq!(
                typed_limits(verbs, &["20 * _r.cost, 1000000"]),
                Vec::<String>::new(),
                "write {{{{NAME}}}} instead"
            );
            let text = filled(verbs);
            let unfilled: Vec<_> = text.lines().filter(|line| line.contains("{{")).collect();
            assert_eq!(unfilled, Vec::<&str>::new(), "a placeholder without a value");
        }
    }
}

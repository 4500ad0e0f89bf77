//! A schema for one test, with its scheduler.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use taskyard_core::service::Service;
use taskyard_sql::connection::{Connection, Query, QueryError, SessionOptions, connect};
use taskyard_sql::{Config, Conninfo, Source, SqlTasks};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use taskyard_testkit::postgres::{Cluster, programs};

/// How long something may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(40);

/// The server that the tests share.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::new(programs().expect("the caller has checked for PostgreSQL")))
}

/// The runtime of all tests.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let builder = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        builder.expect("a runtime starts")
    })
}

/// Runs a case; skips it if PostgreSQL is not installed and the tests are allowed to skip.
pub fn run(case: impl Future) {
    if programs().is_some() {
        runtime().block_on(case);
    }
}

/// The connection string of a database for a user.
pub fn database(name: &str, user: &str) -> Conninfo {
    let mut conninfo = Conninfo::parse(&cluster().url(name)).expect("the cluster knows its URL");
    conninfo.user = Some(user.into());
    conninfo
}

/// A connection of a test.
pub struct Client(Mutex<Connection>);

impl Client {
    pub async fn new(conninfo: &Conninfo) -> Self {
        let connection = connect(conninfo, &SessionOptions::default()).await;
        Client(Mutex::new(connection.unwrap_or_else(|error| panic!("{}", error.line()))))
    }

    /// The first column of the first row.
    pub async fn get(&self, sql: &str) -> Option<String> {
        let rows = self.0.lock().await.query(Query::new(sql, [])).await;
        let mut rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.first_mut()?.take(0)
    }

    /// Runs statements.
    pub async fn run(&self, sql: &str) {
        self.try_run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Runs statements that may fail.
    pub async fn try_run(&self, sql: &str) -> Result<(), QueryError> {
        self.0.lock().await.run(sql).await
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&self, sql: &str) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        let (sql, began) = (sql.to_owned(), Instant::now());
        async move {
            loop {
                let asked = format!("SELECT ({sql})::text FROM pg_sleep(0.004)");
                let answer = self.get(&asked).await;
                if answer.as_deref() == Some("true") {
                    return;
                }
                assert!(began.elapsed() < PATIENCE, "{place}: never: {sql}; last {answer:?}");
            }
        }
    }
}

/// A schema for one test, with its scheduler.
pub struct Fixture {
    pub schema: String,
    pub client: Client,
    pub tasks: SqlTasks,
}

impl Fixture {
    /// A fixture with the default settings.
    pub async fn new() -> Self {
        Self::with("").await
    }

    /// A fixture with these settings, as JSON.
    pub async fn with(settings: &str) -> Self {
        let schema = Self::name();
        let tasks = start(&schema, settings);
        let client = Self::client(&schema).await;
        client.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        Fixture { schema, client, tasks }
    }

    /// A name that no other test has.
    pub fn name() -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        format!("case_{}", COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// A connection whose tables are those of a schema.
    pub async fn client(schema: &str) -> Client {
        let client = Client::new(&database("postgres", "postgres")).await;
        client.run(&format!("SET search_path = \"{schema}\", public")).await;
        client
    }

    /// Runs statements.
    pub async fn run(&self, sql: &str) {
        self.client.run(sql).await;
    }

    /// The first column of the first row.
    pub async fn get(&self, sql: &str) -> Option<String> {
        self.client.get(sql).await
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&self, sql: &str) -> impl Future<Output = ()> {
        self.client.until(sql)
    }

    /// Waits until no task is planned or running.
    #[track_caller]
    pub fn idle(&self) -> impl Future<Output = ()> {
        self.until("NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'TAKE', 'WORK'))")
    }

    /// Waits until the scheduler has handled everything that was inserted before.
    pub async fn sync(&self) {
        self.run("INSERT INTO task (\"group\", input, delete) VALUES ('sync', 'SELECT 1', false)")
            .await;
        self.until("NOT EXISTS (SELECT FROM task WHERE \"group\" = 'sync' AND state <> 'DONE')")
            .await;
        self.run("DELETE FROM task WHERE \"group\" = 'sync'").await;
    }

    /// Runs one task and returns its output and error.
    pub async fn output(&self, columns: &str, values: &str) -> (Option<String>, Option<String>) {
        let insert =
            format!("INSERT INTO task (delete{columns}) VALUES (false{values}) RETURNING id");
        let id = self.get(&insert).await.expect("it has an id");
        self.until(&format!("EXISTS (SELECT FROM task WHERE id = {id} AND stop IS NOT NULL)"))
            .await;
        let part = async |name| self.get(&format!("SELECT {name} FROM task WHERE id = {id}")).await;
        (part("output").await, part("error").await)
    }

    /// Stops the scheduler.
    pub async fn stop(&self) {
        self.tasks.stop().await;
    }
}

/// Starts a scheduler for a schema.
pub fn start(schema: &str, settings: &str) -> SqlTasks {
    let comma = if settings.is_empty() { "" } else { ", " };
    let schema = serde_json::to_string(schema).expect("a name is JSON");
    let config = format!("[{{\"data\": \"postgres\", \"schema\": {schema}{comma}{settings}}}]");
    let config = Config::parse(&config).expect("a configuration");
    // The server does not ask for the password, but no log and no message may contain it.
    let mut database = database("postgres", "postgres");
    database.password = Some(cluster().password().into());
    SqlTasks::start(database, Source::Inline(config), PATIENCE).expect("it starts")
}

//! A schema of a test's own, with a scheduler for it.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use taskyard_core::service::Service;
use taskyard_sql::wire::{Ask, AskError, Opening, Wire, connect};
use taskyard_sql::{Config, Conninfo, Source, SqlTasks};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use taskyard_testkit::postgres::{Cluster, programs};

/// How long something may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(40);

/// The server that the tests share.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::new(programs().expect("whoever asks has looked for it")))
}

/// What everything runs on.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let builder = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        builder.expect("a runtime starts")
    })
}

/// Runs a case, unless there is no PostgreSQL and the tests are to go on without.
pub fn run(case: impl Future) {
    if programs().is_some() {
        runtime().block_on(case);
    }
}

/// How to reach a database as somebody.
pub fn database(name: &str, user: &str) -> Conninfo {
    let mut conninfo = Conninfo::parse(&cluster().url(name)).expect("the cluster knows its URL");
    conninfo.user = Some(user.into());
    conninfo
}

/// A connection of the test's own.
pub struct Client(Mutex<Wire>);

impl Client {
    pub async fn new(conninfo: &Conninfo) -> Self {
        let wire = connect(conninfo, &Opening::default()).await;
        Client(Mutex::new(wire.unwrap_or_else(|error| panic!("{}", error.line()))))
    }

    /// The first column of the first row.
    pub async fn get(&self, sql: &str) -> Option<String> {
        let rows = self.0.lock().await.ask(Ask::new(sql, [])).await;
        let mut rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.first_mut()?.take(0)
    }

    /// Runs statements.
    pub async fn run(&self, sql: &str) {
        self.try_run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Runs statements that may be refused.
    pub async fn try_run(&self, sql: &str) -> Result<(), AskError> {
        self.0.lock().await.run(sql).await
    }

    /// Waits until a question is answered with yes.
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

/// A schema of a test's own, and a scheduler for it.
pub struct Rig {
    pub schema: String,
    pub client: Client,
    pub tasks: SqlTasks,
}

impl Rig {
    /// A scheduler with the usual settings.
    pub async fn new() -> Self {
        Self::with("").await
    }

    /// The same with these settings, as in JSON.
    pub async fn with(settings: &str) -> Self {
        let schema = Self::name();
        let tasks = start(&schema, settings);
        let client = Self::client(&schema).await;
        client.until(&format!("to_regclass('{schema}.task') IS NOT NULL")).await;
        Rig { schema, client, tasks }
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

    /// Waits until a question is answered with yes.
    #[track_caller]
    pub fn until(&self, sql: &str) -> impl Future<Output = ()> {
        self.client.until(sql)
    }

    /// Waits until nothing is left to do now.
    #[track_caller]
    pub fn idle(&self) -> impl Future<Output = ()> {
        self.until("NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'TAKE', 'WORK'))")
    }

    /// Sees that the scheduler has looked at everything that was there before.
    pub async fn settle(&self) {
        self.run(
            "INSERT INTO task (\"group\", input, delete) VALUES ('settle', 'SELECT 1', false)",
        )
        .await;
        self.until("NOT EXISTS (SELECT FROM task WHERE \"group\" = 'settle' AND state <> 'DONE')")
            .await;
        self.run("DELETE FROM task WHERE \"group\" = 'settle'").await;
    }

    /// Runs one task and answers its output and error.
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
    let database = database("postgres", "postgres");
    SqlTasks::start(database, Source::Given(config), PATIENCE).expect("it starts")
}

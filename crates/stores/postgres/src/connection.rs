//! A connection: statements go out together, answers come back in order.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use taskyard_core::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::TlsStream;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::statements::{Call, Statement};

/// How a connection is set. Plans are made once and kept, so they must suit a full table although they may be made
/// while it is empty: every path of these functions has its index.
const SETTINGS: [(&str, &str); 8] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    // Such a scan does not mark the entries of dead rows that it meets, so the next one meets them again.
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    // Somebody's own transaction may hold what a batch needs; others must not wait for it for ever.
    ("lock_timeout", "2000"),
    // A put asks for little and can be tried again: it waits less, so that what came with it need not.
    ("taskyard.lock_wait", "500"),
];

/// Where notices of the database go.
pub(super) type Notices = mpsc::UnboundedSender<String>;

/// A connection to the database.
pub(super) struct Connection {
    client: Client,
    prepared: HashMap<&'static str, tokio_postgres::Statement>,
    backend: Option<Backend>,
    /// Behind a pooler that gives each transaction another connection: nothing may be kept between two.
    pooled: bool,
}

/// The process that serves a connection. Numbers of processes are used again, so its start belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    process: i32,
    since: String,
}

/// Why a transaction failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is gone, and nobody knows whether the transaction took effect.
    Lost(String),
    /// The connection is gone, and the transaction has not taken effect; it can be sent again.
    Broken(String),
    /// There is no connection, so nothing was done.
    Unreachable(String),
    /// The database gave it up for the sake of another; it can be sent again.
    Conflict(String),
    /// The database refused it.
    Refused(String),
}

impl Failure {
    pub fn of(error: &tokio_postgres::Error) -> Self {
        let text = describe(error);
        match error.code() {
            Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
                Failure::Conflict(text)
            }
            // Class 57P: the server is going down, or somebody ended this connection.
            Some(code) if code.code().starts_with("57P") => Failure::Broken(text),
            // Class 08 is said by whoever stands between, who knows no more than that an answer is missing.
            Some(code) if code.code().starts_with("08") => Failure::Lost(text),
            Some(&SqlState::LOCK_NOT_AVAILABLE) => Failure::Refused(LOCKED.into()),
            Some(_) => Failure::Refused(text),
            None => Failure::Lost(text),
        }
    }

    /// What to tell those who asked.
    pub fn text(&self) -> String {
        match self {
            Failure::Lost(text) => format!(
                "the connection to PostgreSQL was lost ({text}); what was asked may have been done"
            ),
            Failure::Unreachable(text) | Failure::Broken(text) => {
                format!("PostgreSQL cannot be reached, nothing was done: {text}")
            }
            Failure::Conflict(text) | Failure::Refused(text) => text.clone(),
        }
    }

    /// The same as a refusal.
    pub fn error(&self) -> Error {
        match self {
            Failure::Lost(_) => Error::OutcomeUnknown(self.text()),
            Failure::Unreachable(_) | Failure::Broken(_) => Error::StoreAway(self.text()),
            Failure::Conflict(_) | Failure::Refused(_) => Error::Store(self.text()),
        }
    }

    /// The same, where it is certain that nothing was committed.
    fn undone(self) -> Self {
        match self {
            Failure::Lost(text) => Failure::Broken(text),
            other => other,
        }
    }

    /// The same for what a pooler passes on: it may have heard it instead of the answer to a commit.
    fn of_pooled(error: &tokio_postgres::Error) -> Self {
        let fatal = error.as_db_error().is_some_and(|error| error.severity() == "FATAL");
        if fatal { Failure::Lost(describe(error)) } else { Failure::of(error).at_commit() }
    }

    /// The same for the end of a transaction: whoever ends the connection then may have come after it.
    fn at_commit(self) -> Self {
        match self {
            Failure::Broken(text) => Failure::Lost(text),
            other => other,
        }
    }

    /// Whether it only says that something before it failed.
    fn is_echo(error: &tokio_postgres::Error) -> bool {
        error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
    }
}

/// What an error says, with its cause.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    let said = match error.as_db_error() {
        Some(error) => {
            // Where in which function is of no use to who asked.
            tracing::debug!(?error, "PostgreSQL refused");
            let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            return format!("{} ({}){hint}", error.message(), error.code().code());
        }
        None => error.to_string(),
    };
    match std::error::Error::source(error) {
        Some(cause) => format!("{said}: {cause}"),
        None => said,
    }
}

type Answer<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

impl Connection {
    /// Connects, and lets the connection run by itself on the runtime this is called on. What the
    /// database notifies goes to `notices`, if somebody listens.
    pub async fn open(
        config: &Config,
        tls: Option<&MakeRustlsConnect>,
        pooled: bool,
        notices: Option<Notices>,
    ) -> Result<Self, tokio_postgres::Error> {
        let mut config = config.clone();
        if config.get_application_name().is_none() {
            config.application_name("taskyard");
        }
        if !pooled {
            config.options(options(config.get_options()));
        }
        let client = match tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                tokio::spawn(drive(connection, notices));
                client
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                tokio::spawn(drive(connection, notices));
                client
            }
        };
        // Behind a pooler it is another one for each transaction.
        let backend = if pooled { None } else { Some(who_serves(&client).await?) };
        Ok(Connection { client, prepared: HashMap::new(), backend, pooled })
    }

    /// Who serves it, if that is known.
    pub fn backend(&self) -> Option<Backend> {
        self.backend.clone()
    }

    /// Ends the process that served another connection, and waits until it has: whatever it did is done
    /// then, and nothing more will be. Answers whether that is so.
    pub async fn end(&self, backend: &Backend) -> Result<bool, Failure> {
        let text = "SELECT coalesce(bool_and(pg_terminate_backend(pid, $3)), true) \
            FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2";
        let params: [(&(dyn ToSql + Sync), Type); 3] = [
            (&backend.process, Type::INT4),
            (&backend.since, Type::TEXT),
            (&END_TIMEOUT_MS, Type::INT8),
        ];
        let Ok(rows) = timeout(END_MAX, self.client.query_typed(text, &params)).await else {
            return Err(Failure::Unreachable(SILENT.into()));
        };
        let rows = rows.map_err(|error| Failure::of(&error).undone())?;
        Ok(rows.first().is_none_or(|row| row.get(0)))
    }

    /// Whether it can still be used.
    pub fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    /// The client itself, for what is not a call.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs the calls in one transaction, all sent at once.
    pub async fn transact(&mut self, calls: &[Call]) -> Result<Vec<Vec<Row>>, Failure> {
        let deadline = Instant::now() + ANSWER_MAX;
        let Ok(prepared) = timeout_at(deadline, self.prepare(calls)).await else {
            return Err(Failure::Unreachable(SILENT.into()));
        };
        prepared.map_err(Failure::undone)?;
        let begin = if self.pooled {
            let settings = SETTINGS.map(|(name, value)| format!("SET LOCAL {name} = {value}"));
            format!("BEGIN ISOLATION LEVEL READ COMMITTED; {}", settings.join("; "))
        } else {
            "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned()
        };
        let mut answers: Vec<Answer<'_>> = Vec::with_capacity(calls.len() + 2);
        answers.push(Box::pin(self.plain(&begin)));
        for call in calls {
            answers.push(self.call(call));
        }
        answers.push(Box::pin(self.plain("COMMIT")));
        let mut rows = Vec::with_capacity(calls.len());
        let mut failure = None;
        let Ok(answers) = timeout_at(deadline, send(answers)).await else {
            return Err(Failure::Lost(SILENT.into()));
        };
        for (place, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => rows.push(answer),
                Err(error) if failure.is_some() && Failure::is_echo(&error) => {}
                Err(error) => {
                    // Answers come in order: what the database says before the end comes before it.
                    failure.get_or_insert(match self.pooled {
                        true => Failure::of_pooled(&error),
                        false if place > calls.len() => Failure::of(&error).at_commit(),
                        false => Failure::of(&error),
                    });
                }
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        // Without those of BEGIN and COMMIT.
        rows.pop();
        rows.remove(0);
        Ok(rows)
    }

    async fn plain(&self, text: &str) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.client.batch_execute(text).await.map(|()| Vec::new())
    }

    fn call<'a>(&'a self, call: &'a Call) -> Answer<'a> {
        let Call { statement, params } = call;
        match self.prepared.get(statement.text) {
            Some(prepared) => Box::pin(async move {
                let params: Vec<&(dyn ToSql + Sync)> =
                    params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
                self.client.query(prepared, &params).await
            }),
            None => Box::pin(async move {
                let params: Vec<(&(dyn ToSql + Sync), Type)> = params
                    .iter()
                    .zip(statement.types)
                    .map(|(param, ty)| (&**param as &(dyn ToSql + Sync), ty.clone()))
                    .collect();
                self.client.query_typed(statement.text, &params).await
            }),
        }
    }

    /// Hears what is notified from now on.
    pub async fn listen(&self) -> Result<(), Failure> {
        match timeout(ANSWER_MAX, self.client.batch_execute("LISTEN taskyard")).await {
            Ok(listening) => listening.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::Unreachable(SILENT.into())),
        }
    }

    /// Prepares what has not been, unless there is a pooler.
    async fn prepare(&mut self, calls: &[Call]) -> Result<(), Failure> {
        for Call { statement, .. } in calls.iter().filter(|_| !self.pooled) {
            let Statement { text, types } = statement;
            if !self.prepared.contains_key(text) {
                let prepared = self.client.prepare_typed(text, types).await;
                let prepared = prepared.map_err(|error| Failure::of(&error))?;
                self.prepared.insert(text, prepared);
            }
        }
        Ok(())
    }
}

/// How long a transaction may take, with what prepares it. A database that hangs keeps everybody else waiting.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// What is said when `lock_timeout` is over.
pub(super) const LOCKED: &str = "the tube is locked by an open transaction, probably a put by plain SQL into a \
    tube with a capacity or with sub-queues; nothing was done, try again when it has ended";

/// What is said of one that took longer.
const SILENT: &str = "it has not answered for too long";

/// How long to wait for the end of a process, in milliseconds.
const END_TIMEOUT_MS: i64 = 2_000;
/// The same with the way there and back.
const END_MAX: Duration = Duration::from_secs(10);

/// What is set when a connection begins: what the URL says, and then what must be so.
fn options(given: Option<&str>) -> String {
    let own = SETTINGS.map(|(name, value)| format!("-c {name}={value}")).join(" ");
    given.into_iter().chain([own.as_str()]).collect::<Vec<_>>().join(" ")
}

async fn who_serves(client: &Client) -> Result<Backend, tokio_postgres::Error> {
    let text = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let rows = client.query_typed(text, &[]).await?;
    let row = rows.first();
    let process = row.map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
    let since = row.map(|row| row.try_get(1)).transpose()?.unwrap_or_default();
    Ok(Backend { process, since })
}

/// Lets a connection run until it ends.
async fn drive<S: TlsStream + Unpin>(
    mut connection: tokio_postgres::Connection<Socket, S>,
    notices: Option<Notices>,
) {
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notice))) => {
                if let Some(notices) = &notices {
                    // Whoever listened may be gone; then nobody needs it.
                    let _ = notices.send(notice.payload().to_owned());
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "a connection to PostgreSQL ended");
                return;
            }
            None => return,
        }
    }
}

/// Sends everything before it waits for the first answer.
async fn send(mut answers: Vec<Answer<'_>>) -> Vec<Result<Vec<Row>, tokio_postgres::Error>> {
    let mut early = Vec::with_capacity(answers.len());
    poll_fn(|context| {
        // A request leaves when it is polled for the first time.
        early = answers.iter_mut().map(|answer| answer.as_mut().poll(context)).collect();
        Poll::Ready(())
    })
    .await;
    let mut received = Vec::with_capacity(answers.len());
    for (answer, early) in answers.into_iter().zip(early) {
        received.push(match early {
            Poll::Ready(answer) => answer,
            Poll::Pending => answer.await,
        });
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    // What the URL said was replaced without a word.
    #[test]
    fn what_the_url_sets_stays_set() {
        let both = options(Some("-c work_mem=8MB"));
        assert!(both.starts_with("-c work_mem=8MB -c plan_cache_mode="), "{both}");
        assert!(options(None).starts_with("-c plan_cache_mode="));
    }
}

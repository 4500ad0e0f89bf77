//! Runs transactions on one connection: all statements are sent at once, the answers come back in order.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use taskyard_core::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Row, Socket};

use super::statements::{Call, Statement};
use super::tls::{EncryptedStream, Encryption};

/// Settings of each connection. Plans are made once and cached, so they must suit a full table although they may be
/// made while it is empty: every search of the functions has its index.
const SETTINGS: [(&str, &str); 8] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    // A bitmap scan does not mark the index entries of dead rows, so the next one reads them again.
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    // A transaction of plain SQL may hold what a batch needs. Other commands must not wait for it without limit.
    ("lock_timeout", "2000"),
    // A put can be repeated by its caller: it waits less, so that the rest of its batch goes on.
    ("taskyard.lock_wait", "500"),
];

/// Where notices of the database go.
pub(super) type Notices = mpsc::UnboundedSender<String>;

/// A connection to the database.
pub(super) struct Connection {
    client: Client,
    prepared: HashMap<&'static str, tokio_postgres::Statement>,
    backend: Option<Backend>,
    /// Behind a pooler that gives each transaction another connection: no state lasts from one to the next.
    pooled: bool,
}

/// The database process of a connection. Process numbers are reused, so the start time identifies it as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    process: i32,
    since: String,
}

/// Why a transaction failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is gone, and it is unknown whether the transaction took effect.
    Lost(String),
    /// The connection is gone, and the transaction has not taken effect; it can be sent again.
    Broken(String),
    /// There is no connection, so nothing was done.
    Unreachable(String),
    /// The database rolled it back because of a conflict with another one; it can be sent again.
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
            // Class 57P: the server shuts down, or an administrator ended the connection.
            Some(code) if code.code().starts_with("57P") => Failure::Broken(text),
            // Class 08 comes from a proxy, which only knows that an answer is missing.
            Some(code) if code.code().starts_with("08") => Failure::Lost(text),
            Some(&SqlState::LOCK_NOT_AVAILABLE) => Failure::Refused(LOCKED.into()),
            Some(_) => Failure::Refused(text),
            None => Failure::Lost(text),
        }
    }

    /// The message for callers.
    pub fn text(&self) -> String {
        match self {
            Failure::Lost(text) => format!(
                "the connection to PostgreSQL was lost ({text}); the commands may have been done"
            ),
            Failure::Unreachable(text) | Failure::Broken(text) => {
                format!("PostgreSQL cannot be reached, nothing was done: {text}")
            }
            Failure::Conflict(text) | Failure::Refused(text) => text.clone(),
        }
    }

    /// The error for callers.
    pub fn error(&self) -> Error {
        match self {
            Failure::Lost(_) => Error::OutcomeUnknown(self.text()),
            Failure::Unreachable(_) | Failure::Broken(_) => Error::StoreUnavailable(self.text()),
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

    /// The same for an error that a pooler forwards: the pooler may have got it instead of the answer to a commit.
    fn of_pooled(error: &tokio_postgres::Error) -> Self {
        let fatal = error.as_db_error().is_some_and(|error| error.severity() == "FATAL");
        if fatal { Failure::Lost(describe(error)) } else { Failure::of(error).at_commit() }
    }

    /// The same for an error at the end of a transaction: the connection may have been ended after the commit.
    fn at_commit(self) -> Self {
        match self {
            Failure::Broken(text) => Failure::Lost(text),
            other => other,
        }
    }

    /// Whether it only reports that an earlier statement of the transaction failed.
    fn is_echo(error: &tokio_postgres::Error) -> bool {
        error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
    }
}

/// The text of an error, with its cause.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    let said = match error.as_db_error() {
        Some(error) => {
            // The position in the function is for the log, not for callers.
            tracing::debug!(?error, "PostgreSQL refused a statement");
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

type PendingRows<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

impl Connection {
    /// Connects, and drives the connection on the current runtime. Notifications of the database go to `notices`.
    pub async fn open(
        config: &Config,
        encryption: &Encryption,
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
        let (client, connection) = config.connect(encryption.clone()).await?;
        tokio::spawn(drive(connection, notices));
        // Behind a pooler it is another one for each transaction.
        let backend = if pooled { None } else { Some(backend_of(&client).await?) };
        Ok(Connection { client, prepared: HashMap::new(), backend, pooled })
    }

    /// The database process of this connection, if it is known.
    pub fn backend(&self) -> Option<Backend> {
        self.backend.clone()
    }

    /// Ends the process of another connection and waits for its end: after that its transaction has either committed or
    /// been rolled back. Returns whether it has ended.
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
        let mut answers: Vec<PendingRows<'_>> = Vec::with_capacity(calls.len() + 2);
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
                    // Answers come in order: an error before the commit is reported before it.
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

    fn call<'a>(&'a self, call: &'a Call) -> PendingRows<'a> {
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

    /// Receives notifications from now on.
    pub async fn listen(&self) -> Result<(), Failure> {
        match timeout(ANSWER_MAX, self.client.batch_execute("LISTEN taskyard")).await {
            Ok(listening) => listening.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::Unreachable(SILENT.into())),
        }
    }

    /// Prepares statements that are not prepared yet, unless there is a pooler.
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

/// How long a transaction may take, including the preparation of its statements.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The message when `lock_timeout` is over.
pub(super) const LOCKED: &str = "the tube is locked by an open transaction, probably a put by plain SQL into a \
    tube with a capacity or with sub-queues; nothing was done, try again when it has ended";

/// The message when a transaction took longer.
const SILENT: &str = "no answer within the time limit";

/// How long to wait for the end of a process, in milliseconds.
const END_TIMEOUT_MS: i64 = 2_000;
/// The same including the round trip.
const END_MAX: Duration = Duration::from_secs(10);

/// The startup options of a connection: those of the URL, then the required ones.
fn options(given: Option<&str>) -> String {
    let own = SETTINGS.map(|(name, value)| format!("-c {name}={value}")).join(" ");
    given.into_iter().chain([own.as_str()]).collect::<Vec<_>>().join(" ")
}

async fn backend_of(client: &Client) -> Result<Backend, tokio_postgres::Error> {
    let text = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let rows = client.query_typed(text, &[]).await?;
    let row = rows.first();
    let process = row.map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
    let since = row.map(|row| row.try_get(1)).transpose()?.unwrap_or_default();
    Ok(Backend { process, since })
}

/// Drives a connection until it ends.
async fn drive(
    mut connection: tokio_postgres::Connection<Socket, EncryptedStream>,
    notices: Option<Notices>,
) {
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notice))) => {
                if let Some(notices) = &notices {
                    // The receiver may be gone; then the notification is not needed.
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
async fn send(mut answers: Vec<PendingRows<'_>>) -> Vec<Result<Vec<Row>, tokio_postgres::Error>> {
    let mut early = Vec::with_capacity(answers.len());
    poll_fn(|context| {
        // A request is sent when it is polled for the first time.
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

    // The options of the URL were replaced silently.
    #[test]
    fn options_of_the_url_are_kept() {
        let both = options(Some("-c work_mem=8MB"));
        assert!(both.starts_with("-c work_mem=8MB -c plan_cache_mode="), "{both}");
        assert!(options(None).starts_with("-c plan_cache_mode="));
    }
}

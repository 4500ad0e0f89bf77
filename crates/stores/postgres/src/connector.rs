//! Opens connections to the database, with growing pauses while it cannot be reached.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_postgres::Config;
use tokio_postgres::error::SqlState;

use super::connection::{Connection, Failure, Notices, describe};
use super::tls::Encryption;
use super::url::DatabaseUrl;

/// The pause after a failed attempt: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long opening a connection may take, including the first exchange on it.
const OPEN_MAX: Duration = Duration::from_secs(15);

/// Why a connection could not be opened.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The connection was not accepted.
    Failed(tokio_postgres::Error),
    /// The connection was accepted, and there was no answer in time.
    Silent,
}

impl ConnectError {
    /// The message for callers.
    pub fn text(&self) -> String {
        match self {
            ConnectError::Failed(error) => describe(error),
            ConnectError::Silent => {
                format!(
                    "it accepted the connection and did not answer within {} s",
                    OPEN_MAX.as_secs()
                )
            }
        }
    }
}

/// Opens connections, and remembers whether the last attempt failed.
pub(super) struct Connector {
    config: Config,
    encryption: Encryption,
    /// Behind a pooler in transaction mode.
    pub pooled: bool,
    away: Mutex<Option<Outage>>,
}

/// A database that could not be reached.
struct Outage {
    why: String,
    pause: Duration,
    /// No attempt is made before.
    until: Instant,
}

impl Connector {
    pub fn new(target: DatabaseUrl) -> Result<Self, String> {
        let DatabaseUrl { config, pooled, security } = target;
        let encryption = Encryption::new(&security)?;
        Ok(Connector { config, encryption, pooled, away: Mutex::default() })
    }

    async fn open(&self, notices: Option<Notices>) -> Result<Connection, ConnectError> {
        let opening = Connection::open(&self.config, &self.encryption, self.pooled, notices);
        match timeout(OPEN_MAX, opening).await {
            Ok(opened) => opened.map_err(ConnectError::Failed),
            Err(_) => Err(ConnectError::Silent),
        }
    }

    /// Connects, waiting this long for a database that is not up.
    pub async fn wait_for(&self, wait: Duration) -> Result<Connection, ConnectError> {
        let until = Instant::now() + wait;
        loop {
            let opened = self.open(None).await;
            match opened {
                Err(error) if is_down(&error) && Instant::now() < until => {
                    self.failed(error.text());
                    tokio::time::sleep(self.pause()).await;
                }
                opened => {
                    self.away().take();
                    return opened;
                }
            }
        }
    }

    /// Connects. During the pause after a failed attempt this fails at once, so that many callers do not cause as many
    /// attempts.
    pub async fn connect(&self) -> Result<Connection, Failure> {
        if let Some(away) = &*self.away()
            && away.until > Instant::now()
        {
            return Err(Failure::Unreachable(away.why.clone()));
        }
        self.try_connect(None).await
    }

    /// Connects, also during the pause.
    pub async fn try_connect(&self, notices: Option<Notices>) -> Result<Connection, Failure> {
        match self.open(notices).await {
            Ok(connection) => {
                if self.away().take().is_some() {
                    tracing::warn!("PostgreSQL can be reached again");
                }
                Ok(connection)
            }
            Err(error) => Err(self.failed(error.text())),
        }
    }

    /// The pause before the next attempt.
    pub fn pause(&self) -> Duration {
        self.away().as_ref().map_or(PAUSE_MIN, |away| away.pause)
    }

    fn failed(&self, why: String) -> Failure {
        let mut away = self.away();
        if away.is_none() {
            tracing::warn!(why, "PostgreSQL cannot be reached; trying again");
        }
        let pause =
            away.as_ref().map_or(PAUSE_MIN, |away| away.pause.saturating_mul(2).min(PAUSE_MAX));
        *away = Some(Outage { why: why.clone(), pause, until: Instant::now() + pause });
        Failure::Unreachable(why)
    }

    fn away(&self) -> MutexGuard<'_, Option<Outage>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the database is not up, rather than refusing the connection.
fn is_down(error: &ConnectError) -> bool {
    let ConnectError::Failed(error) = error else { return true };
    match error.code() {
        Some(code) => *code == SqlState::CANNOT_CONNECT_NOW,
        // An encryption error does not pass with time.
        None if error.to_string().contains("TLS") => false,
        None => std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> Connector {
        let target = DatabaseUrl::parse("postgres://ann@%2Fnowhere/none").expect("a URL");
        Connector::new(target).expect("nothing is wrong with it")
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_the_database_cannot_be_reached() {
        let connector = unreachable();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let failure = connector.try_connect(None).await.err();
            assert!(matches!(failure, Some(Failure::Unreachable(_))), "{failure:?}");
            pauses.push(connector.pause());
        }
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!((pauses[0], pauses[9]), (PAUSE_MIN, PAUSE_MAX));
    }

    // The time limit covered only the connection and not the first exchange: callers waited without end for a database
    // that accepted a connection and did not answer.
    #[tokio::test(start_paused = true)]
    async fn a_database_that_accepts_and_does_not_answer_is_unreachable() {
        let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = mute.local_addr().expect("it has an address").port();
        let url = format!("postgres://ann@127.0.0.1:{port}/none");
        let connector =
            Connector::new(DatabaseUrl::parse(&url).expect("a URL")).expect("nothing is wrong");
        let failure = connector.try_connect(None).await.err();
        assert!(
            matches!(&failure, Some(Failure::Unreachable(why)) if why.contains("did not answer")),
            "{failure:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn no_attempt_is_made_during_the_pause() {
        let connector = unreachable();
        assert!(connector.connect().await.is_err());
        let pause = connector.pause();
        assert!(connector.connect().await.is_err());
        assert_eq!(connector.pause(), pause, "the second call made no attempt");
        tokio::time::advance(pause).await;
        assert!(connector.connect().await.is_err());
        assert!(connector.pause() > pause, "the third call did");
    }
}

//! The way to the database: connecting, and leaving it alone for a while when that fails.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_postgres::Config;
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connection::{Connection, Failure, Notices, describe};
use super::tls;
use super::url::Place;

/// How long to leave a database alone that cannot be reached: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long opening a connection may take in all. Who accepts one may still never say a word on it.
const OPEN_MAX: Duration = Duration::from_secs(15);

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Unopened {
    /// Nobody is there, or somebody does not want to.
    Failed(tokio_postgres::Error),
    /// Somebody is there and says nothing.
    Silent,
}

impl Unopened {
    /// What to tell those who asked.
    pub fn text(&self) -> String {
        match self {
            Unopened::Failed(error) => describe(error),
            Unopened::Silent => {
                format!("it accepts connections and says nothing for {} s", OPEN_MAX.as_secs())
            }
        }
    }
}

/// Where the database is, and whether it answered last.
pub(super) struct Reach {
    config: Config,
    /// What encrypts connections, if anything does.
    tls: Option<MakeRustlsConnect>,
    /// Behind a pooler in transaction mode.
    pub pooled: bool,
    away: Mutex<Option<Away>>,
}

/// A database that could not be reached.
struct Away {
    why: String,
    pause: Duration,
    /// Until then nobody tries.
    until: Instant,
}

impl Reach {
    pub fn new(place: Place) -> Result<Self, String> {
        let Place { config, pooled, security } = place;
        let tls = tls::connector(&security)?;
        Ok(Reach { config, tls, pooled, away: Mutex::default() })
    }

    async fn open(&self, notices: Option<Notices>) -> Result<Connection, Unopened> {
        let opening = Connection::open(&self.config, self.tls.as_ref(), self.pooled, notices);
        match timeout(OPEN_MAX, opening).await {
            Ok(opened) => opened.map_err(Unopened::Failed),
            Err(_) => Err(Unopened::Silent),
        }
    }

    /// Connects, waiting this long for a database that is not up.
    pub async fn wait_for(&self, wait: Duration) -> Result<Connection, Unopened> {
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

    /// Connects. While the last try is too short a time ago this fails at once, so that many callers do
    /// not become as many tries.
    pub async fn connect(&self) -> Result<Connection, Failure> {
        if let Some(away) = &*self.away()
            && away.until > Instant::now()
        {
            return Err(Failure::Unreachable(away.why.clone()));
        }
        self.try_connect(None).await
    }

    /// Connects, however short a time ago the last try is.
    pub async fn try_connect(&self, notices: Option<Notices>) -> Result<Connection, Failure> {
        match self.open(notices).await {
            Ok(connection) => {
                if self.away().take().is_some() {
                    tracing::warn!("PostgreSQL is back");
                }
                Ok(connection)
            }
            Err(error) => Err(self.failed(error.text())),
        }
    }

    /// How long to wait before the next try.
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
        *away = Some(Away { why: why.clone(), pause, until: Instant::now() + pause });
        Failure::Unreachable(why)
    }

    fn away(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a database is not up, rather than unwilling.
fn is_down(error: &Unopened) -> bool {
    let Unopened::Failed(error) = error else { return true };
    match error.code() {
        Some(code) => *code == SqlState::CANNOT_CONNECT_NOW,
        // What is wrong with encryption stays wrong.
        None if error.to_string().contains("TLS") => false,
        None => std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Reach {
        let place = Place::parse("postgres://nobody@%2Fnowhere/none").expect("a URL");
        Reach::new(place).expect("nothing is wrong with it")
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_is_away_is_left_alone_longer_and_longer() {
        let reach = nowhere();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let failure = reach.try_connect(None).await.err();
            assert!(matches!(failure, Some(Failure::Unreachable(_))), "{failure:?}");
            pauses.push(reach.pause());
        }
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!((pauses[0], pauses[9]), (PAUSE_MIN, PAUSE_MAX));
    }

    // The limit was on the connection alone and not on what is said on it: a database that was accepted for but
    // did not answer kept everybody waiting for ever.
    #[tokio::test(start_paused = true)]
    async fn one_that_accepts_and_says_nothing_cannot_be_reached() {
        let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = mute.local_addr().expect("it has an address").port();
        let url = format!("postgres://nobody@127.0.0.1:{port}/none");
        let reach = Reach::new(Place::parse(&url).expect("a URL")).expect("nothing is wrong");
        let failure = reach.try_connect(None).await.err();
        assert!(
            matches!(&failure, Some(Failure::Unreachable(why)) if why.contains("says nothing")),
            "{failure:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_too_soon_is_refused_without_a_try() {
        let reach = nowhere();
        assert!(reach.connect().await.is_err());
        let pause = reach.pause();
        assert!(reach.connect().await.is_err());
        assert_eq!(reach.pause(), pause, "the second did not try");
        tokio::time::advance(pause).await;
        assert!(reach.connect().await.is_err());
        assert!(reach.pause() > pause, "the third did");
    }
}

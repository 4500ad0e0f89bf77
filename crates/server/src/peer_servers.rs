//! Asks the other servers of the store for what only they know: their time series and workers.
//!
//! How a peer is reached is not known here: the operator's program gives an implementation of
//! [`PeerServer`]. A request about all servers asks each peer for its own answer only, so requests
//! never go in circles.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use taskyard_core::limits::PEERS_MAX;
use taskyard_wire::http::{MissingServer, SeriesAnswer, SeriesQuery, WorkersAnswer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::users::UserKey;

/// How long a peer may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a peer that did not answer in time is not asked again, so that it does not delay others.
const PAUSE_AFTER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of requests for which peers are asked at the same time: it bounds the memory of
/// their answers.
const REQUESTS_MAX: usize = 4;
/// Maximum number of these requests of one user, so that others can ask too.
const REQUESTS_PER_USER_MAX: usize = 2;

/// The answer of a peer, or why there is none.
pub type PeerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// Another server of the same store.
pub trait PeerServer: fmt::Debug + Send + Sync {
    /// Its URL, without a password.
    fn url(&self) -> String;

    /// Its own time series.
    fn series(&self, query: SeriesQuery) -> PeerFuture<'_, SeriesAnswer>;

    /// A page of the workers that it saw itself, after the one with this name, with those of
    /// internal tubes.
    fn workers(&self, after: Option<String>) -> PeerFuture<'_, WorkersAnswer>;
}

/// The other servers of the store.
#[derive(Debug)]
pub(crate) struct PeerServers {
    peers: Vec<KnownPeer>,
    requests: Semaphore,
    /// What limits the requests of each user that has any.
    user_requests: Mutex<HashMap<UserKey, Arc<Semaphore>>>,
    /// How long a peer may take to answer.
    answer_time_max: Duration,
    /// What identifies this server: it may be named among its peers.
    own_instance: String,
}

#[derive(Debug)]
struct KnownPeer {
    server: Arc<dyn PeerServer>,
    url: String,
    /// When it did not answer in time.
    timed_out: Mutex<Option<Instant>>,
}

/// The right of one request to ask peers.
struct PeerRequestPermit<'a> {
    _of_user: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'a>,
}

/// The answers of the peers.
#[derive(Debug)]
pub(crate) struct PeerAnswers<T> {
    /// The answers, with the URLs of their servers.
    pub answers: Vec<(String, T)>,
    /// The peers without an answer.
    pub missing: Vec<MissingServer>,
}

/// An answer that says which server gave it.
pub(crate) trait OfInstance {
    fn instance(&self) -> Option<&str>;
}

impl OfInstance for SeriesAnswer {
    fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }
}

impl OfInstance for WorkersAnswer {
    fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }
}

impl PeerServers {
    /// These peers of a server that is identified so; those over the maximum are not asked.
    pub fn new(peers: Vec<Arc<dyn PeerServer>>, own_instance: [u8; 16]) -> Self {
        let known = |server: Arc<dyn PeerServer>| KnownPeer {
            url: server.url(),
            server,
            timed_out: Mutex::default(),
        };
        PeerServers {
            peers: peers.into_iter().take(PEERS_MAX).map(known).collect(),
            requests: Semaphore::new(REQUESTS_MAX),
            user_requests: Mutex::default(),
            answer_time_max: ANSWER_TIME_MAX,
            own_instance: own_instance.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// What identifies this server.
    pub fn own_instance(&self) -> &str {
        &self.own_instance
    }

    /// The URLs of the peers.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|peer| &*peer.url)
    }

    /// The series of all peers, for a request of this user.
    pub async fn series(&self, user: UserKey, query: &SeriesQuery) -> PeerAnswers<SeriesAnswer> {
        let query = SeriesQuery { all: false, passive: true, ..query.clone() };
        self.ask(user, |peer| Some(peer.server.series(query.clone()))).await
    }

    /// A page of the workers of each of these peers, given by their URLs, each after a name.
    pub async fn workers(
        &self,
        user: UserKey,
        after: &BTreeMap<String, Option<String>>,
    ) -> PeerAnswers<WorkersAnswer> {
        self.ask(user, |peer| Some(peer.server.workers(after.get(&peer.url)?.clone()))).await
    }

    /// Asks peers at the same time, except those without a question. This server itself and servers
    /// that were asked under another URL already are left out.
    async fn ask<'a, T: OfInstance>(
        &'a self,
        user: UserKey,
        question: impl Fn(&'a KnownPeer) -> Option<PeerFuture<'a, T>>,
    ) -> PeerAnswers<T> {
        let mut found = PeerAnswers { answers: Vec::new(), missing: Vec::new() };
        let asked = self.peers.iter().filter_map(|peer| Some((peer, question(peer)?)));
        let (peers, questions): (Vec<_>, Vec<_>) = asked.unzip();
        if peers.is_empty() {
            return found;
        }
        let within = self.answer_time_max;
        let answers = match timeout(within, self.permit(user)).await {
            Ok(_permit) => {
                let asked = peers.iter().zip(questions);
                join_all(asked.map(|(peer, question)| peer.ask(question, within))).await
            }
            Err(_) => {
                let busy = || Err("too many requests ask for all servers at once".to_owned());
                peers.iter().map(|_| busy()).collect()
            }
        };
        for (peer, answer) in peers.into_iter().zip(answers) {
            match answer {
                Ok(answer) if self.is_repeated(&found, &answer) => {}
                Ok(answer) => found.answers.push((peer.url.clone(), answer)),
                Err(reason) => found.missing.push(MissingServer { url: peer.url.clone(), reason }),
            }
        }
        found
    }

    /// Waits until a request of this user may ask. Its other requests wait among themselves, so they
    /// do not keep those of other users waiting.
    async fn permit(&self, user: UserKey) -> Option<PeerRequestPermit<'_>> {
        let of_user = {
            let mut users = self.user_requests.lock().unwrap_or_else(PoisonError::into_inner);
            users.retain(|_, requests| Arc::strong_count(requests) > 1);
            let new = || Arc::new(Semaphore::new(REQUESTS_PER_USER_MAX));
            users.entry(user).or_insert_with(new).clone()
        };
        Some(PeerRequestPermit {
            _of_user: of_user.acquire_owned().await.ok()?,
            _of_all: self.requests.acquire().await.ok()?,
        })
    }

    fn is_repeated<T: OfInstance>(&self, found: &PeerAnswers<T>, answer: &T) -> bool {
        let Some(instance) = answer.instance() else { return false };
        instance == self.own_instance
            || found.answers.iter().any(|(_, other)| other.instance() == Some(instance))
    }
}

impl<T> PeerAnswers<T> {
    /// Moves the answers that are refused to the missing ones, with the reason.
    pub fn retain(&mut self, check: impl Fn(&str, &T) -> Result<(), String>) {
        let missing = &mut self.missing;
        self.answers.retain(|(url, answer)| match check(url, answer) {
            Ok(()) => true,
            Err(reason) => {
                missing.push(MissingServer { url: url.clone(), reason });
                false
            }
        });
    }

    /// The number of servers, with the one that asked.
    pub fn servers(&self) -> u32 {
        self.answers.len() as u32 + 1
    }
}

impl KnownPeer {
    async fn ask<T>(&self, question: PeerFuture<'_, T>, within: Duration) -> Result<T, String> {
        let late = || format!("no answer within {} s", within.as_secs());
        if self.lock().is_some_and(|when| when.elapsed() < PAUSE_AFTER_TIMEOUT) {
            return Err(late());
        }
        let answer = timeout(within, question).await;
        *self.lock() = answer.is_err().then(Instant::now);
        let answer = answer.unwrap_or_else(|_| Err(late()));
        if let Err(reason) = &answer {
            tracing::debug!(peer = self.url, reason, "a peer does not answer");
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.timed_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that gives the same answer each time; without one it never answers.
    #[derive(Debug)]
    struct TestPeer(&'static str, Option<Result<&'static str, &'static str>>);

    impl PeerServer for TestPeer {
        fn url(&self) -> String {
            self.0.into()
        }

        fn series(&self, query: SeriesQuery) -> PeerFuture<'_, SeriesAnswer> {
            assert!(!query.all, "a peer must not ask its peers in turn");
            assert!(query.passive, "a peer must not read the store for it");
            Box::pin(async {
                let answer = match self.1 {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                };
                let instance = Some(answer?.to_owned());
                Ok(SeriesAnswer { instance, ..SeriesAnswer::default() })
            })
        }

        fn workers(&self, _: Option<String>) -> PeerFuture<'_, WorkersAnswer> {
            Box::pin(std::future::ready(Err("not asked".into())))
        }
    }

    fn peers(peers: Vec<TestPeer>) -> PeerServers {
        let peers = peers.into_iter().map(|peer| Arc::new(peer) as Arc<dyn PeerServer>);
        PeerServers::new(peers.collect(), [0xab; 16])
    }

    const QUERY: SeriesQuery = SeriesQuery {
        tube: None,
        from: None,
        step: taskyard_wire::http::SeriesStep::Second,
        all: true,
        passive: false,
    };

    fn user(name: &str) -> UserKey {
        UserKey::listed(name)
    }

    #[tokio::test]
    async fn peers_without_an_answer_are_named_with_the_reason() {
        let mut peers = peers(vec![
            TestPeer("http://a", Some(Ok("1"))),
            TestPeer("http://b", Some(Err("connection refused"))),
            TestPeer("http://c", None),
        ]);
        peers.answer_time_max = Duration::ZERO;
        for _ in 0..2 {
            let found = peers.series(user("a"), &QUERY).await;
            assert_eq!(found.answers.len(), 1);
            let missing: Vec<_> =
                found.missing.iter().map(|one| (&*one.url, &*one.reason)).collect();
            let late = ("http://c", "no answer within 0 s");
            assert_eq!(missing, [("http://b", "connection refused"), late]);
        }
        let paused: Vec<_> = peers.peers.iter().map(|peer| peer.lock().is_some()).collect();
        assert_eq!(paused, [false, false, true]);
    }

    #[tokio::test]
    async fn a_server_is_counted_once_under_any_number_of_urls() {
        let own: &'static str = "abababababababababababababababab";
        let peers = peers(vec![
            TestPeer("http://self", Some(Ok(own))),
            TestPeer("http://a", Some(Ok("1"))),
            TestPeer("http://also-a", Some(Ok("1"))),
            TestPeer("http://b", Some(Ok("2"))),
        ]);
        let found = peers.series(user("a"), &QUERY).await;
        let urls: Vec<_> = found.answers.iter().map(|(url, _)| &**url).collect();
        assert_eq!(
            (urls, found.missing.len(), found.servers()),
            (vec!["http://a", "http://b"], 0, 3)
        );
    }

    // A user with little right could use up the requests of all.
    #[tokio::test]
    async fn the_requests_of_one_user_leave_room_for_others() {
        let peers = peers(vec![TestPeer("http://a", Some(Ok("1")))]);
        let mut held = Vec::new();
        for _ in 0..REQUESTS_PER_USER_MAX {
            held.push(peers.permit(user("a")).await.unwrap());
        }
        let waiting = futures_util::FutureExt::now_or_never(peers.permit(user("a")));
        assert!(waiting.is_none(), "it has to wait");
        let found = peers.series(user("b"), &QUERY).await;
        assert_eq!((found.answers.len(), found.missing.len()), (1, 0));
        drop(held);
        assert!(peers.permit(user("a")).await.is_some());
        let known = peers.user_requests.lock().unwrap().len();
        assert_eq!(known, 1, "users without requests are forgotten");
    }

    #[test]
    fn only_so_many_peers_are_asked() {
        let many = (0..PEERS_MAX + 5).map(|_| TestPeer("http://a", None)).collect();
        assert_eq!(peers(many).peers.len(), PEERS_MAX);
    }
}

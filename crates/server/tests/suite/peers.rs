//! Series and workers of several servers, on clocks that the test moves.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::{Client, Method};
use serde_json::{Value, json};
use taskyard_core::access::{NamePattern, Role};
use taskyard_core::{Command, Execute, Kind, Span, Timestamp, TubeName, TubeOptions};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_server::{Config, Grant, Grants, PeerFuture, PeerServer, User, Users};
use taskyard_store::MemoryStore;
use taskyard_testkit::recorded_output::register_secret;
use taskyard_wire::http::{SeriesAnswer, SeriesQuery, WorkerSummary, WorkersAnswer};

use crate::fixture::{Answer, Fixture};

const START: i64 = 1_700_000_040;

/// A server at this address, which needs no token.
#[derive(Debug)]
struct PlainPeer {
    url: String,
    client: Client,
}

impl PlainPeer {
    fn of(fixture: &Fixture) -> Arc<dyn PeerServer> {
        let url = format!("http://{}", fixture.address);
        Arc::new(PlainPeer { url, client: fixture.client.clone() })
    }

    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, String> {
        let url = reqwest::Url::parse_with_params(&format!("{}{path}", self.url), query).unwrap();
        let failed = |error: reqwest::Error| error.to_string();
        let answer = self.client.get(url).send().await.map_err(failed)?;
        answer.error_for_status().map_err(failed)?.json().await.map_err(failed)
    }
}

impl PeerServer for PlainPeer {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn series(&self, query: SeriesQuery) -> PeerFuture<'_, SeriesAnswer> {
        Box::pin(async move { self.get("/v1/series", &query.parameters()).await })
    }

    fn workers(&self, after: Option<String>) -> PeerFuture<'_, WorkersAnswer> {
        let mut query = vec![("internal", "true".into()), ("running", "false".into())];
        query.extend(after.map(|after| ("after", after)));
        Box::pin(async move { self.get("/v1/workers", &query).await })
    }
}

/// A server of its own store whose clock begins with this second.
async fn server(seconds: i64, change: impl FnOnce(&mut Config)) -> (Fixture, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(seconds * 1_000_000)));
    let store = Box::new(MemoryStore::default());
    let engine = Engine::start(store, clock.clone(), Settings::default());
    (Fixture::over(engine, change).await, clock)
}

async fn put(fixture: &Fixture, tube: &str, count: usize) {
    let tasks = vec![json!({ "data": 1 }); count];
    fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": tasks })).await;
}

/// Puts and takes a task as this worker, and acknowledges it.
async fn work(fixture: &Fixture, tube: &str, worker: &str) {
    put(fixture, tube, 1).await;
    let path = format!("/v1/tubes/{tube}");
    let taken = fixture.done(&format!("{path}/take"), json!({ "worker": worker })).await;
    let (id, lease) = (&taken["tasks"][0]["id"], &taken["tasks"][0]["lease"]);
    fixture.done(&format!("{path}/ack"), json!({ "id": id, "lease": lease })).await;
}

async fn get(fixture: &Fixture, path: &str) -> Value {
    let answer = fixture.get(path).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn series_of_peers_are_added() {
    let (peer, peer_clock) = server(START - 2, |_| {}).await;
    let peers = vec![PlainPeer::of(&peer)];
    let (own, own_clock) = server(START, |config| config.peers = peers).await;
    put(&peer, "mail", 5).await;
    peer_clock.advance(Span::from_secs(2));
    put(&peer, "mail", 10).await;
    put(&own, "mail", 1).await;
    for clock in [&own_clock, &peer_clock] {
        clock.advance(Span::from_secs(2));
    }
    for query in ["?tube=mail", "?"] {
        let alone = get(&own, &format!("/v1/series{query}")).await;
        assert_eq!((&alone["puts"], alone.get("servers")), (&json!([1, 0]), None));
        let all = get(&own, &format!("/v1/series{query}&all=true")).await;
        assert_eq!(all["from"], json!((START - 2) as f64));
        assert_eq!((&all["puts"], &all["servers"]), (&json!([5, 0, 11, 0]), &json!(2)));
        // Both would read the same store, which the peer has changed most.
        assert_eq!((&all["ready"], all.get("missing")), (&json!([5, 5, 15, 15]), None));
    }
    let newest = get(&own, &format!("/v1/series?all=true&from={}", START + 1)).await;
    assert_eq!((&newest["from"], &newest["puts"]), (&json!((START + 1) as f64), &json!([0])));
    // The peer itself has no peers.
    let other = get(&peer, "/v1/series?all=true").await;
    assert_eq!((&other["puts"], &other["servers"]), (&json!([5, 0, 10, 0]), &json!(1)));
    assert_ne!(other["instance"], newest["instance"]);
}

#[tokio::test]
async fn peers_that_do_not_answer_or_have_another_time_are_named() {
    let (late, _clock) = server(START - 600, |_| {}).await;
    let (gone, _clock) = server(START, |_| {}).await;
    let peers = vec![PlainPeer::of(&late), PlainPeer::of(&gone)];
    let urls = [peers[0].url(), peers[1].url()];
    let (own, clock) = server(START, |config| config.peers = peers).await;
    put(&own, "mail", 1).await;
    clock.advance(Span::from_secs(1));
    gone.stop().await.unwrap().unwrap();
    let all = get(&own, "/v1/series?all=true").await;
    assert_eq!((&all["puts"], &all["servers"]), (&json!([1]), &json!(1)));
    let missing = all["missing"].as_array().unwrap();
    let found: Vec<_> = missing.iter().map(|one| one["url"].as_str().unwrap()).collect();
    assert_eq!(found, [urls[1].as_str(), urls[0].as_str()]);
    let reason = missing[1]["reason"].as_str().unwrap();
    assert!(reason.contains("601 s behind"), "{reason}");
    let workers = get(&own, "/v1/workers?all=true").await;
    assert_eq!((&workers["missing"][0]["url"], &workers["servers"]), (&json!(urls[1]), &json!(2)));
}

#[tokio::test]
async fn workers_of_peers_are_added() {
    let (peer, _clock) = server(START, |_| {}).await;
    let peers = vec![PlainPeer::of(&peer)];
    let own = Fixture::with(|config| config.peers = peers).await;
    work(&own, "mail", "both").await;
    for worker in ["both", "far"] {
        work(&peer, "sms", worker).await;
    }
    work(&peer, "taskyard.x", "internal").await;
    let alone = get(&own, "/v1/workers").await;
    assert_eq!(alone["workers"].as_array().unwrap().len(), 1);
    // The clock of the peer stands in the past: workers without tasks are forgotten after an hour.
    let all = get(&own, "/v1/workers?all=true").await;
    assert_eq!(all["workers"].as_array().unwrap().len(), 1);
    let peer = Fixture::new().await;
    let peers = vec![PlainPeer::of(&peer)];
    let own = Fixture::with(|config| config.peers = peers).await;
    work(&own, "mail", "both").await;
    for worker in ["both", "far"] {
        work(&peer, "sms", worker).await;
    }
    work(&peer, "taskyard.x", "internal").await;
    let all = get(&own, "/v1/workers?all=true").await;
    let workers = all["workers"].as_array().unwrap();
    let shown: Vec<_> =
        workers.iter().map(|one| (&one["name"], &one["tubes"], &one["done"])).collect();
    let both = (&json!("both"), &json!(["mail", "sms"]), &json!(2));
    let far = (&json!("far"), &json!(["sms"]), &json!(1));
    assert_eq!(shown, [both, far]);
    assert_eq!((&workers[1]["address"], &all["servers"]), (&json!("127.0.0.1"), &json!(2)));
    let internal = get(&own, "/v1/workers?all=true&internal=true").await;
    assert_eq!(internal["workers"].as_array().unwrap().len(), 3);
    let first = get(&own, "/v1/workers?all=true&limit=1").await;
    assert_eq!((&first["workers"][0]["done"], &first["next"]), (&json!(2), &json!("both")));
    let second = get(&own, "/v1/workers?all=true&limit=1&after=both").await;
    assert_eq!((&second["workers"][0]["name"], second.get("next")), (&json!("far"), None));
    let seen = get(&peer, "/v1/workers?running=false").await;
    assert_eq!(seen["workers"].as_array().unwrap().len(), 2);
}

/// A list of a peer has several pages: no worker may be shown before all of its counts are known.
#[tokio::test]
async fn pages_of_peers_are_put_together() {
    let peer = Fixture::new().await;
    let peers = vec![PlainPeer::of(&peer)];
    let own = Fixture::with(|config| config.peers = peers).await;
    peer.done("/v1/tubes/sms/put", json!({ "tasks": [] })).await;
    for number in 0..1_001 {
        let take = json!({ "worker": format!("w{number:04}") });
        peer.done("/v1/tubes/sms/take", take).await;
    }
    work(&own, "mail", "z").await;
    let first = get(&own, "/v1/workers?all=true").await;
    assert_eq!(first["workers"].as_array().unwrap().len(), 1_000);
    assert_eq!(first["next"], "w0999");
    let second = get(&own, "/v1/workers?all=true&after=w0999").await;
    let names: Vec<_> =
        second["workers"].as_array().unwrap().iter().map(|one| one["name"].as_str()).collect();
    assert_eq!((names, second.get("next")), (vec![Some("w1000"), Some("z")], None));
}

const TOKEN: &str = "token-of-the-mail-reader";

/// A server with these peers and a user who may read the tube mail.
async fn reader_of_mail(peers: Vec<Arc<dyn PeerServer>>) -> Fixture {
    register_secret(TOKEN);
    let names = vec![NamePattern::new("mail").unwrap()];
    let grants = Grants::List(vec![Grant::roles(&[Role::Read], names)]);
    Fixture::with(|config| {
        config.users = Users::new(vec![User::with_token("reader", TOKEN, grants)]);
        config.peers = peers;
    })
    .await
}

#[tokio::test]
async fn a_user_sees_of_peers_what_it_may_see() {
    let peer = Fixture::new().await;
    for (tube, worker) in [("mail", "a"), ("mail", "b"), ("pay", "b"), ("pay", "c")] {
        work(&peer, tube, worker).await;
    }
    let own = reader_of_mail(vec![PlainPeer::of(&peer)]).await;
    let ask = async |path: &str| {
        let request = own.request(Method::GET, path).bearer_auth(TOKEN);
        Answer::of(request.send().await.unwrap()).await
    };
    let all = ask("/v1/workers?all=true").await;
    let workers = all.body["workers"].as_array().unwrap();
    let shown: Vec<_> =
        workers.iter().map(|one| (&one["name"], &one["tubes"], &one["done"])).collect();
    // The counts of a worker are not divided by tubes.
    let a = (&json!("a"), &json!(["mail"]), &json!(1));
    let b = (&json!("b"), &json!(["mail"]), &json!(0));
    assert_eq!(shown, [a, b]);
    ask("/v1/series?all=true").await.refused(403, "forbidden");
    ask("/v1/series?all=true&tube=pay").await.refused(403, "forbidden");
    // Where a peer is, and why it does not answer, is not for every user.
    peer.stop().await.unwrap().unwrap();
    let tube = TubeName::new("mail").unwrap();
    let options = TubeOptions::new(Kind::FifoTtl);
    let create = Command::CreateTube { tube, options, if_not_exists: false };
    own.engine.execute(vec![create]).await.remove(0).unwrap();
    for path in ["/v1/workers?all=true", "/v1/series?all=true&tube=mail"] {
        let answer = ask(path).await;
        let missing = &answer.body["missing"][0];
        assert_eq!(missing["url"], "peer 1", "{}", answer.body);
        let reason = missing["reason"].as_str().unwrap();
        assert!(reason.contains("users who may see the whole server"), "{reason}");
    }
}

// The `next` of a peer was shown as it is: the name of a worker that the user may not see.
#[tokio::test]
async fn no_page_ends_with_a_worker_that_the_user_may_not_see() {
    let peer = Fixture::new().await;
    for tube in ["mail", "pay"] {
        peer.done(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": [] })).await;
    }
    let take = async |tube: &str, worker: &str| {
        let path = format!("/v1/tubes/{tube}/take");
        peer.done(&path, json!({ "worker": worker })).await;
    };
    for number in 0..1_001 {
        take("pay", &format!("w{number:04}")).await;
    }
    take("mail", "z").await;
    let own = reader_of_mail(vec![PlainPeer::of(&peer)]).await;
    let page = async |path: &str| {
        let request = own.request(Method::GET, path).bearer_auth(TOKEN);
        let answer = Answer::of(request.send().await.unwrap()).await.body;
        let workers = answer["workers"].as_array().unwrap();
        let names: Vec<_> = workers.iter().map(|one| one["name"].clone()).collect();
        (names, answer.get("next").cloned())
    };
    assert_eq!(page("/v1/workers?all=true").await, (vec![json!("z")], None));
    take("mail", "a").await;
    let first = page("/v1/workers?all=true").await;
    assert_eq!(first, (vec![json!("a")], Some(json!("a"))));
    assert_eq!(page("/v1/workers?all=true&after=a").await, (vec![json!("z")], None));
}

/// A peer with this list of workers.
#[derive(Debug)]
struct ListPeer(WorkersAnswer);

impl PeerServer for ListPeer {
    fn url(&self) -> String {
        "http://list".into()
    }

    fn series(&self, _: SeriesQuery) -> PeerFuture<'_, SeriesAnswer> {
        Box::pin(std::future::ready(Err("x".repeat(10_000))))
    }

    fn workers(&self, _: Option<String>) -> PeerFuture<'_, WorkersAnswer> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

#[tokio::test]
async fn what_a_peer_answers_is_checked() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let worker = |name: &str, address: &str, version: &str| WorkerSummary {
        address: Some(address.into()),
        version: Some(version.into()),
        tubes: vec!["mail".into()],
        last_seen: Some(now),
        ..WorkerSummary::new(name)
    };
    let workers = vec![
        worker("good", "10.0.0.7", "1.2.0"),
        worker("wrong", "\u{1b}[2J", "<script>"),
        worker("line\nbreak", "10.0.0.7", "1.2.0"),
    ];
    let list = WorkersAnswer { workers, ..WorkersAnswer::default() };
    let answer = async |list: WorkersAnswer, path: &str| {
        let peers: Vec<Arc<dyn PeerServer>> = vec![Arc::new(ListPeer(list))];
        get(&Fixture::with(|config| config.peers = peers).await, path).await
    };
    let shown = answer(list.clone(), "/v1/workers?all=true").await;
    let workers = shown["workers"].as_array().unwrap();
    assert_eq!((workers.len(), &shown["servers"]), (2, &json!(2)));
    let origin = |at: usize| (workers[at].get("address"), workers[at].get("version"));
    assert_eq!(origin(0), (Some(&json!("10.0.0.7")), Some(&json!("1.2.0"))));
    assert_eq!(origin(1), (None, None));
    for next in ["line\nbreak", "", "a"] {
        let list = WorkersAnswer { next: Some(next.into()), ..list.clone() };
        let shown = answer(list, "/v1/workers?all=true&after=b").await;
        assert_eq!((&shown["servers"], shown.get("next")), (&json!(1), None));
        let reason = shown["missing"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("does not have the expected form"), "{reason}");
    }
    let series = answer(list, "/v1/series?all=true").await;
    let reason = series["missing"][0]["reason"].as_str().unwrap();
    assert!((100..=300).contains(&reason.len()), "{}", reason.len());
}

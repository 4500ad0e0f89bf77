//! Schedules by the Rust client, over every transport.

use std::time::Duration;

use taskyard::{CatchUp, Client, Error, Kind, Schedule, Span, TimingRule, TubeOptions, new_task};
use taskyard_core::access::{NamePattern, Role};
use taskyard_server::{Config, Grant, Grants, Token, User, Users};
use taskyard_store::MemoryStore;
use taskyard_testkit::recorded_output::register_secret;
use taskyard_testkit::server::{TestServer, clock, config};

const MINUTELY: TimingRule = TimingRule::Every { every: Span::from_secs(60), start: None };

/// The calls that all transports have.
async fn play(client: &Client) {
    client.create("jobs", TubeOptions::new(Kind::FifoTtl)).await.unwrap();
    let schedules = client.schedules();
    let rule = TimingRule::Cron { cron: "0 9 * * 1-5".into(), zone: "Europe/Berlin".into() };
    let mut daily = Schedule::new("daily", "jobs", new_task(&[1, 2]).unwrap(), &rule).unwrap();
    daily.catch_up = CatchUp::Last;
    assert!(schedules.set(daily.clone()).await.unwrap());
    assert!(!schedules.set(daily.clone()).await.unwrap());
    let shown = schedules.get("daily").await.unwrap();
    assert!(shown.next.is_some());
    assert_eq!(Schedule { next: None, ..shown.clone() }, daily);
    assert!(schedules.pause("daily").await.unwrap().paused);
    assert!(!schedules.resume("daily").await.unwrap().paused);
    for number in 0..3 {
        let job =
            Schedule::new(&format!("job {number}"), "jobs", new_task("x").unwrap(), &MINUTELY);
        schedules.set(job.unwrap()).await.unwrap();
    }
    let names: Vec<_> = schedules.list().await.unwrap();
    let names: Vec<_> = names.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["daily", "job 0", "job 1", "job 2"]);
    let placed = schedules.run("daily").await.unwrap();
    let task = client.take("jobs", Duration::ZERO).await.unwrap().unwrap();
    assert_eq!((task.id(), task.data::<Vec<u8>>().unwrap()), (placed.id, vec![1, 2]));
    schedules.remove("job 1").await.unwrap();
    assert_eq!(schedules.list().await.unwrap().len(), 3);
    let missing: Error = schedules.get("job 1").await.unwrap_err();
    assert!(missing.to_string().contains("schedule 'job 1' does not exist"), "{missing}");
    let wrong = TimingRule::Cron { cron: "0 0 30 2 *".into(), zone: "UTC".into() };
    let wrong = Schedule::new("wrong", "jobs", new_task("x").unwrap(), &wrong).unwrap();
    let refused: Error = schedules.set(wrong).await.unwrap_err();
    assert!(refused.to_string().contains("'cron' is refused"), "{refused}");
}

#[tokio::test]
async fn over_http() {
    let server = TestServer::in_memory().await;
    let client = server.client();
    play(&client).await;
    assert_eq!(client.schedules().next_times("daily", 7).await.unwrap().len(), 7);
    server.clock.advance(Span::from_secs(60));
    server.engine.waiting().await;
    assert_eq!(client.schedules().get("job 0").await.unwrap().fired, 1);
}

#[tokio::test]
async fn over_iproto() {
    let server = TestServer::in_memory().await;
    let client = Client::new(server.connect());
    play(&client).await;
    assert_eq!(client.schedules().next_times("daily", 7).await.unwrap().len(), 7);
}

const ADMIN_TOKEN: &str = "schedules-token-of-the-server";

/// The secret of the user with this role.
fn secret_of(role: Role) -> String {
    format!("schedules-secret-of-{}", role.name())
}

/// The user with this role: over HTTP with a token, over iproto with a password.
fn users_of(role: Role) -> [User; 2] {
    let grants = || {
        let names = vec![NamePattern::new("*").expect("the pattern of all names")];
        Grants::List(vec![Grant::roles(&[role], names)])
    };
    let (name, secret) = (role.name(), secret_of(role));
    register_secret(&secret);
    let http = User::with_token(&format!("{name} over http"), &secret, grants());
    [http, User::new(name, &secret, grants())]
}

// The client read the schedule and put what it was shown. A user who may put but not peek is shown nil instead of the
// payload, and nil was put.
#[tokio::test]
async fn a_producer_runs_a_schedule_whose_payload_is_hidden() {
    register_secret(ADMIN_TOKEN);
    let users = [Role::Produce, Role::Read].into_iter().flat_map(users_of).collect();
    let token = Token::new(ADMIN_TOKEN).ok();
    let config = Config { users: Users::new(users), token, ..config() };
    let server = TestServer::start(Box::new(MemoryStore::default()), clock(), config).await;
    let admin = server.client().with_token(ADMIN_TOKEN).unwrap();
    admin.create("jobs", TubeOptions::new(Kind::FifoTtl)).await.unwrap();
    let job = Schedule::new("job", "jobs", new_task("the payload").unwrap(), &MINUTELY).unwrap();
    admin.schedules().set(job).await.unwrap();
    let over_http = |role| server.client().with_token(&secret_of(role)).unwrap();
    let over_iproto = async |role: Role| {
        let (name, secret) = (role.name(), secret_of(role));
        Client::open(&format!("iproto://{name}:{secret}@{}", server.iproto)).await.unwrap()
    };
    for producer in [over_http(Role::Produce), over_iproto(Role::Produce).await] {
        let placed = producer.schedules().run("job").await.unwrap();
        let task = admin.take("jobs", Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(task.id(), placed.id, "{producer:?}");
        assert_eq!(task.data::<String>().unwrap(), "the payload", "{producer:?}");
        let missing: Error = producer.schedules().run("none").await.unwrap_err();
        assert!(missing.to_string().contains("schedule 'none' does not exist"), "{missing}");
    }
    for reader in [over_http(Role::Read), over_iproto(Role::Read).await] {
        let refused: Error = reader.schedules().run("job").await.unwrap_err();
        let why = "the role 'produce' for tube 'jobs' is needed to put";
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert!(admin.take("jobs", Duration::ZERO).await.unwrap().is_none());
}

#[tokio::test]
async fn embedded() {
    let client = Client::open("memory:").await.unwrap();
    play(&client).await;
    let times = client.schedules().next_times("daily", 7).await.unwrap();
    assert!(times.len() == 7 && times.is_sorted());
    client.close().await.unwrap();
}

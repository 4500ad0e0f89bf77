//! Schedules by the Rust client, over every transport.

use taskyard::{CatchUp, Client, Error, Kind, Schedule, Span, TimingRule, TubeOptions, new_task};
use taskyard_testkit::server::TestServer;

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
    let task = client.take("jobs", std::time::Duration::ZERO).await.unwrap().unwrap();
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

#[tokio::test]
async fn embedded() {
    let client = Client::open("memory:").await.unwrap();
    play(&client).await;
    let times = client.schedules().next_times("daily", 7).await.unwrap();
    assert!(times.len() == 7 && times.is_sorted());
    client.close().await.unwrap();
}

//! Access control over iproto: a worker needs access to the tubes of its queues alone.

use std::sync::Arc;
use std::time::Duration;

use taskyard::{Client, Iproto, TubeOptions};
use taskyard_core::{Command, Execute, Kind, Reply, TubeName};
use taskyard_server::{Grant, Grants, User, Users, Verb};
use taskyard_store::MemoryStore;
use taskyard_wire::http::REPORTS_TUBE;
use taskyard_worker::testing::{ManualTimer, RunningWorker};
use taskyard_worker::{PutOptions, TypedTask, Worker};
use tokio::task::yield_now;

use crate::recording_handler::{Act, RecordingHandler, mail};
use taskyard_testkit::server::{self, TestServer, block_on};

/// A server with these users, whose passwords are `x`.
async fn server_with_users(users: Vec<(&str, Vec<Grant>)>) -> TestServer {
    let user = |(name, grants): (&str, _)| User::new(name, "x", Grants::List(grants));
    let mut config = server::config();
    config.iproto.as_mut().unwrap().users = Users::new(users.into_iter().map(user).collect());
    TestServer::start(Box::new(MemoryStore::default()), server::clock(), config).await
}

/// These verbs on the tubes of the contract.
fn own(verbs: &[Verb]) -> Vec<Grant> {
    ["emails", "notifications"].map(|tube| Grant::new(tube, verbs)).into()
}

fn as_user(test_server: &TestServer, user: &str) -> Iproto {
    Iproto::new(&format!("iproto://{user}:x@{}", test_server.iproto)).unwrap()
}

fn denied(why: &impl ToString, user: &str) {
    let why = why.to_string();
    assert!(why.contains(&format!("denied for user '{user}'")), "{why}");
}

/// A worker needed `execute` on all tubes, with which it could also empty every other tube.
#[test]
fn a_worker_and_a_producer_need_access_to_their_tubes_alone() {
    block_on(async {
        let work = [Verb::Take, Verb::Ack, Verb::Release, Verb::Touch, Verb::Bury];
        let test_server = server_with_users(vec![
            ("worker", own(&work)),
            ("producer", own(&[Verb::Put])),
            ("first", own(&[Verb::Create])),
        ])
        .await;
        let timer = Arc::new(ManualTimer::new(test_server.clock.clone()));
        let recorder = RecordingHandler::new(Act::Done);
        let worker = |user: &str| {
            let worker = Worker::builder(user, as_user(&test_server, user), recorder.handlers());
            worker.timer(timer.clone()).build().unwrap()
        };
        denied(&worker("worker").init().await.unwrap_err(), "worker");
        worker("first").init().await.unwrap();
        worker("worker").init().await.unwrap();

        let producer = as_user(&test_server, "producer");
        mail("ann").put(&producer, PutOptions::default()).await.unwrap();
        let running = RunningWorker::start(&worker("worker"), timer.clone()).await;
        let seen = Client::new(as_user(&test_server, "worker"));
        while seen.stats("emails").await.unwrap().tasks.total() > 0 {
            yield_now().await;
        }
        running.stop().await;
        assert_eq!(recorder.receivers(), ["ann"]);

        let taken = Client::new(producer).take("emails", Duration::ZERO).await;
        denied(&taken.unwrap_err(), "producer");
        denied(&seen.put("emails", "x").await.unwrap_err(), "worker");
        denied(&seen.put("other", "x").await.unwrap_err(), "worker");
        denied(&seen.stats("other").await.unwrap_err(), "worker");
        test_server.stop().await;
    });
}

/// A batch with a command on another tube, or one that shows deliveries, is refused as a whole.
#[test]
fn one_denied_command_denies_the_batch() {
    block_on(async {
        let test_server =
            server_with_users(vec![("lim", vec![Grant::new("emails", &[Verb::Put])])]).await;
        let emails = TubeName::new("emails").unwrap();
        let options = TubeOptions::new(Kind::FifoTtl);
        let create = Command::CreateTube { tube: emails.clone(), options, if_not_exists: false };
        test_server.engine.execute(vec![create]).await.pop().unwrap().unwrap();
        let lim = as_user(&test_server, "lim");
        let put = Client::new(lim.clone());
        put.put("emails", "x").await.unwrap();
        let one = Command::Tubes { tube: Some(emails.clone()) };
        for other in [
            Command::Peek { tube: emails.clone(), ids: Vec::new() },
            Command::Deliveries { tube: emails.clone(), count: 1 },
            Command::ReleaseAll { tube: emails.clone() },
            Command::DropTube { tube: emails.clone() },
            Command::Tick { limit: 1, seed: 0 },
        ] {
            let replies = lim.execute(vec![one.clone(), other.clone()]).await;
            for reply in replies {
                denied(&reply.unwrap_err(), "lim");
            }
        }
        // A list has the tubes that the user may see.
        let secret = Command::CreateTube {
            tube: TubeName::new("secret").unwrap(),
            options: TubeOptions::new(Kind::Fifo),
            if_not_exists: false,
        };
        test_server.engine.execute(vec![secret]).await.pop().unwrap().unwrap();
        for reply in lim.execute(vec![one, Command::Tubes { tube: None }]).await {
            let Ok(Reply::Tubes(tubes)) = reply else { panic!("{reply:?}") };
            assert_eq!(tubes.iter().map(|tube| tube.name.as_str()).collect::<Vec<_>>(), ["emails"]);
        }
        test_server.stop().await;
    });
}

/// A worker without access to the manager's tubes works without a plan; one with access reports.
#[test]
fn reporting_needs_access_to_the_tubes_of_the_manager() {
    block_on(async {
        let verbs = [Verb::Create, Verb::Put, Verb::Take, Verb::Ack, Verb::Release, Verb::Touch];
        let test_server = server_with_users(vec![
            ("alone", own(&verbs)),
            (
                "led",
                [own(&verbs), vec![Grant::new("taskyard.manager.*", &[Verb::Execute])]].concat(),
            ),
        ])
        .await;
        let timer = Arc::new(ManualTimer::new(test_server.clock.clone()));
        let recorder = RecordingHandler::new(Act::Done);
        let client = Client::new(test_server.engine.clone());
        for (user, reports) in [("alone", false), ("led", true)] {
            let worker =
                Worker::builder(user, as_user(&test_server, user), recorder.handlers()).managed();
            let worker = worker.timer(timer.clone()).build().unwrap();
            let running = RunningWorker::start(&worker, timer.clone()).await;
            mail(user).put(&as_user(&test_server, user), PutOptions::default()).await.unwrap();
            while client.stats("emails").await.unwrap().tasks.total() > 0 {
                yield_now().await;
            }
            while reports && client.stats(REPORTS_TUBE).await.is_ok_and(|tube| tube.calls.put == 0)
            {
                yield_now().await;
            }
            running.stop().await;
            assert_eq!(client.stats(REPORTS_TUBE).await.is_ok(), reports, "{user}");
        }
        assert_eq!(recorder.receivers(), ["alone", "led"]);
        test_server.stop().await;
    });
}

//! Users of iproto: who may use a queue's tube can work on it, and sees no other.

use std::sync::Arc;
use std::time::Duration;

use taskyard::worker::kit::{HandTimer, Running};
use taskyard::worker::{PutOptions, TypedTask, Worker};
use taskyard::{Client, Iproto, TubeOptions};
use taskyard_core::{Command, Execute, Kind, TubeName};
use taskyard_server::{Grant, Grants, User, Users, Verb};
use taskyard_store::MemoryStore;
use taskyard_wire::http::REPORTS_TUBE;
use tokio::task::yield_now;

use super::post::{Act, Post, mail};
use crate::rig::{self, Rig, block_on};

/// A server that knows these users, whose passwords are `x`.
async fn guarded(users: Vec<(&str, Vec<Grant>)>) -> Rig {
    let user = |(name, grants): (&str, _)| User::new(name, "x", Grants::List(grants));
    let mut config = rig::config();
    config.iproto.as_mut().unwrap().users = Users::new(users.into_iter().map(user).collect());
    Rig::start(Box::new(MemoryStore::default()), rig::clock(), config).await
}

/// These verbs on the tubes of the contract.
fn own(verbs: &[Verb]) -> Vec<Grant> {
    ["emails", "notifications"].map(|tube| Grant::new(tube, verbs)).into()
}

fn as_user(rig: &Rig, user: &str) -> Iproto {
    Iproto::new(&format!("iproto://{user}:x@{}", rig.iproto)).unwrap()
}

fn denied(why: &impl ToString, user: &str) {
    let why = why.to_string();
    assert!(why.contains(&format!("denied for user '{user}'")), "{why}");
}

/// Whoever wanted to run a worker needed `execute` on all tubes, with which it could empty every other tube as well.
#[test]
fn a_worker_and_a_producer_need_their_own_tube_alone() {
    block_on(async {
        let work = [Verb::Take, Verb::Ack, Verb::Release, Verb::Touch, Verb::Bury];
        let rig = guarded(vec![
            ("worker", own(&work)),
            ("maker", own(&[Verb::Put])),
            ("first", own(&[Verb::Create])),
        ])
        .await;
        let timer = Arc::new(HandTimer::new(rig.clock.clone()));
        let post = Post::new(Act::Done);
        let worker = |user: &str| {
            let worker = Worker::builder(user, as_user(&rig, user), post.handlers());
            worker.timer(timer.clone()).build().unwrap()
        };
        denied(&worker("worker").init().await.unwrap_err(), "worker");
        worker("first").init().await.unwrap();
        worker("worker").init().await.unwrap();

        let maker = as_user(&rig, "maker");
        mail("ann").put(&maker, PutOptions::default()).await.unwrap();
        let running = Running::start(&worker("worker"), timer.clone()).await;
        let seen = Client::new(as_user(&rig, "worker"));
        while seen.stats("emails").await.unwrap().tasks.total() > 0 {
            yield_now().await;
        }
        running.stop().await;
        assert_eq!(post.receivers(), ["ann"]);

        let taken = Client::new(maker).take("emails", Duration::ZERO).await;
        denied(&taken.unwrap_err(), "maker");
        denied(&seen.put("emails", "x").await.unwrap_err(), "worker");
        denied(&seen.put("other", "x").await.unwrap_err(), "worker");
        denied(&seen.stats("other").await.unwrap_err(), "worker");
        rig.stop().await;
    });
}

/// What is about other tubes, or shows who holds what, is refused as a whole: nothing of the batch is done.
#[test]
fn one_command_too_many_and_none_is_done() {
    block_on(async {
        let rig = guarded(vec![("lim", vec![Grant::new("emails", &[Verb::Put])])]).await;
        let emails = TubeName::new("emails").unwrap();
        let options = TubeOptions::new(Kind::FifoTtl);
        let create = Command::CreateTube { tube: emails.clone(), options, if_not_exists: false };
        rig.engine.execute(vec![create]).await.pop().unwrap().unwrap();
        let lim = as_user(&rig, "lim");
        let put = Client::new(lim.clone());
        put.put("emails", "x").await.unwrap();
        let one = Command::Tubes { tube: Some(emails.clone()) };
        for other in [
            Command::Tubes { tube: None },
            Command::Peek { tube: emails.clone(), ids: Vec::new() },
            Command::Deliveries { tube: emails.clone(), count: 1 },
            Command::ReleaseAll { tube: emails.clone() },
            Command::DropTube { tube: emails.clone() },
            Command::Tick { limit: 1 },
        ] {
            let replies = lim.execute(vec![one.clone(), other.clone()]).await;
            for reply in replies {
                denied(&reply.unwrap_err(), "lim");
            }
        }
        assert!(lim.execute(vec![one]).await.pop().unwrap().is_ok());
        rig.stop().await;
    });
}

/// A worker that may not use the manager's tubes works without a plan; one that may use them reports.
#[test]
fn the_manager_needs_its_own_tubes() {
    block_on(async {
        let everyday = [Verb::Create, Verb::Put, Verb::Take, Verb::Ack, Verb::Release, Verb::Touch];
        let rig = guarded(vec![
            ("alone", own(&everyday)),
            (
                "led",
                [own(&everyday), vec![Grant::new("taskyard.manager.*", &[Verb::Execute])]].concat(),
            ),
        ])
        .await;
        let timer = Arc::new(HandTimer::new(rig.clock.clone()));
        let post = Post::new(Act::Done);
        let client = Client::new(rig.engine.clone());
        for (user, reports) in [("alone", false), ("led", true)] {
            let worker = Worker::builder(user, as_user(&rig, user), post.handlers()).managed();
            let worker = worker.timer(timer.clone()).build().unwrap();
            let running = Running::start(&worker, timer.clone()).await;
            mail(user).put(&as_user(&rig, user), PutOptions::default()).await.unwrap();
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
        assert_eq!(post.receivers(), ["alone", "led"]);
        rig.stop().await;
    });
}

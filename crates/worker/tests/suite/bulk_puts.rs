//! Typed tasks that are put together: one command, all or none.

use std::time::Duration;

use taskyard::State;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Error, TaskId};
use taskyard_testkit::server::block_on;
use taskyard_worker::testing::TestKit;
use taskyard_worker::{PutOptions, TypedTask};

use crate::faulty_queue::FaultyQueue;
use crate::queues::EmailsTask;
use crate::recording_handler::{Act, RecordingHandler, client, mail};

/// A kit with the queues of the contract.
async fn kit_with_queues() -> TestKit {
    let kit = TestKit::new();
    let recorder = RecordingHandler::new(Act::Done);
    recorder.worker(&kit).build().unwrap().init().await.unwrap();
    kit
}

#[test]
fn many_tasks_are_put_by_one_command() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        let queue = FaultyQueue::new(kit.queue().clone());
        let mails: Vec<_> = (0..100).map(|n| mail(&n.to_string())).collect();
        let later = PutOptions::after(Duration::from_secs(5));
        let ids = EmailsTask::put_many(&queue, &mails, later).await.unwrap();
        assert_eq!(queue.commands("put"), 1);
        assert_eq!(ids.iter().map(|id| id.0).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        assert_eq!(kit.tube("emails").await.stats.tasks.delayed, 100, "each has the options");
        let running = kit.start(&worker).await;
        kit.advance(Duration::from_secs(5));
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 100).await;
        let wanted: Vec<_> = mails.iter().map(|mail| mail.to.clone()).collect();
        assert_eq!(recorder.receivers(), wanted);
        let none = EmailsTask::put_many(&queue, &[], PutOptions::default()).await.unwrap();
        assert_eq!((none.len(), queue.commands("put")), (0, 1), "nothing is sent");
        running.stop().await;
    });
}

#[test]
fn each_task_has_its_own_options() {
    block_on(async {
        let kit = kit_with_queues().await;
        let queue = FaultyQueue::new(kit.queue().clone());
        let keyed = |key| PutOptions::keyed(key).unwrap();
        let mails = [
            (mail("ann"), keyed("welcome:ann")),
            (mail("ben"), PutOptions::after(Duration::from_secs(60))),
            (mail("ann again"), keyed("welcome:ann")),
            (mail("cy"), PutOptions { attempts_max: Some(3), ..PutOptions::default() }),
        ];
        let placed = EmailsTask::put_each(&queue, &mails).await.unwrap();
        assert_eq!(queue.commands("put"), 1);
        let placed: Vec<_> =
            placed.iter().map(|placed| (placed.id.0, placed.state, placed.existing)).collect();
        let wanted = [
            (0, State::Ready, false),
            (1, State::Delayed, false),
            (0, State::Ready, true),
            (2, State::Ready, false),
        ];
        assert_eq!(placed, wanted);
        let last = client(&kit).peek("emails", TaskId(2)).await.unwrap().unwrap();
        assert_eq!(last.task.attempts_max, Some(3));
        let tasks: Vec<EmailsTask> = kit.tasks().await;
        let receivers: Vec<_> = tasks.iter().map(|task| task.to.as_str()).collect();
        assert_eq!(receivers, ["ann", "ben", "cy"]);
    });
}

#[test]
fn a_refused_put_adds_no_task() {
    block_on(async {
        let kit = kit_with_queues().await;
        mail("first").put(kit.queue(), PutOptions::default()).await.unwrap();
        let two = [mail("ann"), mail("ben")];
        let keyed = PutOptions::keyed("welcome").unwrap();
        let refusal = EmailsTask::put_many(kit.queue(), &two, keyed.clone()).await.unwrap_err();
        assert!(refusal.to_string().contains("use put_each"), "{refusal}");
        let keyless = PutOptions { key: None, unique_for: Duration::from_secs(1), ..keyed.clone() };
        let mails = [(mail("ann"), PutOptions::default()), (mail("ben"), keyless)];
        let refusal = EmailsTask::put_each(kit.queue(), &mails).await.unwrap_err();
        assert!(refusal.to_string().contains("need a key"), "{refusal}");
        let many = vec![mail("x"); BATCH_TASKS_MAX + 1];
        let refusal = EmailsTask::put_many(kit.queue(), &many, PutOptions::default()).await;
        assert!(matches!(refusal, Err(Error::TooLarge { .. })), "{refusal:?}");
        assert_eq!(kit.tube("emails").await.stats.calls.put, 1);
        EmailsTask::put_many(kit.queue(), &two[..1], keyed).await.unwrap();
        assert_eq!(kit.tube("emails").await.stats.calls.put, 2, "one task can have the key");
    });
}

//! The checks of `Worker::init`.

use taskyard::{Execute, Kind, Span, TubeOptions};
use taskyard_core::limits::TUBE_NUMBERS_MAX;
use taskyard_core::{Command, Error, Reply};
use taskyard_worker::testing::{TestKit, TestQueue};
use taskyard_worker::{Dispatcher, Handler, HandlerStats, InitError, RawTask, Worker};

use crate::queues::Handlers;
use crate::recording_handler::{Act, RecordingHandler, client};
use taskyard_testkit::server::block_on;

/// Upstream a missing handler was a panic at the first task.
#[test]
fn missing_handlers_are_named() {
    block_on(async {
        let kit = TestKit::new();
        let worker = kit.worker(Handlers::default()).build().unwrap();
        let error = worker.run().await.unwrap_err().to_string();
        assert!(error.starts_with("no handler for 'emails', 'notifications'"), "{error}");
        let one = Handlers::default().on_emails(RecordingHandler::new(Act::Done));
        let error = kit.worker(one).build().unwrap().init().await.unwrap_err().to_string();
        assert!(error.starts_with("no handler for 'notifications'"), "{error}");
        assert!(client(&kit).tubes().await.unwrap().is_empty(), "no tube was created");
    });
}

#[test]
fn queues_differ_in_number_and_name() {
    let kit = TestKit::new();
    let handler = || Handler::raw(|_, _, _: Vec<RawTask>| async { Ok(HandlerStats::default()) });
    for (num, name) in [(1, "b"), (2, "a")] {
        let twice =
            Dispatcher::new([]).with_queue(1, "a", handler()).with_queue(num, name, handler());
        let error = kit.worker(twice).build().err().unwrap();
        assert!(matches!(error, InitError::DuplicateQueue(_)), "{error}");
    }
    let bad = Dispatcher::new([]).with_queue(1, "a/b", handler());
    assert!(matches!(kit.worker(bad).build(), Err(InitError::Refused(_))));
    block_on(async {
        let none = kit.worker(Dispatcher::new([])).build().unwrap();
        assert!(matches!(none.init().await, Err(InitError::NoQueues)));
    });
}

#[test]
fn a_tube_that_could_lose_tasks_is_refused() {
    block_on(async {
        let expiring =
            TubeOptions { ttl: Some(Span::from_secs(1)), ..TubeOptions::new(Kind::FifoTtl) };
        for (options, why) in [(expiring, "ttl"), (TubeOptions::new(Kind::Fifo), "no delays")] {
            let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
            client(&kit).create("emails", options).await.unwrap();
            let error =
                recorder.worker(&kit).build().unwrap().init().await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    });
}

/// A store that has created so many tubes that their numbers wrap around in the numbers of tasks.
#[derive(Clone)]
struct WrappedTubeNumbers(TestQueue);

impl Execute for WrappedTubeNumbers {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut replies = self.0.execute(commands).await;
        for reply in &mut replies {
            let Ok(Reply::Tubes(tubes)) = reply else { continue };
            tubes.iter_mut().for_each(|tube| tube.number *= TUBE_NUMBERS_MAX);
        }
        replies
    }
}

/// Tasks of two queues had the same number, and acks reached the wrong one.
#[test]
fn queues_whose_tasks_would_have_the_same_numbers_are_refused() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker =
            Worker::builder("test", WrappedTubeNumbers(kit.queue().clone()), recorder.handlers());
        let error = worker.build().unwrap().init().await.unwrap_err().to_string();
        assert!(error.contains("'notifications'") && error.contains("drop it"), "{error}");
    });
}

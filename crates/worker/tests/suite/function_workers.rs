//! Workers of functions on a queue that fails, and functions that block their thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use taskyard::{CancelReason, FunctionWorker, Kind, RunError, RunningTask, TaskId, TubeOptions};
use taskyard_core::{Error, Execute};
use taskyard_testkit::server::block_on;
use taskyard_worker::testing::{TestKit, TestQueue};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, yield_now};

use crate::faulty_queue::{Fault, FaultyQueue};
use crate::recording_handler::client;

/// A worker of the tube `mail` that runs in the background.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), RunError>>,
}

fn start<E, F, R>(
    kit: &TestKit,
    queue: E,
    setup: fn(FunctionWorker) -> FunctionWorker,
    function: F,
) -> Running
where
    E: Execute + 'static,
    F: Fn(String, RunningTask) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), String>> + Send + 'static,
{
    let (stop, stopped) = oneshot::channel();
    let worker = setup(FunctionWorker::new(queue, "mail")).timer(kit.timer());
    let stopped = async { drop(stopped.await) };
    Running { stop, task: tokio::spawn(worker.run_until(stopped, function)) }
}

impl Running {
    /// Stops the worker and moves the clock until it has ended.
    async fn stop(self, kit: &TestKit) -> Result<(), RunError> {
        self.stop.send(()).expect("the worker runs");
        let mut task = self.task;
        loop {
            tokio::select! {
                biased;
                ended = &mut task => return ended.expect("the worker does not panic"),
                () = yield_now() => {
                    kit.advance(Duration::from_millis(10));
                    // The queue has its own thread: time passed faster than it replied, and the worker gave up.
                    client(kit).tubes().await.expect("the queue replies");
                }
            }
        }
    }
}

/// A queue with these tasks in the tube `mail`.
async fn with_tasks(texts: &[&str]) -> TestKit {
    let kit = TestKit::new();
    client(&kit).create("mail", TubeOptions::new(Kind::FifoTtl)).await.unwrap();
    client(&kit).put_many("mail", texts).await.unwrap();
    kit
}

fn faulty(kit: &TestKit) -> FaultyQueue<TestQueue> {
    FaultyQueue::new(kit.queue().clone())
}

/// Waits for a permit that a function or the test has added.
async fn passed(gate: &Semaphore) {
    gate.acquire().await.expect("the gate stays open").forget();
}

/// Moves the clock in small steps until a queue fulfils the condition.
async fn advance_until(kit: &TestKit, condition: impl Fn(&taskyard::TubeInfo) -> bool) {
    while !condition(&kit.tube("mail").await) {
        kit.advance(Duration::from_millis(10));
        yield_now().await;
    }
}

/// Runs a case on a runtime with several threads, so that a function can block one of them.
fn on_threads(case: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(4).enable_all().build().unwrap().block_on(case);
}

/// A function that blocks its thread until the test drops the sender.
#[derive(Clone)]
struct Blocker(Arc<Mutex<mpsc::Receiver<()>>>);

impl Blocker {
    fn new() -> (mpsc::Sender<()>, Self) {
        let (sender, receiver) = mpsc::channel();
        (sender, Blocker(Arc::new(Mutex::new(receiver))))
    }

    fn block(&self) {
        let _ = self.0.lock().unwrap().recv();
    }
}

#[test]
fn an_ack_waits_for_a_queue_that_is_unavailable() {
    let unavailable = || Error::StoreUnavailable("restarting".into());
    let faults = [
        Fault::Refuse(unavailable()),
        Fault::LoseReply(Error::OutcomeUnknown("the connection ended".into())),
    ];
    for fault in faults {
        block_on(async {
            let kit = with_tasks(&["x"]).await;
            let queue = faulty(&kit);
            queue.fail_next("finish", 5, fault);
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = calls.clone();
            let running = start(
                &kit,
                queue.clone(),
                |worker| worker,
                move |_, _| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    async { Ok(()) }
                },
            );
            queue.wait_for_faults(1).await;
            while queue.faults() < 5 {
                kit.advance(Duration::from_millis(10));
                yield_now().await;
            }
            advance_until(&kit, |tube| tube.stats.tasks.total() == 0).await;
            running.stop(&kit).await.unwrap();
            assert_eq!(calls.load(Ordering::Relaxed), 1);
            assert_eq!(kit.tube("mail").await.stats.calls.ack, 1);
        });
    }
}

/// The ack of one task was refused for good and dropped, but the worker still held the task: it extended the lease for as
/// long as another function of the batch ran.
#[test]
fn a_task_whose_ack_is_refused_returns_when_its_lease_ends() {
    block_on(async {
        let kit = with_tasks(&["quick", "slow"]).await;
        let queue = faulty(&kit);
        queue.fail_next("finish", 1, Fault::Refuse(Error::Store("no".into())));
        let gate = Arc::new(Semaphore::new(0));
        let shared = gate.clone();
        let running = start(
            &kit,
            queue.clone(),
            |worker| worker.concurrency(2),
            move |text, _| {
                let gate = shared.clone();
                async move {
                    if text == "slow" {
                        passed(&gate).await;
                    }
                    Ok(())
                }
            },
        );
        queue.wait_for_faults(1).await;
        for round in 1..=3 {
            kit.advance(Duration::from_secs(20));
            kit.wait_until("mail", |tube| tube.stats.calls.touch == round).await;
        }
        kit.wait_until("mail", |tube| tube.stats.calls.ack == 1).await;
        assert_eq!(kit.tube("mail").await.stats.tasks.taken, 1, "the slow one is still held");
        gate.add_permits(1);
        kit.wait_drained("mail").await;
        running.stop(&kit).await.unwrap();
    });
}

/// While the queue was unreachable the function ran on after its lease had ended, beside the next consumer of its task.
#[test]
fn a_lease_that_ends_while_the_queue_is_unreachable_cancels_the_function() {
    for fault in [Fault::Refuse(Error::OutcomeUnknown("no route".into())), Fault::NoReply] {
        block_on(async {
            let kit = with_tasks(&["x"]).await;
            let queue = faulty(&kit);
            queue.fail_next("finish", usize::MAX, fault);
            let (send, mut tasks) = tokio::sync::mpsc::unbounded_channel();
            let setup = |worker: FunctionWorker| worker.lease(Duration::from_secs(30));
            let running = start(&kit, queue.clone(), setup, move |_, task| {
                let (dropped, ended) = oneshot::channel::<()>();
                send.send((task, ended)).unwrap();
                async move {
                    let _dropped = dropped;
                    std::future::pending().await
                }
            });
            let (task, mut ended) = tasks.recv().await.unwrap();
            let mut passed = Duration::ZERO;
            while passed < Duration::from_secs(29) {
                passed += Duration::from_millis(100);
                kit.advance(Duration::from_millis(100));
                yield_now().await;
            }
            assert!(queue.faults() > 0 && task.cancel_reason().is_none() && !task.is_lost());
            while ended.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
                kit.advance(Duration::from_millis(100));
                yield_now().await;
            }
            assert_eq!((task.is_lost(), task.cancel_reason()), (true, Some(CancelReason::Lost)));
            queue.clear_faults();
            // The next delivery.
            let next = async {
                loop {
                    kit.advance(Duration::from_millis(100));
                    tokio::select! {
                        biased;
                        next = tasks.recv() => break next,
                        () = yield_now() => {}
                    }
                }
            };
            assert_eq!(next.await.unwrap().0.attempts(), 1);
            running.stop(&kit).await.unwrap();
        });
    }
}

/// One function that blocked its thread kept the acks of the batch and the tasks of the others: they stayed taken until their
/// leases ended.
#[test]
fn a_blocking_function_does_not_hold_up_the_others_at_a_stop() {
    on_threads(async {
        let kit = with_tasks(&["block", "wait", "wait"]).await;
        let (unblock, blocker) = Blocker::new();
        let begun = Arc::new(Semaphore::new(0));
        let shared = begun.clone();
        let setup = |worker: FunctionWorker| worker.concurrency(3).grace(Duration::ZERO);
        let running = start(&kit, kit.queue().clone(), setup, move |text, _| {
            let (begun, blocker) = (shared.clone(), blocker.clone());
            async move {
                begun.add_permits(1);
                if text == "block" {
                    blocker.block();
                    return Ok(());
                }
                std::future::pending().await
            }
        });
        for _ in 0..3 {
            passed(&begun).await;
        }
        let Running { stop, mut task } = running;
        stop.send(()).unwrap();
        kit.wait_until("mail", |tube| tube.stats.tasks.ready == 2).await;
        for id in [1, 2] {
            let waited = client(&kit).peek("mail", TaskId(id)).await.unwrap().unwrap();
            assert_eq!(waited.attempts(), 0, "it returns as if it had never been taken");
        }
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut task => break ended.unwrap(),
                () = yield_now() => kit.advance(Duration::from_millis(10)),
            }
        };
        assert!(matches!(ended, Err(RunError::StillRunning(_))), "{ended:?}");
        drop(unblock);
    });
}

/// A function that blocked its thread longer than `run_max` failed every other task of its batch, also those whose functions
/// had returned `Ok`.
#[test]
fn a_blocking_function_that_runs_too_long_fails_alone() {
    on_threads(async {
        let kit = with_tasks(&["block", "wait"]).await;
        let (unblock, blocker) = Blocker::new();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (begun.clone(), gate.clone());
        let setup = |worker: FunctionWorker| worker.concurrency(2).run_max(Duration::from_secs(5));
        let running = start(&kit, kit.queue().clone(), setup, move |text, task| {
            let ((begun, gate), blocker) = (shared.clone(), blocker.clone());
            async move {
                begun.add_permits(1);
                match text.as_str() {
                    "block" if task.attempts() == 0 => blocker.block(),
                    "wait" => passed(&gate).await,
                    _ => {}
                }
                Ok(())
            }
        });
        passed(&begun).await;
        passed(&begun).await;
        kit.advance(Duration::from_millis(4900));
        gate.add_permits(1);
        kit.wait_until("mail", |tube| tube.stats.calls.ack == 1).await;
        advance_until(&kit, |tube| tube.stats.tasks.delayed == 1).await;
        let blocked = client(&kit).peek("mail", TaskId(0)).await.unwrap().unwrap();
        let failures = blocked.task.failures.expect("it has failed");
        let error = failures.iter().last().unwrap().error.to_string();
        assert_eq!(error, "the function ran longer than run_max");
        // One slot is left.
        client(&kit).put_many("mail", &["wait", "wait"]).await.unwrap();
        passed(&begun).await;
        assert_eq!((kit.tube("mail").await.stats.calls.ack, begun.available_permits()), (1, 0));
        drop(unblock);
        gate.add_permits(2);
        advance_until(&kit, |tube| tube.stats.tasks.total() == 0).await;
        running.stop(&kit).await.unwrap();
    });
}

/// Failed tasks of a tube without delays were taken again at once, and failed again, as fast as the worker could.
#[test]
fn a_tube_without_delays_is_refused() {
    for kind in [Kind::Fifo, Kind::Utube] {
        block_on(async {
            let kit = TestKit::new();
            client(&kit).create("mail", TubeOptions::new(kind)).await.unwrap();
            let running = start(&kit, kit.queue().clone(), |worker| worker, async |_, _| Ok(()));
            let refused = running.task.await.unwrap().unwrap_err().to_string();
            assert!(refused.contains("its kind has no delays"), "{refused}");
        });
    }
}

/// A queue that did not answer while the worker started: the stop was noticed when the request had timed out.
#[test]
fn a_stop_ends_the_start_of_a_worker() {
    block_on(async {
        let kit = TestKit::new();
        let queue = faulty(&kit);
        queue.fail_next("tubes", 1, Fault::NoReply);
        let running = start(&kit, queue.clone(), |worker| worker, async |_, _| Ok(()));
        queue.wait_for_faults(1).await;
        running.stop.send(()).unwrap();
        running.task.await.unwrap().unwrap();
    });
}

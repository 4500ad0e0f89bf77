//! Workers that call a function for each task, in this process and over HTTP.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskyard::{CancelReason, NewTask, TubeInfo, TubeOptions, new_task};
use taskyard::{Client, FunctionWorker, Kind, RunError, RunningTask, Span, State, TaskId};
use taskyard_engine::{Engine, Settings};
use taskyard_store::MemoryStore;
use taskyard_testkit::server::{TestServer, block_on, clock};
use taskyard_worker::testing::ManualTimer;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, yield_now};

/// A queue with a clock that the test moves, behind some transport.
struct Rig {
    client: Client,
    timer: Arc<ManualTimer>,
    _server: Option<TestServer>,
}

/// A worker that runs in the background.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), RunError>>,
}

/// Runs a case in this process and over HTTP.
fn each(case: impl AsyncFn(&Rig)) {
    block_on(async {
        let clock = clock();
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock.clone(), Settings::default());
        let timer = Arc::new(ManualTimer::new(clock));
        case(&Rig { client: Client::embedded(engine), timer, _server: None }).await;
        let server = TestServer::in_memory().await;
        let timer = Arc::new(ManualTimer::new(server.clock.clone()));
        case(&Rig { client: server.client(), timer, _server: Some(server) }).await;
    });
}

impl Rig {
    /// Starts a worker with this function.
    fn start<F, R>(&self, worker: FunctionWorker, function: F) -> Running
    where
        F: Fn(String, RunningTask) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), String>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let worker = worker.timer(self.timer.clone());
        let stopped = async { drop(stopped.await) };
        Running { stop, task: tokio::spawn(worker.run_until(stopped, function)) }
    }

    async fn wait_until(&self, condition: impl Fn(&TubeInfo) -> bool) {
        loop {
            match self.client.tube("mail").await {
                Ok(tube) if condition(&tube) => return,
                _ => yield_now().await,
            }
        }
    }

    async fn state(&self, id: u64) -> State {
        self.client.peek("mail", TaskId(id)).await.unwrap().unwrap().task.state
    }

    /// The state of a task and its last error.
    async fn failed(&self, id: u64) -> (State, String) {
        let task = self.client.peek("mail", TaskId(id)).await.unwrap().unwrap().task;
        let failures = task.failures.expect("it has failed");
        let error = failures.iter().last().expect("there is one").error.to_string();
        (task.state, error)
    }

    /// Moves the clock until the worker has ended.
    async fn ended(&self, mut task: JoinHandle<Result<(), RunError>>) -> Result<(), RunError> {
        loop {
            tokio::select! {
                biased;
                ended = &mut task => return ended.expect("the worker does not panic"),
                () = yield_now() => self.timer.advance(Duration::from_millis(10)),
            }
        }
    }

    async fn stop(&self, running: Running) {
        running.stop.send(()).expect("the worker runs");
        self.ended(running.task).await.expect("the worker ends without an error");
    }
}

/// Waits for a permit that a function or the test has added.
async fn passed(gate: &Semaphore) {
    gate.acquire().await.expect("the gate stays open").forget();
}

/// An error with a cause.
#[derive(Debug)]
struct SendError(std::io::Error);

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot send")
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn the_outcome_of_the_function_ends_its_task() {
    each(async |rig| {
        let keeps = TubeOptions {
            keep_done: Some(Span::from_secs(3600)),
            ..TubeOptions::new(Kind::FifoTtl)
        };
        rig.client.create("mail", keeps).await.unwrap();
        let texts = ["ok", "error", "panic", "release", "bury", "bury with", "bury error"];
        rig.client.put_many("mail", &texts).await.unwrap();
        rig.client.put("mail", &7).await.unwrap();
        let worker = rig.client.worker("mail").concurrency(3);
        let running = rig.start(worker, async |text: String, task: RunningTask| {
            assert_eq!((task.tube().as_str(), task.attempts()), ("mail", 0));
            match text.as_str() {
                "error" => return Err("out of paper".into()),
                "panic" => panic!("out of {}", "ink"),
                "release" => task.release_later(Duration::from_secs(60)),
                "bury" => task.bury(),
                "bury with" => task.bury_with("no such address"),
                "bury error" => {
                    task.bury();
                    return Err("unknown".into());
                }
                _ => task.result(&("sent", task.id().0)).unwrap(),
            }
            Ok(())
        });
        rig.wait_until(|tube| tube.stats.tasks.ready + tube.stats.tasks.taken == 0).await;
        let done = rig.client.peek("mail", TaskId(0)).await.unwrap().unwrap();
        assert_eq!(done.task.state, State::Done);
        assert_eq!(done.result::<(String, u64)>().unwrap(), Some(("sent".into(), 0)));
        let failed = |error: &str| (State::Delayed, error.to_owned());
        assert_eq!(rig.failed(1).await, failed("out of paper"));
        assert_eq!(rig.failed(2).await, failed("panicked: out of ink"));
        assert_eq!(rig.state(3).await, State::Delayed);
        assert_eq!(rig.state(4).await, State::Buried);
        assert_eq!(rig.failed(5).await, (State::Buried, "no such address".into()));
        assert_eq!(rig.failed(6).await, (State::Buried, "unknown".into()));
        let (state, error) = rig.failed(7).await;
        assert!(state == State::Delayed && error.starts_with("cannot decode the payload: "));
        rig.stop(running).await;
    });
}

/// A payload of another type was tried forever, once an hour.
#[test]
fn a_task_of_another_type_is_buried_with_its_error_after_its_attempts() {
    each(async |rig| {
        rig.client.put("mail", &7).await.unwrap();
        for attempts_max in [2, 12] {
            let limited = NewTask { attempts_max: Some(attempts_max), ..new_task(&7).unwrap() };
            rig.client.put_task("mail", limited).await.unwrap();
        }
        let running = rig.start(rig.client.worker("mail"), async |_, _| Ok(()));
        loop {
            rig.wait_until(|tube| tube.stats.tasks.ready + tube.stats.tasks.taken == 0).await;
            if rig.client.stats("mail").await.unwrap().tasks.delayed == 0 {
                break;
            }
            rig.timer.advance(Duration::from_secs(3600));
        }
        for (id, attempts) in [(0, 10), (1, 2), (2, 12)] {
            let (state, error) = rig.failed(id).await;
            assert_eq!(state, State::Buried, "{id}");
            assert!(error.starts_with("cannot decode the payload: invalid type"), "{error}");
            let task = rig.client.peek("mail", TaskId(id)).await.unwrap().unwrap().task;
            let last = task.failures.unwrap().iter().last().unwrap().attempt;
            assert_eq!(last, attempts, "{id}");
        }
        rig.stop(running).await;
    });
}

#[test]
fn an_error_is_kept_with_its_causes() {
    each(async |rig| {
        rig.client.put("mail", "x").await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = rig.client.worker("mail").timer(rig.timer.clone());
        let stopped = async { drop(stopped.await) };
        let function = async |_: String, _: RunningTask| -> Result<(), SendError> {
            Err(SendError(std::io::Error::other("the printer is on fire")))
        };
        let task = tokio::spawn(worker.run_until(stopped, function));
        rig.wait_until(|tube| tube.stats.tasks.delayed == 1).await;
        assert_eq!(rig.failed(0).await.1, "cannot send: the printer is on fire");
        rig.stop(Running { stop, task }).await;
    });
}

#[test]
fn as_many_functions_run_as_the_concurrency_says() {
    each(async |rig| {
        rig.client.put_many("mail", &["x"; 20]).await.unwrap();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (running.clone(), most.clone(), begun.clone(), gate.clone());
        let worker = rig.start(rig.client.worker("mail").concurrency(4), move |_, _| {
            let (running, most, begun, gate) = shared.clone();
            async move {
                let now = running.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                begun.add_permits(1);
                passed(&gate).await;
                running.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        });
        for _ in 0..4 {
            passed(&begun).await;
        }
        let tube = rig.client.tube("mail").await.unwrap();
        assert_eq!((tube.stats.tasks.taken, tube.stats.tasks.ready), (4, 16), "no more is taken");
        // One ends, and one begins in its place while the others still run.
        gate.add_permits(1);
        passed(&begun).await;
        assert_eq!(running.load(Ordering::Relaxed), 4);
        gate.add_permits(100);
        rig.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        assert_eq!(most.load(Ordering::Relaxed), 4);
        rig.stop(worker).await;
    });
}

/// Tasks are taken ahead while functions end quickly; a slow one must not keep the others from other workers.
#[test]
fn tasks_behind_a_slow_function_are_given_back() {
    each(async |rig| {
        rig.client.put_many("mail", &["fast"; 300]).await.unwrap();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (begun.clone(), gate.clone());
        let worker = rig.start(rig.client.worker("mail"), move |text, _| {
            let (begun, gate) = shared.clone();
            async move {
                if text == "slow" {
                    begun.add_permits(1);
                    passed(&gate).await;
                }
                Ok(())
            }
        });
        rig.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        let tasks = [vec!["slow"], vec!["fast"; 50]].concat();
        rig.client.put_many("mail", &tasks).await.unwrap();
        passed(&begun).await;
        // Whatever was taken ahead returns after a second.
        rig.timer.advance(Duration::from_secs(1));
        rig.wait_until(|tube| tube.stats.tasks.taken == 1 && tube.stats.tasks.ready == 50).await;
        let waiting = rig.client.take("mail", Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(waiting.attempts(), 0, "it was not begun");
        rig.client.ack(&waiting).await.unwrap();
        gate.add_permits(1);
        rig.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        rig.stop(worker).await;
    });
}

#[test]
fn the_lease_is_extended_while_the_function_runs() {
    each(async |rig| {
        rig.client.put("mail", "x").await.unwrap();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (begun.clone(), gate.clone());
        let worker = rig.client.worker("mail").lease(Duration::from_secs(30));
        let worker = rig.start(worker, move |_, task| {
            let (begun, gate) = shared.clone();
            async move {
                begun.add_permits(1);
                passed(&gate).await;
                assert!(task.touch(Duration::from_secs(1)).await.unwrap());
                Ok(())
            }
        });
        passed(&begun).await;
        let until = async || rig.client.deliveries("mail", 1).await.unwrap()[0].task.lease_until;
        for _ in 0..6 {
            let before = until().await;
            rig.timer.advance(Duration::from_secs(10));
            while until().await <= before {
                yield_now().await;
            }
        }
        gate.add_permits(1);
        rig.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        assert_eq!(rig.client.stats("mail").await.unwrap().calls.ack, 1);
        rig.stop(worker).await;
    });
}

/// Records that it was dropped before its function has returned.
struct DropGuard(Arc<Semaphore>);

impl Drop for DropGuard {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

#[test]
fn a_lost_lease_cancels_the_function() {
    each(async |rig| {
        rig.client.put("mail", "x").await.unwrap();
        let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = (begun.clone(), dropped.clone(), seen.clone());
        let worker = rig.client.worker("mail").lease(Duration::from_secs(30));
        let worker = rig.start(worker, move |_, task| {
            let (begun, dropped, seen) = shared.clone();
            async move {
                seen.lock().unwrap().push(task.clone());
                let _guard = DropGuard(dropped);
                begun.add_permits(1);
                std::future::pending().await
            }
        });
        passed(&begun).await;
        rig.client.delete("mail", TaskId(0)).await.unwrap();
        rig.timer.advance(Duration::from_secs(10));
        passed(&dropped).await;
        let task = seen.lock().unwrap()[0].clone();
        assert_eq!((task.is_lost(), task.cancel_reason()), (true, Some(CancelReason::Lost)));
        rig.stop(worker).await;
    });
}

#[test]
fn a_function_that_runs_too_long_has_failed() {
    each(async |rig| {
        rig.client.put("mail", "x").await.unwrap();
        let begun = Arc::new(Semaphore::new(0));
        let shared = begun.clone();
        let worker = rig.client.worker("mail").run_max(Duration::from_secs(5));
        let worker = rig.start(worker, move |_, _| {
            shared.add_permits(1);
            std::future::pending()
        });
        passed(&begun).await;
        rig.timer.advance(Duration::from_secs(5));
        rig.wait_until(|tube| tube.stats.tasks.delayed == 1).await;
        assert_eq!(rig.failed(0).await.1, "handler ran longer than run_max");
        rig.stop(worker).await;
    });
}

#[test]
fn a_stop_waits_for_running_functions() {
    each(async |rig| {
        rig.client.put_many("mail", &["a", "b"]).await.unwrap();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (begun.clone(), gate.clone());
        let Running { stop, task } = rig.start(rig.client.worker("mail"), move |_, _| {
            let (begun, gate) = shared.clone();
            async move {
                begun.add_permits(1);
                passed(&gate).await;
                Ok(())
            }
        });
        passed(&begun).await;
        stop.send(()).unwrap();
        gate.add_permits(2);
        rig.ended(task).await.unwrap();
        let stats = rig.client.stats("mail").await.unwrap();
        assert_eq!((stats.calls.ack, stats.tasks.ready), (1, 1), "no more was begun");
    });
}

#[test]
fn after_the_grace_functions_are_dropped_and_their_tasks_return() {
    each(async |rig| {
        rig.client.put_many("mail", &["a", "b"]).await.unwrap();
        let begun = Arc::new(Semaphore::new(0));
        let shared = begun.clone();
        let worker = rig.client.worker("mail").concurrency(2).grace(Duration::from_secs(7));
        let Running { stop, mut task } = rig.start(worker, move |_, _| {
            shared.add_permits(1);
            std::future::pending()
        });
        passed(&begun).await;
        passed(&begun).await;
        stop.send(()).unwrap();
        for _ in 0..100 {
            yield_now().await;
        }
        rig.timer.advance(Duration::from_millis(6900));
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(rig.client.stats("mail").await.unwrap().tasks.taken, 2, "it still waits");
        rig.timer.advance(Duration::from_millis(100));
        rig.wait_until(|tube| tube.stats.tasks.ready == 2).await;
        for id in 0..2 {
            let task = rig.client.peek("mail", TaskId(id)).await.unwrap().unwrap();
            assert_eq!((task.attempts(), task.task.failures), (0, None));
        }
        loop {
            tokio::select! {
                biased;
                ended = &mut task => break ended.unwrap().unwrap(),
                () = yield_now() => rig.timer.advance(Duration::from_millis(10)),
            }
        }
    });
}

#[test]
fn the_worker_waits_for_a_queue_that_is_not_there_yet() {
    block_on(async {
        let server = TestServer::in_memory().await;
        let timer = Arc::new(ManualTimer::new(server.clock.clone()));
        let nowhere = Client::open("http://127.0.0.1:1").await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = nowhere.worker("mail").timer(timer.clone());
        let stopped = async { drop(stopped.await) };
        let function = async |_: String, _: RunningTask| Ok::<(), String>(());
        let mut task = tokio::spawn(worker.run_until(stopped, function));
        for _ in 0..20 {
            timer.advance(Duration::from_secs(5));
            yield_now().await;
        }
        assert!(!task.is_finished());
        drop(stop);
        (&mut task).await.unwrap().unwrap();
        server.stop().await;
    });
}

#[test]
fn settings_out_of_range_are_refused() {
    block_on(async {
        let client = Client::open("memory:").await.unwrap();
        let function = async |_: String, _: RunningTask| Ok::<(), String>(());
        for concurrency in [0, 1025] {
            let worker = client.worker("mail").concurrency(concurrency);
            let refused = worker.run_until(std::future::pending(), function).await.unwrap_err();
            assert!(refused.to_string().contains("concurrency"), "{refused}");
        }
        let worker = client.worker("");
        assert!(worker.run_until(std::future::pending(), function).await.is_err());
    });
}

/// The signal is sent to this process, which has no other worker that listens.
#[test]
fn a_signal_stops_the_worker() {
    block_on(async {
        let client = Client::open("memory:").await.unwrap();
        let begun = Arc::new(Semaphore::new(0));
        let shared = begun.clone();
        let worker = client.worker("mail");
        let running = tokio::spawn(worker.run(move |_: String, _| {
            let begun = shared.clone();
            async move {
                begun.add_permits(1);
                tokio::task::yield_now().await;
                Ok::<(), String>(())
            }
        }));
        client.put("mail", "x").await.unwrap();
        passed(&begun).await;
        let process = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &process]).status();
        assert!(sent.unwrap().success());
        running.await.unwrap().unwrap();
        assert_eq!(client.stats("mail").await.unwrap().calls.ack, 1);
        client.close().await.unwrap();
    });
}

#[test]
fn ten_thousand_tasks_are_each_done_once() {
    each(async |rig| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = seen.clone();
        let worker = rig.start(rig.client.worker("mail").concurrency(10), move |text, _| {
            shared.lock().unwrap().push(text);
            async { Ok(()) }
        });
        let texts: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        for part in texts.chunks(1_000) {
            rig.client.put_many("mail", part).await.unwrap();
        }
        rig.wait_until(|tube| tube.stats.calls.put == 10_000 && tube.stats.tasks.total() == 0)
            .await;
        rig.stop(worker).await;
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort_unstable_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(seen, texts);
    });
}

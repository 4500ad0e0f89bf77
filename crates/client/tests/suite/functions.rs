//! Workers that call a function for each task, in this process and over HTTP.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskyard::{CancelReason, NewTask, TubeOptions, new_task};
use taskyard::{Client, Kind, RunningTask, Span, State, TaskId};
use taskyard_testkit::server::{TestServer, block_on};
use taskyard_worker::testing::ManualTimer;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::yield_now;

use crate::function_fixture::{Fixture, Running, each, passed};
use crate::http_proxy::{HttpProxy, ProxyState};

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
    each(async |fixture| {
        let keeps = TubeOptions {
            keep_done: Some(Span::from_secs(3600)),
            ..TubeOptions::new(Kind::FifoTtl)
        };
        fixture.client.create("mail", keeps).await.unwrap();
        let texts = ["ok", "error", "panic", "release", "bury", "bury with", "bury error"];
        fixture.client.put_many("mail", &texts).await.unwrap();
        fixture.client.put("mail", &7).await.unwrap();
        let worker = fixture.client.worker("mail").concurrency(3);
        let running = fixture.start(worker, async |text: String, task: RunningTask| {
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
        fixture.wait_until(|tube| tube.stats.tasks.ready + tube.stats.tasks.taken == 0).await;
        let done = fixture.client.peek("mail", TaskId(0)).await.unwrap().unwrap();
        assert_eq!(done.task.state, State::Done);
        assert_eq!(done.result::<(String, u64)>().unwrap(), Some(("sent".into(), 0)));
        let failed = |error: &str| (State::Delayed, error.to_owned());
        assert_eq!(fixture.failed(1).await, failed("out of paper"));
        assert_eq!(fixture.failed(2).await, failed("panicked: out of ink"));
        assert_eq!(fixture.state(3).await, State::Delayed);
        assert_eq!(fixture.state(4).await, State::Buried);
        assert_eq!(fixture.failed(5).await, (State::Buried, "no such address".into()));
        assert_eq!(fixture.failed(6).await, (State::Buried, "unknown".into()));
        let (state, error) = fixture.failed(7).await;
        assert!(state == State::Delayed && error.starts_with("cannot decode the payload: "));
        fixture.stop(running).await;
    });
}

/// A payload of another type was tried forever, once an hour.
#[test]
fn a_task_of_another_type_is_buried_with_its_error_after_its_attempts() {
    each(async |test_server| {
        test_server.client.put("mail", &7).await.unwrap();
        for attempts_max in [2, 12] {
            let limited = NewTask { attempts_max: Some(attempts_max), ..new_task(&7).unwrap() };
            test_server.client.put_task("mail", limited).await.unwrap();
        }
        let running = test_server.start(test_server.client.worker("mail"), async |_, _| Ok(()));
        loop {
            test_server
                .wait_until(|tube| tube.stats.tasks.ready + tube.stats.tasks.taken == 0)
                .await;
            if test_server.client.stats("mail").await.unwrap().tasks.delayed == 0 {
                break;
            }
            test_server.timer.advance(Duration::from_secs(3600));
        }
        for (id, attempts) in [(0, 10), (1, 2), (2, 12)] {
            let (state, error) = test_server.failed(id).await;
            assert_eq!(state, State::Buried, "{id}");
            assert!(error.starts_with("cannot decode the payload: invalid type"), "{error}");
            let task = test_server.client.peek("mail", TaskId(id)).await.unwrap().unwrap().task;
            let last = task.failures.unwrap().iter().last().unwrap().attempt;
            assert_eq!(last, attempts, "{id}");
        }
        test_server.stop(running).await;
    });
}

#[test]
fn an_error_is_kept_with_its_causes() {
    each(async |fixture| {
        fixture.client.put("mail", "x").await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = fixture.client.worker("mail").timer(fixture.timer.clone());
        let stopped = async { drop(stopped.await) };
        let function = async |_: String, _: RunningTask| -> Result<(), SendError> {
            Err(SendError(std::io::Error::other("the printer is on fire")))
        };
        let task = tokio::spawn(worker.run_until(stopped, function));
        fixture.wait_until(|tube| tube.stats.tasks.delayed == 1).await;
        assert_eq!(fixture.failed(0).await.1, "cannot send: the printer is on fire");
        fixture.stop(Running { stop, task }).await;
    });
}

#[test]
fn as_many_functions_run_as_the_concurrency_says() {
    each(async |fixture| {
        fixture.client.put_many("mail", &["x"; 20]).await.unwrap();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (running.clone(), most.clone(), begun.clone(), gate.clone());
        let worker = fixture.start(fixture.client.worker("mail").concurrency(4), move |_, _| {
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
        let tube = fixture.client.tube("mail").await.unwrap();
        assert_eq!((tube.stats.tasks.taken, tube.stats.tasks.ready), (4, 16), "no more is taken");
        // One ends, and one begins in its place while the others still run.
        gate.add_permits(1);
        passed(&begun).await;
        assert_eq!(running.load(Ordering::Relaxed), 4);
        gate.add_permits(100);
        fixture.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        assert_eq!(most.load(Ordering::Relaxed), 4);
        fixture.stop(worker).await;
    });
}

/// Tasks are taken ahead while functions end quickly; a slow one must not keep the others from other workers.
#[test]
fn tasks_behind_a_slow_function_are_given_back() {
    each(async |fixture| {
        fixture.client.put_many("mail", &["fast"; 300]).await.unwrap();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (begun.clone(), gate.clone());
        let worker = fixture.start(fixture.client.worker("mail"), move |text, _| {
            let (begun, gate) = shared.clone();
            async move {
                if text == "slow" {
                    begun.add_permits(1);
                    passed(&gate).await;
                }
                Ok(())
            }
        });
        fixture.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        let tasks = [vec!["slow"], vec!["fast"; 50]].concat();
        fixture.client.put_many("mail", &tasks).await.unwrap();
        passed(&begun).await;
        // Whatever was taken ahead returns after a second.
        fixture.timer.advance(Duration::from_secs(1));
        fixture
            .wait_until(|tube| tube.stats.tasks.taken == 1 && tube.stats.tasks.ready == 50)
            .await;
        let waiting = fixture.client.take("mail", Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(waiting.attempts(), 0, "it was not begun");
        fixture.client.ack(&waiting).await.unwrap();
        gate.add_permits(1);
        fixture.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        fixture.stop(worker).await;
    });
}

#[test]
fn the_lease_is_extended_while_the_function_runs() {
    each(async |fixture| {
        fixture.client.put("mail", "x").await.unwrap();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (begun.clone(), gate.clone());
        let worker = fixture.client.worker("mail").lease(Duration::from_secs(30));
        let worker = fixture.start(worker, move |_, task| {
            let (begun, gate) = shared.clone();
            async move {
                begun.add_permits(1);
                passed(&gate).await;
                assert!(task.touch(Duration::from_secs(1)).await.unwrap());
                Ok(())
            }
        });
        passed(&begun).await;
        let until =
            async || fixture.client.deliveries("mail", 1).await.unwrap()[0].task.lease_until;
        for _ in 0..6 {
            let before = until().await;
            fixture.timer.advance(Duration::from_secs(10));
            while until().await <= before {
                yield_now().await;
            }
        }
        gate.add_permits(1);
        fixture.wait_until(|tube| tube.stats.tasks.total() == 0).await;
        assert_eq!(fixture.client.stats("mail").await.unwrap().calls.ack, 1);
        fixture.stop(worker).await;
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
    each(async |fixture| {
        fixture.client.put("mail", "x").await.unwrap();
        let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = (begun.clone(), dropped.clone(), seen.clone());
        let worker = fixture.client.worker("mail").lease(Duration::from_secs(30));
        let worker = fixture.start(worker, move |_, task| {
            let (begun, dropped, seen) = shared.clone();
            async move {
                seen.lock().unwrap().push(task.clone());
                let _guard = DropGuard(dropped);
                begun.add_permits(1);
                std::future::pending().await
            }
        });
        passed(&begun).await;
        fixture.client.delete("mail", TaskId(0)).await.unwrap();
        fixture.timer.advance(Duration::from_secs(10));
        passed(&dropped).await;
        let task = seen.lock().unwrap()[0].clone();
        assert_eq!((task.is_lost(), task.cancel_reason()), (true, Some(CancelReason::Lost)));
        fixture.stop(worker).await;
    });
}

#[test]
fn a_function_that_runs_too_long_has_failed() {
    each(async |fixture| {
        fixture.client.put("mail", "x").await.unwrap();
        let begun = Arc::new(Semaphore::new(0));
        let shared = begun.clone();
        let worker = fixture.client.worker("mail").run_max(Duration::from_secs(5));
        let worker = fixture.start(worker, move |_, _| {
            shared.add_permits(1);
            std::future::pending()
        });
        passed(&begun).await;
        fixture.timer.advance(Duration::from_secs(5));
        fixture.wait_until(|tube| tube.stats.tasks.delayed == 1).await;
        assert_eq!(fixture.failed(0).await.1, "the function ran longer than run_max");
        fixture.stop(worker).await;
    });
}

#[test]
fn a_stop_waits_for_running_functions() {
    each(async |fixture| {
        fixture.client.put_many("mail", &["a", "b"]).await.unwrap();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (begun.clone(), gate.clone());
        let Running { stop, task } = fixture.start(fixture.client.worker("mail"), move |_, _| {
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
        fixture.ended(task).await.unwrap();
        let stats = fixture.client.stats("mail").await.unwrap();
        assert_eq!((stats.calls.ack, stats.tasks.ready), (1, 1), "no more was begun");
    });
}

#[test]
fn after_the_grace_functions_are_dropped_and_their_tasks_return() {
    each(async |fixture| {
        fixture.client.put_many("mail", &["a", "b"]).await.unwrap();
        let begun = Arc::new(Semaphore::new(0));
        let shared = begun.clone();
        let worker = fixture.client.worker("mail").concurrency(2).grace(Duration::from_secs(7));
        let Running { stop, mut task } = fixture.start(worker, move |_, _| {
            shared.add_permits(1);
            std::future::pending()
        });
        passed(&begun).await;
        passed(&begun).await;
        stop.send(()).unwrap();
        for _ in 0..100 {
            yield_now().await;
        }
        fixture.timer.advance(Duration::from_millis(6900));
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(fixture.client.stats("mail").await.unwrap().tasks.taken, 2, "it still waits");
        fixture.timer.advance(Duration::from_millis(100));
        fixture.wait_until(|tube| tube.stats.tasks.ready == 2).await;
        for id in 0..2 {
            let task = fixture.client.peek("mail", TaskId(id)).await.unwrap().unwrap();
            assert_eq!((task.attempts(), task.task.failures), (0, None));
        }
        loop {
            tokio::select! {
                biased;
                ended = &mut task => break ended.unwrap().unwrap(),
                () = yield_now() => fixture.timer.advance(Duration::from_millis(10)),
            }
        }
    });
}

/// A page of a proxy whose server is away ended the worker at its start, and dropped an ack when the function had ended.
#[test]
fn the_worker_waits_while_a_proxy_answers_for_the_server() {
    for away in [ProxyState::Closes, ProxyState::Answers502] {
        block_on(async {
            let server = TestServer::in_memory().await;
            let timer = Arc::new(ManualTimer::new(server.clock.clone()));
            let fixture = Fixture { client: server.client(), timer, _server: None };
            let proxy = HttpProxy::start(&server.http.url(), away).await;
            fixture.client.put("mail", "x").await.unwrap();
            let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
            let shared = (begun.clone(), gate.clone());
            let client = Client::open(&proxy.url).await.unwrap();
            let worker = fixture.start(client.worker("mail"), move |_, _| {
                let (begun, gate) = shared.clone();
                async move {
                    begun.add_permits(1);
                    passed(&gate).await;
                    Ok(())
                }
            });
            fixture.refused_by(&proxy, 3).await;
            assert!(!worker.task.is_finished());
            proxy.state.send_replace(ProxyState::Passes);
            while begun.available_permits() == 0 {
                fixture.timer.advance(Duration::from_millis(10));
                yield_now().await;
            }
            proxy.state.send_replace(away);
            gate.add_permits(10);
            fixture.refused_by(&proxy, 3).await;
            proxy.state.send_replace(ProxyState::Passes);
            while fixture.client.stats("mail").await.unwrap().tasks.total() > 0 {
                fixture.timer.advance(Duration::from_millis(10));
            }
            fixture.stop(worker).await;
            assert_eq!(fixture.client.stats("mail").await.unwrap().calls.ack, 1);
            assert_eq!(begun.available_permits(), 1, "the function ran once");
            server.stop().await;
        });
    }
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

fn signal_this_process(signal: &str) {
    let process = std::process::id().to_string();
    let sent = std::process::Command::new("kill").args([signal, &process]).status();
    assert!(sent.unwrap().success());
}

/// The signals are sent to this process, which has no other worker that listens: one test for all of them.
#[test]
fn signals_stop_the_worker() {
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
        signal_this_process("-TERM");
        running.await.unwrap().unwrap();
        assert_eq!(client.stats("mail").await.unwrap().calls.ack, 1);
        client.close().await.unwrap();
    });
    a_second_signal_ends_the_wait();
}

/// The clock does not move, so the worker would wait for its function for ever.
fn a_second_signal_ends_the_wait() {
    block_on(async {
        let server = TestServer::in_memory().await;
        let timer = Arc::new(ManualTimer::new(server.clock.clone()));
        let client = server.client();
        client.put("mail", "x").await.unwrap();
        let begun = Arc::new(Semaphore::new(0));
        let shared = begun.clone();
        let worker = client.worker("mail").timer(timer);
        let running = tokio::spawn(worker.run(move |_: String, _| {
            shared.add_permits(1);
            std::future::pending::<Result<(), String>>()
        }));
        passed(&begun).await;
        // Two different ones: two of the same could arrive as one.
        signal_this_process("-TERM");
        signal_this_process("-INT");
        running.await.unwrap().unwrap();
        let task = client.peek("mail", TaskId(0)).await.unwrap().unwrap();
        assert_eq!((task.task.state, task.attempts()), (State::Ready, 0));
        server.stop().await;
    });
}

#[test]
fn the_lease_of_the_client_is_that_of_its_worker() {
    let lease = Duration::from_secs(7);
    block_on(async {
        let client = Client::open("memory:").await.unwrap().with_lease(lease);
        let worker = format!("{:?}", client.worker("mail"));
        assert!(worker.contains("lease: 7s"), "{worker}");
        let worker = format!("{:?}", client.worker("mail").lease(2 * lease));
        assert!(worker.contains("lease: 14s"), "{worker}");
        client.close().await.unwrap();
    });
}

/// Functions end on several threads at the same time.
#[test]
fn functions_run_on_several_threads() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.unwrap().block_on(async {
        let server = TestServer::in_memory().await;
        let client = server.client();
        let texts: Vec<String> = (0..2_000).map(|number| number.to_string()).collect();
        client.put_many("mail", &texts).await.unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (shared, (stop, stopped)) = (seen.clone(), oneshot::channel::<()>());
        let function = move |text: String, task: RunningTask| {
            let seen = shared.clone();
            async move {
                tokio::task::yield_now().await;
                match text.len() {
                    1 => task.bury(),
                    2 => return Err("too short"),
                    _ => seen.lock().unwrap().push(text),
                }
                Ok(())
            }
        };
        let worker = client.worker("mail").concurrency(16);
        let running = tokio::spawn(worker.run_until(async { drop(stopped.await) }, function));
        loop {
            let tasks = client.stats("mail").await.unwrap().tasks;
            if tasks.ready + tasks.taken == 0 {
                assert_eq!((tasks.buried, tasks.delayed), (10, 90));
                break;
            }
        }
        drop(stop);
        running.await.unwrap().unwrap();
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort_unstable_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(seen, texts[100..]);
        server.stop().await;
    });
}

#[test]
fn ten_thousand_tasks_are_each_done_once() {
    each(async |fixture| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = seen.clone();
        let worker =
            fixture.start(fixture.client.worker("mail").concurrency(10), move |text, _| {
                shared.lock().unwrap().push(text);
                async { Ok(()) }
            });
        let texts: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        for part in texts.chunks(1_000) {
            fixture.client.put_many("mail", part).await.unwrap();
        }
        fixture
            .wait_until(|tube| tube.stats.calls.put == 10_000 && tube.stats.tasks.total() == 0)
            .await;
        fixture.stop(worker).await;
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort_unstable_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(seen, texts);
    });
}

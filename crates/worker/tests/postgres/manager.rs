//! Two servers share a database: one is the active manager of the workers of both, and the other replaces it.

use std::sync::Arc;
use std::time::Duration;

use taskyard::{Client, Execute};
use taskyard_wire::http::ManagerAnswer;
use taskyard_worker::testing::{ManualTimer, RunningWorker};
use taskyard_worker::{Dispatcher, Handler, HandlerStats, ManagerService, RawTask, Worker};

use crate::run;
use taskyard_testkit::postgres::Database;
use taskyard_testkit::server::{self, TestServer};

fn worker(name: &str, queue: impl Execute + 'static, timer: Arc<ManualTimer>) -> Worker {
    let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
        let ids: Vec<u64> = tasks.iter().map(|task| task.delivery.task_id).collect();
        store.done(&ids).await?;
        Ok(HandlerStats { processed: ids.len(), ..HandlerStats::default() })
    });
    let queues = Dispatcher::new([]).with_queue(1, "emails", handler);
    Worker::builder(name, queue, queues).managed().timer(timer).build().unwrap()
}

/// Advances the clock by a second and lets all tasks react.
async fn advance_second(timer: &ManualTimer, test_server: &TestServer) {
    timer.advance(Duration::from_secs(1));
    let client = Client::new(test_server.engine.clone());
    for _ in 0..20 {
        client.tubes().await.unwrap();
    }
}

async fn shown(test_server: &TestServer) -> ManagerAnswer {
    test_server.http.get("/v1/manager").await.unwrap()
}

#[test]
fn a_standby_replaces_the_active_manager() {
    run(async {
        let (database, clock) = (Arc::new(Database::new()), server::clock());
        let timer = Arc::new(ManualTimer::new(clock.clone()));
        let start =
            || TestServer::start(Box::new(database.open()), clock.clone(), server::config());
        let (a, b) = (start().await, start().await);
        let managers = [(&a, "a"), (&b, "b")].map(|(test_server, name)| {
            ManagerService::start_by(test_server.engine.clone(), name, timer.clone())
        });
        let workers = [
            worker("at a", a.http.clone(), timer.clone()),
            worker("at b", b.connect(), timer.clone()),
        ];
        let running_a = RunningWorker::start(&workers[0], timer.clone()).await;
        let running_b = RunningWorker::start(&workers[1], timer.clone()).await;
        while workers.iter().any(|worker| worker.plan_version() == 0) {
            advance_second(&timer, &b).await;
        }
        let leads = managers.iter().filter(|manager| manager.leads()).count();
        assert_eq!(leads, 1, "one active manager for all servers");
        let (at_a, at_b) = (shown(&a).await, shown(&b).await);
        assert_eq!(at_a, at_b, "each server shows the same state");
        assert_eq!(at_a.workers.len(), 2);

        // The server of the active manager stops; the manager cannot resign.
        let first = usize::from(!managers[0].leads());
        let (gone, left) = if first == 0 { (a, b) } else { (b, a) };
        let followed = workers[first].plan_version();
        gone.stop().await;
        while !managers[1 - first].leads() {
            advance_second(&timer, &left).await;
        }
        while workers[1 - first].plan_version() <= followed {
            advance_second(&timer, &left).await;
        }
        assert_eq!(
            workers[first].plan_version(),
            followed,
            "a worker without a server keeps its plan"
        );
        let shown = shown(&left).await;
        assert_eq!(shown.leader.as_deref(), Some(["b", "a"][first]));
        running_a.crash().await;
        running_b.crash().await;
        left.stop().await;
    });
}

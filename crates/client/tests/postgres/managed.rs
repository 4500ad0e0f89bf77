//! Two servers share a database: one plans for the workers of both, and when it is gone the other does.

use std::sync::Arc;
use std::time::Duration;

use taskyard::worker::kit::{HandTimer, Running};
use taskyard::worker::{Dispatcher, Handler, HandlerStats, ManagerService, RawTask, Worker};
use taskyard::{Client, Execute};
use taskyard_wire::http::ManagerAnswer;

use crate::rig::{self, Rig};
use crate::run;
use taskyard_testkit::postgres::Database;

fn worker(name: &str, queue: impl Execute + 'static, timer: Arc<HandTimer>) -> Worker {
    let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
        let ids: Vec<u64> = tasks.iter().map(|task| task.delivery.task_id).collect();
        store.done(&ids).await?;
        Ok(HandlerStats { processed: ids.len(), ..HandlerStats::default() })
    });
    let queues = Dispatcher::new([]).and(1, "emails", handler);
    Worker::builder(name, queue, queues).managed().timer(timer).build().unwrap()
}

/// Lets a second pass and gives everybody the time to notice.
async fn second(timer: &HandTimer, rig: &Rig) {
    timer.advance(Duration::from_secs(1));
    let client = Client::new(rig.engine.clone());
    for _ in 0..20 {
        client.tubes().await.unwrap();
    }
}

async fn shown(rig: &Rig) -> ManagerAnswer {
    rig.http.look("/v1/manager").await.unwrap()
}

#[test]
fn one_server_leads_and_another_follows_it() {
    run(async {
        let (database, clock) = (Arc::new(Database::new()), rig::clock());
        let timer = Arc::new(HandTimer::new(clock.clone()));
        let start = || Rig::start(Box::new(database.open()), clock.clone(), rig::config());
        let (a, b) = (start().await, start().await);
        let managers = [(&a, "a"), (&b, "b")]
            .map(|(rig, name)| ManagerService::start_by(rig.engine.clone(), name, timer.clone()));
        let workers = [
            worker("at a", a.http.clone(), timer.clone()),
            worker("at b", b.connect(), timer.clone()),
        ];
        let running_a = Running::start(&workers[0], timer.clone()).await;
        let running_b = Running::start(&workers[1], timer.clone()).await;
        while workers.iter().any(|worker| worker.plan_version() == 0) {
            second(&timer, &b).await;
        }
        let leads = managers.iter().filter(|manager| manager.leads()).count();
        assert_eq!(leads, 1, "one seat for all servers");
        let (at_a, at_b) = (shown(&a).await, shown(&b).await);
        assert_eq!(at_a, at_b, "any server can tell");
        assert_eq!(at_a.workers.len(), 2);

        // Its queue ends under the leader, and nothing is given back.
        let first = usize::from(!managers[0].leads());
        let (gone, left) = if first == 0 { (a, b) } else { (b, a) };
        let followed = workers[first].plan_version();
        gone.stop().await;
        while !managers[1 - first].leads() {
            second(&timer, &left).await;
        }
        while workers[1 - first].plan_version() <= followed {
            second(&timer, &left).await;
        }
        assert_eq!(workers[first].plan_version(), followed, "cut off, it goes on as it was");
        let shown = shown(&left).await;
        assert_eq!(shown.leader.as_deref(), Some(["b", "a"][first]));
        running_a.crash().await;
        running_b.crash().await;
        left.stop().await;
    });
}

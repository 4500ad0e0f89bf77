//! Shows the manager of workers: the leader, the reporting workers and the plan. Every server of
//! the store can show them.

use axum::http::Method;
use axum::response::Response;
use serde::de::DeserializeOwned;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Command, Error, Reply, Result as CoreResult, Task, TubeName};
use taskyard_wire::http::{
    LEADER_TUBE, ManagerAnswer, PLANS_TUBE, PlanMessage, REPORTS_TUBE, WorkerAnswer, WorkerReport,
    decode_message,
};

use super::{Refusal, RequestApp, Route, ok};
use crate::app::App;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let show = ("manager", "Show the manager of workers, the reporting workers and the plan");
    let route = Route::new(Method::GET, "/v1/manager", show, self::show);
    vec![route.responds::<ManagerAnswer>("The manager and the workers").uses_engine()]
}

async fn show(app: RequestApp) -> Result<Response, Refusal> {
    let led = !taken(&app, LEADER_TUBE).await?.is_empty();
    let plans = messages::<PlanMessage>(&app, PLANS_TUBE).await?;
    let plan = plans.into_iter().max_by_key(|plan| plan.version);
    let reports = messages::<WorkerReport>(&app, REPORTS_TUBE).await?;
    // While a newer report of a worker arrives, the older one still exists for a moment: the last
    // one counts.
    let mut workers: Vec<WorkerAnswer> = Vec::new();
    for report in reports {
        workers.retain(|known| known.worker != report.worker);
        workers.push(WorkerAnswer::new(report, plan.as_ref()));
    }
    workers.sort_by(|a, b| (&a.name, &a.worker).cmp(&(&b.name, &b.worker)));
    let version = plan.as_ref().map(|plan| plan.version);
    ok(&ManagerAnswer { led, leader: plan.map(|plan| plan.leader), version, workers })
}

/// The messages that the leader holds in this tube, by id.
async fn messages<T: DeserializeOwned>(app: &App, tube: &str) -> CoreResult<Vec<T>> {
    let ids: Vec<_> = taken(app, tube).await?.into_iter().map(|task| task.id).collect();
    let peek = Command::Peek { tube: TubeName::new(tube)?, ids };
    let tasks = tasks_of(app.run(peek).await)?;
    Ok(tasks.iter().filter_map(|task| decode_message(task.body.as_ref()?)).collect())
}

async fn taken(app: &App, tube: &str) -> CoreResult<Vec<Task>> {
    let held = Command::Deliveries { tube: TubeName::new(tube)?, count: BATCH_TASKS_MAX };
    tasks_of(app.run(held).await)
}

/// The tubes do not exist before a worker has reported.
fn tasks_of(reply: CoreResult<Reply>) -> CoreResult<Vec<Task>> {
    match reply {
        Ok(Reply::Tasks(tasks)) => Ok(tasks),
        Ok(_) => Err(Error::Store("unexpected reply of the engine".into())),
        Err(Error::TubeNotFound(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

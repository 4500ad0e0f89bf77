//! Lists the workers: what the engine saw of them, and the tasks that they hold according to the
//! store.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Command, Error, Execute, Reply, Result as CoreResult, Task, TubeName};
use taskyard_wire::http::{
    RunningTask, WORKER_RUNNING_MAX, WORKERS_PAGE_MAX, WorkerSummary, WorkersAnswer,
};

use super::missing_servers::shown_missing;
use super::request::{QueryParams, count};
use super::route::QueryField;
use super::tubes::{infos, internal};
use super::worker_list::WorkerList;
use super::{Refusal, RequestApp, Route, ok};
use crate::app::unexpected_reply;

/// Maximum number of taken tasks that one list reads.
const TAKEN_MAX: usize = 10 * BATCH_TASKS_MAX;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "workers",
        "Show the workers that took tasks from this server in the last hour or hold tasks",
    );
    let limit = "Maximum number of workers; 1000 when absent";
    let all =
        "Add what the other servers of the store saw that this one was started with (`--peer`)";
    let running = "Whether to read the tasks that workers hold (when absent, yes); otherwise only what \
                   this server saw itself is shown";
    let route = Route::new(Method::GET, "/v1/workers", about, workers)
        .query_param(internal())
        .query_param(QueryField::count("limit", limit, WORKERS_PAGE_MAX))
        .query_param(QueryField::text("after", "The `next` of the page before"))
        .query_param(QueryField::flag("all", all))
        .query_param(QueryField::flag("running", running))
        .responds::<WorkersAnswer>("The workers, by name")
        .uses_engine();
    vec![route]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkersQuery {
    #[serde(default)]
    internal: bool,
    #[serde(default = "limit_default", deserialize_with = "count")]
    limit: usize,
    after: Option<String>,
    #[serde(default)]
    all: bool,
    #[serde(default = "running_default")]
    running: bool,
}

const fn limit_default() -> usize {
    WORKERS_PAGE_MAX
}

const fn running_default() -> bool {
    true
}

async fn workers(
    app: RequestApp,
    QueryParams(query): QueryParams<WorkersQuery>,
) -> Result<Response, Refusal> {
    let limit = query.limit;
    if !(1..=WORKERS_PAGE_MAX).contains(&limit) {
        let message = format!("'limit' is {limit}; request 1 to {WORKERS_PAGE_MAX} workers");
        return Err(Error::Invalid(message).into());
    }
    let running = match query.running {
        true => RunningTasks::read(&app, query.internal).await?,
        false => RunningTasks::default(),
    };
    let (cut, holding) = (running.cut, running.holding.clone());
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let seen = app.engine.workers(query.running.then(|| holding.clone())).await;
    let mut list =
        WorkerList { workers: running.into_answers(time), app: &app, internal: query.internal };
    for info in seen {
        list.add(info);
    }
    let after = query.after.as_deref();
    let mut answer = WorkersAnswer { time, cut, ..WorkersAnswer::default() };
    let mut bound = None;
    if query.all {
        let peers = list.add_peers(after, time, &holding).await;
        answer.servers = Some(peers.urls.len() as u32 + 1);
        answer.missing = shown_missing(&app, peers.missing);
        bound = peers.bound;
    }
    (answer.workers, answer.next) = list.page(after, bound.as_deref(), limit);
    answer.instance = Some(app.peers.own_instance().to_owned());
    ok(&answer)
}

/// The tasks that named workers hold.
#[derive(Default)]
struct RunningTasks {
    workers: BTreeMap<Arc<str>, HeldTasks>,
    /// The workers that hold tasks, also of tubes that are not shown.
    holding: HashSet<Arc<str>>,
    /// Whether not all taken tasks were read.
    cut: bool,
}

/// The tasks of one worker.
#[derive(Default)]
struct HeldTasks {
    count: u64,
    /// When each was taken, in seconds since the epoch, its tube and its id.
    oldest: Vec<(f64, TubeName, u64)>,
    /// When the latest was taken.
    latest: f64,
    tubes: Vec<TubeName>,
}

impl RunningTasks {
    /// Reads the deliveries of all tubes, those of several small tubes at once.
    async fn read(app: &RequestApp, internal: bool) -> Result<Self, Refusal> {
        let mut found = RunningTasks::default();
        let (mut batch, mut expected, mut total) = (Vec::new(), 0, 0);
        for info in infos(app, None).await? {
            let taken = taken(&info);
            if taken == 0 {
                continue;
            }
            found.cut |= taken > BATCH_TASKS_MAX || total + taken > TAKEN_MAX;
            if total + taken.min(BATCH_TASKS_MAX) > TAKEN_MAX {
                continue;
            }
            total += taken.min(BATCH_TASKS_MAX);
            if expected + taken > BATCH_TASKS_MAX {
                found.read_batch(app, std::mem::take(&mut batch), internal).await?;
                expected = 0;
            }
            expected += taken;
            batch.push(info.name);
        }
        found.read_batch(app, batch, internal).await?;
        Ok(found)
    }

    async fn read_batch(
        &mut self,
        app: &RequestApp,
        tubes: Vec<TubeName>,
        internal: bool,
    ) -> Result<(), Refusal> {
        if tubes.is_empty() {
            return Ok(());
        }
        let command =
            |tube: &TubeName| Command::Deliveries { tube: tube.clone(), count: BATCH_TASKS_MAX };
        let replies = app.engine.execute(tubes.iter().map(command).collect()).await;
        for (tube, reply) in tubes.iter().zip(replies) {
            for task in held(reply)? {
                self.add(tube, &task, internal || !tube.is_internal());
            }
        }
        Ok(())
    }

    fn add(&mut self, tube: &TubeName, task: &Task, shown: bool) {
        let Some(worker) = &task.worker else { return };
        if !self.holding.contains(worker) {
            self.holding.insert(worker.clone());
        }
        if shown {
            let start = task.start.map_or(0.0, |start| start.as_secs_f64());
            self.workers.entry(worker.clone()).or_default().add(tube, start, task.id.0);
        }
    }

    fn into_answers(self, time: f64) -> BTreeMap<Arc<str>, WorkerSummary> {
        let answer = |(name, held): (Arc<str>, HeldTasks)| {
            let answer = held.into_answer(&name, time);
            (name, answer)
        };
        self.workers.into_iter().map(answer).collect()
    }
}

impl HeldTasks {
    fn add(&mut self, tube: &TubeName, start: f64, id: u64) {
        self.count += 1;
        self.latest = self.latest.max(start);
        if !self.tubes.contains(tube) {
            self.tubes.push(tube.clone());
        }
        self.oldest.push((start, tube.clone(), id));
        if self.oldest.len() >= 2 * WORKER_RUNNING_MAX {
            self.keep_oldest();
        }
    }

    fn keep_oldest(&mut self) {
        self.oldest.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| (&a.1, a.2).cmp(&(&b.1, b.2))));
        self.oldest.truncate(WORKER_RUNNING_MAX);
    }

    fn into_answer(mut self, name: &str, time: f64) -> WorkerSummary {
        self.keep_oldest();
        let task = |(start, tube, id): (f64, TubeName, u64)| RunningTask {
            tube: tube.to_string(),
            id,
            age: (time - start).max(0.0),
        };
        let mut tubes: Vec<_> = self.tubes.iter().map(ToString::to_string).collect();
        tubes.truncate(taskyard_engine::WORKER_TUBES_MAX);
        WorkerSummary {
            running: self.oldest.into_iter().map(task).collect(),
            running_count: self.count,
            last_seen: Some(self.latest),
            tubes,
            ..WorkerSummary::new(name)
        }
    }
}

fn taken(info: &TubeInfo) -> usize {
    usize::try_from(info.stats.tasks.taken).unwrap_or(usize::MAX)
}

/// The deliveries of a tube; none if it was dropped meanwhile.
fn held(reply: CoreResult<Reply>) -> Result<Vec<Task>, Refusal> {
    match reply {
        Ok(Reply::Tasks(tasks)) => Ok(tasks),
        Ok(_) => Err(unexpected_reply()),
        Err(Error::TubeNotFound(_)) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

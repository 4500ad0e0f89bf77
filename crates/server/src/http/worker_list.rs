//! The list of workers of one request: what this server and its peers saw, as far as the user may
//! see it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use taskyard_core::access::AccessVerb;
use taskyard_core::failure::is_worker_name;
use taskyard_core::{Timestamp, TubeName};
use taskyard_engine::{WORKER_KEPT, WORKER_TUBES_MAX, WorkerInfo};
use taskyard_wire::http::{WORKERS_PAGE_MAX, WorkerSummary, WorkersAnswer};

use super::RequestApp;

/// The workers by name.
pub(super) struct WorkerList<'a> {
    /// Those found so far.
    pub workers: BTreeMap<Arc<str>, WorkerSummary>,
    /// The server and the user.
    pub app: &'a RequestApp,
    /// Whether internal tubes are shown.
    pub internal: bool,
}

impl WorkerList<'_> {
    /// Adds what a server saw of a worker. One that uses no tube that is shown is left out: internal
    /// tubes are shown on request, others if the user may see them.
    pub fn add(&mut self, info: WorkerInfo) -> Option<&mut WorkerSummary> {
        let (shown, sees_all) = self.app.with_permissions(|permissions| {
            let may_see =
                |tube: &&TubeName| permissions.allows(AccessVerb::ShowWorkers, tube.as_str());
            let shown = info.tubes.iter().filter(may_see);
            let shown = shown.filter(|tube| self.internal || !tube.is_internal());
            let shown: Vec<_> = shown.map(ToString::to_string).collect();
            (shown, info.tubes.iter().all(|tube| may_see(&tube)))
        });
        if shown.is_empty() && !self.workers.contains_key(&info.name) {
            return None;
        }
        let new = || WorkerSummary::new(&info.name);
        let worker = self.workers.entry(info.name.clone()).or_insert_with(new);
        for tube in shown {
            if !worker.tubes.contains(&tube) {
                worker.tubes.push(tube);
            }
        }
        worker.tubes.sort_unstable();
        let last_seen = info.last_seen.as_secs_f64();
        worker.last_seen = Some(worker.last_seen.map_or(last_seen, |taken| taken.max(last_seen)));
        // The counts are not divided by tubes.
        if sees_all {
            worker.done = worker.done.saturating_add(info.done);
            worker.failed = worker.failed.saturating_add(info.failed);
            worker.done_per_minute = worker.done_per_minute.saturating_add(info.done_last_minute);
            worker.failed_per_minute =
                worker.failed_per_minute.saturating_add(info.failed_last_minute);
        }
        Some(worker)
    }

    /// Adds what peers saw, except workers that were not seen for an hour and hold no tasks. Returns
    /// the name up to which all of them are complete, if one has a further page.
    pub fn add_peers(
        &mut self,
        pages: impl Iterator<Item = WorkersAnswer>,
        time: f64,
        holding: &HashSet<Arc<str>>,
    ) -> Option<String> {
        let mut bound: Option<String> = None;
        let kept = WORKER_KEPT.as_secs_f64();
        for page in pages {
            for seen in page.workers.into_iter().take(WORKERS_PAGE_MAX) {
                let (address, version) = (seen.address.clone(), seen.version.clone());
                let Some(info) = info(seen) else { continue };
                let is_old = time - info.last_seen.as_secs_f64() >= kept;
                if is_old && !holding.contains(&info.name) {
                    continue;
                }
                if let Some(worker) = self.add(info) {
                    worker.address = worker.address.take().or(address);
                    worker.version = worker.version.take().or(version);
                }
            }
            bound = match (bound, page.next) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        bound
    }

    /// The workers after a name, up to another one, and where the next page begins.
    pub fn page(
        self,
        after: Option<&str>,
        bound: Option<String>,
        limit: usize,
    ) -> (Vec<WorkerSummary>, Option<String>) {
        let WorkerList { workers, app, .. } = self;
        let follows = |name: &str| after.is_none_or(|after| name > after);
        let is_complete = |name: &str| bound.as_deref().is_none_or(|bound| name <= bound);
        let of_page = |one: &WorkerSummary| follows(&one.name) && is_complete(&one.name);
        let mut page: Vec<_> = workers.into_values().filter(of_page).collect();
        // A peer whose list goes nowhere ends it.
        let mut next = bound.filter(|bound| follows(bound));
        if page.len() > limit {
            next = Some(page[limit - 1].name.clone());
            page.truncate(limit);
        }
        for worker in &mut page {
            let (address, version) = app.worker_origins.find(&worker.name);
            let address = address.map(|address| address.to_string());
            worker.address = address.or(worker.address.take());
            worker.version = version.or(worker.version.take());
            worker.tubes.truncate(WORKER_TUBES_MAX);
        }
        (page, next)
    }
}

/// A worker of a peer as the engine shows those of this server.
fn info(seen: WorkerSummary) -> Option<WorkerInfo> {
    if !is_worker_name(&seen.name) {
        return None;
    }
    let tubes = seen.tubes.iter().take(WORKER_TUBES_MAX);
    Some(WorkerInfo {
        name: seen.name.as_str().into(),
        tubes: tubes.filter_map(|tube| TubeName::new(tube).ok()).collect(),
        last_seen: Timestamp::from_secs_f64(seen.last_seen?)?,
        done: seen.done,
        failed: seen.failed,
        done_last_minute: seen.done_per_minute,
        failed_last_minute: seen.failed_per_minute,
    })
}

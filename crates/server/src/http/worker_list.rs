//! The list of workers of one request: what this server and its peers saw, as far as the user may
//! see it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use taskyard_core::access::AccessVerb;
use taskyard_core::failure::{is_client_version, is_worker_name};
use taskyard_core::{Timestamp, TubeName};
use taskyard_engine::{WORKER_KEPT, WORKER_TUBES_MAX, WORKERS_MAX, WorkerInfo};
use taskyard_wire::http::{MissingServer, WORKERS_PAGE_MAX, WorkerSummary, WorkersAnswer};

use super::RequestApp;

/// Maximum number of pages that one list reads of a peer: all that a server remembers.
const PEER_PAGES_MAX: usize = WORKERS_MAX.div_ceil(WORKERS_PAGE_MAX);

/// What was added of peers.
#[derive(Default)]
pub(super) struct AddedPeers {
    /// The name up to which the workers are complete, if a peer has more.
    pub bound: Option<String>,
    /// The peers that answered.
    pub urls: BTreeSet<String>,
    /// The others.
    pub missing: Vec<MissingServer>,
}

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

    /// Adds what peers saw after a name: pages of each, until there is a worker that the user may see
    /// and of which all counts are known, or until they have no more.
    pub async fn add_peers(
        &mut self,
        after: Option<&str>,
        time: f64,
        holding: &HashSet<Arc<str>>,
    ) -> AddedPeers {
        let app = self.app;
        let mut added = AddedPeers::default();
        // The peers that have a further page, with the name after which it begins.
        let begin = |url: &str| (url.to_owned(), after.map(str::to_owned));
        let mut rest: BTreeMap<String, Option<String>> = app.peers.urls().map(begin).collect();
        for _ in 0..PEER_PAGES_MAX {
            let mut pages = app.peers.workers(app.user(), &rest).await;
            pages.retain(|url, page| check_next(page, rest.get(url).and_then(Option::as_deref)));
            for missing in &pages.missing {
                added.urls.remove(&missing.url);
            }
            added.missing.extend(pages.missing);
            rest.clear();
            for (url, page) in pages.answers {
                self.add_page(page.workers, time, holding);
                if page.next.is_some() {
                    rest.insert(url.clone(), page.next);
                }
                added.urls.insert(url);
            }
            added.bound = rest.values().flatten().min().cloned();
            if rest.is_empty() || self.has_complete(after, added.bound.as_deref()) {
                return added;
            }
        }
        // A server does not remember so many: it is not asked for more.
        AddedPeers { bound: None, ..added }
    }

    /// Adds a page of a peer, except workers that were not seen for an hour and hold no tasks.
    fn add_page(&mut self, page: Vec<WorkerSummary>, time: f64, holding: &HashSet<Arc<str>>) {
        let kept = WORKER_KEPT.as_secs_f64();
        for seen in page.into_iter().take(WORKERS_PAGE_MAX) {
            let address = seen.address.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
            let version = seen.version.clone().filter(|version| is_client_version(version));
            let Some(info) = info(seen) else { continue };
            let is_old = time - info.last_seen.as_secs_f64() >= kept;
            if is_old && !holding.contains(&info.name) {
                continue;
            }
            if let Some(worker) = self.add(info) {
                let address = address.map(|address| address.to_string());
                worker.address = worker.address.take().or(address);
                worker.version = worker.version.take().or(version);
            }
        }
    }

    /// Whether there is a worker after a name, up to another one.
    fn has_complete(&self, after: Option<&str>, bound: Option<&str>) -> bool {
        let mut names = self.workers.keys();
        names.any(|name| is_between(name, after, bound))
    }

    /// The workers after a name, up to another one, and where the next page begins: after the last
    /// worker of this one, because the user may not see others.
    pub fn page(
        self,
        after: Option<&str>,
        bound: Option<&str>,
        limit: usize,
    ) -> (Vec<WorkerSummary>, Option<String>) {
        let WorkerList { workers, app, .. } = self;
        let of_page = |one: &WorkerSummary| is_between(&one.name, after, bound);
        let mut page: Vec<_> = workers.into_values().filter(of_page).collect();
        let is_last = page.len() <= limit && bound.is_none();
        page.truncate(limit);
        let next = page.last().filter(|_| !is_last).map(|last| last.name.clone());
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

fn is_between(name: &str, after: Option<&str>, bound: Option<&str>) -> bool {
    after.is_none_or(|after| name > after) && bound.is_none_or(|bound| name <= bound)
}

/// Checks that the page of a peer after a name leads on.
fn check_next(page: &WorkersAnswer, after: Option<&str>) -> Result<(), String> {
    let leads_on = |next: &str| is_worker_name(next) && after.is_none_or(|after| next > after);
    match page.next.as_deref().is_none_or(leads_on) {
        true => Ok(()),
        false => {
            Err("its list of workers does not have the expected form; use the same version".into())
        }
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

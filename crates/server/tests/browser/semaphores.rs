//! Tests of the views of semaphores, workers and the pool.

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture};
use taskyard_server::ExtraRoutes;

use crate::Manager;
use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::browse;

#[tokio::test]
async fn a_semaphore_shows_holders_and_waiting_tasks() {
    let site = DashboardServer::new(None).await;
    site.put("/v1/semaphores/gpu", json!({ "active": 2 })).await;
    site.put("/v1/semaphores/other", json!({})).await;
    let tasks: Vec<_> =
        (0..150).map(|task| json!({ "task": task, "priority": 1000 - task })).collect();
    site.post("/v1/semaphores/gpu/enqueue", json!({ "tasks": tasks })).await;
    site.put("/v1/tubes/render", json!({ "semaphore": "other" })).await;
    site.post("/v1/tubes/render/put", json!({ "data": 1 })).await;
    let rows = "document.querySelectorAll('[data-group=waiting] tbody tr').length";
    browse(&format!("{}/semaphores", site.url()), async |page| {
        page.until("text('.semaphores tbody th') === 'gpu' && text('.semaphores tbody td') === '2 of 2'").await;
        page.fill("#filter", "gp").await;
        page.until("document.querySelectorAll('.semaphores tbody tr').length === 1").await;
        page.click(".semaphores tbody th a").await;
        page.until("text('h2') === 'gpu' && document.querySelectorAll('[data-group=holders] tbody tr').length === 2").await;
        page.until(&format!("{rows} === 100 && text('[data-group=waiting] tbody th') === '2'")).await;
        page.until("text('[data-group=holders] tbody tr').includes('holds a grant')").await;
        page.picture("semaphore").await;
        page.click("[data-group=waiting] .pager a:not([hidden])").await;
        page.until(&format!("{rows} === 48 && text('[data-group=waiting] tbody th') === '102'")).await;
        page.reload().await;
        page.until(&format!("{rows} === 48")).await;
        page.back().await;
        page.until(&format!("{rows} === 100")).await;
        // The task of a tube is a link to its page.
        page.open(&format!("{}/semaphores/other", site.url())).await;
        page.until("text('[data-group=holders] tbody th') === 'render / 0'").await;
        page.click("[data-group=holders] tbody th a").await;
        page.until("location.pathname === '/tubes/render/tasks/0'").await;
        assert_quiet(page).await;
    })
    .await;
}

/// Answers `/v1/workers` in the page.
const WORKERS: &str = "const real = window.fetch; const now = Date.now() / 1000;
    const workers = [
      { name: 'web1:4711:mailer', address: '10.0.0.7:50112', host: 'web1', process: 4711, program: 'mailer', version: '2.1',
        tubes: ['mail', 'mail & co'], running: [{ tube: 'mail', id: 0, age: 62 }], running_count: 1, last_seen: now - 3,
        done: 12345, failed: 6, done_per_minute: 1204.5, failed_per_minute: 0.4 },
      { name: 'idle', tubes: [], running: [], running_count: 0, last_seen: now - 90, done: 0, failed: 0, done_per_minute: 0, failed_per_minute: 0 }];
    window.fetch = async (url, options) =>
      String(url).includes('/v1/workers') ? new Response(JSON.stringify({ workers })) : real(url, options);";

#[tokio::test]
async fn workers_show_what_they_run() {
    let site = DashboardServer::with(None, vec![Arc::new(Manager)]).await;
    site.post("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    browse(&site.url(), async |page| {
        page.until("text('.tubes .name') === 'mail'").await;
        page.run(WORKERS).await;
        page.click("[data-view=workers]").await;
        page.until("document.querySelectorAll('.workers tbody tr').length === 2").await;
        page.until("text('.workers tbody th') === 'web1:4711:mailermailer 2.1, on web1, process 4711'").await;
        page.until("text('.workers tbody tr').includes('10.0.0.7:50112mail, mail & co1')").await;
        page.until("text('.workers tbody tr').endsWith('12,3451,20560.4')").await;
        page.click(".workers summary").await;
        page.until("text('.running li') === 'mail / 0 for 62 s'").await;
        // The manager of typed workers is part of this view.
        page.until("text('.service .parts') === 'this serveractive: plan for 2 workers and 3 queues, made 7 s ago'").await;
        page.picture("workers").await;
        page.fill("#filter", "idle").await;
        page.until("document.querySelectorAll('.workers tbody tr').length === 1").await;
        page.run("document.querySelector('#filter').value = ''").await;
        page.fill("#filter", "mail &").await;
        page.until("text('.workers .name') === 'web1:4711:mailer'").await;
        page.click(".workers summary").await;
        page.click(".running a").await;
        page.until("location.pathname === '/tubes/mail/tasks/0' && text('.state-badge') === 'ready'").await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_took_tasks_is_listed() {
    let site = DashboardServer::new(None).await;
    site.post(
        "/v1/tubes/mail/put",
        json!({ "tasks": [{ "data": 1 }, { "data": 2 }, { "data": 3 }] }),
    )
    .await;
    let take = json!({ "worker": "web1:4711:mailer", "count": 3, "lease": 600 });
    let taken = site.post("/v1/tubes/mail/take", take).await;
    let lease = |place: usize| json!({ "id": place, "lease": taken["tasks"][place]["lease"] });
    site.post("/v1/tubes/mail/ack", lease(0)).await;
    let mut fail = lease(1);
    fail["error"] = json!("no route to host");
    fail["delay"] = json!(3600);
    site.post("/v1/tubes/mail/fail", fail).await;
    browse(&format!("{}/workers", site.url()), async |page| {
        page.until("text('.workers tbody th').startsWith('web1:4711:mailermailer')").await;
        page.until("text('.workers tbody th').includes('on web1, process 4711')").await;
        page.until("text('.workers tbody tr').includes('127.0.0.1mail1')").await;
        let counts = "[...document.querySelectorAll('.workers tbody td.count')].map((cell) => cell.textContent)";
        page.until(&format!("{counts}[0] === '1' && {counts}[2] === '1'")).await;
        page.click(".workers summary").await;
        page.until("text('.running li').startsWith('mail / 2 for ')").await;
        page.picture("workers-real").await;
        page.click(".running a").await;
        page.until("location.pathname === '/tubes/mail/tasks/2' && text('.state-badge') === 'taken'").await;
        assert_quiet(page).await;
    })
    .await;
}

/// A service with the same status as a pool.
#[derive(Debug)]
struct Pool;

impl Service for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn health(&self) -> Health {
        Health::Unhealthy("no backend is alive".into())
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    fn status(&self) -> Vec<PartStatus> {
        let status = "1 of 4 running, 2 waiting, 9 started".into();
        vec![PartStatus { part: "short".into(), status }]
    }

    fn stop(&self) -> StopFuture<'_> {
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_pool_shows_its_classes_and_keeps_its_own_page() {
    let class = json!({ "name": "short", "seconds": 5, "running": 1, "limit": 4, "queued": 2 });
    let status = json!({ "backends": 3, "running": 1, "interactive": 0, "queued": 2, "paused": true, "classes": [class] });
    let router = Router::new()
        .route("/pool", get(|| async { "the page of the pool" }))
        .route("/pool/status", get(move || async move { Json(status) }));
    let site = DashboardServer::configured(None, |config| {
        config.services = vec![Arc::new(Pool)];
        config.extra_routes.push(ExtraRoutes { router, is_open: |_| false });
    })
    .await;
    browse(&site.url(), async |page| {
        page.until("!document.querySelector('[data-view=pool]').hidden").await;
        // A problem of a service is on the overview too.
        page.until("text('#service-problems') === 'Pool: no backend is alive'").await;
        page.click("[data-view=pool]").await;
        page.until("location.pathname === '/pool-status' && text('#services h2') === 'Pool'").await;
        page.until("text('#services').includes('Paused. 3 backends, 1 running, 0 of them interactive, 2 waiting')").await;
        page.until("text('#services tbody tr') === 'short5 s1 of 42'").await;
        page.until("text('#services .problem') === 'no backend is alive'").await;
        page.until("text('#services .parts') === 'short1 of 4 running, 2 waiting, 9 started'").await;
        page.click("#services a").await;
        page.until("text('body') === 'the page of the pool'").await;
    })
    .await;
}

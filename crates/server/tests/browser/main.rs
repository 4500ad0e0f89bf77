//! The dashboard in a real Chromium, over a live server.
//!
//! No test sleeps: the browser itself waits until the page shows the expected content, and fails
//! after half a minute.

mod actions;
mod audit;
mod documents;
mod estimates;
mod keyboard;
mod layouts;
mod navigation;
mod schedules;
mod semaphores;
mod services;
mod sign_in;
mod site;
mod tasks;
mod tubes;

use std::sync::Arc;

use serde_json::json;
use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture};

use site::DashboardServer;
use taskyard_testkit::chromium::{Page, browse};

/// A name that would run a script if it were inserted as HTML.
const HOSTILE: &str = "<img src=x onerror=\"document.title='taken over'\">";

/// Fails if the browser complained about the page: an error of a script, a refused file, a violated policy.
async fn assert_quiet(page: &Page) {
    assert_eq!(page.complaints().await, [] as [String; 0]);
}

#[tokio::test]
async fn the_dashboard_updates_itself() {
    let site = DashboardServer::new(None).await;
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'live' && text('#server').startsWith('memory store')").await;
        let commands = page.text("#empty pre").await;
        let url = site.url();
        let lines: Vec<_> = commands.lines().collect();
        assert_eq!(lines[0], format!("taskyard put mail '{{\"to\": \"ann\"}}' --url {url}"));
        assert_eq!(lines[1], format!("taskyard take mail --lease 1h --url {url}"));
        assert_eq!(lines[2], format!("taskyard ack mail 0 --url {url}"));

        // The variable disappears if the page is loaded again.
        page.run("window.before = true").await;
        site.post("/v1/tubes/mail/put", json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
        page.until("text('.tubes .name') === 'mail' && text('td.count.ready') === '2'").await;
        page.until("text('td.why') === '2 ready, no waiting consumer'").await;
        page.until("document.querySelector('#empty').hidden").await;

        let taken = site.post("/v1/tubes/mail/take", json!({})).await;
        page.until("text('td.count.taken') === '1'").await;
        let id = &taken["tasks"][0]["id"];
        site.post("/v1/tubes/mail/ack", json!({ "id": id })).await;
        page.until("text('td.count.done') === '1' && text('#totals .done dd') === '1'").await;
        page.until("document.querySelector('.tubes polyline').points.length > 1").await;
        assert_eq!(page.run("return window.before").await, true);
        assert_quiet(page).await;
    })
    .await;
}

/// A service with the same status as the manager of workers.
#[derive(Debug)]
struct Manager;

impl Service for Manager {
    fn name(&self) -> &'static str {
        "manager"
    }

    fn health(&self) -> Health {
        Health::Healthy
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    fn status(&self) -> Vec<PartStatus> {
        vec![PartStatus {
            part: "this server".into(),
            status: "active: plan for 2 workers and 3 queues, made 7 s ago".into(),
        }]
    }

    fn stop(&self) -> StopFuture<'_> {
        Box::pin(std::future::ready(()))
    }
}

// Internal tubes were listed among those of the user.
#[tokio::test]
async fn internal_tubes_are_shown_on_request() {
    let site = DashboardServer::with(None, vec![Arc::new(Manager)]).await;
    for tube in ["mail", "taskyard.manager.seat"] {
        site.post(&format!("/v1/tubes/{tube}/put"), json!({ "data": 1 })).await;
    }
    browse(&site.url(), async |page| {
        page.until("text('#totals .tubes dd') === '1' && text('.tubes .name') === 'mail'").await;
        page.click("#internal").await;
        page.until("text('#totals .tubes dd') === '2'").await;
        page.until("text('.tubes tbody tr:nth-child(2) .name') === 'taskyard.manager.seat'").await;
        page.reload().await;
        page.until("text('#totals .tubes dd') === '2'").await;
        page.click("#internal").await;
        page.until("text('#totals .tubes dd') === '1'").await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn names_payloads_and_errors_are_text_and_never_html() {
    let site = DashboardServer::new(None).await;
    let path = |parts: &[&str]| {
        let mut url = reqwest::Url::parse(&site.url()).unwrap();
        url.path_segments_mut().unwrap().extend(parts);
        url
    };
    site.put("/v1/semaphores/plain", json!({ "active": 1 })).await;
    site.send(path(&["v1", "tubes", HOSTILE, "put"]), json!({ "data": { HOSTILE: HOSTILE } }))
        .await;
    let take = json!({ "worker": HOSTILE });
    let taken = site.send(path(&["v1", "tubes", HOSTILE, "take"]), take).await;
    let lease = &taken["tasks"][0]["lease"];
    let bury = json!({ "id": 0, "lease": lease, "error": format!("{HOSTILE}\nsecond line") });
    site.send(path(&["v1", "tubes", HOSTILE, "bury"]), bury).await;
    browse(&site.url(), async |page| {
        page.until("text('.tubes .name') !== ''").await;
        assert_eq!(page.text(".tubes .name").await, HOSTILE);
        page.click(".tubes .name").await;
        page.until("text('.tasks td.error') !== ''").await;
        assert_eq!(page.text("#tube-name").await, HOSTILE);
        assert_eq!(page.text(".tasks td.error").await, HOSTILE);
        assert!(page.text(".tasks td.payload").await.contains("onerror"));
        page.click("#pause").await;
        assert!(page.text("dialog h2").await.contains(HOSTILE));
        page.until("!document.querySelector('[data-role=confirm]').disabled").await;
        page.click("[data-role=confirm]").await;
        page.until("text('#pause') === 'Resume'").await;
        page.click(".tasks tbody th a").await;
        page.until("text('.failures td.error').endsWith('second line')").await;
        assert!(page.text(".failures td.error").await.starts_with(HOSTILE));
        assert_eq!(page.text(".failures td.worker").await, HOSTILE);
        assert!(page.text("section[aria-label=Payload] pre").await.contains("onerror"));
        page.picture("hostile").await;
        page.reload().await;
        page.until("text('.failures td.error').endsWith('second line')").await;
        assert!(page.run("return document.querySelector('main img, dialog img')").await.is_null());
        assert_eq!(
            page.run("return document.title").await,
            format!("Task 0 in {HOSTILE} · Taskyard")
        );
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn a_wrong_token_is_asked_for_again() {
    let site = DashboardServer::new(Some("right-0123456789")).await;
    site.post("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'token required'").await;
        page.until("!document.querySelector('#token-form').hidden").await;
        page.fill("#token", "wrong").await;
        page.click("#token-form button").await;
        page.until("text('#token-error') === 'The token is wrong.'").await;
        assert_eq!(page.run("return document.activeElement.id").await, "token");
        page.fill("#token", "right-0123456789").await;
        page.click("#token-form button").await;
        page.until("text('#state') === 'live' && text('.tubes .name') === 'mail'").await;
        page.until("document.querySelector('#token-form').hidden").await;
        let kept = "return [localStorage.length, sessionStorage.length, document.cookie]";
        assert_eq!(page.run(kept).await, json!([0, 0, ""]));
        // The browser reports the two refusals by itself; there must be no other complaint.
        let complaints = page.complaints().await;
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints.iter().all(|line| line.contains("401")), "{complaints:?}");
    })
    .await;
}

#[tokio::test]
async fn a_stopped_server_is_noticed() {
    let site = DashboardServer::new(None).await;
    site.post("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'live'").await;
        site.stop().await;
        page.until("text('#state') === 'reconnecting'").await;
        page.until("text('#problem').startsWith('The server does not respond. Retrying in')").await;
        assert_eq!(page.text(".tubes .name").await, "mail");
    })
    .await;
}

#[tokio::test]
async fn a_hidden_page_pauses_and_goes_on_when_it_is_shown() {
    let site = DashboardServer::new(None).await;
    site.post("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    let hide = |hidden| {
        format!(
            "Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});
             document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'live'").await;
        page.run(&hide(true)).await;
        page.until("text('#state') === 'paused'").await;
        site.post("/v1/tubes/mail/put", json!({ "data": 2 })).await;
        page.run(&hide(false)).await;
        page.until("text('#state') === 'live' && text('td.count.ready') === '2'").await;
        assert_quiet(page).await;
    })
    .await;
}

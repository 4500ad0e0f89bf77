//! The dashboard in a real Chromium, over a live server.
//!
//! No test sleeps: the browser itself waits until the page shows the expected content, and fails
//! after half a minute.

mod services;
mod site;

use std::sync::Arc;

use serde_json::json;
use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture};

use site::DashboardServer;
use taskyard_testkit::chromium::browse;

/// A name that would run a script if it were inserted as HTML.
const HOSTILE: &str = "<img src=x onerror=\"document.title='taken over'\">";

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
        page.until("text('#tubes .name') === 'mail' && text('#tubes .count.ready') === '2'").await;
        page.until("text('#tubes .why') === '2 ready, no waiting consumer'").await;
        page.until("document.querySelector('#empty').hidden").await;

        let taken = site.post("/v1/tubes/mail/take", json!({})).await;
        page.until("text('#tubes .count.taken') === '1'").await;
        let id = &taken["tasks"][0]["id"];
        site.post("/v1/tubes/mail/ack", json!({ "id": id })).await;
        page.until("text('#tubes .count.done') === '1' && text('#totals .done dd') === '1'").await;
        page.until("document.querySelector('#tubes polyline').points.length > 1").await;
        assert_eq!(page.run("return window.before").await, true);
        assert_eq!(page.complaints().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_tube_shows_its_details_and_can_be_paused() {
    let site = DashboardServer::new(None).await;
    site.post("/v1/tubes/mail/put", json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
    let taken = site.post("/v1/tubes/mail/take", json!({ "lease": 600 })).await;
    let lease = &taken["tasks"][0]["lease"];
    browse(&site.url(), async |page| {
        page.until("text('#tubes .name') === 'mail'").await;
        page.click("#tubes .name").await;
        page.until("document.querySelector('#details').open && text('#details-name') === 'mail'")
            .await;
        page.until(&format!("text('#details-body tbody tr').startsWith('0{lease}no session')"))
            .await;
        // Six counts and eleven counters, and two more numbers beside the counts.
        page.until("document.querySelectorAll('#details-body .pairs')[0].children.length === 8")
            .await;
        page.until("document.querySelectorAll('#details-body .pairs')[1].children.length === 11")
            .await;

        // One click stopped a tube for all clients; now it has to be confirmed.
        page.click("#pause").await;
        page.until("!document.querySelector('#confirm').hidden").await;
        page.until("text('#confirm-text').startsWith('Pause tube “mail”? Consumers get no tasks')")
            .await;
        page.click("#confirm-no").await;
        page.until("document.querySelector('#confirm').hidden").await;
        assert_eq!(site.get("/v1/tubes/mail").await["paused"], false);
        page.click("#pause").await;
        page.picture("pause").await;
        page.click("#confirm-yes").await;
        page.until("text('#pause') === 'Resume' && text('#details-why').startsWith('paused')")
            .await;
        page.until(
            "text('#tubes .why').includes('1 ready, not delivered while the tube is paused')",
        )
        .await;
        assert_eq!(site.get("/v1/tubes/mail").await["paused"], true);
        page.click("#pause").await;
        page.until("text('#pause') === 'Pause'").await;
        page.click("#details form button").await;
        page.until("!document.querySelector('#details').open").await;
        assert_eq!(page.complaints().await, [] as [String; 0]);
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
        page.until("text('#totals .tubes dd') === '1' && text('#tubes .name') === 'mail'").await;
        page.until("text('#services h2') === 'Worker manager'").await;
        page.until("text('#services .parts') === 'this serveractive: plan for 2 workers and 3 queues, made 7 s ago'").await;
        page.picture("services").await;
        page.click("#internal").await;
        page.until("text('#totals .tubes dd') === '2'").await;
        page.until("text('#tubes tr:nth-child(2) .name') === 'taskyard.manager.seat'").await;
        page.click("#internal").await;
        page.until("text('#totals .tubes dd') === '1'").await;
        assert_eq!(page.complaints().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn names_are_text_and_never_html() {
    let site = DashboardServer::new(None).await;
    let mut url = reqwest::Url::parse(&site.url()).unwrap();
    url.path_segments_mut().unwrap().extend(["v1", "tubes", HOSTILE, "put"]);
    site.post("/v1/tubes/plain/put", json!({ "data": HOSTILE })).await;
    site.send(url, json!({ "data": HOSTILE })).await;
    browse(&site.url(), async |page| {
        page.until("document.querySelectorAll('#tubes .name').length === 2").await;
        assert_eq!(page.text("#tubes .name").await, HOSTILE);
        page.click("#tubes .name").await;
        page.until("document.querySelectorAll('#details-body .pairs').length === 3").await;
        assert_eq!(page.text("#details-name").await, HOSTILE);
        page.click("#pause").await;
        assert!(page.text("#confirm-text").await.contains(HOSTILE));
        page.click("#confirm-yes").await;
        page.until("text('#pause') === 'Resume'").await;
        assert!(page.run("return document.querySelector('main img, dialog img')").await.is_null());
        assert_eq!(page.run("return document.title").await, "Taskyard");
        assert_eq!(page.complaints().await, [] as [String; 0]);
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
        page.until("text('#token-hint') === 'The token is wrong.'").await;
        assert_eq!(page.run("return sessionStorage.length").await, 0);
        page.fill("#token", "right-0123456789").await;
        page.click("#token-form button").await;
        page.until("text('#state') === 'live' && text('#tubes .name') === 'mail'").await;
        page.until("document.querySelector('#token-form').hidden").await;
        assert_eq!(page.run("return [localStorage.length, document.cookie]").await, json!([0, ""]));
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
        assert_eq!(page.text("#tubes .name").await, "mail");
    })
    .await;
}

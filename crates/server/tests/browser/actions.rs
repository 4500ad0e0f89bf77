//! Tests of the actions on tasks and tubes, and of the mode without them.

use serde_json::{Value, json};

use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::{Page, browse};

const READY: &str = "!document.querySelector('dialog [data-role=confirm]')?.disabled";

/// Confirms the open dialog once it says this, and waits until it is closed.
async fn confirm(page: &Page, question: &str) {
    page.until(&format!(
        "document.querySelector('dialog .status') && text('dialog .status').startsWith({})",
        json!(question)
    ))
    .await;
    page.until(READY).await;
    page.click("dialog [data-role=confirm]").await;
    page.until("document.querySelector('dialog') === null").await;
}

async fn states(site: &DashboardServer) -> Vec<String> {
    let page = site.get("/v1/tubes/mail/tasks").await;
    let state = |task: &Value| format!("{} {}", task["id"], task["state"].as_str().unwrap());
    page["tasks"].as_array().unwrap().iter().map(state).collect()
}

#[tokio::test]
async fn selected_tasks_are_retried_and_deleted() {
    let site = DashboardServer::new(None).await;
    let task = |error| (json!({ "to": "ann" }), error);
    site.bury("mail", &[task("one"), task("two"), task("three")]).await;
    site.post("/v1/tubes/mail/tasks/kick", json!({ "ids": [0] })).await;
    for verb in ["fail", "bury"] {
        let taken = site.post("/v1/tubes/mail/take", json!({})).await;
        let failed = json!({ "id": 0, "lease": taken["tasks"][0]["lease"], "error": "one" });
        site.post(&format!("/v1/tubes/mail/{verb}"), failed).await;
    }
    assert_ne!(site.get("/v1/tubes/mail/tasks/0").await["attempts"], 0);
    browse(&format!("{}/tubes/mail?state=buried", site.url()), async |page| {
        page.until("document.querySelectorAll('.tasks tbody tr').length === 3").await;
        page.until("document.querySelector('[data-action=kick]').disabled").await;
        page.until("document.querySelector('[data-action=bury]') === null").await;
        page.click(".tasks tbody tr:nth-child(1) input").await;
        page.click(".tasks tbody tr:nth-child(3) input").await;
        page.until("text('.chosen') === '2 tasks selected'").await;
        page.click("[data-action=kick]").await;
        page.until("text('dialog .status') === 'Retry 2 tasks? Retried tasks are ready at once.'").await;
        page.picture("retry").await;
        page.click("dialog [name=reset_attempts]").await;
        confirm(page, "Retry 2 tasks?").await;
        page.until("text('#task-list').includes('Retried 2 tasks.') && text('#announcement') === 'Retried 2 tasks.'").await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 1 && text('.chosen') === 'No task selected'").await;
        assert_eq!(states(&site).await, ["0 ready", "1 buried", "2 ready"]);
        assert_eq!(site.get("/v1/tubes/mail/tasks/0").await["attempts"], 0);

        page.click(".toolbar button:nth-of-type(1)").await;
        page.until("text('.chosen') === '1 task selected'").await;
        page.click("[data-action=delete]").await;
        page.until(READY).await;
        // What cannot be undone is not confirmed by a second Enter.
        page.until("document.activeElement.textContent === 'Cancel'").await;
        confirm(page, "Delete 1 task? Deleted tasks are removed").await;
        page.until("text('#task-list').includes('No buried tasks.')").await;
        assert_eq!(states(&site).await, ["0 ready", "2 ready"]);
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn all_tasks_that_match_are_changed_after_a_count() {
    let site = DashboardServer::new(None).await;
    let task = |error| (json!({ "to": "ann" }), error);
    site.bury("mail", &[task("no route"), task("timeout"), task("no route to host")]).await;
    browse(&format!("{}/tubes/mail?state=buried&error=no+route", site.url()), async |page| {
        page.until("text('.progress').startsWith('3 tasks searched, 2 found')").await;
        page.click(".toolbar button:nth-of-type(2)").await;
        page.until("text('.chosen') === 'All buried tasks that match selected'").await;
        page.until("document.querySelectorAll('.tasks tbody input:checked').length === 2").await;
        page.click("[data-action=kick]").await;
        confirm(page, "Retry 2 tasks?").await;
        page.until("text('.progress').startsWith('1 tasks searched, 0 found')").await;
        assert_eq!(states(&site).await, ["0 ready", "1 buried", "2 ready"]);

        // Without a condition all tasks of the state are meant.
        page.open(&format!("{}/tubes/mail?state=ready", site.url())).await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 2").await;
        page.click(".toolbar button:nth-of-type(2)").await;
        page.click("[data-action=bury]").await;
        page.until(READY).await;
        page.fill("dialog [name=error]", "not today").await;
        confirm(page, "Bury 2 tasks?").await;
        page.until("text('#task-list').includes('Buried 2 tasks.')").await;
        assert_eq!(site.get("/v1/tubes/mail/tasks/0").await["error"], "not today");
        assert_eq!(states(&site).await, ["0 buried", "1 buried", "2 buried"]);
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn taken_tasks_are_released() {
    let site = DashboardServer::new(None).await;
    site.post("/v1/tubes/mail/put", json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
    site.post("/v1/tubes/mail/take", json!({ "count": 2, "lease": 600 })).await;
    browse(&format!("{}/tubes/mail?state=taken", site.url()), async |page| {
        page.until("document.querySelectorAll('.tasks tbody tr').length === 2").await;
        page.click(".tasks tbody tr:nth-child(1) input").await;
        page.click("[data-action=release]").await;
        page.until(READY).await;
        page.run("document.querySelector('dialog [name=delay]').value = ''").await;
        page.fill("dialog [name=delay]", "3600").await;
        confirm(page, "Release 1 task?").await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 1").await;
        assert_eq!(states(&site).await, ["0 delayed", "1 taken"]);
    })
    .await;
}

#[tokio::test]
async fn a_refused_action_says_why() {
    let site = DashboardServer::new(None).await;
    site.bury("mail", &[(json!(1), "one")]).await;
    browse(&format!("{}/tubes/mail/tasks/0", site.url()), async |page| {
        page.until("document.querySelector('[data-action=delete]') !== null").await;
        page.click("[data-action=delete]").await;
        page.until(READY).await;
        page.run("window.fetch = async () => new Response('{\"error\": {\"message\": \"the disk is full\"}}', { status: 503 })").await;
        page.click("dialog [data-role=confirm]").await;
        page.until("text('dialog [role=alert]') === 'The server refused the request: the disk is full.'").await;
        page.until("text('dialog [data-role=cancel]') === 'Close'").await;
    })
    .await;
}

#[tokio::test]
async fn a_tube_is_truncated_once_its_name_is_typed() {
    let site = DashboardServer::new(None).await;
    site.post("/v1/tubes/mail/put", json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
    browse(&format!("{}/tubes/mail", site.url()), async |page| {
        page.until("text('#tab-all .badge') === '2'").await;
        page.click("#truncate").await;
        page.until("text('dialog .status').startsWith('2 tasks in any state')").await;
        page.fill("dialog [name=confirmation]", "mai").await;
        page.until("document.querySelector('dialog [data-role=confirm]').disabled").await;
        page.picture("truncate").await;
        page.fill("dialog [name=confirmation]", "l").await;
        confirm(page, "2 tasks in any state").await;
        page.until("text('#tab-all .badge') === '0'").await;
        assert_eq!(site.get("/v1/tubes/mail").await["tasks"]["total"], 0);
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn a_read_only_dashboard_offers_no_actions() {
    let site = DashboardServer::configured(None, |config| config.read_only_dashboard = true).await;
    site.bury("mail", &[(json!(1), "one")]).await;
    let actions = "document.querySelectorAll('[data-action], #pause:not([hidden]), #truncate:not([hidden]), .tasks input, .toolbar').length";
    browse(&format!("{}/tubes/mail?state=buried", site.url()), async |page| {
        page.until("text('.tasks tbody th') === '0' && text('#read-only') === 'read-only'").await;
        assert_eq!(page.run(&format!("return {actions}")).await, 0);
        assert_eq!(page.run("return document.querySelector('#read-only').hidden").await, false);
        page.picture("read-only").await;
        page.click(".tasks tbody th a").await;
        page.until("text('.failures td.error') === 'one'").await;
        assert_eq!(page.run(&format!("return {actions}")).await, 0);
    })
    .await;
}

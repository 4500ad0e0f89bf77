//! Tests that every view has an address of its own, which survives reload and back.

use serde_json::json;

use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::browse;

#[tokio::test]
async fn every_view_has_an_address_that_survives_reload_and_back() {
    let site = DashboardServer::new(None).await;
    site.bury("mail & co", &[(json!({ "to": "ann" }), "no route to host")]).await;
    site.put("/v1/semaphores/gpu%20one", json!({ "active": 1 })).await;
    let daily = json!({ "tube": "mail & co", "cron": "0 9 * * *", "task": { "data": 1 } });
    site.put("/v1/schedules/daily", daily).await;
    let views = [
        ("/", "text('.tubes .name') === 'mail & co'"),
        ("/?sort=buried&descending=1", "document.querySelector('[aria-sort=descending]') !== null"),
        (
            "/tubes/mail%20%26%20co",
            "text('#tube-name') === 'mail & co' && text('#tab-buried .badge') === '1'",
        ),
        ("/tubes/mail%20%26%20co?state=buried&match=ann", "text('.tasks tbody th') === '0'"),
        ("/tubes/mail%20%26%20co?state=ready", "text('#task-list').includes('No ready tasks.')"),
        (
            "/tubes/mail%20%26%20co?show=charts&range=1h",
            "document.querySelectorAll('.chart').length === 4",
        ),
        (
            "/tubes/mail%20%26%20co?show=details",
            "text('#tube-details').includes('No taken tasks.')",
        ),
        ("/tubes/mail%20%26%20co/tasks/0", "text('.failures td.error') === 'no route to host'"),
        ("/semaphores", "text('.semaphores tbody th') === 'gpu one'"),
        (
            "/semaphores/gpu%20one",
            "text('h2') === 'gpu one' && text('#view').includes('No task waits.')",
        ),
        ("/schedules", "text('.schedules tbody th') === 'daily'"),
        ("/schedules/daily", "text('h2') === 'daily'"),
        ("/workers", "text('.workers tbody th').startsWith('web1:4711:mailer')"),
        ("/audit", "text('h2') === 'Audit'"),
        ("/sql", "text('#services').includes('This server runs no SQL tasks.')"),
        ("/pool-status", "text('#services').includes('This server has no pool.')"),
    ];
    browse(&site.url(), async |page| {
        for (path, shown) in views {
            page.open(&format!("{}{path}", site.url())).await;
            page.until(shown).await;
            page.reload().await;
            page.until(shown).await;
            page.until("text('#state') === 'live'").await;
        }
        for (path, shown) in views.into_iter().rev().skip(1) {
            page.back().await;
            page.until(shown).await;
            assert!(page.run("return location.href").await.as_str().unwrap().ends_with(path));
        }
    })
    .await;
}

#[tokio::test]
async fn links_do_not_load_the_page_again() {
    let site = DashboardServer::new(None).await;
    site.bury("mail", &[(json!(1), "first"), (json!(2), "second")]).await;
    browse(&site.url(), async |page| {
        // The variable disappears if the page is loaded again.
        page.run("window.before = true").await;
        page.until("text('.tubes .name') === 'mail'").await;
        page.click(".tubes .name").await;
        page.until("text('#tab-buried .badge') === '2'").await;
        page.click("#tab-buried").await;
        page.until("location.search === '?state=buried'").await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 2").await;
        page.click(".tasks tbody tr:nth-child(2) th a").await;
        page.until("text('.failures td.error') === 'second' && document.title === 'Task 1 in mail · Taskyard'").await;
        // The focus is on the heading of the new view, so that a screen reader reads it.
        page.until("document.activeElement.textContent === 'Task 1'").await;
        page.back().await;
        page.until("location.pathname === '/tubes/mail' && document.querySelectorAll('.tasks tbody tr').length === 2").await;
        page.until("document.querySelector('#tab-buried').getAttribute('aria-selected') === 'true'").await;
        page.back().await;
        page.until("location.search === '' && document.querySelector('#tab-all').getAttribute('aria-selected') === 'true'").await;
        page.back().await;
        page.until("location.pathname === '/' && text('.tubes .name') === 'mail'").await;
        // A question does not outlive the view that asked it.
        page.click(".tubes .name").await;
        page.until("!document.querySelector('#pause').hidden").await;
        page.click("#pause").await;
        page.until("document.querySelector('dialog') !== null").await;
        page.back().await;
        page.until("location.pathname === '/' && document.querySelector('dialog') === null").await;
        page.click("[data-view=semaphores]").await;
        page.until("text('h2') === 'Semaphores'").await;
        page.until("document.querySelector('[data-view=semaphores]').getAttribute('aria-current') === 'page'").await;
        assert_eq!(page.run("return window.before").await, true);
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn an_address_without_a_thing_says_so() {
    let site = DashboardServer::new(None).await;
    site.post("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    let views = [
        (
            "/tubes/nothing",
            "text('[role=alert]:not([hidden])') === 'There is no tube “nothing” on this server.'",
        ),
        (
            "/tubes/mail/tasks/77",
            "text('[role=alert]:not([hidden])').startsWith('This task does not exist')",
        ),
        (
            "/semaphores/nothing",
            "text('[role=alert]:not([hidden])') === 'There is no semaphore “nothing” on this server.'",
        ),
        ("/tubes/%E0%A4%A", "text('h2') === 'No such view'"),
    ];
    browse(&site.url(), async |page| {
        for (path, shown) in views {
            page.open(&format!("{}{path}", site.url())).await;
            page.until(shown).await;
        }
    })
    .await;
}

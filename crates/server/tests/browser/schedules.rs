//! Tests of the views of schedules.

use serde_json::json;
use taskyard_testkit::chromium::browse;

use crate::assert_quiet;
use crate::site::DashboardServer;

#[tokio::test]
async fn a_schedule_is_shown_paused_run_and_removed() {
    let site = DashboardServer::new(None).await;
    site.put("/v1/tubes/reports", json!({})).await;
    let daily = json!({ "tube": "reports", "task": { "data": { "kind": "all" } },
        "cron": "0 9 * * 1-5", "zone": "Europe/Berlin" });
    site.put("/v1/schedules/daily", daily).await;
    let yearly = json!({ "tube": "reports", "task": { "data": 1 }, "every": 31_536_000 });
    site.put("/v1/schedules/yearly", yearly).await;
    let confirm = "[data-role=confirm]";
    let ready = "!document.querySelector('[data-role=confirm]').disabled";
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'live'").await;
        page.click("[data-view=schedules]").await;
        page.until("document.querySelectorAll('.schedules tbody tr').length === 2").await;
        page.until(
            "text('.schedules tbody tr').startsWith('dailyreports0 9 * * 1-5 Europe/Berlinin ')",
        )
        .await;
        page.fill("#filter", "dai").await;
        page.until("document.querySelectorAll('.schedules tbody tr').length === 1").await;
        page.click(".schedules tbody th a").await;
        page.until(
            "text('h2') === 'daily' && document.querySelectorAll('.times li').length === 20",
        )
        .await;
        page.until("text('section[aria-label=Task] pre').includes('\"kind\": \"all\"')").await;
        page.picture("schedule").await;
        page.click("[data-action=pause]").await;
        page.until(ready).await;
        page.click(confirm).await;
        page.until("text('[data-action=pause]') === 'Resume'").await;
        assert_eq!(site.get("/v1/schedules/daily").await["paused"], true);
        page.click("[data-action=run]").await;
        page.until(ready).await;
        page.click(confirm).await;
        page.until("text('#announcement') === 'Added task 0'").await;
        assert_eq!(site.get("/v1/tubes/reports").await["tasks"]["ready"], 1);
        page.click("[data-action=remove]").await;
        page.until(ready).await;
        page.click(confirm).await;
        page.until("location.pathname === '/schedules'").await;
        page.until("text('.schedules tbody th') === 'yearly'").await;
        page.open(&format!("{}/schedules/daily", site.url())).await;
        page.until("text('[role=alert]:not([hidden])').includes('no schedule “daily”')").await;
    })
    .await;
}

#[tokio::test]
async fn a_read_only_page_shows_schedules_without_actions() {
    let site = DashboardServer::configured(None, |config| config.read_only_dashboard = true).await;
    site.put("/v1/tubes/reports", json!({})).await;
    let job = json!({ "tube": "reports", "task": { "data": 1 }, "every": 31_536_000 });
    site.put("/v1/schedules/yearly", job).await;
    browse(&format!("{}/schedules/yearly", site.url()), async |page| {
        page.until("document.querySelectorAll('.times li').length === 20").await;
        assert_eq!(page.run("return document.querySelectorAll('[data-action]').length").await, 0);
        assert_quiet(page).await;
    })
    .await;
}

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

// The page said that a request to the API creates a schedule, and had no way to do so.
#[tokio::test]
async fn a_schedule_is_created_corrected_and_changed() {
    let site = DashboardServer::new(None).await;
    site.put("/v1/tubes/reports", json!({})).await;
    let confirm = "[data-role=confirm]";
    let ready = "!document.querySelector('[data-role=confirm]').disabled";
    browse(&format!("{}/schedules", site.url()), async |page| {
        page.until("document.querySelector('[data-action=add]:not([hidden])')").await;
        page.click("[data-action=add]").await;
        page.fill("[name=name]", "hourly").await;
        page.fill("[name=tube]", "reports").await;
        page.until("document.querySelector('[data-role=confirm]').disabled").await;
        page.fill("[name=cron]", "61 * * * *").await;
        page.replace("[name=data]", r#"{"id": 9007199254740993}"#).await;
        page.until(ready).await;
        page.click(confirm).await;
        page.until("text('.ask [role=alert]').includes('61')").await;
        page.replace("[name=cron]", "5 * * * *").await;
        page.fill("[name=zone]", "Europe/Berlin").await;
        page.picture("new-schedule").await;
        page.click(confirm).await;
        page.until("text('h2') === 'hourly' && text('#announcement') === 'Created hourly'").await;
        let found = site.get("/v1/schedules/hourly").await;
        assert_eq!(found["task"]["data"]["id"], 9_007_199_254_740_993_u64);
        assert_eq!((&found["cron"], &found["zone"]), (&json!("5 * * * *"), &json!("Europe/Berlin")));

        // A second one with this name replaces nothing; fields that the form does not show stay.
        let kept = json!({ "tube": "reports", "task": { "data": 1, "pri": 7 }, "every": 60, "start": 5, "until": 9e9 });
        site.put("/v1/schedules/kept", kept).await;
        page.open(&format!("{}/schedules/kept", site.url())).await;
        page.until("document.querySelector('[data-action=change]')").await;
        page.click("[data-action=change]").await;
        page.until(ready).await;
        page.replace("[name=every]", "120").await;
        page.click(confirm).await;
        page.until("text('#announcement') === 'Changed kept'").await;
        let found = site.get("/v1/schedules/kept").await;
        assert_eq!(found["task"], json!({ "data": 1, "pri": 7 }));
        assert_eq!([&found["every"], &found["start"], &found["until"]], [120.0, 5.0, 9e9]);
        page.open(&format!("{}/schedules", site.url())).await;
        page.until("document.querySelector('[data-action=add]:not([hidden])')").await;
        page.click("[data-action=add]").await;
        for (name, value) in [("name", "kept"), ("tube", "reports"), ("every", "1")] {
            page.fill(&format!("[name={name}]"), value).await;
        }
        page.until(ready).await;
        page.click(confirm).await;
        page.until("text('.ask [role=alert]').includes('kept')").await;
        assert_eq!(site.get("/v1/schedules/kept").await["every"], 120.0);
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

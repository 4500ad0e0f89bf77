//! Tests of estimates: when a task starts, when the backlog of a tube has started, and which requests ask for that.

use serde_json::json;

use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::{Page, browse};

/// A server with five tasks in a tube, the last of them delayed.
async fn queued() -> DashboardServer {
    let site = DashboardServer::new(None).await;
    let tasks: Vec<_> = (0..4).map(|i| json!({ "data": format!("n{i}.") })).collect();
    site.post("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    site.post("/v1/tubes/mail/put", json!({ "data": "later", "delay": 3600 })).await;
    site
}

/// Finishes one task and holds the next, so that run times and the number of consumers are known.
async fn consume(site: &DashboardServer) {
    let take = json!({ "count": 2, "lease": 600 });
    let taken = site.post("/v1/tubes/mail/take", take).await;
    let first = &taken["tasks"][0];
    site.post("/v1/tubes/mail/ack", json!({ "id": first["id"], "lease": first["lease"] })).await;
}

/// Whether the text of an element matches.
fn matches(place: &str, pattern: &str) -> String {
    format!("/{pattern}/.test(text('{place}'))")
}

/// The addresses of the requests since the page was loaded, whose path ends like this.
async fn requests(page: &Page, end: &str) -> Vec<String> {
    let found = page
        .run(&format!(
            "return performance.getEntriesByType('resource').map((entry) => new URL(entry.name))
                .filter((url) => url.pathname.endsWith('{end}')).map((url) => url.search)"
        ))
        .await;
    serde_json::from_value(found).unwrap()
}

#[tokio::test]
async fn a_waiting_task_shows_its_position_and_when_it_starts() {
    let site = queued().await;
    browse(&format!("{}/tubes/mail/tasks/3", site.url()), async |page| {
        page.until("text('#start') === '3 ahead · no estimate: no consumer takes tasks of this tube'")
            .await;
        consume(&site).await;
        let estimate = "^1 ahead · half start in [^·]+, 90 % in [^·]+ · because of run times and number of consumers$";
        page.until(&matches("#start", estimate)).await;
        page.picture("estimate-task").await;
        page.open(&format!("{}/tubes/mail/tasks/4", site.url())).await;
        page.until(&matches("#start", "^2 ahead · half start in 60 min, .* because of its own delay$"))
            .await;
        page.click("nav.crumbs a:last-child").await;
        page.click("#pause").await;
        page.until("!document.querySelector('[data-role=confirm]').disabled").await;
        page.click("[data-role=confirm]").await;
        page.until("text('#drain') === 'No estimate: the tube is paused'").await;
        page.open(&format!("{}/tubes/mail/tasks/3", site.url())).await;
        page.until("text('#start') === '1 ahead · no estimate: the tube is paused'").await;
        // A task that does not wait has no position.
        page.open(&format!("{}/tubes/mail/tasks/1", site.url())).await;
        page.until("text('.state-badge') === 'taken' && text('#start') === ''").await;
        assert_quiet(page).await;
    })
    .await;
}

// The payload of a task is fetched rarely if it is large, and its estimate was as old.
#[tokio::test]
async fn the_estimate_of_a_large_task_is_refreshed_without_its_payload() {
    let site = queued().await;
    let large = json!({ "data": "x".repeat(200_000) });
    site.post("/v1/tubes/mail/put", large).await;
    browse(&format!("{}/tubes/mail/tasks/5", site.url()), async |page| {
        page.until("text('#start').startsWith('4 ahead · ')").await;
        site.post("/v1/tubes/mail/delete", json!({ "ids": [0] })).await;
        page.until("text('#start').startsWith('3 ahead · ')").await;
        assert_eq!(requests(page, "/tasks/5").await.len(), 1);
        // Once it does not wait, all of it is fetched again.
        site.post("/v1/tubes/mail/take", json!({ "count": 9, "lease": 600 })).await;
        page.until("text('.state-badge') === 'taken' && text('#start') === ''").await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn a_tube_shows_when_its_tasks_start_and_how_well_estimates_held() {
    let site = queued().await;
    let cell = |row: usize| format!(".tasks tbody tr:nth-child({row}) td.starts");
    browse(&format!("{}/tubes/mail?state=ready", site.url()), async |page| {
        page.until("text('#drain') === 'No estimate: no consumer takes tasks of this tube'").await;
        page.until(&format!("text('{}') === 'no consumer'", cell(1))).await;
        consume(&site).await;
        let drain = "^Backlog drains in [^·]+, 90 % in [^·]+ · because of run times and number of consumers";
        page.until(&matches("#drain", drain)).await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 2").await;
        for row in [1, 2] {
            page.until(&matches(&cell(row), "^[^,]+, 90\\s%\\sin\\s.+$")).await;
        }
        page.picture("estimate-tube").await;
        // The estimates of the page are compared with what happens.
        site.post("/v1/tubes/mail/take", json!({ "count": 1, "lease": 600 })).await;
        page.until(&matches("#drain", " · p90 held for [0-9]+ % of 1 estimate$")).await;
        page.click("#tab-delayed").await;
        page.until(&matches(&cell(1), "^60\\smin, 90\\s%\\sin\\s60\\smin$")).await;
        page.click("#tab-details").await;
        let section = "section[aria-label=Estimates]";
        page.until(&matches(section, "drains in \\(90 %\\).*because.*estimates checked1")).await;
        page.picture("estimate-details").await;
        page.open(&site.url()).await;
        page.until(&matches("td.why", "1 ready.*drains in [^;]+, 90 % in ")).await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn only_views_with_estimates_ask_for_them() {
    let site = queued().await;
    site.bury("other", &[(json!(1), "no route to host")]).await;
    browse(&format!("{}/workers", site.url()), async |page| {
        page.until("text('#state') === 'live'").await;
        assert!(requests(page, "").await.iter().all(|query| !query.contains("estimate")));
        for (state, asks) in
            [("", true), ("ready", true), ("delayed", true), ("taken", false), ("buried", false)]
        {
            page.open(&format!("{}/tubes/mail?state={state}", site.url())).await;
            page.until("text('#state') === 'live' && document.querySelector('#task-list .tasks')")
                .await;
            let lists = requests(page, "/tubes/mail/tasks").await;
            assert!(!lists.is_empty(), "{state}");
            assert!(lists.iter().all(|query| query.contains("estimate=true") == asks), "{lists:?}");
            let shown =
                "getComputedStyle(document.querySelector('.tasks th.starts')).display !== 'none'";
            assert_eq!(page.run(&format!("return {shown}")).await, asks, "{state}");
        }
        // A search finds tasks by many requests; the estimates of what it found are one more.
        page.open(&format!("{}/tubes/mail?match=n2.", site.url())).await;
        page.until("text('.tasks tbody th') === '2' && text('.tasks td.starts') === 'no consumer'")
            .await;
        assert!(
            requests(page, "/tubes/mail/tasks")
                .await
                .iter()
                .all(|query| !query.contains("estimate"))
        );
        site.post("/v1/tubes/mail/take", json!({ "count": 3, "lease": 600 })).await;
        page.until("text('.tasks tbody th') === '2' && text('.tasks td.starts') === ''").await;
        page.open(&format!("{}/tubes/other?state=buried", site.url())).await;
        page.until("text('.tasks tbody th') === '0' && text('#drain') === ''").await;
        assert_quiet(page).await;
    })
    .await;
}

/// Replaces positions, drain times and calibrations in what the server answers.
const FIXED: &str = "const real = window.fetch; window.position = {}; window.backlog = {};
    window.fetch = async (url, options) => {
      const answer = await real(url, options);
      if (!answer.ok || !String(url).includes('estimate=true')) return answer;
      const body = await answer.json();
      const { drain, no_drain, estimates, ahead, estimate, no_estimate, ...rest } = body;
      const isTask = String(url).includes('/tasks/');
      return new Response(JSON.stringify({ ...rest, ...(isTask ? window.position : window.backlog) }));
    };";

#[tokio::test]
async fn estimates_are_sentences_with_units() {
    let site = queued().await;
    let position = |basis: &str, p50: f64, p90: f64| {
        let estimate = json!({ "ahead": 420, "p50": p50, "p90": p90, "basis": basis });
        json!({ "ahead": 412, "estimate": estimate })
    };
    let sentences = [
        (
            position("run_times", 41.2, 43.9),
            "412 ahead · half start in 41 s, 90 % in 44 s · because of run times and number of consumers",
        ),
        (
            position("idle_consumer", 0.0, 0.0),
            "412 ahead · half start in under 1 s, 90 % in under 1 s · because a consumer waits for tasks",
        ),
        (
            position("subqueue", 4.25, 130.0),
            "412 ahead · half start in 4.3 s, 90 % in 2 min · because of the tasks of its sub-queue",
        ),
        (
            position("rate_limit", 7200.0, 90_000.0),
            "412 ahead · half start in 2 h 0 min, 90 % in 25 h 0 min · because of the rate limit of the tube",
        ),
        (
            position("semaphore", 1.0, 1.0),
            "412 ahead · half start in 1 s, 90 % in 1 s · because of the semaphore of the tube",
        ),
        // A server of a later version may have more of them.
        (
            position("moon", 1.0, 1.0),
            "412 ahead · half start in 1 s, 90 % in 1 s · because of moon",
        ),
        (
            json!({ "ahead": 12_340, "approximate": true, "no_estimate": { "name": "no_history", "text": "no task has finished" } }),
            "about 12,340 ahead · no estimate: no task has finished",
        ),
        (json!({ "ahead": 0 }), "0 ahead"),
        (json!({}), ""),
    ];
    browse(&format!("{}/tubes/mail/tasks/3", site.url()), async |page| {
        page.run(FIXED).await;
        for (answer, sentence) in sentences {
            page.run(&format!("window.position = {answer}")).await;
            page.until(&format!("text('#start') === '{sentence}'")).await;
        }
        page.click("nav.crumbs a:last-child").await;
        let drain = json!({ "ahead": 4, "p50": 41.0, "p90": 44.0, "basis": "run_times" });
        let estimates = json!({ "checked": 12_340, "within_p50": 6_201, "within_p90": 11_229 });
        let backlog = json!({ "drain": drain, "estimates": estimates });
        page.run(&format!("window.backlog = {backlog}")).await;
        page.until("text('#drain') === 'Backlog drains in 41 s, 90 % in 44 s · because of run times and number of consumers · p90 held for 91 % of 12,340 estimates'").await;
        page.click("#tab-details").await;
        page.until("text('section[aria-label=Estimates] dl') === 'drains in (50 %)41 sdrains in (90 %)44 sbecauserun times and number of consumersno estimateestimates checked12,340started within p5050 %started within p9091 %'").await;
        page.run(&format!("window.backlog = {}", json!({ "estimates": estimates }))).await;
        page.until("text('#drain') === 'p90 held for 91 % of 12,340 estimates'").await;
        assert_quiet(page).await;
    })
    .await;
}

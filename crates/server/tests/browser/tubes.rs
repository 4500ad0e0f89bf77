//! Tests of the overview's table and of the page of a tube: tabs, pages, search, charts, details.

use serde_json::json;

use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::browse;

#[tokio::test]
async fn tubes_are_searched_and_sorted() {
    let site = DashboardServer::new(None).await;
    for (tube, count) in [("mail", 3), ("orders", 7), ("mail.slow", 5)] {
        let tasks: Vec<_> = (0..count).map(|i| json!({ "data": i })).collect();
        site.post(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": tasks })).await;
    }
    let names =
        "[...document.querySelectorAll('.tubes .name')].map((link) => link.textContent).join()";
    browse(&site.url(), async |page| {
        page.until(&format!("{names} === 'mail,mail.slow,orders'")).await;
        page.click("th.ready .sort").await;
        page.until(&format!("{names} === 'orders,mail.slow,mail'")).await;
        page.until("document.querySelector('th.ready').getAttribute('aria-sort') === 'descending'")
            .await;
        page.click("th.ready .sort").await;
        page.until(&format!("{names} === 'mail,mail.slow,orders'")).await;
        page.fill("#filter", "MAIL").await;
        page.until(&format!("{names} === 'mail,mail.slow'")).await;
        page.until("text('#shown') === '1–2 of 2'").await;
        page.reload().await;
        page.until(&format!("{names} === 'mail,mail.slow'")).await;
        page.fill("#filter", "x").await;
        page.until("text('#shown') === 'No tube matches'").await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn charts_have_axes_units_and_values() {
    let site = DashboardServer::new(None).await;
    let tasks: Vec<_> = (0..40).map(|i| json!({ "data": i })).collect();
    site.post("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let taken = site.post("/v1/tubes/mail/take", json!({ "count": 10 })).await;
    let tasks: Vec<_> =
        taken["tasks"].as_array().unwrap().iter().map(|task| json!({ "id": task["id"] })).collect();
    site.post("/v1/tubes/mail/ack", json!({ "tasks": tasks })).await;
    browse(&site.url(), async |page| {
        page.until("document.querySelectorAll('.chart').length === 2").await;
        // Only complete seconds are shown.
        page.until("text('.legend tbody tr td:nth-child(4)') === '40'").await;
        page.until("document.querySelector('.line.put').getAttribute('d')?.length > 10").await;
        page.until("text('figcaption') === 'Rates tasks per second'").await;
        page.until("document.querySelectorAll('.chart .axis text').length > 8").await;
        page.until("document.querySelector('.chart').getAttribute('aria-label').startsWith('Rates, last 5 min')").await;
        page.click(".segments label:nth-of-type(4)").await;
        page.until("location.search === '?range=2d'").await;
        page.until("document.querySelector('.chart').getAttribute('aria-label').startsWith('Rates, last 2 d')").await;
        page.open(&format!("{}/tubes/mail?show=charts", site.url())).await;
        page.until("document.querySelectorAll('.chart').length === 4").await;
        page.until("document.querySelector('.line.p99').getAttribute('d')?.length > 5").await;
        page.until("text('figure:nth-child(3)').includes('99th percentile')").await;
        page.picture("charts").await;
        assert_quiet(page).await;
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
        page.until("text('.tubes .name') === 'mail'").await;
        page.click(".tubes .name").await;
        page.until("text('#tube-name') === 'mail' && text('#tab-taken .badge') === '1'").await;
        page.click("#tab-details").await;
        page.until(&format!(
            "text('#tube-details tbody tr').startsWith('0127.0.0.1no session{lease}')"
        ))
        .await;
        // Five counts and three more numbers, and eleven counters.
        page.until("document.querySelectorAll('#tube-details .pairs')[0].children.length === 8")
            .await;
        page.until("document.querySelectorAll('#tube-details .pairs')[1].children.length === 11")
            .await;
        page.until("text('#tube-details').includes('No waiting consumers.')").await;

        // One click stopped a tube for all clients; now it has to be confirmed.
        page.click("#pause").await;
        page.until("text('dialog h2') === 'Pause tube “mail”?'").await;
        page.until("text('dialog').includes('Consumers get no tasks')").await;
        page.picture("pause").await;
        page.click("[data-role=cancel]").await;
        page.until("document.querySelector('dialog') === null").await;
        assert_eq!(site.get("/v1/tubes/mail").await["paused"], false);
        page.click("#pause").await;
        page.until("!document.querySelector('[data-role=confirm]').disabled").await;
        page.click("[data-role=confirm]").await;
        page.until("text('#pause') === 'Resume' && text('#why').startsWith('paused')").await;
        page.until("text('#why').includes('1 ready, not delivered while the tube is paused')")
            .await;
        assert_eq!(site.get("/v1/tubes/mail").await["paused"], true);
        page.click("#pause").await;
        page.until("text('#pause') === 'Pause'").await;
        assert_eq!(site.get("/v1/tubes/mail").await["paused"], false);
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn tasks_are_listed_by_state_and_page_by_page() {
    let site = DashboardServer::new(None).await;
    let tasks: Vec<_> = (0..250).map(|i| json!({ "data": { "n": i } })).collect();
    site.post("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    site.post("/v1/tubes/mail/put", json!({ "data": "later", "delay": 3600 })).await;
    site.post("/v1/tubes/mail/take", json!({ "worker": "web1:4711:mailer", "lease": 600 })).await;
    let first = "text('.tasks tbody th')";
    let rows = "document.querySelectorAll('.tasks tbody tr').length";
    browse(&format!("{}/tubes/mail", site.url()), async |page| {
        page.until(&format!("{rows} === 100 && text('#tab-all .badge') === '251'")).await;
        page.until("text('#tab-ready .badge') === '249' && text('#tab-delayed .badge') === '1'")
            .await;
        page.click("#tab-ready").await;
        page.until(&format!("{rows} === 100 && {first} === '1'")).await;
        page.click(".pager a:not([hidden])").await;
        page.until(&format!("{rows} === 100 && {first} === '101'")).await;
        assert_eq!(page.run("return location.search").await, "?state=ready&after=100");
        page.click(".pager a:nth-child(2)").await;
        page.until(&format!("{rows} === 49 && {first} === '201'")).await;
        page.until("document.querySelector('.pager a:nth-child(2)').hidden").await;
        page.back().await;
        page.until(&format!("{rows} === 100 && {first} === '101'")).await;
        page.reload().await;
        page.until(&format!("{rows} === 100 && {first} === '101'")).await;
        page.click(".pager a:nth-child(1)").await;
        page.until(&format!("{first} === '1'")).await;
        page.click("#tab-taken").await;
        page.until(
            "text('.tasks tbody td.situation').startsWith('web1:4711:mailer, lease ends in')",
        )
        .await;
        page.click("#tab-delayed").await;
        page.until("text('.tasks tbody td.situation') === 'due in 60 min'").await;
        // A new task appears by itself.
        site.post("/v1/tubes/mail/put", json!({ "data": "later", "delay": 7200 })).await;
        page.until(&format!("{rows} === 2")).await;
        assert_quiet(page).await;
    })
    .await;
}

/// Holds every request for the second part of a search until `release` is called.
const HOLD: &str = "const real = window.fetch; let open; const gate = new Promise((done) => { open = done; });
    window.release = () => { window.fetch = real; open(); };
    window.fetch = async (url, options) => {
      if (!String(url).includes('match=') || !String(url).includes('after=')) return real(url, options);
      await Promise.race([gate, new Promise((_, fail) => options.signal.addEventListener('abort', () => fail(options.signal.reason)))]);
      return real(url, options);
    };";

#[tokio::test]
async fn a_search_shows_progress_and_can_be_stopped() {
    let site = DashboardServer::new(None).await;
    for part in 0..15 {
        let tasks: Vec<_> =
            (0..2_000).map(|i| json!({ "data": format!("n{}.", part * 2_000 + i) })).collect();
        site.post("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    }
    browse(&format!("{}/tubes/mail?state=ready", site.url()), async |page| {
        page.until("document.querySelectorAll('.tasks tbody tr').length === 100").await;
        page.run(HOLD).await;
        page.fill("#find-match", "n29999.").await;
        page.click(".search .primary").await;
        // How many a request compares depends on how long it takes.
        page.until("/^Searching… [1-9][0-9,]* tasks searched, 0 found/.test(text('.progress'))")
            .await;
        page.until("document.querySelector('.progress progress').max === 30000").await;
        page.picture("search").await;
        page.click(".progress button:not([hidden])").await;
        page.until("/^Stopped. [1-9][0-9,]* tasks searched/.test(text('.progress'))").await;
        page.run("window.release()").await;
        page.click(".progress button:not([hidden])").await;
        page.until("text('.progress').startsWith('30,000 tasks searched, 1 found')").await;
        page.until("text('.tasks tbody td.payload') === '\"n29999.\"'").await;
        assert_eq!(page.run("return location.search").await, "?state=ready&match=n29999.");
        page.reload().await;
        page.until("text('.progress').startsWith('30,000 tasks searched, 1 found')").await;
        assert_eq!(page.run("return document.querySelector('#find-match').value").await, "n29999.");
        page.click(".search button:not(.primary)").await;
        page.until("location.search === '?state=ready' && document.querySelectorAll('.tasks tbody tr').length === 100").await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn tasks_are_found_by_error_worker_attempts_and_time() {
    let site = DashboardServer::new(None).await;
    site.bury("mail", &[(json!(1), "no route to host"), (json!(2), "timeout")]).await;
    site.post("/v1/tubes/mail/put", json!({ "data": 3 })).await;
    site.post("/v1/tubes/mail/take", json!({})).await;
    site.post("/v1/tubes/mail/fail", json!({ "id": 2, "error": "later" })).await;
    let ids =
        "[...document.querySelectorAll('.tasks tbody th')].map((cell) => cell.textContent).join()";
    browse(&format!("{}/tubes/mail", site.url()), async |page| {
        for (query, found) in [
            ("error=timeout", "1"),
            ("worker=web1:4711:mailer", "0,1"),
            ("attempts_min=1", "2"),
            ("created_until=1000", ""),
            ("created_from=1000&state=ready", "2"),
        ] {
            page.open(&format!("{}/tubes/mail?{query}", site.url())).await;
            page.until(&format!("text('.progress').includes('searched') && {ids} === '{found}'"))
                .await;
        }
        // The conditions that are less common are shown when they are set.
        page.until("document.querySelector('.more').open").await;
        page.until("document.querySelector('#find-created_from').value.startsWith('1970-01-01T')")
            .await;
    })
    .await;
}

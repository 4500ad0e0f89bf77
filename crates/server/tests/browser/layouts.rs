//! Tests of the layouts: light, dark and phone, and very many tubes. Keeps pictures of every view.

use serde_json::json;

use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::{Page, browse};

const VIEWS: [(&str, &str, &str); 13] = [
    (
        "overview",
        "/",
        "text('.tubes .name') !== '' && document.querySelector('.line.put').getAttribute('d')",
    ),
    ("tube", "/tubes/mail", "text('.tasks tbody th') !== ''"),
    ("buried", "/tubes/mail?state=buried", "text('.tasks td.error') !== ''"),
    (
        "tube-charts",
        "/tubes/mail?show=charts",
        "document.querySelector('.line.p99')?.getAttribute('d')",
    ),
    ("tube-details", "/tubes/mail?show=details", "text('#tube-details tbody th') !== ''"),
    ("task", "/tubes/mail/tasks/0", "text('.failures td.error') !== ''"),
    ("semaphores", "/semaphores", "text('.semaphores tbody th') === 'gpu'"),
    ("semaphore", "/semaphores/gpu", "document.querySelectorAll('#view tbody tr').length === 6"),
    ("done", "/tubes/mail?state=done", "document.querySelectorAll('.tasks tbody tr').length === 5"),
    ("schedules", "/schedules", "text('.schedules tbody th') === 'daily'"),
    ("schedule", "/schedules/daily", "text('h2') === 'daily'"),
    ("workers", "/workers", "text('.workers tbody th').startsWith('web1.example.com:4711:mailer')"),
    ("audit", "/audit", "document.querySelectorAll('.audit tbody tr').length > 0"),
];

/// A server with tasks in every state, and a long name.
async fn filled() -> DashboardServer {
    let site = DashboardServer::new(None).await;
    site.put("/v1/tubes/mail", json!({ "kind": "fifottl", "keep_done": 3600 })).await;
    let daily = json!({ "tube": "mail", "task": { "data": { "report": "daily" } },
        "cron": "0 9 * * 1-5", "zone": "Europe/Berlin" });
    site.put("/v1/schedules/daily", daily).await;
    let long = "Traceback (most recent call last):\n  File \"mail.py\", line 12, in send\nValueError: bad address";
    site.bury(
        "mail",
        &[
            (json!({ "to": "ann@example.com" }), long),
            (json!({ "to": "bob@example.com" }), "no route to host"),
        ],
    )
    .await;
    let tasks: Vec<_> = (0..30)
        .map(|i| json!({ "data": { "to": format!("user{i}@example.com"), "subject": "Your order has shipped", "items": [i, 2 * i] } }))
        .collect();
    site.post("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    site.post("/v1/tubes/mail/put", json!({ "data": "later", "delay": 3600 })).await;
    let taken = site
        .post(
            "/v1/tubes/mail/take",
            json!({ "count": 9, "worker": "web1.example.com:4711:mailer", "lease": 600 }),
        )
        .await;
    let tasks: Vec<_> = taken["tasks"].as_array().unwrap()[..5]
        .iter()
        .map(|task| json!({ "id": task["id"] }))
        .collect();
    site.post("/v1/tubes/mail/ack", json!({ "tasks": tasks })).await;
    let name = "a-tube-with-a-long-name-that-has-no-place-to-break-in-it-and-goes-on";
    site.post(&format!("/v1/tubes/{name}/put"), json!({ "data": 1 })).await;
    site.put("/v1/semaphores/gpu", json!({ "active": 2 })).await;
    let tasks: Vec<_> = (0..6).map(|task| json!({ "task": task, "priority": 6 - task })).collect();
    site.post("/v1/semaphores/gpu/enqueue", json!({ "tasks": tasks })).await;
    site
}

async fn visit(page: &Page, site: &DashboardServer, layout: &str) {
    for (name, path, shown) in VIEWS {
        page.open(&format!("{}{path}", site.url())).await;
        page.until(&format!("text('#state') === 'live' && ({shown})")).await;
        let width = "return [document.documentElement.scrollWidth - innerWidth, document.body.scrollWidth - innerWidth]";
        let beyond = page.run(width).await;
        assert!(
            beyond.as_array().unwrap().iter().all(|pixels| pixels.as_i64() <= Some(0)),
            "{layout} {name}: {beyond}"
        );
        page.picture(&format!("{layout}-{name}")).await;
    }
}

#[tokio::test]
async fn every_view_fits_on_a_screen_in_light_and_dark() {
    let site = filled().await;
    browse(&site.url(), async |page| {
        page.resize(1280, 900).await;
        page.prefer_dark(false).await;
        visit(page, &site, "light").await;
        let light = page.run("return getComputedStyle(document.body).backgroundColor").await;
        page.prefer_dark(true).await;
        visit(page, &site, "dark").await;
        assert_ne!(page.run("return getComputedStyle(document.body).backgroundColor").await, light);
    })
    .await;
}

#[tokio::test]
async fn every_view_fits_on_a_phone() {
    let site = filled().await;
    browse(&site.url(), async |page| {
        page.resize(360, 740).await;
        visit(page, &site, "phone").await;
    })
    .await;
}

// A page that draws every row of every tube was slow with many tubes.
#[tokio::test]
async fn a_thousand_tubes_are_drawn_in_parts() {
    let site = DashboardServer::new(None).await;
    for number in 0..1_000 {
        site.post(&format!("/v1/tubes/tube-{number:04}/put"), json!({ "data": number })).await;
    }
    browse(&site.url(), async |page| {
        page.run("window.long = []; new PerformanceObserver((list) => window.long.push(...list.getEntries().map((entry) => Math.round(entry.duration))))
            .observe({ type: 'longtask', buffered: true })").await;
        page.until("text('#totals .tubes dd') === '1,000' && text('#shown') === '1–100 of 1,000'").await;
        // A row that stays is the same element, with the new numbers.
        page.run("window.row = document.querySelector('.tubes tbody tr')").await;
        site.post("/v1/tubes/tube-0000/put", json!({ "data": 1 })).await;
        page.until("text('td.count.ready') === '2' && document.querySelector('.tubes tbody tr') === window.row").await;
        for tube in ["tube-0001", "tube-0002", "tube-0003"] {
            site.post(&format!("/v1/tubes/{tube}/put"), json!({ "data": 1 })).await;
            page.until(&format!("[...document.querySelectorAll('.tubes tbody tr')].some((row) => row.textContent.startsWith('{tube}fifottl2'))")).await;
        }
        assert_eq!(page.run("return document.querySelectorAll('.tubes tbody tr').length").await, 100);
        let nodes = page.run("return document.querySelectorAll('*').length").await.as_u64().unwrap();
        assert!(nodes < 3_000, "{nodes} elements");
        page.picture("thousand").await;
        page.click(".pager button:not([hidden])").await;
        page.until("text('#shown') === '101–200 of 1,000' && text('.tubes .name') === 'tube-0100'").await;
        page.fill("#filter", "0999").await;
        page.until("text('.tubes .name') === 'tube-0999'").await;
        let long = page.run("return window.long").await;
        println!("tasks over 50 ms with 1,000 tubes, in ms: {long}");
        assert_quiet(page).await;
    })
    .await;
}

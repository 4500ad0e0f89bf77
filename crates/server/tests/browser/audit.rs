//! The view of the audit.

use reqwest::Url;
use serde_json::json;
use taskyard_server::{AuditFile, Config};
use taskyard_testkit::chromium::browse;

use crate::site::DashboardServer;
use crate::{HOSTILE, assert_quiet};

#[tokio::test]
async fn the_audit_shows_who_changed_what() {
    let full = |config: &mut Config| config.audit = AuditFile::open("/dev/full".as_ref()).ok();
    let site = DashboardServer::configured(None, full).await;
    let mut put = Url::parse(&site.url()).unwrap();
    put.path_segments_mut().unwrap().extend(["v1", "tubes", HOSTILE, "put"]);
    site.send(put, json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'live'").await;
        page.click("[data-view=audit]").await;
        page.until("document.querySelectorAll('.audit tbody tr').length === 1").await;
        assert_eq!(page.run("return document.title").await, "Audit · Taskyard");
        assert_eq!(page.run("return location.pathname").await, "/audit");
        // Names are text and never HTML, and link to their view.
        assert!(page.text(".audit tbody tr").await.contains("onerror"));
        assert!(page.run("return document.querySelector('.audit img')").await.is_null());
        let link = page.run("return document.querySelector('.audit a').pathname").await;
        assert!(link.as_str().unwrap().starts_with("/tubes/%3Cimg"), "{link}");
        // The view updates itself, the newest entry comes first.
        site.post("/v1/tubes/mail/put", json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
        site.post("/v1/tubes/mail/delete", json!({ "ids": [0, 1, 2] })).await;
        page.until("document.querySelectorAll('.audit tbody tr').length === 3").await;
        let row = page.text(".audit tbody tr:nth-child(1)").await;
        assert!(row.ends_with("guest127.0.0.1 (http)deletetube mail2done3 ids"), "{row}");
        page.until("text('#view .problem').startsWith('3 entries could not be written')").await;
        page.fill("#filter", "delete").await;
        page.until("document.querySelectorAll('.audit tbody tr').length === 1").await;
        page.until("location.search === '?search=delete'").await;
        page.picture("audit").await;
        assert_quiet(page).await;
    })
    .await;
    site.stop().await;
}

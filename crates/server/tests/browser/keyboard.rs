//! Tests that the dashboard is used without a pointer, and that screen readers find its structure.

use serde_json::json;

use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::{ENTER, ESCAPE, LEFT, Page, RIGHT, TAB, browse};

/// Presses Tab until the focus is on an element for which this is true.
async fn tab_to(page: &Page, condition: &str) {
    for _ in 0..60 {
        page.press(&TAB.to_string()).await;
        let found = page
            .run(&format!("const now = document.activeElement; return Boolean({condition})"))
            .await;
        if found == true {
            // The focus must be visible.
            let outline = "return getComputedStyle(document.activeElement).outlineStyle";
            assert_ne!(page.run(outline).await, "none", "{condition}");
            return;
        }
    }
    panic!("Tab does not lead to {condition}");
}

#[tokio::test]
async fn a_buried_task_is_found_read_and_retried_with_the_keyboard_alone() {
    let site = DashboardServer::new(None).await;
    let task = |to: &str| json!({ "to": to });
    site.bury("mail", &[(task("ann"), "no route to host"), (task("bob"), "mailbox unavailable")])
        .await;
    browse(&site.url(), async |page| {
        page.until("text('.tubes .name') === 'mail' && text('#state') === 'live'").await;
        page.press(&TAB.to_string()).await;
        assert_eq!(page.run("return document.activeElement.textContent").await, "Skip to content");
        tab_to(page, "now.className === 'name'").await;
        page.press(&ENTER.to_string()).await;
        page.until("text('#tab-buried .badge') === '2'").await;
        page.until("document.activeElement.id === 'tube-name'").await;

        // One stop for all tabs; arrows move between them.
        tab_to(page, "now.id === 'tab-all'").await;
        page.press(&[RIGHT, RIGHT, RIGHT, RIGHT].iter().collect::<String>()).await;
        page.until("document.activeElement.id === 'tab-buried'").await;
        page.press(&[RIGHT, LEFT, ENTER].iter().collect::<String>()).await;
        page.until("location.search === '?state=buried' && document.querySelectorAll('.tasks tbody tr').length === 2").await;
        tab_to(page, "now.id === 'find-match'").await;
        page.press(&format!("bob{ENTER}")).await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 1").await;
        tab_to(page, "now.closest('.tasks tbody th')").await;
        page.press(&ENTER.to_string()).await;
        page.until("text('.failures td.error') === 'mailbox unavailable'").await;

        tab_to(page, "now.dataset.action === 'kick'").await;
        page.press(&ENTER.to_string()).await;
        page.until("document.activeElement.dataset.role === 'confirm'").await;
        // Escape closes the dialog, and the focus returns to the button.
        page.press(&ESCAPE.to_string()).await;
        page.until("document.querySelector('dialog') === null && document.activeElement.dataset.action === 'kick'").await;
        page.press(&ENTER.to_string()).await;
        page.until("document.activeElement.dataset.role === 'confirm'").await;
        page.press(&ENTER.to_string()).await;
        page.until("text('.state-badge') === 'ready'").await;
        assert_eq!(site.get("/v1/tubes/mail/tasks/1").await["state"], "ready");
        assert_eq!(site.get("/v1/tubes/mail/tasks/0").await["state"], "buried");
        assert_quiet(page).await;
    })
    .await;
}

/// Lists what a screen reader could not name or place.
const FINDINGS: &str = "
    const name = (node) => node.getAttribute('aria-label') || node.textContent.trim() || node.title
      || [...(node.labels ?? [])].map((label) => label.textContent.trim()).join() || document.getElementById(node.getAttribute('aria-labelledby'))?.textContent;
    const all = (place) => [...document.querySelectorAll(place)];
    const findings = [
      ...all('button, a[href], input, select, summary, [role=tab]').filter((node) => !name(node)),
      ...all('th').filter((node) => !node.scope),
      ...all('table').filter((node) => !node.caption),
      ...all('svg').filter((node) => node.getAttribute('aria-hidden') !== 'true' && !node.getAttribute('aria-label')),
      ...all('img').filter((node) => !node.hasAttribute('alt')),
      ...all('[role=tablist]').filter((node) => !node.getAttribute('aria-label')),
      ...all('[aria-controls]').filter((node) => !document.getElementById(node.getAttribute('aria-controls'))),
      ...all('[id]').filter((node) => all('#' + CSS.escape(node.id)).length > 1),
    ].map((node) => node.outerHTML.slice(0, 120));
    for (const place of ['header', 'nav[aria-label]', 'main', 'h1', 'h2', '[role=status]'])
      if (!document.querySelector(place)) findings.push('no ' + place);
    const levels = all('h1, h2, h3').map((node) => Number(node.tagName[1]));
    if (levels.some((level, i) => i && level > levels[i - 1] + 1)) findings.push('a level of headings is left out: ' + levels);
    return findings;";

#[tokio::test]
async fn screen_readers_find_names_headers_and_landmarks() {
    let site = DashboardServer::new(None).await;
    site.bury("mail", &[(json!({ "to": "ann" }), "no route to host")]).await;
    site.put("/v1/semaphores/gpu", json!({ "active": 1 })).await;
    let tasks = json!({ "tasks": [{ "task": 1, "priority": 1 }, { "task": 2, "priority": 1 }] });
    site.post("/v1/semaphores/gpu/enqueue", tasks).await;
    browse(&site.url(), async |page| {
        for (path, shown) in [
            (
                "/",
                "text('.tubes .name') === 'mail' && document.querySelector('.chart[aria-label]')",
            ),
            ("/tubes/mail", "text('.tasks tbody th') === '0'"),
            (
                "/tubes/mail?show=charts",
                "document.querySelectorAll('.chart[aria-label]').length === 4",
            ),
            ("/tubes/mail?show=details", "text('#tube-details').includes('No taken tasks.')"),
            ("/tubes/mail/tasks/0", "text('.failures td.error') === 'no route to host'"),
            ("/semaphores", "text('.semaphores tbody th') === 'gpu'"),
            ("/semaphores/gpu", "document.querySelectorAll('#view tbody tr').length === 2"),
            ("/workers", "text('h2') === 'Workers'"),
            ("/audit", "text('h2') === 'Audit'"),
            ("/sql", "text('h2') === 'SQL tasks'"),
        ] {
            page.open(&format!("{}{path}", site.url())).await;
            page.until(&format!("text('#state') === 'live' && {shown}")).await;
            assert_eq!(page.run(FINDINGS).await, json!([]), "{path}");
        }
    })
    .await;
}

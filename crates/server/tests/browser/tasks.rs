//! Tests of the page of a task: its payload, its story and its actions.

use serde_json::json;

use crate::assert_quiet;
use crate::site::DashboardServer;
use taskyard_testkit::chromium::browse;

#[tokio::test]
async fn a_task_tells_its_story() {
    let site = DashboardServer::new(None).await;
    site.post("/v1/tubes/mail/put", json!({ "data": { "to": "ann" } })).await;
    for error in ["no route to host", "timeout\nafter 30 s"] {
        let taken = site.post("/v1/tubes/mail/take", json!({ "worker": "web1:4711:mailer" })).await;
        let failed = json!({ "id": 0, "lease": taken["tasks"][0]["lease"], "error": error });
        site.post("/v1/tubes/mail/fail", failed).await;
    }
    browse(&format!("{}/tubes/mail/tasks/0", site.url()), async |page| {
        page.until("text('.state-badge') === 'ready' && text('#reason') === 'Waits for a consumer'").await;
        page.until("document.querySelectorAll('.failures tbody tr').length === 2").await;
        // The newest failure is the first.
        assert_eq!(page.text(".failures td.error").await, "timeout\nafter 30 s");
        assert_eq!(page.text(".failures tbody tr:nth-child(2) td.error").await, "no route to host");
        assert_eq!(page.text(".failures td.worker").await, "web1:4711:mailer");
        assert_eq!(page.text(".failures tbody tr:nth-child(2) td.count").await, "1");
        let fields = "[...document.querySelectorAll('.facts div:not([hidden]) dt')].map((name) => name.textContent).join()";
        page.until(&format!("{fields} === 'Created,Attempts,Priority,Position,Last failure'")).await;
        page.picture("task").await;

        let taken = site.post("/v1/tubes/mail/take", json!({ "worker": "web2", "lease": 600 })).await;
        page.until("text('.state-badge') === 'taken' && text('.facts').includes('Workerweb2')").await;
        page.until("text('.facts').includes('Lease ends')").await;
        site.post("/v1/tubes/mail/ack", json!({ "id": 0, "lease": taken["tasks"][0]["lease"] })).await;
        // The last state is still readable.
        page.until("text('[role=alert]:not([hidden])').startsWith('This task does not exist: it was acknowledged or deleted')").await;
        page.until("document.querySelector('[data-action]') === null").await;
        assert_eq!(page.text(".failures td.error").await, "timeout\nafter 30 s");
    })
    .await;
}

#[tokio::test]
async fn payloads_are_shown_as_json_text_or_bytes() {
    let site = DashboardServer::new(None).await;
    let numbers =
        r#"{"id": 9007199254740993, "share": 1.0, "small": -7, "list": [], "none": null}"#;
    let numbers: serde_json::Value = serde_json::from_str(numbers).unwrap();
    let tasks = [
        json!({ "data": numbers }),
        json!({ "data": "first\nsecond" }),
        // A map with binary data, which JSON cannot represent, and plain binary data.
        json!({ "data_base64": "gaFixAMAAf8=" }),
        json!({ "data_base64": "xAMAAf8=" }),
        json!({ "data": "x".repeat(200_000) }),
    ];
    site.post("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let shown = [
        "{\n  \"id\": 9007199254740993,\n  \"share\": 1.0,\n  \"small\": -7,\n  \"list\": [],\n  \"none\": null\n}",
        "first\nsecond",
        "{\n  \"b\": <3 bytes: 0001ff>\n}",
        &format!("00000000  {:47}  ...", "00 01 ff"),
    ];
    browse(&site.url(), async |page| {
        for (id, text) in shown.iter().enumerate() {
            page.open(&format!("{}/tubes/mail/tasks/{id}", site.url())).await;
            page.until("text('section[aria-label=Payload] pre') !== ''").await;
            let found = page.text("section[aria-label=Payload] pre").await;
            // The order of keys is not kept by every JSON library.
            let lines = |text: &str| {
                let mut lines: Vec<_> =
                    text.lines().map(|line| line.trim_end_matches(',').to_owned()).collect();
                lines.sort();
                lines
            };
            assert_eq!(lines(&found), lines(text));
        }
        page.open(&format!("{}/tubes/mail/tasks/1", site.url())).await;
        page.until("text('section[aria-label=Payload] pre') !== ''").await;
        page.click("section[aria-label=Payload] [data-form=hex]").await;
        page.until(
            "text('section[aria-label=Payload] pre').startsWith('00000000  ac 66 69 72 73 74')",
        )
        .await;
        // A large payload does not slow the page down.
        page.open(&format!("{}/tubes/mail/tasks/4", site.url())).await;
        page.until("text('section[aria-label=Payload] pre').length === 100000").await;
        page.until("text('#view').includes('Only the beginning is shown.')").await;
        // Lists do not round either.
        page.open(&format!("{}/tubes/mail", site.url())).await;
        page.until("text('.tasks td.payload').includes('9007199254740993')").await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn a_buried_task_is_retried_from_its_page() {
    let site = DashboardServer::new(None).await;
    site.bury("mail", &[(json!(1), "no route to host")]).await;
    browse(&format!("{}/tubes/mail/tasks/0", site.url()), async |page| {
        page.until("text('.state-badge') === 'buried'").await;
        page.click("[data-action=kick]").await;
        page.until("text('dialog .status').startsWith('Retry 1 task?')").await;
        page.click("dialog [data-role=confirm]").await;
        page.until("text('.state-badge') === 'ready' && text('#view').includes('Retried 1 task.')")
            .await;
        page.until("document.querySelector('[data-action=kick]') === null").await;
        page.click("[data-action=bury]").await;
        page.until("text('dialog .status').startsWith('Bury 1 task?')").await;
        page.click("dialog [data-role=confirm]").await;
        page.until("text('.state-badge') === 'buried'").await;
        assert_quiet(page).await;
    })
    .await;
}

#[tokio::test]
async fn a_done_task_is_found_by_its_key_and_shows_its_result() {
    let site = DashboardServer::new(None).await;
    site.put("/v1/tubes/mail", json!({ "kind": "fifottl", "keep_done": 3600 })).await;
    for key in ["ann", "bob"] {
        let task = json!({ "data": { "to": key }, "key": key, "attempts_max": 7 });
        site.post("/v1/tubes/mail/put", task).await;
        let taken = site.post("/v1/tubes/mail/take", json!({ "worker": "web1:4711:mailer" })).await;
        let (id, lease) = (&taken["tasks"][0]["id"], &taken["tasks"][0]["lease"]);
        let ack = json!({ "id": id, "lease": lease, "result": { "sent": key } });
        site.post("/v1/tubes/mail/ack", ack).await;
    }
    browse(&format!("{}/tubes/mail", site.url()), async |page| {
        page.until("text('#tab-done .badge') === '2'").await;
        // The tab came after the others, behind the details.
        let order =
            "[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id.slice(4)).join(' ')";
        page.until(&format!("{order} === 'all ready delayed taken buried done charts details'"))
            .await;
        page.click("#tab-done").await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 2").await;
        page.picture("done").await;
        page.click(".more summary").await;
        page.fill("#find-key", "bob").await;
        page.click(".search .primary").await;
        page.until("location.search.includes('key=bob') && text('.tasks tbody th') === '1'").await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 1").await;
        // Tasks that finished before 2001.
        page.open(&format!("{}/tubes/mail?state=done&finished_until=1000000000", site.url())).await;
        page.until(
            "document.querySelector('#find-finished_until')?.value.startsWith('2001-09-09T')",
        )
        .await;
        page.until("document.querySelectorAll('.tasks tbody tr').length === 0").await;
        page.open(&format!("{}/tubes/mail/tasks/1", site.url())).await;
        page.until("text('.state-badge') === 'done' && text('#reason') === 'Finished'").await;
        page.until(
            "text('.facts').includes('Keybob') && text('.facts').includes('Attempts, at most7')",
        )
        .await;
        page.until("text('.facts').includes('Workerweb1:4711:mailer')").await;
        page.until("text('section[aria-label=Result] pre') === '{\\n  \"sent\": \"bob\"\\n}'")
            .await;
        page.click("[data-action=delete]").await;
        page.click("dialog [data-role=confirm]").await;
        page.until("text('#view').includes('This task does not exist')").await;
        assert_eq!(site.get("/v1/tubes/mail/tasks?state=done").await["tasks"][0]["id"], 0);
    })
    .await;
}

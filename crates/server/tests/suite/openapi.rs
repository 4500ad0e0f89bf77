//! Metrics, the OpenAPI document, and the dashboard's headers.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Answer, Fixture};

#[tokio::test]
async fn metrics_are_well_formed() {
    let fixture = Fixture::new().await;
    let name = "a%22b%5Cc";
    fixture.done(&format!("/v1/tubes/{name}/put"), json!({ "data": 1 })).await;
    fixture.get("/nothing").await;
    let text = fixture.text("/metrics").await;
    let mut families = BTreeSet::new();
    for line in text.lines() {
        if let Some(about) = line.strip_prefix("# ") {
            let words: Vec<_> = about.split(' ').collect();
            assert!(matches!(words[0], "HELP" | "TYPE"), "{line}");
            families.insert(words[1]);
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = series.split('{').next().unwrap();
        let parts = ["_bucket", "_sum", "_count"];
        let family = parts.iter().find_map(|part| name.strip_suffix(part));
        let known = |family| families.contains(family);
        assert!(known(name) || family.is_some_and(known), "{line}");
        assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
    }
    for line in [
        "taskyard_tasks{tube=\"a\\\"b\\\\c\",state=\"ready\"} 1",
        "taskyard_calls_total{tube=\"a\\\"b\\\\c\",verb=\"put\"} 1",
        "taskyard_waiting_consumers{tube=\"a\\\"b\\\\c\"} 0",
        "taskyard_http_requests_total{method=\"POST\",route=\"/v1/tubes/{tube}/put\",status=\"200\"} 1",
        "taskyard_http_requests_total{method=\"GET\",route=\"\",status=\"404\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let answer = fixture.get("/metrics").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
}

/// Every path with its method, as the document lists it.
async fn operations(fixture: &Fixture) -> Vec<(String, String, Value)> {
    let document = fixture.get("/openapi.json").await.body;
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            found.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    found
}

#[tokio::test]
async fn the_document_lists_every_endpoint() {
    let fixture = Fixture::new().await;
    let found: BTreeSet<_> = operations(&fixture)
        .await
        .into_iter()
        .map(|(method, path, _)| format!("{method} {path}"))
        .collect();
    let tube = "/v1/tubes/{tube}";
    let mut expected: BTreeSet<String> = [
        "/v1/tubes",
        "/v1/stats",
        "/v1/series",
        "/v1/workers",
        "/v1/audit",
        "/v1/services",
        "/v1/manager",
        "/healthz",
        "/metrics",
        "/openapi.json",
    ]
    .into_iter()
    .map(|path| format!("GET {path}"))
    .collect();
    expected.extend(["GET", "PUT", "PATCH", "DELETE"].map(|method| format!("{method} {tube}")));
    expected.extend(
        ["tasks", "tasks/{id}", "deliveries", "consumers"].map(|at| format!("GET {tube}/{at}")),
    );
    for verb in [
        "name",
        "put",
        "take",
        "ack",
        "release",
        "bury",
        "fail",
        "tasks/kick",
        "tasks/delete",
        "tasks/bury",
        "tasks/release",
        "touch",
        "finish",
        "kick",
        "delete",
        "peek",
        "positions",
        "truncate",
        "release-all",
    ] {
        expected.insert(format!("POST {tube}/{verb}"));
    }
    expected.extend(["GET", "POST", "DELETE"].map(|method| format!("{method} /v1/session")));
    let schedule = "/v1/schedules/{schedule}";
    expected.extend(["GET", "PUT", "DELETE"].map(|method| format!("{method} {schedule}")));
    expected.extend(["pause", "resume", "run"].map(|verb| format!("POST {schedule}/{verb}")));
    expected.extend(["GET /v1/schedules".to_owned(), format!("GET {schedule}/next")]);
    let semaphore = "/v1/semaphores/{semaphore}";
    expected.extend(["enqueue", "peek", "finish"].map(|verb| format!("POST {semaphore}/{verb}")));
    expected.extend(["GET", "PUT", "DELETE"].map(|method| format!("{method} {semaphore}")));
    expected.extend(["holders", "waiting"].map(|part| format!("GET {semaphore}/{part}")));
    expected.extend(
        [
            "GET /v1/semaphores",
            "POST /v1/semaphore-events",
            "POST /v1/semaphore-events/ack",
            "GET /v1/semaphore-events/socket",
            "POST /v1/backup",
        ]
        .map(str::to_owned),
    );
    assert_eq!(found, expected);
}

// The documentation of the API omitted some endpoints.
#[tokio::test]
async fn the_api_documentation_lists_every_endpoint() {
    let page = include_str!("../../../../docs/http.md");
    for (method, path, _) in operations(&Fixture::new().await).await {
        assert!(
            page.contains(&format!("| `{method} {path}` |")),
            "docs/http.md omits {method} {path}"
        );
    }
}

#[tokio::test]
async fn every_listed_endpoint_exists() {
    let fixture = Fixture::new().await;
    for (method, path, _) in operations(&fixture).await {
        let path = path
            .replace("{tube}", "nowhere")
            .replace("{id}", "0")
            .replace("{semaphore}", "nowhere")
            .replace("{schedule}", "nowhere");
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let answer = Answer::of(fixture.request(method, &path).send().await.unwrap()).await;
        assert_ne!(answer.status, 405, "{path}");
        assert_ne!(answer.body["error"]["code"], "route_not_found", "{path}");
    }
}

#[tokio::test]
async fn the_document_is_complete() {
    let fixture = Fixture::new().await;
    let document = fixture.get("/openapi.json").await.body;
    assert_refs_resolve(&document, &document);
    let mut statuses = BTreeSet::new();
    for (method, path, operation) in operations(&fixture).await {
        let answers = operation["responses"].as_object().unwrap();
        statuses.extend(answers.keys().cloned());
        assert!(answers.contains_key("503"), "{method} {path}");
        let names_something =
            ["{tube}", "{semaphore}", "{schedule}"].iter().any(|name| path.contains(name))
                || ["/v1/semaphore-events", "/v1/semaphore-events/socket", "/v1/series"]
                    .contains(&path.as_str());
        assert_eq!(answers.contains_key("404"), names_something, "{method} {path}");
        assert_eq!(answers.contains_key("415"), operation.get("requestBody").is_some());
        let open = ["/healthz", "/openapi.json"].contains(&path.as_str());
        assert_eq!(answers.contains_key("401"), !open, "{method} {path}");
        for (status, answer) in answers.iter().filter(|(status, _)| *status >= &"400".to_owned()) {
            let shape = &answer["content"]["application/json"]["schema"]["$ref"];
            assert_eq!(shape, "#/components/schemas/ErrorAnswer", "{path} {status}");
        }
    }
    for status in ["400", "401", "403", "404", "409", "413", "415", "429", "503"] {
        assert!(statuses.contains(status), "{status}");
    }
    let take = &document["components"]["schemas"]["TakeRequest"]["properties"];
    assert_eq!(take["wait"]["maximum"], 300.0);
}

/// A bare null stood where the schema "must be null" was meant, and the fuzzer read it as no
/// constraint.
#[tokio::test]
async fn every_property_has_a_schema() {
    fn check(part: &Value) {
        if let Some(fields) = part.get("properties").and_then(Value::as_object) {
            for (name, field) in fields {
                assert!(field.is_object() || field.is_boolean(), "{name}: {field}");
            }
        }
        match part {
            Value::Object(fields) => fields.values().for_each(check),
            Value::Array(items) => items.iter().for_each(check),
            _ => {}
        }
    }
    check(&Fixture::new().await.get("/openapi.json").await.body["components"]["schemas"]);
}

fn assert_refs_resolve(whole: &Value, part: &Value) {
    match part {
        Value::Object(fields) => {
            if let Some(Value::String(to)) = fields.get("$ref") {
                assert!(whole.pointer(to.trim_start_matches('#')).is_some(), "{to}");
            }
            fields.values().for_each(|value| assert_refs_resolve(whole, value));
        }
        Value::Array(items) => items.iter().for_each(|value| assert_refs_resolve(whole, value)),
        _ => {}
    }
}

#[tokio::test]
async fn the_dashboard_is_served_with_a_strict_policy() {
    let fixture = Fixture::new().await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/tubes/mail/tasks/3", "text/html"),
        ("/assets/app.js", "text/javascript"),
        ("/assets/style.css", "text/css"),
    ] {
        let answer = fixture.get(path).await;
        assert_eq!(answer.status, 200);
        let header = |name: &str| answer.headers[name].to_str().unwrap().to_owned();
        assert!(header("content-type").starts_with(kind));
        assert!(header("content-security-policy").starts_with("default-src 'self'"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("cache-control"), "no-store");
    }
    let page = fixture.text("/").await;
    assert!(!page.contains("<script>") && !page.contains("style=") && !page.contains("onclick"));
}

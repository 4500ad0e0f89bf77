//! Lists in the documents name nothing that the program does not have: other tests check that they lack nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::process::{TestServer, http_get, run};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(path).expect(name)
}

/// What the first cells of the rows of a page's tables have between backquotes.
fn named(page: &str) -> Vec<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

// An endpoint that was removed stayed in the page about HTTP.
#[test]
fn every_endpoint_of_the_page_about_http_exists() {
    let page = page("http.md");
    let server = TestServer::new();
    let answer = http_get(&server.serving.url, "/openapi.json");
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
    let is_endpoint = |name: &&str| methods.contains(&name.split(' ').next().unwrap_or_default());
    let endpoints: Vec<&str> = named(&page).into_iter().filter(is_endpoint).collect();
    assert!(endpoints.len() > 50, "{endpoints:?}");
    // Pages for people, which are no part of the API.
    let others = ["GET /", "GET /docs/", "GET /openapi.json"];
    for endpoint in endpoints.into_iter().filter(|endpoint| !others.contains(endpoint)) {
        let (method, path) = endpoint.split_once(' ').expect("a method and a path");
        let described = answer.split_once(&format!("\"{path}\":{{")).map(|(_, rest)| rest);
        let methods = described.map(|rest| rest.split("\"/").next().unwrap_or_default());
        let method = format!("\"{}\":{{", method.to_lowercase());
        assert!(methods.is_some_and(|text| text.contains(&method)), "no {endpoint} in OpenAPI");
    }
}

// An option that was removed stayed in the page about operation.
#[test]
fn every_setting_of_the_page_about_operation_exists() {
    let page = page("operating.md");
    let table = page.split("| setting | meaning |").nth(1).expect("a table of settings");
    let table = table.split("\n\n").next().expect("its rows");
    let help = run(&["serve", "--help"]).good();
    let flags: Vec<&str> = named(table)
        .into_iter()
        .filter_map(|name| name.split(' ').next().filter(|flag| flag.starts_with("--")))
        .collect();
    assert!(flags.len() > 30, "{flags:?}");
    let missing: Vec<_> = flags.iter().filter(|flag| !help.contains(&format!("{flag} "))).collect();
    let missing: Vec<_> =
        missing.into_iter().filter(|flag| !help.contains(&format!("{flag}\n"))).collect();
    assert!(missing.is_empty(), "docs/operating.md names {missing:?}, which serve does not have");
}

// The page about monitoring has a row for each alert rule of the file that it describes.
#[test]
fn the_page_about_monitoring_has_the_alert_rules_of_the_file() {
    let (page, file) = (page("operate/monitoring.md"), page("../deploy/prometheus-rules.yaml"));
    let rules = file.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let rows = named(&page).into_iter().filter(|name| name.starts_with("Taskyard"));
    assert_eq!(rows.collect::<Vec<_>>(), rules.collect::<Vec<_>>());
}

/// The metrics that a text names, without the endings of the parts of a histogram.
fn named_metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metrics = words.filter(|word| word.starts_with("taskyard_"));
    metrics.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).collect()
}

// A dashboard with the name of a metric that does not exist has an empty panel, and an alert on one is never raised.
#[test]
fn the_dashboards_and_alert_rules_name_metrics_of_a_running_server() {
    let server = TestServer::new();
    let metrics = http_get(&server.serving.url, "/metrics");
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut families: BTreeSet<&str> = types.filter_map(|line| line.split(' ').next()).collect();
    // This server has no semaphores and no SQL tasks: their names are those in the sources.
    let sources = [
        include_str!("../../../server/src/metrics.rs"),
        include_str!("../../../services/sql/src/service.rs"),
    ];
    let optional = ["taskyard_semaphore_", "taskyard_sql_"];
    for source in sources {
        let texts = source.split('"');
        families.extend(texts.filter(|text| optional.iter().any(|start| text.starts_with(start))));
    }
    let files = ["servers.grafana.json", "workers.grafana.json", "../deploy/prometheus-rules.yaml"];
    for name in files {
        let text = page(name);
        let named = named_metrics(&text);
        assert!(!named.is_empty(), "{name}");
        let missing: Vec<_> = named.difference(&families).collect();
        assert!(missing.is_empty(), "{name} names {missing:?}, which a server does not have");
    }
}

#[test]
fn the_dashboards_are_valid_json_with_panels_of_their_own() {
    for name in ["servers.grafana.json", "workers.grafana.json"] {
        let dashboard: Value = serde_json::from_str(&page(name)).expect(name);
        let panels = dashboard["panels"].as_array().expect("panels");
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), panels.len(), "{name}: two panels have the same id");
        for panel in panels {
            let targets = panel["targets"].as_array().expect("targets");
            assert!(targets.iter().all(|target| target["expr"].is_string()), "{panel}");
        }
    }
}

//! Which tubes lists and metrics show.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn names(tubes: &Value) -> Vec<&str> {
    tubes.as_array().unwrap().iter().map(|tube| tube["name"].as_str().unwrap()).collect()
}

// The tubes with which servers plan for workers were listed among those of the user, in every list
// and total.
#[tokio::test]
async fn internal_tubes_are_shown_only_on_request() {
    let fixture = Fixture::new().await;
    for tube in ["mail", "taskyard.manager.seat", "taskyardish"] {
        fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "data": 1 })).await;
    }
    for (query, shown) in [
        ("", &["mail", "taskyardish"][..]),
        ("?internal=false", &["mail", "taskyardish"]),
        ("?internal=true", &["mail", "taskyard.manager.seat", "taskyardish"]),
    ] {
        let list = fixture.get(&format!("/v1/tubes{query}")).await.body;
        assert_eq!(names(&list["tubes"]), shown);
        let stats = fixture.get(&format!("/v1/stats{query}")).await.body;
        assert_eq!(names(&stats["tubes"]), shown);
        assert_eq!(stats["total"]["tubes"], shown.len());
        assert_eq!(stats["total"]["tasks"]["ready"], shown.len());
        let metrics = fixture.text(&format!("/metrics{query}")).await;
        assert_eq!(metrics.contains("tube=\"taskyard.manager.seat\""), shown.len() == 3);
    }
    assert_eq!(fixture.get("/v1/tubes/taskyard.manager.seat").await.status, 200);
    fixture.get("/v1/tubes?internal=maybe").await.refused(400, "invalid");
    fixture.get("/metrics?other=1").await.refused(400, "invalid");
}

// Every tube had twenty rows, so ten thousand tubes were a response of 20 MB at each scrape.
#[tokio::test]
async fn only_the_busiest_tubes_have_their_own_rows() {
    let fixture = Fixture::with(|config| config.metrics_tubes_max = 2).await;
    for (tube, tasks) in [("a", 1), ("b", 3), ("c", 2), ("d", 1)] {
        let tasks = vec![json!({ "data": 1 }); tasks];
        fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": tasks })).await;
    }
    fixture.send(Method::PATCH, "/v1/tubes/d", json!({ "paused": true })).await;
    let text = fixture.text("/metrics").await;
    let ready: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("taskyard_tasks{tube="))
        .filter(|line| line.contains("ready"))
        .collect();
    let expected =
        ["\"b\",state=\"ready\"} 3", "\"c\",state=\"ready\"} 2", "\":rest\",state=\"ready\"} 2"];
    assert_eq!(ready, expected);
    for line in [
        "taskyard_calls_total{tube=\":rest\",verb=\"put\"} 2",
        "taskyard_tube_paused{tube=\":rest\"} 1",
        "taskyard_metrics_rows_omitted 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

// One client with invented names created all the tubes that a store may have, and no other client
// could create any.
#[tokio::test]
async fn the_number_of_tubes_of_a_user_is_limited() {
    let fixture = Fixture::with(|config| config.tubes_per_user_max = 2).await;
    for tube in ["a", "b"] {
        fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "data": 1 })).await;
    }
    let refused = fixture.post("/v1/tubes/c/put", json!({ "data": 1 })).await;
    assert!(refused.refused(409, "too_many_tubes").contains("--tubes-per-user"));
    fixture.send(Method::PUT, "/v1/tubes/c", json!({})).await.refused(409, "too_many_tubes");
    fixture.done("/v1/tubes/a/put", json!({ "data": 1 })).await;
    let again = fixture.send(Method::PUT, "/v1/tubes/a", json!({ "if_not_exists": true })).await;
    assert_eq!(again.status, 200);
    fixture.send(Method::DELETE, "/v1/tubes/a", json!({})).await;
    fixture.done("/v1/tubes/c/put", json!({ "data": 1 })).await;
}

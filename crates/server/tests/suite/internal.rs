//! Which tubes lists and metrics show.

use reqwest::Method;
use serde_json::{Value, json};

use crate::rig::Rig;

fn names(tubes: &Value) -> Vec<&str> {
    tubes.as_array().unwrap().iter().map(|tube| tube["name"].as_str().unwrap()).collect()
}

// The tubes with which servers plan for workers stood among those of the user, in every list and sum.
#[tokio::test]
async fn tubes_of_the_service_are_shown_only_to_those_that_ask() {
    let rig = Rig::new().await;
    for tube in ["mail", "taskyard.manager.seat", "taskyardish"] {
        rig.done(&format!("/v1/tubes/{tube}/put"), json!({ "data": 1 })).await;
    }
    for (query, shown) in [
        ("", &["mail", "taskyardish"][..]),
        ("?internal=false", &["mail", "taskyardish"]),
        ("?internal=true", &["mail", "taskyard.manager.seat", "taskyardish"]),
    ] {
        let list = rig.get(&format!("/v1/tubes{query}")).await.body;
        assert_eq!(names(&list["tubes"]), shown);
        let stats = rig.get(&format!("/v1/stats{query}")).await.body;
        assert_eq!(names(&stats["tubes"]), shown);
        assert_eq!(stats["total"]["tubes"], shown.len());
        assert_eq!(stats["total"]["tasks"]["ready"], shown.len());
        let metrics = rig.text(&format!("/metrics{query}")).await;
        assert_eq!(metrics.contains("tube=\"taskyard.manager.seat\""), shown.len() == 3);
    }
    assert_eq!(rig.get("/v1/tubes/taskyard.manager.seat").await.status, 200);
    rig.get("/v1/tubes?internal=maybe").await.refused(400, "invalid");
    rig.get("/metrics?other=1").await.refused(400, "invalid");
}

// Every tube was twenty rows, so ten thousand of them were an answer of 20 MB at each scrape.
#[tokio::test]
async fn only_the_busiest_tubes_have_rows_of_their_own() {
    let rig = Rig::with(|config| config.metrics_tubes_max = 2).await;
    for (tube, tasks) in [("a", 1), ("b", 3), ("c", 2), ("d", 1)] {
        let tasks = vec![json!({ "data": 1 }); tasks];
        rig.done(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": tasks })).await;
    }
    rig.send(Method::PATCH, "/v1/tubes/d", json!({ "paused": true })).await;
    let text = rig.text("/metrics").await;
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
        "taskyard_metrics_rows_left_out 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

// One client that made up names created all the tubes a store may have, and no other could create any.
#[tokio::test]
async fn a_user_may_create_so_many_tubes_and_no_more() {
    let rig = Rig::with(|config| config.tubes_per_user_max = 2).await;
    for tube in ["a", "b"] {
        rig.done(&format!("/v1/tubes/{tube}/put"), json!({ "data": 1 })).await;
    }
    let refused = rig.post("/v1/tubes/c/put", json!({ "data": 1 })).await;
    assert!(refused.refused(409, "too_many_tubes").contains("--tubes-per-user"));
    rig.send(Method::PUT, "/v1/tubes/c", json!({})).await.refused(409, "too_many_tubes");
    rig.done("/v1/tubes/a/put", json!({ "data": 1 })).await;
    let again = rig.send(Method::PUT, "/v1/tubes/a", json!({ "if_not_exists": true })).await;
    assert_eq!(again.status, 200);
    rig.send(Method::DELETE, "/v1/tubes/a", json!({})).await;
    rig.done("/v1/tubes/c/put", json!({ "data": 1 })).await;
}

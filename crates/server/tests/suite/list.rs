//! Pages of tasks: states, orders, filters and cursors.

use serde_json::{Value, json};

use crate::fixture::Fixture;

const TASKS: &str = "/v1/tubes/mail/tasks";

fn ids(page: &Value) -> Vec<u64> {
    page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_u64().unwrap()).collect()
}

async fn page(fixture: &Fixture, query: &str) -> Value {
    let answer = fixture.get(&format!("{TASKS}?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {:?}", answer.body);
    answer.body
}

/// Tasks 0 to 9, each `{"to": n}`: 3 and 7 buried, 9 delayed.
async fn filled() -> Fixture {
    let fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..9).map(|n| json!({ "data": { "to": n }, "pri": 9 - n })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": { "to": 9 }, "delay": 500 })).await;
    fixture.done("/v1/tubes/mail/bury", json!({ "tasks": [{ "id": 3 }, { "id": 7 }] })).await;
    fixture
}

#[tokio::test]
async fn pages_are_chained_by_the_cursor() {
    let fixture = filled().await;
    let first = page(&fixture, "limit=4").await;
    assert_eq!(ids(&first), [0, 1, 2, 3]);
    assert_eq!(first["tasks"][3]["reason"]["name"], "buried");
    assert_eq!(first["tasks"][1]["data"], json!({ "to": 1 }));
    let second =
        page(&fixture, &format!("limit=4&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!(ids(&second), [4, 5, 6, 7]);
    let last = page(&fixture, &format!("limit=4&after={}", second["next"].as_str().unwrap())).await;
    assert_eq!(ids(&last), [8, 9]);
    assert_eq!(last.get("next"), None);
}

#[tokio::test]
async fn tasks_are_selected_by_state_payload_and_attempts() {
    let fixture = filled().await;
    assert_eq!(ids(&page(&fixture, "state=buried").await), [3, 7]);
    assert_eq!(ids(&page(&fixture, "state=delayed,buried").await), [3, 7, 9]);
    assert_eq!(ids(&page(&fixture, "match=%22to%22:5").await), [5]);
    assert_eq!(ids(&page(&fixture, "match=nothing").await), [] as [u64; 0]);
    assert_eq!(ids(&page(&fixture, "attempts_min=1").await), [] as [u64; 0]);
    assert_eq!(ids(&page(&fixture, "created_until=1").await), [] as [u64; 0]);
    assert_eq!(ids(&page(&fixture, "order=queue&limit=3").await), [8, 6, 5]);
    let rest = page(&fixture, "order=queue&after=4:5").await;
    assert_eq!(ids(&rest), [4, 2, 1, 0]);
}

/// A search stops after 5,000 tasks, so that it does not keep a connection busy for long; the cursor leads on.
#[tokio::test]
async fn a_search_is_done_in_steps() {
    let fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..6_000).map(|n| json!({ "data": n })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let first = page(&fixture, "match=5999").await;
    assert_eq!((ids(&first), &first["scanned"]), (vec![], &json!(5_000)));
    let second =
        page(&fixture, &format!("match=5999&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!((ids(&second), &second["scanned"]), (vec![5_999], &json!(1_000)));
}

#[tokio::test]
async fn a_long_payload_is_cut() {
    let fixture = Fixture::new().await;
    let long = "ä".repeat(2_000);
    fixture.done("/v1/tubes/mail/put", json!({ "data": long })).await;
    let task = &page(&fixture, "").await["tasks"][0];
    assert_eq!(task["cut"], true);
    let shown = task["data"].as_str().unwrap();
    assert!(shown.starts_with("\"ää") && (1_000..=1_024).contains(&shown.len()), "{}", shown.len());
    assert_eq!(fixture.get(&format!("{TASKS}/0")).await.body["data"], long);
}

#[tokio::test]
async fn wrong_queries_are_refused_with_the_allowed_values() {
    let fixture = filled().await;
    for (query, part) in [
        ("state=dead", "ready, taken, delayed, buried"),
        ("limit=1001", "between 1 and 1000"),
        ("limit=0", "between 1 and 1000"),
        ("limit=x", "1 to 1000"),
        ("after=x", "`next` of a page"),
        ("order=queue&after=1", "`next` of a page"),
        ("order=best", "id or queue"),
        ("colour=red", "expected one of"),
    ] {
        let answer = fixture.get(&format!("{TASKS}?{query}")).await;
        let message = answer.refused(400, "invalid");
        assert!(message.contains(part), "{query}: {message}");
    }
    fixture.get("/v1/tubes/nowhere/tasks").await.refused(404, "tube_not_found");
}

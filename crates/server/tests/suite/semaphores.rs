//! Semaphores over HTTP.

use reqwest::Method;
use serde_json::json;
use taskyard_core::TubeName;

use crate::fixture::Fixture;

const YANG: &str = "/v1/semaphores/yang";

async fn create(fixture: &Fixture, body: serde_json::Value) {
    let made = fixture.send(Method::PUT, YANG, body).await;
    assert_eq!(made.status, 200, "{:?}", made.body);
}

#[tokio::test]
async fn a_grant_from_the_enqueue_to_the_release() {
    let fixture = Fixture::new().await;
    create(&fixture, json!({ "active": 1, "try_release": 1, "lease": 30 })).await;
    let entries =
        json!({ "tasks": [{ "task": 7, "priority": 1.5 }, { "task": 8, "priority": 1 }] });
    let infos = fixture.done(&format!("{YANG}/enqueue"), entries).await;
    assert_eq!(infos["tasks"][0]["status"], "granted");
    assert_eq!(infos["tasks"][1]["status"], "waiting");
    let events =
        fixture.done("/v1/semaphore-events", json!({ "semaphore": "yang", "wait": 1 })).await;
    let event = &events["events"][0];
    assert_eq!((&event["kind"], &event["task"]), (&json!("acquired"), &json!(7)));
    let ack = json!({ "events": [event["id"]] });
    assert_eq!(fixture.done("/v1/semaphore-events/ack", ack).await, json!({ "acknowledged": 1 }));
    let items = json!({ "items": [
        { "task": 7, "grant": 99 },
        { "task": 7, "grant": event["grant"], "finish": "extend", "seconds": 60 },
        { "task": 7, "grant": event["grant"], "finish": "yield" },
        { "task": 8 },
        { "task": 9 },
    ]});
    let finished = fixture.done(&format!("{YANG}/finish"), items).await;
    assert_eq!(finished["outcomes"], json!(["stale", "done", "done", "done", "missing"]));
    let shown = fixture.done(&format!("{YANG}/peek"), json!({ "tasks": [7, 8] })).await;
    assert_eq!(shown["tasks"].as_array().unwrap().len(), 1);
    let holders = fixture.get(&format!("{YANG}/holders?count=1")).await.body;
    assert_eq!(holders["tasks"][0]["task"], 7);
    let next = format!("{YANG}/holders?after={}", holders["next"].as_str().unwrap());
    assert_eq!(fixture.get(&next).await.body, json!({ "tasks": [] }));
    assert_eq!(fixture.get(&format!("{YANG}/waiting")).await.body, json!({ "tasks": [] }));
    let shown = fixture.get(YANG).await.body;
    assert_eq!((&shown["acquired"], &shown["waiting"]), (&json!(1), &json!(0)));
    assert_eq!(fixture.get("/v1/semaphores").await.body["semaphores"][0], shown);
    fixture.send(Method::DELETE, YANG, json!({})).await.refused(409, "semaphore_in_use");
    let forced = format!("{YANG}?force=true");
    assert_eq!(fixture.send(Method::DELETE, &forced, json!({})).await.status, 200);
    fixture.get(YANG).await.refused(404, "semaphore_not_found");
}

#[tokio::test]
async fn wrong_requests_are_refused() {
    let fixture = Fixture::new().await;
    create(&fixture, json!({ "active": 3 })).await;
    // This showed 900 of 3.
    assert_eq!(fixture.get(YANG).await.body["try_release"], 3);
    let other = json!({ "active": 5, "only_new": true });
    let refused = fixture.send(Method::PUT, YANG, other).await;
    assert_eq!(refused.body["error"]["differs"], "active is 3, not 5");
    refused.refused(409, "semaphore_exists");
    fixture.get(&format!("{YANG}/holders?after=x")).await.refused(400, "invalid");
    fixture.get(&format!("{YANG}/waiting?count=0")).await.refused(400, "invalid");
    for body in [
        json!({ "active": -1 }),
        json!({ "active": 1.5 }),
        json!({ "try_release": 4 }),
        json!({ "margin": -1 }),
        json!({ "lease": 0 }),
        json!({ "min_hold": -1 }),
        json!({ "tail": 3 }),
    ] {
        fixture.send(Method::PUT, YANG, body).await.refused(400, "invalid");
    }
    let enqueue = format!("{YANG}/enqueue");
    for task in [
        json!({ "task": 1 }),
        json!({ "task": 1, "priority": null }),
        json!({ "task": -1, "priority": 1 }),
    ] {
        fixture.post(&enqueue, json!({ "tasks": [task] })).await.refused(400, "invalid");
    }
    let extend = json!({ "items": [{ "task": 1, "finish": "extend" }] });
    fixture.post(&format!("{YANG}/finish"), extend).await.refused(400, "invalid");
    fixture
        .post("/v1/semaphores/nope/enqueue", json!({ "tasks": [] }))
        .await
        .refused(404, "semaphore_not_found");
    fixture.get("/v1/semaphores/nope").await.refused(404, "semaphore_not_found");
    fixture
        .post("/v1/semaphore-events", json!({ "semaphore": "nope" }))
        .await
        .refused(404, "semaphore_not_found");
    fixture.post("/v1/semaphore-events", json!({ "count": 0 })).await.refused(400, "invalid");
    fixture.post("/v1/semaphore-events", json!({ "wait": 1e9 })).await.refused(400, "invalid");
    assert_eq!(fixture.get(YANG).await.body["active"], 3);
}

#[tokio::test]
async fn a_task_has_a_priority_in_the_semaphore() {
    let fixture = Fixture::new().await;
    create(&fixture, json!({ "active": 1, "try_release": 1 })).await;
    let gated = json!({ "kind": "utubettl", "temporary": true, "semaphore": "yang" });
    fixture.send(Method::PUT, "/v1/tubes/checks", gated).await;
    let tasks = json!({ "tasks": [
        { "data": "a", "semaphore_priority": -2.5 },
        { "data": "b", "semaphore_priority": 7, "pri": 9 },
    ]});
    let placed = fixture.done("/v1/tubes/checks/put", tasks).await;
    assert_eq!(placed["tasks"][0]["state"], "delayed");
    assert_eq!(placed["tasks"][1]["state"], "ready");
    let shown = fixture.done("/v1/tubes/checks/peek", json!({ "ids": [0, 1] })).await;
    assert_eq!(shown["tasks"][0]["semaphore_priority"], -2.5);
    assert_eq!(shown["tasks"][1]["semaphore_priority"], 7.0);
    for wrong in [json!("high"), json!([1])] {
        let put = json!({ "data": 1, "semaphore_priority": wrong });
        fixture.post("/v1/tubes/checks/put", put).await.refused(400, "invalid");
    }
    let put = json!({ "data": 1, "semaphore_priority": 1 });
    // A tube would be created without a semaphore.
    fixture.post("/v1/tubes/nowhere/put", put.clone()).await.refused(404, "tube_not_found");
    fixture.send(Method::PUT, "/v1/tubes/plain", json!({ "kind": "fifottl" })).await;
    fixture.post("/v1/tubes/plain/put", put).await.refused(409, "no_semaphore");
}

#[tokio::test]
async fn events_become_tasks_of_a_tube() {
    let fixture = Fixture::with(|config| {
        config.strict_tubes = true;
        config.events_tube = Some(TubeName::new("events").unwrap());
    })
    .await;
    create(&fixture, json!({ "active": 1, "try_release": 1 })).await;
    let wish = json!({ "tasks": [{ "task": 7, "priority": 1 }] });
    fixture.done(&format!("{YANG}/enqueue"), wish).await;
    let task = loop {
        // The tube is created by the first event.
        let taken = fixture.post("/v1/tubes/events/take", json!({ "wait": 10 })).await;
        if taken.status == 200 {
            break taken.body["tasks"][0]["data"].clone();
        }
    };
    assert_eq!(
        (&task["semaphore"], &task["kind"], &task["task"]),
        (&json!("yang"), &json!("acquired"), &json!(7))
    );
    assert_eq!(task["attempt"], 1);
}

// Events that did not fit into the tube were forgotten until they were sent again, and the next
// ones were fetched: while the tube was full, all of them were delayed for up to ten minutes.
#[tokio::test]
async fn events_wait_for_capacity_in_their_tube() {
    let fixture =
        Fixture::with(|config| config.events_tube = Some(TubeName::new("events").unwrap())).await;
    fixture
        .send(Method::PUT, "/v1/tubes/events", json!({ "kind": "limfifottl", "capacity": 1 }))
        .await;
    fixture.done("/v1/tubes/events/put", json!({ "data": "occupied" })).await;
    create(&fixture, json!({ "active": 3 })).await;
    let entries: Vec<_> = (1..4).map(|task| json!({ "task": task, "priority": 1 })).collect();
    fixture.done(&format!("{YANG}/enqueue"), json!({ "tasks": entries })).await;
    let mut told = Vec::new();
    while told.len() < 4 {
        let taken = fixture.done("/v1/tubes/events/take", json!({ "wait": 20 })).await;
        let task = taken["tasks"][0].clone();
        told.push(task["data"].clone());
        let ack = json!({ "id": task["id"], "lease": task["lease"] });
        fixture.done("/v1/tubes/events/ack", ack).await;
    }
    let heard: Vec<_> = told[1..].iter().map(|event| (&event["task"], &event["attempt"])).collect();
    assert_eq!(heard, [(&json!(1), &json!(1)), (&json!(2), &json!(1)), (&json!(3), &json!(1))]);
}

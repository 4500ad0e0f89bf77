//! What is counted.

use serde_json::json;

use crate::rig::Rig;

#[tokio::test]
async fn connections_and_requests_are_counted() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    talk.done("queue.tube.mail:put", json!([1])).await;
    talk.done("queue.tube.mail:put", json!([2])).await;
    talk.refused("queue.tube.post:take", json!([0]), 33, "").await;
    talk.ping().await;
    let metrics = rig.metrics().await;
    for line in [
        "taskyard_iproto_connections 1",
        "taskyard_iproto_connections_refused_total 0",
        "taskyard_iproto_requests_total{verb=\"put\",code=\"0\"} 2",
        "taskyard_iproto_requests_total{verb=\"take\",code=\"33\"} 1",
        "taskyard_iproto_requests_total{verb=\"ping\",code=\"0\"} 1",
        "taskyard_http_connections 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    }
}

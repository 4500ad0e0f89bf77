//! The metrics of the iproto server.

use serde_json::json;

use crate::fixture::TestServer;

#[tokio::test]
async fn connections_and_requests_are_counted() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    client.done("queue.tube.mail:put", json!([1])).await;
    client.done("queue.tube.mail:put", json!([2])).await;
    client.refused("queue.tube.post:take", json!([0]), 33, "").await;
    client.ping().await;
    let metrics = server.metrics().await;
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

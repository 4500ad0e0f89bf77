//! `bench` against a running server.

use crate::process::TestServer;

#[test]
fn a_run_reports_its_steps_and_removes_its_tube() {
    let server = TestServer::new();
    let args = ["bench", "--tasks", "50", "--clients", "3", "--batch", "4", "--json"];
    let steps = server.run(&args).json().remove(0);
    let names: Vec<_> = (0..2).map(|row| steps[row]["step"].clone()).collect();
    assert_eq!(names, ["put", "take + ack"]);
    assert!(steps[1]["tasks_per_second"].as_f64().unwrap() > 0.0, "{steps}");
    assert_eq!(server.run(&["stats", "--json"]).json(), Vec::<serde_json::Value>::new());
    let table = server.run(&["bench", "--tasks", "1"]).good();
    assert!(table.contains("TASKS/S") && table.contains("take + ack"), "{table}");
}

#[test]
fn an_existing_tube_is_not_used() {
    let server = TestServer::new();
    server.run(&["put", "mail", "hello"]).good();
    server.run(&["bench", "--tube", "mail"]).ends(6);
    assert_eq!(server.run(&["take", "mail", "--json"]).json()[0]["data"], "hello");
    server.run(&["bench", "--clients", "0"]).ends(2);
}

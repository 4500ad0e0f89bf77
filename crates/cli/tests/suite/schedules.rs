//! `schedule`.

use serde_json::json;

use crate::process::TestServer;

#[test]
fn a_schedule_is_added_shown_run_and_removed() {
    let server = TestServer::new();
    let daily =
        ["schedule", "add", "daily", "--tube", "reports", "--data", "{\"a\": 1}", "--pri", "3"];
    let cron = ["--cron", "0 9 * * 1-5", "--zone", "Europe/Berlin", "--catch-up", "last"];
    let add = [&daily[..], &cron[..]].concat();
    let refused = server.run(&add).ends(2);
    assert!(
        refused.err.contains("'tube' is refused: tube 'reports' does not exist"),
        "{}",
        refused.err
    );
    server.run(&["tube", "create", "reports"]).good();
    let shown = server.run(&add).good();
    for line in [
        "schedule        daily\n",
        "times           0 9 * * 1-5 Europe/Berlin\n",
        "state           active\n",
        "catch-up        last\n",
        "overlap         allow\n",
        "task            {\"data\":{\"a\":1},\"pri\":3}\n",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    assert_eq!(server.run(&["schedule", "show", "daily"]).good(), shown);
    server.run(&[&add[..], &["--only-new"]].concat()).ends(6);
    let times = server.run(&["schedule", "next", "daily", "--count", "3"]).good();
    assert_eq!(times.lines().count(), 3);
    assert!(times.lines().all(|line| line.ends_with(":00:00Z")), "{times}");
    let times = server.run(&["schedule", "next", "daily", "--json"]).json();
    assert_eq!(times[0]["times"].as_array().map(Vec::len), Some(20));
    let paused = server.run(&["schedule", "pause", "daily", "--json"]).json();
    assert_eq!(paused[0]["paused"], true);
    assert!(server.run(&["schedule", "list"]).good().contains("paused"));
    assert!(
        server.run(&["schedule", "resume", "daily"]).good().contains("state           active\n")
    );
    assert_eq!(server.run(&["schedule", "run", "daily"]).good(), "0\n");
    assert_eq!(server.run(&["schedule", "run", "daily", "--json"]).json()[0]["id"], 1);
    let listed = server.run(&["schedule", "list", "--json"]).json();
    assert_eq!((&listed[0]["name"], &listed[0]["fired"]), (&json!("daily"), &json!(0)));
    assert_eq!(server.run(&["schedule", "remove", "daily"]).good(), "removed daily\n");
    server.run(&["schedule", "show", "daily"]).ends(4);
}

#[test]
fn an_interval_that_must_not_overlap() {
    let server = TestServer::new();
    server.run(&["tube", "create", "checks"]).good();
    let add = ["schedule", "add", "poll", "--tube", "checks", "--every", "1d", "--data", "all"];
    let more = ["--overlap", "skip", "--start", "2030-01-31T08:00:00Z", "--until", "2030-02-02"];
    let shown = server.run(&[&add[..], &more[..]].concat()).good();
    assert!(shown.contains("next            2030-01-31T08:00:00Z\n"), "{shown}");
    let times = server.run(&["schedule", "next", "poll"]).good();
    assert_eq!(times, "2030-01-31T08:00:00Z\n2030-02-01T08:00:00Z\n");
    assert_eq!(server.run(&["schedule", "run", "poll"]).good(), "0\n");
    let again = server.run(&["schedule", "run", "poll"]).ends(0);
    assert!(
        again.err.contains("task 0 (ready) of this schedule exists; nothing was added"),
        "{}",
        again.err
    );
}

#[test]
fn wrong_times_are_refused() {
    let server = TestServer::new();
    server.run(&["tube", "create", "checks"]).good();
    let add = ["schedule", "add", "poll", "--tube", "checks", "--data", "all"];
    for (times, message) in [
        (&["--cron", "0 0 30 2 *"][..], "'cron' is refused"),
        (&["--cron", "@daily", "--zone", "Mars"], "'zone' is refused"),
        (&["--every", "10ms"], "'every' is refused"),
        (&["--every", "1m", "--cron", "@daily"], "cannot be used with"),
        (&[], "--cron <CRON>"),
    ] {
        let refused = server.run(&[&add[..], times].concat()).ends(2);
        assert!(refused.err.contains(message), "{times:?}: {}", refused.err);
    }
}

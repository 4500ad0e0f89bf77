//! Runs the examples of docs/sql.md.

use crate::fixture::{Fixture, run};

#[test]
fn every_example_runs() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.run(include_str!("examples.sql")).await;
        fixture.until("NOT EXISTS (SELECT FROM task WHERE state IN ('TAKE', 'WORK') OR (state = 'PLAN' AND plan <= now()))").await;
        assert_eq!(
            fixture.get("SELECT string_agg(error, '|') FROM task WHERE error IS NOT NULL").await,
            None
        );
        let sessions =
            fixture.get("SELECT count(DISTINCT pid) <= 4 FROM task WHERE \"group\" = 'many'").await;
        assert_eq!(sessions.as_deref(), Some("t"));
        let waiting = fixture.get("SELECT count(*) FROM task WHERE state = 'PLAN'").await;
        // The two planned for later, the next run of the one that repeats, and the first run by cron.
        assert_eq!(waiting.as_deref(), Some("4"));
        let csv =
            fixture.get("SELECT output FROM task WHERE quote = '\"'").await.unwrap_or_default();
        assert!(csv.starts_with("\"relname\",\"relpages\",\"reloptions\"\n\""), "{csv}");
        fixture.stop().await;
    });
}

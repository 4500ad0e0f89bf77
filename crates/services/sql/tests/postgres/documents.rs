//! The examples of the documents do what is said there.

use crate::rig::{Rig, run};

#[test]
fn every_example_runs() {
    run(async {
        let rig = Rig::new().await;
        rig.run(include_str!("examples.sql")).await;
        rig.until("NOT EXISTS (SELECT FROM task WHERE state IN ('TAKE', 'WORK') OR (state = 'PLAN' AND plan <= now()))").await;
        assert_eq!(
            rig.get("SELECT string_agg(error, '|') FROM task WHERE error IS NOT NULL").await,
            None
        );
        let sessions =
            rig.get("SELECT count(DISTINCT pid) <= 4 FROM task WHERE \"group\" = 'many'").await;
        assert_eq!(sessions.as_deref(), Some("t"));
        let waiting = rig.get("SELECT count(*) FROM task WHERE state = 'PLAN'").await;
        // The two of later, the repetition of the one that repeats, and the first run by cron.
        assert_eq!(waiting.as_deref(), Some("4"));
        let csv = rig.get("SELECT output FROM task WHERE quote = '\"'").await.unwrap_or_default();
        assert!(csv.starts_with("\"relname\",\"relpages\",\"reloptions\"\n\""), "{csv}");
        rig.stop().await;
    });
}

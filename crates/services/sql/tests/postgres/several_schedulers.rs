//! Several schedulers for one table.

use crate::fixture::{Fixture, run, start};
use taskyard_core::service::Service;

#[test]
fn no_task_runs_twice() {
    run(async {
        let fixture = Fixture::new().await;
        let others = [start(&fixture.schema, ""), start(&fixture.schema, "")];
        fixture.run("CREATE TABLE ran (id bigint)").await;
        let schema = &fixture.schema;
        fixture.run(&format!(
            "INSERT INTO task (max, count, input) SELECT 5, 10, 'insert into {schema}.ran values (current_setting(''pg_task.id'')::bigint)' \
             FROM generate_series(1, 200)"
        ))
        .await;
        // The leader stops in the middle, and another scheduler takes over.
        fixture.until("(SELECT count(*) FROM ran) > 20").await;
        fixture.stop().await;
        fixture.idle().await;
        let counts =
            fixture.get("SELECT concat_ws(' ', count(*), count(DISTINCT id)) FROM ran").await;
        assert_eq!(counts.as_deref(), Some("200 200"));
        for tasks in others {
            tasks.stop().await;
        }
    });
}

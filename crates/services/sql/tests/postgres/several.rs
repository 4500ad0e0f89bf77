//! Several schedulers for one table.

use crate::rig::{Rig, run, start};
use taskyard_core::service::Service;

#[test]
fn no_task_runs_twice() {
    run(async {
        let rig = Rig::new().await;
        let others = [start(&rig.schema, ""), start(&rig.schema, "")];
        rig.run("CREATE TABLE ran (id bigint)").await;
        let schema = &rig.schema;
        rig.run(&format!(
            "INSERT INTO task (max, count, input) SELECT 5, 10, 'insert into {schema}.ran values (current_setting(''pg_task.id'')::bigint)' \
             FROM generate_series(1, 200)"
        ))
        .await;
        // The one that leads ends in the middle, and another goes on.
        rig.until("(SELECT count(*) FROM ran) > 20").await;
        rig.stop().await;
        rig.idle().await;
        let counts = rig.get("SELECT concat_ws(' ', count(*), count(DISTINCT id)) FROM ran").await;
        assert_eq!(counts.as_deref(), Some("200 200"));
        for tasks in others {
            tasks.stop().await;
        }
    });
}

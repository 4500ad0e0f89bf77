//! Tasks that are put in a transaction of somebody else's.

use taskyard_core::{Body, Error, Kind, NewTask, TubeName, TubeOptions};
use taskyard_store::postgres::put_in;

use crate::database::{Database, ask, cluster, connect, make_tube, put, run, runtime, take};

fn task(byte: u8) -> Vec<NewTask> {
    vec![NewTask::new(Body::new(&[byte]))]
}

#[test]
fn a_task_is_there_when_its_transaction_commits() {
    run(async {
        let database = Database::new(cluster());
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        runtime().block_on(async {
            let mut client = connect(&database.url()).await;
            let transaction = client.transaction().await.expect("it begins");
            put_in(&transaction, &tube, task(1)).await.expect("it is put");
            transaction.rollback().await.expect("it is rolled back");
            let transaction = client.transaction().await.expect("it begins");
            put_in(&transaction, &tube, task(2)).await.expect("it is put");
            transaction.commit().await.expect("it commits");
            let nowhere = TubeName::new("nowhere").expect("a name");
            let refusal = put_in(&client, &nowhere, task(3)).await;
            assert_eq!(refusal, Err(Error::TubeNotFound(nowhere)));
        });
        let tasks = take(&store, &tube, 9);
        assert_eq!(tasks.len(), 1);
        assert_eq!(tasks[0].body.as_ref().map(Body::payload), Some(&[2][..]));
    });
}

// A queue that remembers how far it has been emptied must not pass over a task with a lower id whose
// transaction committed later.
#[test]
fn a_late_commit_is_not_passed_over() {
    run(async {
        let database = Database::new(cluster());
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        runtime().block_on(async {
            let mut client = connect(&database.url()).await;
            let transaction = client.transaction().await.expect("it begins");
            put_in(&transaction, &tube, task(1)).await.expect("it is put");
            ask(&store, put(&tube, 20)).expect("others do not wait for it");
            assert_eq!(take(&store, &tube, 10).len(), 10);
            assert_eq!(take(&store, &tube, 20).len(), 10);
            assert_eq!(take(&store, &tube, 1).len(), 0);
            transaction.commit().await.expect("it commits");
        });
        let late = take(&store, &tube, 9);
        assert_eq!(late.iter().map(|task| task.id.0).collect::<Vec<_>>(), [0]);
    });
}

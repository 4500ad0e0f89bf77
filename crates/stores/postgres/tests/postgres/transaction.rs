//! Puts in a transaction of the caller.

use taskyard_core::{Body, Command, Error, Kind, NewTask, Reply, TubeName, TubeOptions};
use taskyard_store::Store;
use taskyard_store_postgres::put_in;

use taskyard_testkit::calls::{NOW, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, connect, run, runtime};

fn task(byte: u8) -> Vec<NewTask> {
    vec![NewTask::new(Body::new(&[byte]))]
}

#[test]
fn a_task_exists_when_its_transaction_commits() {
    run(async {
        let database = Database::new();
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

// A forgotten open transaction held the row of a sub-queue, and every command in a batch with one for that sub-queue waited
// for it.
#[test]
fn a_locked_subqueue_delays_only_commands_for_it() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::Utube));
        let other = TubeName::new("other").expect("a name");
        let options = TubeOptions::new(Kind::Fifo);
        let create = Command::CreateTube { tube: other.clone(), options, if_not_exists: false };
        ask(&store, create).expect("it is made");
        let replies = runtime().block_on(async {
            let mut client = connect(&database.url()).await;
            let transaction = client.transaction().await.expect("it begins");
            put_in(&transaction, &tube, task(1)).await.expect("it is put");
            let commands = vec![put(&tube, 1), put(&other, 1)];
            store.execute(NOW, commands).await.replies
        });
        assert!(matches!(replies[0], Err(Error::StoreUnavailable(_))), "{replies:?}");
        assert!(matches!(replies[1], Ok(Reply::Put(_))), "{replies:?}");
    });
}

// A queue that remembers how far it has been emptied must not miss a task with a lower id whose transaction committed
// later.
#[test]
fn a_late_commit_is_not_missed() {
    run(async {
        let database = Database::new();
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

// A transaction had put into a tube with a capacity and stayed open: the error for others was a lock timeout, with several
// lines about functions of the database.
#[test]
fn a_tube_held_by_an_open_transaction_is_reported_as_locked() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let options = TubeOptions { capacity: Some(9), ..TubeOptions::new(Kind::Fifo) };
        let tube = make_tube(&store, options);
        runtime().block_on(async {
            let client = connect(&database.url()).await;
            let begin = "BEGIN; SELECT taskyard.put('mail', '1')";
            client.batch_execute(begin).await.expect("it is put");
            let reply = ask(&store, put(&tube, 1));
            let locked = |why: &str| why.contains("locked by an open") && !why.contains("PL/pgSQL");
            assert!(
                matches!(&reply, Err(Error::StoreUnavailable(why)) if locked(why)),
                "{reply:?}"
            );
            client.batch_execute("COMMIT").await.expect("it commits");
        });
        assert!(ask(&store, put(&tube, 1)).is_ok());
    });
}

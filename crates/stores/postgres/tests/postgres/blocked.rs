//! A transaction of plain SQL holds locks that a server needs.

use taskyard_conformance::block_on;
use taskyard_core::{Command, Error, Kind, TubeName, TubeOptions};
use taskyard_store::Store;

use taskyard_testkit::calls::{NOW, ask, put};
use taskyard_testkit::postgres::{Database, check_counts, connect, run, runtime};

// A batch with a put into a tube that an open transaction had locked waited for two seconds, was refused, and waited once
// more when its commands were run separately; all callers of that server waited with it.
#[test]
fn only_the_put_into_a_locked_tube_is_refused() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let names = ["free", "full", "lanes"].map(|name| TubeName::new(name).expect("a name"));
        let room = TubeOptions { capacity: Some(10), ..TubeOptions::new(Kind::FifoTtl) };
        let kinds = [TubeOptions::new(Kind::FifoTtl), room, TubeOptions::new(Kind::Utube)];
        for (tube, options) in names.iter().cloned().zip(kinds) {
            ask(&store, Command::CreateTube { tube, options, if_not_exists: false }).expect("made");
        }
        let [free, full, lanes] = &names;
        let open = runtime().block_on(async {
            let client = connect(&database.url()).await;
            let puts = "BEGIN; SELECT taskyard.put('full', '1'); SELECT taskyard.put('lanes', '1')";
            client.batch_execute(puts).await.expect("it puts");
            client
        });
        let batch = || vec![put(free, 1), put(full, 1), put(lanes, 1), put(full, 1), put(free, 1)];
        let replies = block_on(store.execute(NOW, batch())).replies;
        assert!(replies[0].is_ok() && replies[4].is_ok(), "{replies:?}");
        for reply in &replies[1..4] {
            let Err(Error::StoreUnavailable(why)) = reply else { panic!("{reply:?}") };
            assert!(why.contains("locked by an open transaction"), "{why}");
        }
        runtime().block_on(open.batch_execute("COMMIT")).expect("it ends");
        let replies = block_on(store.execute(NOW, batch())).replies;
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        check_counts(&database.url());
    });
}

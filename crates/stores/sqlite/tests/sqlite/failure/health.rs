//! What a store says of itself while it cannot write, and when it can again.

use taskyard_core::{Error, Kind, Span, Timestamp, TubeOptions};
use taskyard_store::{Store, StoreHealth};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::yard::{NOW, ask, block_on, close, create, fast_folder, must, open, put_one};

fn health(store: &SqliteStore, seconds: u64) -> Result<StoreHealth, Error> {
    block_on(store.health(moment(seconds)))
}

fn moment(seconds: u64) -> Timestamp {
    NOW + Span::from_secs(seconds)
}

/// A server said that it was well while its disk was full and every put was refused.
#[test]
fn a_full_disk_is_told_until_there_is_room() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    health(&store, 0).expect("all is well");
    store.limit_pages(40).expect("a limit can be set");
    let payload = [7; 60_000];
    while ask(&store, put_one("mail", &payload)).is_ok() {
        _ = store.catch_up();
    }
    for seconds in [10, 20] {
        let sick = health(&store, seconds).expect_err("it is full");
        assert!(matches!(&sick, Error::Store(why) if why.contains("disk is full")), "{sick}");
    }
    store.limit_pages(u32::MAX >> 1).expect("no limit");
    health(&store, 30).expect("there is room again");
    must(&store, put_one("mail", &payload));
    close(store);
}

/// Nothing was asked of the disk unless a client wrote, so an idle server did not notice that it could not.
#[test]
fn an_idle_store_finds_out_by_itself() {
    for journal_bytes in [0, 1 << 20] {
        let folder = fast_folder();
        let store = open(folder.path());
        store.set_journal_bytes(journal_bytes);
        health(&store, 0).expect("all is well");
        store.set_fault(Some(Fault::Step { after: 0 }));
        health(&store, 0).expect("it was well a moment ago");
        health(&store, 1).expect_err("it cannot write");
        store.set_fault(None);
        health(&store, 1).expect_err("it could not a moment ago");
        health(&store, 2).expect("it can write again");
        // What was written to find out is there after a crash, and means nothing.
        drop(store);
        close(open(folder.path()));
    }
}

/// After a failed sync nothing is written until the store is opened anew: that is not well either.
#[test]
fn a_store_that_refuses_to_write_is_not_well() {
    let folder = fast_folder();
    let store = open(folder.path());
    store.set_fault(Some(Fault::Sync));
    let unconfirmed = ask(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    assert!(matches!(unconfirmed, Err(Error::OutcomeUnknown(_))), "{unconfirmed:?}");
    store.set_fault(None);
    for seconds in [0, 10] {
        health(&store, seconds).expect_err("it does not write");
    }
    drop(store);
    health(&open(folder.path()), 20).expect("it was opened anew");
}

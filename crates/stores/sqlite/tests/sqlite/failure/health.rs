//! Tests the health of a store while it cannot write, and when it can again.

use taskyard_core::{Error, Kind, Span, Timestamp, TubeOptions};
use taskyard_store::{Store, StoreHealth};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{NOW, ask, block_on, close, create, fast_folder, must, open, put_one};

fn health(store: &SqliteStore, seconds: u64) -> Result<StoreHealth, Error> {
    block_on(store.health(at(seconds)))
}

fn at(seconds: u64) -> Timestamp {
    NOW + Span::from_secs(seconds)
}

/// A server reported good health while its disk was full and every put was refused.
#[test]
fn a_full_disk_is_reported_until_there_is_space() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    health(&store, 0).expect("it is healthy");
    store.limit_pages(40).expect("a limit can be set");
    let payload = [7; 60_000];
    while ask(&store, put_one("mail", &payload)).is_ok() {
        _ = store.catch_up();
    }
    for seconds in [10, 20] {
        let unhealthy = health(&store, seconds).expect_err("it is full");
        assert!(
            matches!(&unhealthy, Error::Store(why) if why.contains("disk is full")),
            "{unhealthy}"
        );
    }
    store.limit_pages(u32::MAX >> 1).expect("no limit");
    health(&store, 30).expect("there is space again");
    must(&store, put_one("mail", &payload));
    close(store);
}

/// The disk was used only for writes of clients, so an idle server did not notice that it could not write.
#[test]
fn an_idle_store_checks_its_disk() {
    for journal_bytes in [0, 1 << 20] {
        let folder = fast_folder();
        let store = open(folder.path());
        store.set_journal_bytes(journal_bytes);
        health(&store, 0).expect("it is healthy");
        store.set_fault(Some(Fault::Step { after: 0 }));
        health(&store, 0).expect("it was healthy a moment ago");
        health(&store, 1).expect_err("it cannot write");
        store.set_fault(None);
        health(&store, 1).expect_err("it could not a moment ago");
        health(&store, 2).expect("it can write again");
        // The record of the check is still there after a crash, and changes nothing.
        drop(store);
        close(open(folder.path()));
    }
}

/// After a failed sync nothing is written until the store is reopened: the health reports that too.
#[test]
fn a_store_that_refuses_writes_is_unhealthy() {
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
    health(&open(folder.path()), 20).expect("it was reopened");
}

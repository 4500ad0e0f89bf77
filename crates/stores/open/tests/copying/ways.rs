//! From each store to each other.

use taskyard_conformance::block_on;
use taskyard_store::MemoryStore;

use crate::content::{TASKS, content, copy_all, fill_store};
use crate::places::{Place, in_postgres, in_redis, in_tarantool};

/// Everything goes through all of them, one after the other, and is the same at each.
fn round(places: &[Box<dyn Place>]) {
    let first = MemoryStore::default();
    fill_store(&first);
    let wanted = content(&first);
    let mut from = places[0].open();
    copy_all(&first, &*from).expect("it is copied");
    for place in &places[1..] {
        let to = place.open();
        assert_eq!(copy_all(&*from, &*to).expect("it is copied").tasks, TASKS);
        assert_eq!(content(&*to), wanted);
        place.audit();
        block_on(from.close()).expect("it closes");
        from = to;
    }
    let last = MemoryStore::default();
    copy_all(&*from, &last).expect("it is copied");
    assert_eq!(content(&last), wanted);
}

#[test]
fn around_one_way() {
    let ways = [in_redis(), in_postgres(), in_tarantool(), in_redis()];
    if let Some(places) = ways.into_iter().collect::<Option<Vec<_>>>() {
        round(&places);
    }
}

#[test]
fn around_the_other_way() {
    let ways = [in_redis(), in_tarantool(), in_postgres(), in_redis()];
    if let Some(places) = ways.into_iter().collect::<Option<Vec<_>>>() {
        round(&places);
    }
}

//! Tests copies to a cluster of Redis: each tube is on one node, and no tube can have a semaphore.

use std::sync::Arc;

use taskyard_conformance::block_on;
use taskyard_core::Command;
use taskyard_store::copy::{CopyError, copy, plan};
use taskyard_store::{MemoryStore, Store};
use taskyard_store_redis::{Clock, RedisStore};

use crate::content::{Content, NOW, ask, content, copy_all, fill_store, name};
use crate::databases::next;
use crate::failing_store::FailingStore;
use taskyard_testkit::redis::{RedisCluster, program};

fn open(cluster: &RedisCluster) -> Arc<dyn Store> {
    let url = format!("{}?prefix=case{}", cluster.url(), next());
    Arc::new(RedisStore::open(&url, Clock::Caller).expect("the store opens"))
}

/// Content of every kind that a cluster supports.
fn source() -> MemoryStore {
    let store = MemoryStore::default();
    fill_store(&store);
    ask(&store, Command::DropTube { tube: name("gated") });
    store
}

#[test]
fn supported_content_is_the_same_there_and_back() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    let gated = MemoryStore::default();
    fill_store(&gated);
    let store = open(&cluster);
    let Err(CopyError::Refused(why)) = copy_all(&gated, &*store) else { panic!("refused") };
    assert!(why.iter().any(|why| why.contains("'gated' has a semaphore before it")), "{why:?}");
    assert!(content(&*store).tubes.is_empty(), "nothing was written");
    let from = source();
    copy_all(&from, &*store).expect("it is copied");
    assert_eq!(content(&*store), content(&from));
    assert!(copy_all(&from, &*store).expect("there is nothing to do").already);
    let back = MemoryStore::default();
    copy_all(&*store, &back).expect("it is copied");
    assert_eq!(content(&back), content(&from));
    resume_last_step(&open(&cluster));
}

/// The last step consists of several there. An interrupted copy has given some tubes their names, and resumes
/// with the others.
fn resume_last_step(store: &Arc<dyn Store>) {
    let from = source();
    let staged = FailingStore::new(Arc::clone(store), 4);
    copy_all(&from, &staged).expect_err("it is interrupted before the last step");
    let some = [name("fifo"), name("sub")];
    block_on(async {
        let plan = plan(&from, &**store, &some).await.expect("it can be copied");
        copy(&from, &**store, NOW, &plan, |_| ()).await.expect("these get their names");
    });
    copy_all(&from, &**store).expect("the others follow");
    let Content { tubes, .. } = content(&**store);
    assert_eq!(tubes, content(&from).tubes);
    assert_eq!(content(&**store), content(&from));
}

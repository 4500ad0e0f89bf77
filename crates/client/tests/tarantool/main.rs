//! Random commands over iproto, through a live server with its tasks in Tarantool, compared with the core's machine. The cases of the conformance
//! suite run over iproto on a store in memory, and on Tarantool without a server.

#[path = "../suite/live.rs"]
mod live;
#[path = "../suite/open_url.rs"]
mod open_url;

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use taskyard_testkit::server;

use taskyard_conformance::{model, semaphores as rules};
use taskyard_store_tarantool::{Clock, TarantoolStore};

use crate::live::Live;
use taskyard_testkit::tarantool::{TarantoolInstance, program};

/// Random commands, compared with the core's machine.
#[test]
fn model() {
    for seed in model::seeds(4) {
        run(async { model::replay(live().await, seed, 300).await });
    }
}

/// Random semaphore commands, compared with the core's machine.
#[test]
fn model_of_semaphores() {
    for seed in model::seeds(4) {
        run(async { rules::model::replay(live().await, seed, 300).await });
    }
}

/// Random commands for tubes with semaphores, compared with the core's machine.
#[test]
fn model_of_gated_tubes() {
    for seed in model::seeds(4) {
        run(async { model::replay_gated(live().await, seed, 300).await });
    }
}

#[test]
fn clients_open_the_store_by_its_url() {
    run(async {
        let url = format!("{}?prefix=opened", instance().url());
        open_url::a_function_runs_the_task_of_another_client(&url).await;
    });
}

/// Runs a case; skips it if Tarantool is missing and the tests may run without it.
fn run(case: impl Future) {
    if program().is_some() {
        server::block_on(case);
    }
}

/// The server that the tests of this process share.
fn instance() -> &'static TarantoolInstance {
    static INSTANCE: OnceLock<TarantoolInstance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        TarantoolInstance::new(program().expect("`run` has checked that it is installed"))
    })
}

/// A live server with its own prefix in Tarantool.
async fn live() -> Live {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let part = COUNT.fetch_add(1, Ordering::Relaxed);
    let url = format!("{}?prefix=case{part}", instance().url());
    Live::over(move || {
        Box::new(TarantoolStore::open(&url, Clock::Caller).expect("the store opens"))
    })
    .await
}

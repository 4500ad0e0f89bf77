//! Third-party clients of tarantool/queue, unmodified, against our server.
//!
//! All of them play one scenario: `scenario` has the steps and the expected answers. The
//! programs beside this file contain no answers; each only calls its client.

mod greeting;
mod play;
mod program;
mod scenario;
mod site;
mod tarant;
mod tarantool_rs;

use play::play;
use program::{Program, Tool};
use scenario::Ability;
use tarant::Tarant;
use tarantool_rs::TarantoolRs;

const PYTHON: Tool = Tool { variable: "TASKYARD_PYTHON", usual: "target/tools/python/bin/python" };
const NODE: Tool = Tool { variable: "TASKYARD_NODE", usual: "/usr/bin/node" };
const NODE_MODULES: Tool =
    Tool { variable: "TASKYARD_NODE_MODULES", usual: "target/tools/node/node_modules" };
const TARANTOOL: Tool = Tool { variable: "TASKYARD_TARANTOOL", usual: "/usr/bin/tarantool" };

/// PyPI's `tarantool`: one request at a time.
#[tokio::test(flavor = "multi_thread")]
async fn python() {
    let Some(python) = PYTHON.find() else { return };
    Program::new(&python, "python_sync.py").cannot(&[Ability::Pipelining]).play().await;
}

/// The pool of PyPI's `tarantool` found no server in which a connection could be used, because `box.info` was not defined;
/// and without grants for the guest a client could not even connect, because it reads the schema first.
#[tokio::test(flavor = "multi_thread")]
async fn python_pool() {
    let Some(python) = PYTHON.find() else { return };
    let site = site::ScenarioServer::with(taskyard_server::Grants::List(Vec::new())).await;
    Program::new(&python, "python_pool.py").says(&site, "pooled").await;
}

/// PyPI's `asynctnt` and `asynctnt-queue`.
#[tokio::test(flavor = "multi_thread")]
async fn python_async() {
    let Some(python) = PYTHON.find() else { return };
    Program::new(&python, "python_async.py").play().await;
}

/// The `tarantool-driver` of npm. It calls by the old CALL, and reads every string as UTF-8.
#[tokio::test(flavor = "multi_thread")]
async fn node() {
    let (Some(node), Some(modules)) = (NODE.find(), NODE_MODULES.find()) else { return };
    let program = Program::new(&node, "node_driver.js").env("NODE_PATH", &modules);
    program.cannot(&[Ability::Bytes, Ability::Codes]).play().await;
}

/// The `net.box` of Tarantool itself.
#[tokio::test(flavor = "multi_thread")]
async fn netbox() {
    let Some(tarantool) = TARANTOOL.find() else { return };
    Program::new(&tarantool, "netbox.lua").play().await;
}

/// The crate `tarant`. It reads spaces of Tarantool 3 only.
#[tokio::test(flavor = "multi_thread")]
async fn rust_tarant() {
    play::<Tarant>(&[Ability::Spaces]).await;
}

/// The crate `tarantool-rs`.
#[tokio::test(flavor = "multi_thread")]
async fn rust_tarantool_rs() {
    play::<TarantoolRs>(&[]).await;
}

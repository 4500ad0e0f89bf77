//! A server with a data folder is killed under load, again and again, and started on what it left.

use std::future::Future;

use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::key_storm::add_each_key_once;
use crate::killed_servers::KilledServers;
use crate::process::Serving;
use crate::schedule_storm::fire_each_time_once;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn run(storm: impl Future) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(storm);
}

#[test]
fn a_killed_server_fires_each_time_once() {
    let folder = folder();
    run(fire_each_time_once(KilledServers::new(1, || Serving::folder(folder.path(), &[]))));
}

#[test]
fn a_killed_server_adds_each_key_once() {
    let folder = folder();
    run(add_each_key_once(KilledServers::new(1, || Serving::folder(folder.path(), &[]))));
}

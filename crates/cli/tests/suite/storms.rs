//! A server with a data folder is killed under load, again and again, and started on what it left.

use taskyard_testkit::storm::faulty_servers::KilledServers;
use taskyard_testkit::storm::keys::add_each_key_once;
use taskyard_testkit::storm::run;
use taskyard_testkit::storm::schedules::fire_each_time_once;
use tempfile::TempDir;

use crate::process::Serving;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

#[test]
fn a_killed_server_fires_each_time_once() {
    let folder = folder();
    let start = || Serving::folder(folder.path(), &[]).process;
    run(fire_each_time_once(KilledServers::new(1, start)));
}

#[test]
fn a_killed_server_adds_each_key_once() {
    let folder = folder();
    let start = || Serving::folder(folder.path(), &[]).process;
    run(add_each_key_once(KilledServers::new(1, start)));
}

//! Servers are killed, and others replace them.

use crate::database::DatabaseFixture;
use crate::fixture::{create_tubes, run};
use crate::judge::{judge, wait_for_returns};
use crate::key_storm::add_each_key_once;
use crate::killed_servers::KilledServers;
use crate::load::{ServerFate, StormLoad};
use crate::schedule_storm::fire_each_time_once;

/// How many replies arrive before and after each fault.
const REPLIES: usize = 150;

#[test]
fn killed_servers_lose_no_task() {
    run(async {
        let fixture = DatabaseFixture::new();
        let stays = fixture.serve();
        create_tubes(&stays).await;
        let load = StormLoad::new();
        load.begin(&stays, ServerFate::Stays).await;
        for _ in 0..2 {
            let killed = fixture.serve();
            load.begin(&killed, ServerFate::Stops).await;
            load.wait_for_replies(REPLIES).await;
            killed.serving.signal("KILL");
            load.wait_for_replies(REPLIES).await;
        }
        load.end().await;
        wait_for_returns(&fixture);
        judge(&fixture, &load);
    });
}

#[test]
fn a_storm_of_kills_fires_each_time_once() {
    run(async {
        let fixture = DatabaseFixture::new();
        fire_each_time_once(KilledServers::new(2, || fixture.start())).await;
    });
}

#[test]
fn a_storm_of_kills_adds_each_key_once() {
    run(async {
        let fixture = DatabaseFixture::new();
        add_each_key_once(KilledServers::new(2, || fixture.start())).await;
    });
}

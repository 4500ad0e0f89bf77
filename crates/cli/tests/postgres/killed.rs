//! Servers are killed, and others replace them.

use crate::database::DatabaseFixture;
use crate::fixture::{create_tubes, run};
use crate::judge::{judge, wait_for_returns};
use crate::load::{ServerFate, StormLoad};

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

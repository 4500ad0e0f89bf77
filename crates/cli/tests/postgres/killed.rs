//! Servers are killed, and others replace them.

use crate::judge::{judge, wait_for_returns};
use crate::load::{Fate, Load};
use crate::yard::{Yard, run};

/// How many answers arrive before and after each fault.
const ANSWERS: usize = 150;

#[test]
fn killed_servers_lose_no_task() {
    run(async {
        let mut yard = Yard::new();
        let stays = yard.serve();
        yard.make_tubes(&stays).await;
        let load = Load::new();
        load.begin(&stays, Fate::Lives).await;
        for _ in 0..2 {
            let goes = yard.serve();
            load.begin(&goes, Fate::Goes).await;
            load.answers(ANSWERS).await;
            goes.serving.signal("KILL");
            load.answers(ANSWERS).await;
        }
        load.end().await;
        wait_for_returns(&yard);
        judge(&yard, &load);
    });
}

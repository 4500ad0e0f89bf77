//! The database is killed while stores use it, and started again: nothing acknowledged is lost, nothing delivered twice.

use std::sync::Arc;

use fastrand::Rng;
use taskyard_conformance::StoreHarness;
use taskyard_conformance::random::{new_seed, runs};
use taskyard_core::{
    Command, Error, Execute, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreKey, Timestamp,
};
use taskyard_store::Store;
use taskyard_store::remote::{Backend, Clock, RemoteStore};

use crate::calls::NOW;
use crate::storm::judge::judge;
use crate::storm::load::{Finishes, ServerFate, StormLoad, TUBES, create_tubes, tube};
use crate::storm::run;
use crate::{OwnServer, SharedDatabase};

/// About how many calls are answered before and after each kill.
const STEPS: usize = 300;
/// How often the database is killed; `TASKYARD_RUNS` multiplies it.
const KILLS: usize = 2;
const SERVERS: usize = 3;

pub fn no_task_is_lost_or_delivered_twice<D: SharedDatabase>() {
    storm::<D>(Finishes::Any, None);
}

pub fn no_task_behind_a_semaphore_is_lost<D: SharedDatabase>() {
    storm::<D>(Finishes::Acks, Some(SemaphoreKey::new("door").expect("a key")));
}

crate::suite::suite! {
    /// Runs the cases about kills on a [`SharedDatabase`].
    kill_suite, kills, $:
    no_task_is_lost_or_delivered_twice
    no_task_behind_a_semaphore_is_lost
}

/// A store that goes by the moment of all calls.
struct StoreAtNow<B: Backend>(RemoteStore<B>);

impl<B: Backend> Execute for StoreAtNow<B> {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.0.execute(NOW, commands).await.replies
    }
}

fn storm<D: SharedDatabase>(finishes: Finishes, semaphore: Option<SemaphoreKey>) {
    let Some(database) = D::server() else { return };
    let url = Arc::new(database.url());
    let open = {
        let url = url.clone();
        move || RemoteStore::<D::Backend>::open(&url, Clock::Caller).expect("the store opens")
    };
    run(async {
        let store = StoreAtNow(open());
        if let Some(key) = semaphore.clone() {
            let change = Box::new(SemaphoreChange::limits(2, 2));
            let configure = SemaphoreCommand::Configure { key, change, only_new: true };
            let reply = store.execute(vec![Command::Semaphore(configure)]).await.remove(0);
            reply.expect("there is a semaphore");
        }
        create_tubes(&store, semaphore.as_ref()).await;
        let load = StormLoad::new(finishes);
        for _ in 0..SERVERS {
            load.spawn(StoreAtNow(open()), None, ServerFate::Stays);
        }
        let mut rng = Rng::with_seed(new_seed());
        for _ in 0..KILLS * runs() {
            load.wait_for_replies(rng.usize(STEPS / 2..=STEPS * 3 / 2) / runs()).await;
            database.kill();
            database.start();
        }
        load.wait_for_replies(STEPS).await;
        load.end().await;
        TUBES.iter().for_each(|name| database.audit(&tube(name)));
        let queue = StoreHarness::new(move || Box::new(open()));
        let ended = Timestamp::from_micros(NOW.as_micros() + 1);
        judge(&queue, &load, ended, D::LEASES_INCREASE).await;
    });
}

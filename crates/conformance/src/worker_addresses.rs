//! Removes the names that servers give to unnamed workers: their addresses.
//!
//! The cases expect what a store shows, where a take without a name has none.

use std::net::{IpAddr, SocketAddr};

use taskyard_core::{Failure, Failures, Finished, Outcome, Reply, Task};

/// Removes every address that stands for the name of a worker in a reply.
pub fn remove_addresses(reply: &mut Reply) {
    match reply {
        Reply::Tasks(_) | Reply::Taken(_) | Reply::Found(_) => {
            reply.shown_mut().iter_mut().for_each(remove_from);
        }
        Reply::Finished(outcomes) => {
            for outcome in outcomes {
                if let Outcome::Done(Some(task)) = outcome {
                    remove_from(task);
                }
            }
        }
        _ => {}
    }
}

fn remove_from(task: &mut Task) {
    task.worker = task.worker.take().filter(|worker| is_name(worker));
    task.finished = task.finished.take().map(without_address);
    let without = |before: Option<Failures>, mut failure: Failure| {
        failure.worker = failure.worker.filter(|worker| is_name(worker));
        Some(Failures::with(before.as_ref(), &failure))
    };
    task.failures = task.failures.take().and_then(|all| all.iter().fold(None, without));
}

fn without_address(finished: Finished) -> Finished {
    let worker = finished.worker().filter(|worker| is_name(worker));
    let result = finished.result().unwrap_or(&[]);
    Finished::new(finished.at(), finished.run(), worker, result)
}

fn is_name(worker: &str) -> bool {
    worker.parse::<IpAddr>().is_err() && worker.parse::<SocketAddr>().is_err()
}

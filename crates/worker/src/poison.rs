//! Settles tasks whose payload cannot be decoded: they are tried again, and buried with the error after their attempts.
//!
//! A newer worker may be able to decode such a task, so it is not buried at once. A store buries a task that has used up
//! `attempts_max`, its own or that of its tube. Without one it would be tried forever, so the worker buries it.

use std::collections::HashSet;

use taskyard_core::{Command, Execute, Finish, Reply, TaskId, TubeName};
use taskyard_wire::fail_by_policy;

use crate::batch_outcome::backoff;
use crate::store::Store;
use crate::typed::Delivery;

/// After how many attempts a task is buried if neither it nor its tube has `attempts_max`.
const ATTEMPTS_MAX: u32 = 10;

/// How the deliveries of tasks of a tube that cannot be decoded end. The error of the decoder is kept with each.
pub(crate) async fn finishes_of(
    store: &Store,
    tube: &TubeName,
    poison: Vec<(Delivery, String)>,
) -> Vec<(u64, Finish)> {
    let is_last = |delivery: &Delivery| delivery.attempts.saturating_add(1) >= ATTEMPTS_MAX;
    let last = poison.iter().filter(|(delivery, _)| is_last(delivery));
    let last: Vec<_> = last.map(|(delivery, _)| delivery.id()).collect();
    let unlimited = without_limit(store, tube, last).await;
    let finish = |(delivery, error): (Delivery, String)| {
        let (id, attempts) = (delivery.id(), delivery.attempts);
        let buried = unlimited.contains(&id);
        tracing::warn!(queue = %tube, id = id.0, attempts, buried, error, "cannot decode the payload of a task");
        let error = format!("cannot decode the payload: {error}");
        let finish = match buried {
            true => Finish::fail(&error, None),
            false => fail_by_policy(&error, backoff(attempts).into()),
        };
        (delivery.task_id, finish)
    };
    poison.into_iter().map(finish).collect()
}

/// Those of the tasks that no `attempts_max` limits, as far as the worker may know: one that may not see its tasks knows no
/// limit of a single task.
async fn without_limit(store: &Store, tube: &TubeName, ids: Vec<TaskId>) -> HashSet<TaskId> {
    let mut unlimited: HashSet<_> = ids.iter().copied().collect();
    if ids.is_empty() {
        return unlimited;
    }
    let show = Command::Tubes { tube: Some(tube.clone()) };
    let peek = Command::Peek { tube: tube.clone(), ids };
    for reply in store.execute(vec![show, peek]).await {
        match reply {
            Ok(Reply::Tubes(tubes))
                if tubes.iter().any(|tube| tube.options.attempts_max.is_some()) =>
            {
                return HashSet::new();
            }
            Ok(Reply::Tasks(tasks)) => {
                for task in tasks.iter().filter(|task| task.attempts_max.is_some()) {
                    unlimited.remove(&task.id);
                }
            }
            // The next attempt decides.
            Err(error) if error.is_temporary() => return HashSet::new(),
            _ => {}
        }
    }
    unlimited
}

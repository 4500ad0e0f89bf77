//! Lists the names of the functions and methods that clients may call.

use super::call::BOX_INFO;
use super::native::{EXECUTE, RUN_SCHEDULE};

/// The methods of a tube.
const METHODS: [&str; 17] = [
    "put",
    "take",
    "ack",
    "release",
    "touch",
    "bury",
    "kick",
    "peek",
    "delete",
    "truncate",
    "release_all",
    "drop",
    "put_many",
    "take_many",
    "ack_many",
    "fail",
    "list",
];

/// The functions of the queue, without the prefix.
const FUNCTIONS: [&str; 26] = [
    "statistics",
    "stats",
    "identify",
    "worker",
    "state",
    "cfg",
    "create_tube",
    "schema.create_tube",
    "tube",
    "semaphore.create",
    "semaphore.set",
    "semaphore.enqueue",
    "semaphore.enqueue_many",
    "semaphore.release",
    "semaphore.yield",
    "semaphore.decline",
    "semaphore.extend",
    "semaphore.release_many",
    "semaphore.look",
    "semaphore.holders",
    "semaphore.waiting",
    "semaphore.drop",
    "semaphore.list",
    "semaphore.show",
    "semaphore.events",
    "semaphore.ack",
];

/// The names of all functions that a client may call, for a queue of this prefix; methods with the
/// tube `TUBE`.
pub fn function_names(prefix: &str) -> Vec<String> {
    let functions = FUNCTIONS.iter().map(|function| format!("{prefix}.{function}"));
    let methods = METHODS.iter().map(|method| format!("{prefix}.tube.TUBE:{method}"));
    let own = [EXECUTE, RUN_SCHEDULE, BOX_INFO].map(String::from);
    functions.chain(methods).chain(own).collect()
}

/// The method of this name, if tubes have one.
pub(crate) fn method_named(name: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|method| *method == name)
}

/// Whether the queue has a function of this name.
pub(crate) fn is_function(name: &str) -> bool {
    FUNCTIONS.contains(&name)
}

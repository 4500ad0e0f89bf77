//! The pool over a real Redis, its parts as tasks of this process. The same as processes, with kills, is in the tests of the command
//! line.

#[path = "../../../../store/tests/redis/instance.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod instance;
mod yard;

mod path;

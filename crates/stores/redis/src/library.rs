//! The functions that decide inside Redis.

use taskyard_redis::Library;

/// The files of the library, in the order in which they need each other. A chunk of Lua may have two hundred local names, so
/// what the others do not use is out of their sight.
const FILES: &[&str] = &[
    include_str!("lua/task.lua"),
    include_str!("lua/life.lua"),
    include_str!("lua/tube.lua"),
    concat!("do\n", include_str!("lua/semaphore.lua"), "end\n"),
    concat!("do\n", include_str!("lua/outbox.lua"), "end\n"),
    concat!("do\n", include_str!("lua/settle.lua"), "end\n"),
    concat!("do\n", include_str!("lua/gates.lua"), "end\n"),
    include_str!("lua/put.lua"),
    include_str!("lua/show.lua"),
    concat!("do\n", include_str!("lua/take.lua"), "end\n"),
    include_str!("lua/finish.lua"),
    concat!("do\n", include_str!("lua/plain.lua"), "end\n"),
    concat!("do\n", include_str!("lua/tick.lua"), "end\n"),
    concat!("do\n", include_str!("lua/upgrade.lua"), "end\n"),
    include_str!("lua/tubes.lua"),
    include_str!("lua/call.lua"),
    concat!("do\n", include_str!("lua/semaphores.lua"), "end\n"),
    concat!("do\n", include_str!("lua/registry.lua"), "end\n"),
    concat!("do\n", include_str!("lua/export.lua"), "end\n"),
    concat!("do\n", include_str!("lua/names.lua"), "end\n"),
    concat!("do\n", include_str!("lua/import.lua"), "end\n"),
];

/// The version of what is kept in Redis. Whoever finds a later one there leaves it alone. In the second one tasks may have a priority
/// for their semaphore. The third one keeps tasks in another way, with the moment since which they wait, and a tube of an earlier
/// one is written anew by the first call that finds it (`lua/upgrade.lua`).
pub(super) const FORMAT: i64 = 3;

/// The library of this version.
pub(super) fn library() -> Library {
    Library::new(&format!("taskyard_{FORMAT}"), FILES)
}

//! Assembles the library of Lua functions that run inside Redis.

use taskyard_redis::Library;

use taskyard_core::failure::{LEASE_EXPIRED, SERVER_LOST, SESSION_ENDED};
use taskyard_store::limits::with_limits;
use taskyard_store::lua::{PACE_RULES, SEMAPHORE_RULES, VALUES};
use taskyard_store::template::substitute;

/// The files of the library in the order of their dependencies. A Lua function may have two hundred local names, so files
/// whose names the others do not use are blocks.
const FILES: &[&str] = &[
    VALUES,
    include_str!("lua/task.lua"),
    include_str!("lua/incarnation.lua"),
    include_str!("lua/tube.lua"),
    include_str!("lua/failures.lua"),
    "do\n",
    PACE_RULES,
    include_str!("lua/pace.lua"),
    "end\n",
    concat!("do\n", include_str!("lua/done.lua"), "end\n"),
    "do\n",
    include_str!("lua/semaphore.lua"),
    include_str!("lua/outbox.lua"),
    SEMAPHORE_RULES,
    "end\n",
    concat!("do\n", include_str!("lua/gates.lua"), "end\n"),
    include_str!("lua/put.lua"),
    include_str!("lua/show.lua"),
    concat!("do\n", include_str!("lua/keys.lua"), "end\n"),
    concat!("do\n", include_str!("lua/list.lua"), include_str!("lua/positions.lua"), "end\n"),
    concat!("do\n", include_str!("lua/take.lua"), "end\n"),
    include_str!("lua/release.lua"),
    concat!("do\n", include_str!("lua/finish.lua"), "end\n"),
    concat!("do\n", include_str!("lua/plain.lua"), "end\n"),
    concat!("do\n", include_str!("lua/tick.lua"), "end\n"),
    concat!("do\n", include_str!("lua/upgrade.lua"), "end\n"),
    include_str!("lua/tubes.lua"),
    include_str!("lua/call.lua"),
    concat!("do\n", include_str!("lua/schedules.lua"), "end\n"),
    concat!("do\n", include_str!("lua/semaphores.lua"), "end\n"),
    concat!("do\n", include_str!("lua/registry.lua"), "end\n"),
    concat!("do\n", include_str!("lua/export.lua"), "end\n"),
    concat!("do\n", include_str!("lua/names.lua"), "end\n"),
    concat!("do\n", include_str!("lua/import.lua"), "end\n"),
];

/// The version of the stored format. A server refuses to work with a later one. Since version 2 tasks may have a priority for
/// their semaphore. Version 3 stores tasks differently, with the moment since which they wait; the first call to a tube of an
/// earlier version converts it (`lua/upgrade.lua`). Since version 4 tubes may keep done tasks; servers of earlier versions would
/// remove them when they are finished. Since version 5 tasks may have keys and their own number of attempts, tubes retry policies
/// and rate limits, and there are schedules; nothing else changed, so data of version 4 needs no conversion.
pub(super) const FORMAT: i64 = 5;

/// The library of this version.
pub(super) fn library() -> Library {
    let values = [
        ("LEASE_EXPIRED", LEASE_EXPIRED.to_owned()),
        ("SESSION_ENDED", SESSION_ENDED.to_owned()),
        ("SERVER_LOST", SERVER_LOST.to_owned()),
    ];
    let text = substitute(&with_limits(&FILES.concat()), &values);
    Library::new(&format!("taskyard_{FORMAT}"), &[&text])
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_store::limits::typed_limits;

    #[test]
    fn limits_come_from_the_core() {
        let accepted = [
            "'COUNT', 1000",
            "VALUES_MAX = 1000",
            "MISSES_MAX, GAPS_MAX = 2000",
            "decoded_count >= 1000",
            "given, 1024",
            "SKIP = 1000000",
        ];
        assert_eq!(typed_limits(&FILES.concat(), &accepted), Vec::<String>::new());
        assert!(!library().text().contains("{{"), "a placeholder without a value");
    }
}

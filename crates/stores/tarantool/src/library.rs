//! Assembles the library of Lua procedures that run inside Tarantool.

use taskyard_core::failure::{LEASE_EXPIRED, SERVER_LOST, SESSION_ENDED};
use taskyard_store::limits::with_limits;
use taskyard_store::lua::{PACE_RULES, SEMAPHORE_RULES, VALUES};
use taskyard_store::template::substitute;

/// The files in the order of their dependencies: first those whose names all others use, then those that are blocks of their
/// own (a Lua function may have two hundred local names, and sixty of the functions around it), then those of semaphores.
const SHARED: [&str; 6] = [
    include_str!("lua/modules.lua"),
    VALUES,
    include_str!("lua/values.lua"),
    include_str!("lua/spaces.lua"),
    include_str!("lua/tube.lua"),
    include_str!("lua/orders.lua"),
];
const TUBES: [&str; 21] = [
    include_str!("lua/format.lua"),
    PACE_RULES,
    include_str!("lua/pace.lua"),
    include_str!("lua/raw_insert.lua"),
    include_str!("lua/take.lua"),
    include_str!("lua/put.lua"),
    include_str!("lua/show.lua"),
    include_str!("lua/search.lua"),
    include_str!("lua/list.lua"),
    include_str!("lua/position_samples.lua"),
    include_str!("lua/position_estimates.lua"),
    include_str!("lua/positions.lua"),
    include_str!("lua/failures.lua"),
    include_str!("lua/done.lua"),
    include_str!("lua/keys.lua"),
    include_str!("lua/finish.lua"),
    include_str!("lua/tubes.lua"),
    include_str!("lua/sessions.lua"),
    include_str!("lua/tick.lua"),
    include_str!("lua/import.lua"),
    include_str!("lua/schedules.lua"),
];
const SEMAPHORE: &str = include_str!("lua/semaphore.lua");
const SEMAPHORES: [&str; 4] = [
    SEMAPHORE_RULES,
    include_str!("lua/gates.lua"),
    include_str!("lua/semaphores.lua"),
    include_str!("lua/import_semaphores.lua"),
];
const SERVERS: &str = include_str!("lua/servers.lua");
/// A block of its own that uses the names of servers.
const RESYNC: &str = include_str!("lua/resync.lua");
const LAST: [&str; 2] = [include_str!("lua/batch.lua"), include_str!("lua/copy.lua")];

/// Replaces all but the shared files where tubes are those of an existing tarantool/queue.
const ADAPTER: [&str; 2] = [include_str!("lua/adapter_tasks.lua"), include_str!("lua/adapter.lua")];

/// The version of the stored format. A server refuses to work with a later one. The stored one is lower until a feature is used that
/// needs it (`format.lua`): until then servers of earlier versions can work beside this one.
pub(super) const FORMAT: i64 = 3;

/// Answers whether the procedures are loaded, whether the instance is read-only, and the version of the stored format.
pub(super) const PROBE: &str = include_str!("lua/probe.lua");
/// Loads the procedures.
pub(super) const LOAD: &str = include_str!("lua/load.lua");

/// The procedures as Tarantool loads them.
pub(super) struct Library {
    /// Its name, with a fingerprint of the text: servers of several versions do not replace each other's library. `format.lua` finds those
    /// of earlier formats by the beginning of their names.
    pub name: String,
    /// The function that a server calls.
    pub function: String,
    pub text: String,
}

impl Library {
    /// Assembles the files.
    pub fn new() -> Self {
        let apart = |file: &str| format!("do\n{file}end\n");
        let semaphores = format!("{SEMAPHORE}{}", SEMAPHORES.map(apart).concat());
        let semaphores = format!("(function()\n{semaphores}end)()\n");
        let parts = TUBES.map(apart).concat() + &semaphores + SERVERS + &apart(RESYNC);
        let last = format!("return (function()\n{}end)()\n", LAST.concat());
        Self::of(&with_values(&format!("{}{parts}{last}", SHARED.concat())))
    }

    /// For tubes of an existing tarantool/queue.
    pub fn adapter() -> Self {
        let [modules, shared, values, spaces, tube, _] = SHARED;
        let own = [modules, shared, values, spaces, tube].concat() + &ADAPTER.concat();
        Self::of(&with_values(&own))
    }

    fn of(files: &str) -> Self {
        let name = format!("taskyard_1_{:016x}", fingerprint(format!("{LOAD}{files}").as_bytes()));
        let text = format!("local PREFIX, FORMAT, NEWS = ...\n{files}");
        let function = format!("{name}.call");
        Library { name, function, text }
    }
}

/// The text with the limits of the core, and with its errors of deliveries that ended by themselves.
fn with_values(text: &str) -> String {
    let values = [
        ("LEASE_EXPIRED", LEASE_EXPIRED.to_owned()),
        ("SESSION_ENDED", SESSION_ENDED.to_owned()),
        ("SERVER_LOST", SERVER_LOST.to_owned()),
    ];
    substitute(&with_limits(text), &values)
}

/// Distinguishes texts (FNV-1a).
fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_store::limits::typed_limits;

    #[test]
    fn another_text_has_another_name() {
        assert_ne!(fingerprint(b"a"), fingerprint(b"b"));
        let library = Library::new();
        assert_eq!(library.function, format!("{}.call", library.name));
        assert_ne!(library.name, Library::adapter().name);
    }

    #[test]
    fn limits_come_from_the_core() {
        let files =
            [&SHARED[..], &TUBES, &[SEMAPHORE], &SEMAPHORES, &[SERVERS, RESYNC], &LAST, &ADAPTER];
        let files = files.concat();
        let accepted = ["STEP = 1000", "NOTICES_MAX = 1000", "PULSE_SECONDS = 1000000"];
        assert_eq!(typed_limits(&files.concat(), &accepted), Vec::<String>::new());
        for library in [Library::new(), Library::adapter()] {
            assert!(!library.text.contains("{{"), "a placeholder without a value");
        }
    }
}

//! Assembles the library of Lua procedures that run inside Tarantool.

use std::sync::LazyLock;

use taskyard_core::failure::{LEASE_EXPIRED, SERVER_LOST, SESSION_ENDED};
use taskyard_packed::Texts;
use taskyard_store::limits::with_limits;
use taskyard_store::lua::{PACE_RULES, SEMAPHORE_RULES, VALUES};
use taskyard_store::template::substitute;

/// The files of the folder `lua`, packed by the build script.
static TEXTS: LazyLock<Texts> =
    LazyLock::new(|| Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/library"))));

/// The text of a file; those in `shared` belong to the crate of the trait.
fn file(name: &str) -> &'static str {
    match name {
        "shared/values.lua" => VALUES,
        "shared/pace_rules.lua" => PACE_RULES,
        "shared/semaphore_rules.lua" => SEMAPHORE_RULES,
        _ => TEXTS.text(name),
    }
}

/// The files in the order of their dependencies: first those whose names all others use, then those that are blocks of their
/// own (a Lua function may have two hundred local names, and sixty of the functions around it), then those of semaphores.
const SHARED: [&str; 6] =
    ["modules.lua", "shared/values.lua", "values.lua", "spaces.lua", "tube.lua", "orders.lua"];
const TUBES: [&str; 21] = [
    "format.lua",
    "shared/pace_rules.lua",
    "pace.lua",
    "raw_insert.lua",
    "take.lua",
    "put.lua",
    "show.lua",
    "search.lua",
    "list.lua",
    "position_samples.lua",
    "position_estimates.lua",
    "positions.lua",
    "failures.lua",
    "done.lua",
    "keys.lua",
    "finish.lua",
    "tubes.lua",
    "sessions.lua",
    "tick.lua",
    "import.lua",
    "schedules.lua",
];
const SEMAPHORE: &str = "semaphore.lua";
const SEMAPHORES: [&str; 4] =
    ["shared/semaphore_rules.lua", "gates.lua", "semaphores.lua", "import_semaphores.lua"];
const SERVERS: &str = "servers.lua";
/// A block of its own that uses the names of servers.
const RESYNC: &str = "resync.lua";
const LAST: [&str; 2] = ["batch.lua", "copy.lua"];

/// Replaces all but the shared files where tubes are those of an existing tarantool/queue.
const ADAPTER: [&str; 2] = ["adapter_tasks.lua", "adapter.lua"];

/// The version of the stored format. A server refuses to work with a later one. The stored one is lower until a feature is used that
/// needs it (`format.lua`): until then servers of earlier versions can work beside this one.
pub(super) const FORMAT: i64 = 3;

/// Answers whether the procedures are loaded, whether the instance is read-only, and the version of the stored format.
pub(super) fn probe() -> &'static str {
    TEXTS.text("probe.lua")
}

/// Loads the procedures.
pub(super) fn load() -> &'static str {
    TEXTS.text("load.lua")
}

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
        let apart = |name: &str| format!("do\n{}end\n", file(name));
        let semaphores = format!("{}{}", file(SEMAPHORE), SEMAPHORES.map(apart).concat());
        let semaphores = format!("(function()\n{semaphores}end)()\n");
        let parts = TUBES.map(apart).concat() + &semaphores + file(SERVERS) + &apart(RESYNC);
        let last = format!("return (function()\n{}end)()\n", LAST.map(file).concat());
        Self::of(&with_values(&format!("{}{parts}{last}", SHARED.map(file).concat())))
    }

    /// For tubes of an existing tarantool/queue.
    pub fn adapter() -> Self {
        let [modules, shared, values, spaces, tube, _] = SHARED;
        let own = [modules, shared, values, spaces, tube].map(file).concat();
        Self::of(&with_values(&(own + &ADAPTER.map(file).concat())))
    }

    fn of(files: &str) -> Self {
        let name =
            format!("taskyard_1_{:016x}", fingerprint(format!("{}{files}", load()).as_bytes()));
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

    /// All files of the two libraries.
    fn files() -> Vec<&'static str> {
        [&SHARED[..], &TUBES, &[SEMAPHORE], &SEMAPHORES, &[SERVERS, RESYNC], &LAST, &ADAPTER]
            .concat()
    }

    /// A file that no library names would be packed and never loaded.
    #[test]
    fn every_packed_file_is_used() {
        let packed = Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/library")));
        let used = [files(), vec!["probe.lua", "load.lua"]].concat();
        let packed = packed.into_texts().map(|(name, _)| name);
        let unused: Vec<_> = packed.filter(|name| !used.contains(&&**name)).collect();
        assert_eq!(unused, [""; 0]);
    }

    #[test]
    fn limits_come_from_the_core() {
        let files: String = files().into_iter().map(file).collect();
        let accepted = ["STEP = 1000", "NOTICES_MAX = 1000", "PULSE_SECONDS = 1000000"];
        assert_eq!(typed_limits(&files, &accepted), Vec::<String>::new());
        for library in [Library::new(), Library::adapter()] {
            assert!(!library.text.contains("{{"), "a placeholder without a value");
        }
    }
}

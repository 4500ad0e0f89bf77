//! The procedures that decide inside Tarantool.

/// The files, in the order in which they need each other: first what all share, then what keeps the rest to itself (Lua
/// allows two hundred names in one place), then what semaphores share among themselves.
const SHARED: [&str; 4] = [
    include_str!("lua/values.lua"),
    include_str!("lua/spaces.lua"),
    include_str!("lua/tube.lua"),
    include_str!("lua/orders.lua"),
];
const TUBES: [&str; 9] = [
    include_str!("lua/straight.lua"),
    include_str!("lua/take.lua"),
    include_str!("lua/put.lua"),
    include_str!("lua/show.lua"),
    include_str!("lua/finish.lua"),
    include_str!("lua/tubes.lua"),
    include_str!("lua/sessions.lua"),
    include_str!("lua/tick.lua"),
    include_str!("lua/import.lua"),
];
const SEMAPHORE: &str = include_str!("lua/semaphore.lua");
const SEMAPHORES: [&str; 4] = [
    include_str!("lua/settle.lua"),
    include_str!("lua/gates.lua"),
    include_str!("lua/semaphores.lua"),
    include_str!("lua/import_semaphores.lua"),
];
const LAST: [&str; 3] =
    [include_str!("lua/servers.lua"), include_str!("lua/batch.lua"), include_str!("lua/copy.lua")];

/// Instead of all but what is shared, where tubes are those of an existing tarantool/queue.
const ADAPTER: &str = include_str!("lua/adapter.lua");

/// The version of what is kept in Tarantool. Whoever finds a later one there leaves it alone.
pub(super) const FORMAT: i64 = 1;

/// Says whether the procedures are there, whether the instance can be written to, and the version of what it keeps.
pub(super) const LOOK: &str = include_str!("lua/look.lua");
/// Makes them.
pub(super) const LOAD: &str = include_str!("lua/load.lua");

/// The procedures as Tarantool loads them.
pub(super) struct Library {
    /// Its name, which says what is in it: servers of several versions do not take it from each other.
    pub name: String,
    /// What is called.
    pub function: String,
    pub text: String,
}

impl Library {
    /// Puts the files together.
    pub fn new() -> Self {
        let apart = |file: &str| format!("do\n{file}end\n");
        let semaphores = format!("{SEMAPHORE}{}", SEMAPHORES.map(apart).concat());
        let semaphores = format!("(function()\n{semaphores}end)()\n");
        let parts = TUBES.map(apart).concat() + &semaphores;
        Self::of(&format!("{}{parts}{}", SHARED.concat(), LAST.concat()))
    }

    /// For tubes of an existing tarantool/queue.
    pub fn adapter() -> Self {
        let [values, spaces, tube, _] = SHARED;
        Self::of(&format!("{values}{spaces}{tube}{ADAPTER}"))
    }

    fn of(files: &str) -> Self {
        let name =
            format!("taskyard_{FORMAT}_{:016x}", fingerprint(format!("{LOAD}{files}").as_bytes()));
        let text = format!("local PREFIX, FORMAT, NEWS = ...\n{files}");
        let function = format!("{name}.call");
        Library { name, function, text }
    }
}

/// Tells texts apart (FNV-1a).
fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_text_has_another_name() {
        assert_ne!(fingerprint(b"a"), fingerprint(b"b"));
        let library = Library::new();
        assert_eq!(library.function, format!("{}.call", library.name));
        assert_ne!(library.name, Library::adapter().name);
    }
}

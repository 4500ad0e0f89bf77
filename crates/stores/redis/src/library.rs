//! Assembles the library of Lua functions that run inside Redis.

use std::sync::LazyLock;

use taskyard_packed::Texts;
use taskyard_redis::Library;

use taskyard_core::failure::{LEASE_EXPIRED, SERVER_LOST, SESSION_ENDED};
use taskyard_store::limits::with_limits;
use taskyard_store::lua::{PACE_RULES, SEMAPHORE_RULES, VALUES};
use taskyard_store::template::substitute;

/// The files of the folder `lua`, packed by the build script.
static TEXTS: LazyLock<Texts> =
    LazyLock::new(|| Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/library"))));

/// The files of the library in the order of their dependencies. A Lua function may have two hundred local names, so files
/// whose names the others do not use are blocks.
fn files() -> String {
    let file = |name: &str| TEXTS.text(name);
    let block = |parts: &[&str]| format!("do\n{}end\n", parts.concat());
    let first = ["task.lua", "incarnation.lua", "tube.lua", "failures.lua"].map(file).concat();
    let semaphores = [file("semaphore.lua"), file("outbox.lua"), SEMAPHORE_RULES];
    let last = ["schedules.lua", "semaphores.lua", "registry.lua", "export.lua", "names.lua"];
    [
        VALUES,
        &first,
        &block(&[PACE_RULES, file("pace.lua")]),
        &block(&[file("done.lua")]),
        &block(&semaphores),
        &block(&[file("gates.lua")]),
        file("put.lua"),
        file("show.lua"),
        &block(&[file("keys.lua")]),
        &block(&[file("list.lua"), file("positions.lua")]),
        &block(&[file("take.lua")]),
        file("release.lua"),
        &block(&[file("finish.lua")]),
        &block(&[file("plain.lua")]),
        &block(&[file("tick.lua")]),
        &block(&[file("upgrade.lua")]),
        file("tubes.lua"),
        file("call.lua"),
        &last.map(|name| block(&[file(name)])).concat(),
        &block(&[file("import.lua")]),
    ]
    .concat()
}

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
    let text = substitute(&with_limits(&files()), &values);
    Library::new(&format!("taskyard_{FORMAT}"), &[&text])
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_store::limits::typed_limits;

    /// A file that the library does not name would be packed and never loaded.
    #[test]
    fn every_packed_file_is_used() {
        let packed = Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/library")));
        let files = files();
        let unused: Vec<_> =
            packed.into_texts().filter(|(_, text)| !files.contains(text)).collect();
        assert_eq!(unused, []);
    }

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
        assert_eq!(typed_limits(&files(), &accepted), Vec::<String>::new());
        assert!(!library().text().contains("{{"), "a placeholder without a value");
    }
}

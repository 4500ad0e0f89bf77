//! The functions that decide inside Redis.

/// The files of the library, in the order in which they need each other.
const FILES: [&str; 10] = [
    include_str!("lua/task.lua"),
    include_str!("lua/tube.lua"),
    include_str!("lua/put.lua"),
    include_str!("lua/show.lua"),
    include_str!("lua/take.lua"),
    include_str!("lua/finish.lua"),
    include_str!("lua/tick.lua"),
    include_str!("lua/tubes.lua"),
    include_str!("lua/call.lua"),
    include_str!("lua/registry.lua"),
];

/// The version of what is kept in Redis. Whoever finds a later one there leaves it alone.
pub(super) const FORMAT: i64 = 1;

/// The library as Redis loads it.
pub(super) struct Library {
    /// Its name, which says what is in it: servers of several versions do not take it from each other.
    pub name: String,
    pub text: String,
}

impl Library {
    /// Puts the files together.
    pub fn new() -> Self {
        let files = FILES.concat();
        let name = format!("taskyard_{FORMAT}_{:016x}", fingerprint(files.as_bytes()));
        let text = format!("#!lua name={name}\nlocal NAME = '{name}'\n{files}");
        Library { name, text }
    }

    /// The name of one of its functions.
    pub fn function(&self, name: &str) -> String {
        format!("{}_{name}", self.name)
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
        assert!(library.text.starts_with(&format!("#!lua name={}\n", library.name)));
    }
}

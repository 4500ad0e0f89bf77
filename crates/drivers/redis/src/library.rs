//! Builds a library of Lua functions for Redis.

/// A library of functions as Redis loads it.
#[derive(Clone, Debug)]
pub struct Library {
    name: String,
    text: String,
}

impl Library {
    /// Concatenates files in the order in which they need each other. The library's name begins
    /// with this word and ends with a hash of its content, so that programs of several versions do
    /// not replace it; the files find it as `NAME`.
    pub fn new(word: &str, files: &[&str]) -> Self {
        let files = files.concat();
        let name = format!("{word}_{:016x}", fingerprint(files.as_bytes()));
        let text = format!("#!lua name={name}\nlocal NAME = '{name}'\n{files}");
        Library { name, text }
    }

    /// Its name in Redis.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text that Redis loads.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name of one of its functions, which the files register as `NAME .. '_' .. name`.
    pub fn function(&self, name: &str) -> String {
        format!("{}_{name}", self.name)
    }
}

/// A hash of the text (FNV-1a).
fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_text_has_another_name() {
        let (a, b) = (Library::new("x_1", &["a", "b"]), Library::new("x_1", &["ac"]));
        assert_ne!(a.name(), b.name());
        assert!(a.text().starts_with(&format!("#!lua name={}\n", a.name())));
        assert_eq!(a.function("ask"), format!("{}_ask", a.name()));
    }
}

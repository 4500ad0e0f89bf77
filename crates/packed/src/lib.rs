//! Texts that a program contains compressed: a build script packs them, and the program unpacks them when it first needs one.
//!
//! Each text has a line with its name and its length in bytes before it, and all are compressed together. The crate knows nothing of
//! tasks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// How hard to compress: a level between 0 and 10.
const LEVEL: u8 = 9;

/// Packs files of a folder, in a build script: the program includes the file `output` of `OUT_DIR`.
pub fn pack_files(output: &str, folder: &str, names: &[String]) -> io::Result<()> {
    let mut texts = Vec::new();
    for name in names {
        let path = Path::new(folder).join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        texts.push((name.clone(), fs::read_to_string(path)?));
    }
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join(output), pack(&texts))
}

/// The files below a folder whose names end like this, by their paths in the folder. Cargo runs the build script again when there is
/// another one.
pub fn names_below(folder: &str, endings: &[&str]) -> io::Result<Vec<String>> {
    let (mut names, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(under) = folders.pop() {
        let path = Path::new(folder).join(&under);
        println!("cargo::rerun-if-changed={}", path.display());
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = format!("{under}{}", entry.file_name().display());
            if entry.file_type()?.is_dir() {
                folders.push(name + "/");
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                names.push(name);
            }
        }
    }
    names.sort();
    Ok(names)
}

fn pack(texts: &[(String, String)]) -> Vec<u8> {
    let with_head = |(name, text): &(String, String)| format!("{name} {}\n{text}", text.len());
    let all: String = texts.iter().map(with_head).collect();
    miniz_oxide::deflate::compress_to_vec(all.as_bytes(), LEVEL)
}

/// Texts by their names.
#[derive(Debug, PartialEq, Eq)]
pub struct Texts(BTreeMap<String, String>);

impl Texts {
    /// Unpacks what a build script has packed.
    ///
    /// # Panics
    ///
    /// If that is damaged.
    pub fn unpack(packed: &[u8]) -> Self {
        Self::read(packed).expect("a build script packed it")
    }

    fn read(packed: &[u8]) -> Option<Self> {
        let bytes = miniz_oxide::inflate::decompress_to_vec(packed).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (mut texts, mut rest) = (BTreeMap::new(), text.as_str());
        while let Some((head, after)) = rest.split_once('\n') {
            let (name, length) = head.rsplit_once(' ')?;
            let (text, next) = after.split_at_checked(length.parse().ok()?)?;
            texts.insert(name.to_owned(), text.to_owned());
            rest = next;
        }
        rest.is_empty().then_some(Texts(texts))
    }

    /// The text with this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("no text {name} is packed"))
    }

    /// All texts with their names.
    pub fn into_texts(self) -> impl Iterator<Item = (String, String)> {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let texts = [("a b.sql", "one\ntwo"), ("c/d.lua", ""), ("e", "\u{e9}\n\n7 9\n")];
        let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let unpacked = Texts::unpack(&pack(&texts));
        assert_eq!(unpacked.text("a b.sql"), "one\ntwo");
        assert_eq!(unpacked.into_texts().collect::<Vec<_>>(), texts);
    }

    #[test]
    fn damage_is_noticed() {
        let packed = pack(&[("a".to_owned(), "text".to_owned())]);
        assert_eq!(Texts::read(&packed[..packed.len() - 1]), None);
        for text in ["a 5\ntext", "a x\n", "a 1\nbc", "no length\n"] {
            let packed = miniz_oxide::deflate::compress_to_vec(text.as_bytes(), LEVEL);
            assert_eq!(Texts::read(&packed), None, "{text}");
        }
    }
}

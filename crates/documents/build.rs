//! Packs all documents and their drawings into one compressed file: each with a line of its path and its length in bytes, and then its text.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The documents: in the repository a link to `docs`, in a package a copy.
const FOLDER: &str = "docs";
/// The table of contents of the site, which is no document.
const CONTENTS: &str = "SUMMARY.md";
/// How hard to compress: a level between 0 and 10.
const LEVEL: u8 = 9;

fn main() -> io::Result<()> {
    let folder = fs::canonicalize(FOLDER)?;
    println!("cargo::rerun-if-changed=build.rs");
    let mut paths = Vec::new();
    list(&folder, Path::new(""), &mut paths)?;
    paths.sort();
    let mut packed = Vec::new();
    for path in paths {
        let text = fs::read(folder.join(&path))?;
        packed.extend(format!("{} {}\n", path.display(), text.len()).into_bytes());
        packed.extend(text);
    }
    let compressed = miniz_oxide::deflate::compress_to_vec(&packed, LEVEL);
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join("documents"), compressed)
}

/// Documents, and pictures that are text.
fn is_packed(extension: &OsStr) -> bool {
    extension == "md" || extension == "svg"
}

/// Lists the documents below a folder.
fn list(root: &Path, under: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", root.join(under).display());
    for entry in fs::read_dir(root.join(under))? {
        let entry = entry?;
        let path = under.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list(root, &path, paths)?;
        } else if path.extension().is_some_and(is_packed) && path != Path::new(CONTENTS) {
            paths.push(path);
        }
    }
    Ok(())
}

//! Packs all documents and their drawings.

use std::io;

use taskyard_packed::{names_below, pack_files};

/// The documents: in the repository a link to `docs`, in a package a copy.
const FOLDER: &str = "docs";

fn main() -> io::Result<()> {
    let mut names = names_below(FOLDER, &[".md", ".svg"])?;
    // The table of contents of the site is no document.
    names.retain(|name| name != "SUMMARY.md");
    pack_files("documents", FOLDER, &names)
}

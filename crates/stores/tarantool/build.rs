//! Packs the library of Lua procedures.

use std::io;

use taskyard_packed::{names_below, pack_files};

const FOLDER: &str = "src/lua";

fn main() -> io::Result<()> {
    pack_files("library", FOLDER, &names_below(FOLDER, &[".lua"])?)
}

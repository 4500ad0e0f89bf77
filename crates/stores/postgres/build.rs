//! Packs the statements of migrations and functions.

use std::io;

use taskyard_packed::{names_below, pack_files};

const FOLDER: &str = "src";

fn main() -> io::Result<()> {
    pack_files("statements", FOLDER, &names_below(FOLDER, &[".sql"])?)
}

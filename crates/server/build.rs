//! Compresses the OpenAPI document: as it is, it would be the largest text in the program.

use std::path::PathBuf;
use std::{env, fs, io};

const DOCUMENT: &str = "openapi.json";
/// How hard to compress: a level between 0 and 10.
const LEVEL: u8 = 9;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={DOCUMENT}");
    let compressed = miniz_oxide::deflate::compress_to_vec(&fs::read(DOCUMENT)?, LEVEL);
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join(DOCUMENT), compressed)
}

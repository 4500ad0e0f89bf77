//! Libraries that replace a function of the system for one program, which loads them with LD_PRELOAD.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiled library of a source beside this file, in a folder. A C compiler is there: SQLite needs it too.
pub fn library(folder: &Path, name: &str) -> PathBuf {
    let library = folder.join(format!("{name}.so"));
    if !library.exists() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut compile = Command::new(compiler);
        compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library);
        let source = sources.join(format!("{name}.c"));
        assert!(compile.arg(source).status().expect("a C compiler is installed").success());
    }
    library
}

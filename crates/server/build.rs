//! Packs the OpenAPI document and the files of the dashboard: as they are, they would be among the largest texts in the program.

use std::io;

use taskyard_packed::{names_below, pack_files};

const DASHBOARD: &str = "src/dashboard";

fn main() -> io::Result<()> {
    pack_files("openapi", ".", &["openapi.json".to_owned()])?;
    let files = names_below(DASHBOARD, &[".html", ".css", ".js", ".svg"])?;
    pack_files("dashboard", DASHBOARD, &files)
}

//! Gets the SQL of the extension pgmq from the crate of that name. It stays in the folder of downloaded packages.

use std::path::{Path, PathBuf};

use crate::compare::json::{self, Json};
use crate::shell;

/// The crate at the version that is known to work.
const VERSION: &str = "0.34.0-alpha.7";
/// The SQL in it.
const FILE: &str = "src/install/embedded/sql/pgmq.sql";

/// Downloads the crate, if it is not there, and returns the path of its SQL.
pub fn prepare() -> Result<PathBuf, String> {
    let folder = shell::target().join("tools/pgmq");
    let manifest = folder.join("Cargo.toml");
    write(&folder.join("src/lib.rs"), "")?;
    // A package of its own, so that the dependencies of the crate are none of ours.
    let text = format!(
        "[package]\nname = \"pgmq-sql\"\nedition = \"2024\"\n\n[dependencies]\n\
         pgmq = {{ version = \"={VERSION}\", default-features = false }}\n\n[workspace]\n"
    );
    write(&manifest, &text)?;
    let mut metadata = shell::cargo();
    metadata.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(&manifest);
    let printed = shell::output(&mut metadata)?;
    let file = source(&printed).map(|folder| folder.join(FILE)).filter(|file| file.is_file());
    file.ok_or_else(|| format!("the crate pgmq {VERSION} has no {FILE}"))
}

/// The folder of the crate, from what cargo prints about all packages.
fn source(printed: &str) -> Option<PathBuf> {
    let values = json::read_all(printed)?;
    let Json::List(packages) = values.first()?.get("packages")? else { return None };
    let is_it = |package: &&Json| package.get("name").and_then(Json::as_text) == Some("pgmq");
    let manifest = packages.iter().find(is_it)?.get("manifest_path")?.as_text()?;
    Path::new(manifest).parent().map(Path::to_path_buf)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let parent = file.parent().unwrap_or(file);
    let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(file, text));
    written.map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_the_crate_is_found() {
        let printed = r#"{"packages": [{"name": "other", "manifest_path": "/a/Cargo.toml"},
            {"name": "pgmq", "manifest_path": "/registry/pgmq-1/Cargo.toml"}], "version": 1}"#;
        assert_eq!(source(printed).as_deref(), Some(Path::new("/registry/pgmq-1")));
        assert_eq!(source("{}"), None);
    }
}

//! Checks that nothing that the tests printed contains a secret that they used.
//!
//! The tests keep both in a folder, through `recorded_output` of the testkit: files in `secrets` have a secret in each line, files
//! in `output` have logs, answers and messages.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// The variable that names the folder to the tests.
const FOLDER_VARIABLE: &str = "TASKYARD_TEST_OUTPUT";

/// More output than this is a mistake of a test.
const OUTPUT_BYTES_MAX: u64 = 512 << 20;

/// Secrets are found by their first bytes; shorter ones are not registered.
const PREFIX_BYTES: usize = 12;

/// How many places a failure names.
const PLACES_MAX: usize = 20;

/// The folder of a run.
pub fn folder() -> PathBuf {
    shell::target().join("tmp/test-output")
}

/// Removes what an earlier run left.
pub fn prepare() -> Result<(), String> {
    let folder = folder();
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {error}", folder.display()));
        }
        _ => {}
    }
    for part in ["secrets", "output"] {
        fs::create_dir_all(folder.join(part))
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    Ok(())
}

/// Makes tests keep their output.
pub fn keep_output(command: &mut Command) -> &mut Command {
    command.env(FOLDER_VARIABLE, folder())
}

/// Keeps the output of a test binary.
pub fn record(name: &str, text: &[u8]) {
    let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    // `cargo xtask storm` has no folder, and keeps nothing.
    let _ = fs::write(folder().join("output").join(name), text);
}

/// Scans a folder; with `complete` it must contain secrets and output. Returns what was scanned.
pub fn scan(folder: &Path, complete: bool) -> Result<String, String> {
    let mut secrets = HashSet::new();
    for file in files(&folder.join("secrets"))? {
        let text = read(&file)?;
        let lines = text.split(|byte| *byte == b'\n').filter(|line| line.len() >= PREFIX_BYTES);
        secrets.extend(lines.map(<[u8]>::to_vec));
    }
    let mut by_prefix: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
    for secret in &secrets {
        by_prefix.entry(&secret[..PREFIX_BYTES]).or_default().push(secret);
    }
    let (mut places, mut bytes, outputs) = (Vec::new(), 0, files(&folder.join("output"))?);
    for file in &outputs {
        let text = read(file)?;
        bytes += text.len() as u64;
        places.extend(lines_with_secret(&text, &by_prefix).map(|line| (file, line)));
    }
    if bytes > OUTPUT_BYTES_MAX {
        return Err(format!(
            "the tests printed {bytes} bytes; at most {OUTPUT_BYTES_MAX} are allowed"
        ));
    }
    if complete && (secrets.is_empty() || bytes == 0) {
        return Err(
            "the tests registered no secrets or kept no output, so the scan shows nothing".into()
        );
    }
    if places.is_empty() {
        let (count, files) = (secrets.len(), outputs.len());
        return Ok(format!("no secret of {count} in {files} files with {bytes} bytes of output"));
    }
    let shown = places.iter().take(PLACES_MAX);
    let shown: String =
        shown.map(|(file, line)| format!("\n  {}:{line}", file.display())).collect();
    Err(format!("a secret was printed in {} lines of the output of tests:{shown}", places.len()))
}

/// The numbers of the lines that contain a secret.
fn lines_with_secret<'a>(
    text: &'a [u8],
    by_prefix: &'a HashMap<&[u8], Vec<&[u8]>>,
) -> impl Iterator<Item = usize> + 'a {
    let lines = text.split(|byte| *byte == b'\n').enumerate();
    let has_secret = move |line: &[u8]| {
        (0..=line.len().saturating_sub(PREFIX_BYTES)).any(|start| {
            let rest = &line[start..];
            let found = rest.get(..PREFIX_BYTES).and_then(|prefix| by_prefix.get(prefix));
            found.is_some_and(|secrets| secrets.iter().any(|secret| rest.starts_with(secret)))
        })
    };
    lines.filter(move |(_, line)| has_secret(line)).map(|(at, _)| at + 1)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| cannot_read(folder, &error))?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(|error| cannot_read(folder, &error))?;
    paths.sort();
    Ok(paths)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| cannot_read(file, &error))
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with secrets and output.
    fn folder(name: &str, secrets: &str, output: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-scan-{name}-{}", std::process::id()));
        for (part, text) in [("secrets", secrets), ("output", output)] {
            fs::create_dir_all(folder.join(part)).unwrap();
            fs::write(folder.join(part).join("server-7"), text).unwrap();
        }
        folder
    }

    fn scanned(name: &str, secrets: &str, output: &str, complete: bool) -> Result<String, String> {
        let folder = folder(name, secrets, output);
        let scanned = scan(&folder, complete);
        fs::remove_dir_all(folder).unwrap();
        scanned
    }

    #[test]
    fn a_planted_secret_is_found_and_not_shown() {
        let secrets = "token-0123456789-abc\nanother-secret-0123\n";
        for leak in
            ["token-0123456789-abc", "Bearer token-0123456789-abc\"", "xanother-secret-0123"]
        {
            let output = format!("first line\n\n{leak}\nlast\n");
            let found = scanned("planted", secrets, &output, true).unwrap_err();
            assert!(
                found.contains("printed in 1 lines") && found.contains("server-7:3"),
                "{found}"
            );
            assert!(!found.contains("0123456789") && !found.contains("another"), "{found}");
        }
        // Bytes that are no text do not hide it.
        let folder = folder("bytes", secrets, "");
        fs::write(folder.join("output/raw"), b"\xff\xfe\ntoken-0123456789-abc\xff").unwrap();
        assert!(scan(&folder, true).unwrap_err().contains("raw:2"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_part_of_a_secret_is_no_secret() {
        let output = "token-0123456789-ab\ntoken-0123456789-\nshort\n";
        let clean = scanned("part", "token-0123456789-abc\nshort\n", output, true).unwrap();
        assert!(clean.starts_with("no secret of 1 in 1 files"), "{clean}");
    }

    #[test]
    fn a_scan_of_nothing_fails_in_a_complete_run() {
        for (secrets, output) in [("", "text"), ("token-0123456789-abc", "")] {
            assert!(scanned("nothing", secrets, output, true).is_err());
            assert!(scanned("nothing", secrets, output, false).is_ok());
        }
        assert!(scan(Path::new("/nonexistent"), true).is_err());
    }
}

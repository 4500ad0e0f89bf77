//! Lists the tests that were skipped because something is not there. Each has noted why, through `skipped` of the conformance crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// How many tests are named for each reason.
const NAMES_MAX: usize = 10;

/// What the end of a run shows of the tests that were skipped, from the folder in which they keep their output.
pub fn list(folder: &Path) -> Result<Vec<String>, String> {
    let output = folder.join("output");
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", output.display());
    let mut text = String::new();
    for entry in fs::read_dir(&output).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if entry.file_name().to_string_lossy().starts_with("skipped-") {
            text += &fs::read_to_string(entry.path()).map_err(cannot)?;
        }
    }
    Ok(by_reason(&text))
}

/// The tests of these lines, each with its reason, by their reasons. A test may have noted one twice.
fn by_reason(text: &str) -> Vec<String> {
    let mut reasons: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (reason, test) in text.lines().filter_map(|line| line.split_once('\t')) {
        reasons.entry(reason).or_default().insert(test);
    }
    let tests: BTreeSet<_> = reasons.values().flatten().collect();
    let mut lines = vec![format!("skipped tests: {}", tests.len())];
    for (reason, tests) in &reasons {
        lines.push(format!("  {}: {reason}", tests.len()));
        lines.extend(tests.iter().take(NAMES_MAX).map(|test| format!("    {test}")));
        if tests.len() > NAMES_MAX {
            lines.push(format!("    and {} more", tests.len() - NAMES_MAX));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run without tools passed, and nothing said that it had run a third of its tests.
    #[test]
    fn skipped_tests_are_counted_by_reason() {
        let many: String = (10..22).map(|n| format!("no redis\tredis t{n}\n")).collect();
        let text = format!("no asy\tsuite draw\nno asy\tsuite draw\nno redis\tsuite draw\n{many}");
        let lines = by_reason(&text);
        assert_eq!(lines[..3], ["skipped tests: 13", "  1: no asy", "    suite draw"]);
        assert_eq!((&*lines[3], &*lines[4]), ("  13: no redis", "    redis t10"));
        assert_eq!(lines.last().unwrap(), "    and 3 more");
        assert_eq!(by_reason(""), ["skipped tests: 0"]);
    }

    #[test]
    fn the_notes_of_all_processes_are_read() {
        let folder = std::env::temp_dir().join(format!("taskyard-skipped-{}", std::process::id()));
        fs::create_dir_all(folder.join("output")).unwrap();
        for (name, text) in
            [("skipped-1", "a\tone\n"), ("skipped-2", "a\ttwo\n"), ("log-1", "b\tx\n")]
        {
            fs::write(folder.join("output").join(name), text).unwrap();
        }
        let lines = list(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(lines.unwrap()[..2], ["skipped tests: 2", "  2: a"]);
    }
}

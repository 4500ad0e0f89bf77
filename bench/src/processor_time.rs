//! Reads how much processor time processes have used, and how many bytes they have written.

use std::fs::read_to_string;

use anyhow::{Context, Result};

/// Ticks of the processor's clock in a second, as `/proc` counts them.
const TICKS: f64 = 100.0;

/// What the kernel tells about a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessTimes {
    parent: u32,
    /// Seconds in all its threads.
    own: f64,
    /// Seconds of its children that have ended, and of theirs.
    ended_children: f64,
}

/// Seconds of processor time that a process has used, in all its threads.
pub fn seconds_used(process: u32) -> Result<f64> {
    Ok(read(process)?.own)
}

/// Seconds of processor time that a process and all processes that it started have used, ended ones included.
pub fn seconds_used_by_tree(process: u32) -> Result<f64> {
    Ok(tree(process)?.iter().map(|(_, times)| times.own + times.ended_children).sum())
}

/// Bytes that a process and all processes that it started have written to files in whole pages, ended ones included; `None` where this
/// user may not know.
pub fn bytes_written_by_tree(process: u32) -> Result<Option<u64>> {
    let read = |&(process, _): &(u32, ProcessTimes)| {
        read_to_string(format!("/proc/{process}/io")).ok().and_then(|text| written(&text))
    };
    Ok(tree(process)?.iter().map(read).sum())
}

/// The bytes in a file `io` of `/proc`, which include those of children that have ended.
fn written(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.parse().ok()
}

/// A process and all processes that it started and that run.
fn tree(process: u32) -> Result<Vec<(u32, ProcessTimes)>> {
    let root = read(process)?;
    let mut found = vec![(process, root)];
    let mut others = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has just ended is counted by its parent.
        others.extend(read(number).ok().map(|times| (number, times)));
    }
    let mut next = 0;
    while let Some((parent, _)) = found.get(next).copied() {
        found.extend(others.iter().filter(|(_, times)| times.parent == parent));
        next += 1;
    }
    Ok(found)
}

/// Seconds of processor time that the calling thread has used.
pub fn seconds_used_by_thread() -> Result<f64> {
    Ok(parse(&read_to_string("/proc/thread-self/stat")?).context("an odd line in /proc")?.own)
}

fn read(process: u32) -> Result<ProcessTimes> {
    parse(&read_to_string(format!("/proc/{process}/stat"))?).context("an odd line in /proc")
}

fn parse(text: &str) -> Option<ProcessTimes> {
    // The name in brackets may contain anything. After it, the parent is the 2nd field, the times are the 12th to 15th.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let seconds = |field: usize| Some(fields.get(field)?.parse::<f64>().ok()? / TICKS);
    Some(ProcessTimes {
        parent: fields.get(1)?.parse().ok()?,
        own: seconds(11)? + seconds(12)?,
        ended_children: seconds(13)? + seconds(14)?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_may_contain_brackets_and_spaces() {
        let line = "7 (a ) b) S 3 7 7 0 -1 4 0 0 0 0 150 50 20 30 20 0 1 0 5";
        let times = ProcessTimes { parent: 3, own: 2.0, ended_children: 0.5 };
        assert_eq!(parse(line), Some(times));
        assert_eq!(parse("7 (a) S"), None);
    }

    #[test]
    fn written_bytes_are_those_of_pages() {
        let io = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 8192\ncancelled_write_bytes: 7\n";
        assert_eq!(written(io), Some(8192));
        assert_eq!(written("rchar: 1\n"), None);
    }

    /// The time of a child that has ended must not be lost: databases end processes all the time.
    #[test]
    fn ended_children_are_counted() {
        let before = seconds_used_by_tree(std::process::id()).unwrap();
        let loops = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", loops]).status().unwrap().success());
        assert!(seconds_used_by_tree(std::process::id()).unwrap() > before);
    }
}

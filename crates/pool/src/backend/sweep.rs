//! Kills what got away from its process group: everything that a task's own user still runs.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// How often to look: a process may be born while another is killed.
const LOOKS: usize = 20;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leftovers {
    /// Everything that the user runs.
    All,
    /// First processes of a namespace whose parent is gone: bubblewrap asks to die with its parent only after it
    /// was born, so one that is killed at the very beginning leaves its child.
    Orphans,
}

/// Kills such processes of this user.
pub(crate) fn sweep(uid: u32, leftovers: Leftovers) {
    for _ in 0..LOOKS {
        let found = processes(uid, leftovers);
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::yield_now();
    }
}

/// The living processes of a user.
fn processes(uid: u32, leftovers: Leftovers) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let living = entries.flatten().filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let meant = match leftovers {
            Leftovers::All => true,
            Leftovers::Orphans => is_orphan(&status),
        };
        (meant && lives_as(&status, uid)).then(|| Pid::from_raw(number)).flatten()
    });
    living.collect()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// Whether this status is of the first process of a namespace that nobody waits for.
fn is_orphan(status: &str) -> bool {
    let parent = field(status, "PPid:").unwrap_or_default().trim();
    let numbers: Vec<&str> =
        field(status, "NSpid:").unwrap_or_default().split_whitespace().collect();
    parent == "1" && matches!(numbers[..], [_, .., "1"])
}

/// Whether this status is of a living process of the user.
fn lives_as(status: &str, uid: u32) -> bool {
    let users = field(status, "Uid:").unwrap_or_default();
    let state = field(status, "State:").unwrap_or("Z").trim_start();
    users.split_whitespace().any(|user| user == uid.to_string()) && !state.starts_with(['Z', 'X'])
}

#[cfg(test)]
mod tests {
    use super::*;

    // A client that left at once killed bubblewrap before its child was bound to it; the program went on for ever.
    #[test]
    fn the_first_of_a_namespace_without_a_parent_is_an_orphan() {
        let status =
            |parent, numbers| format!("Name:\tbwrap\nPPid:\t{parent}\nNSpid:\t{numbers}\n");
        assert!(is_orphan(&status(1, "15668\t1")));
        assert!(!is_orphan(&status(15_667, "15668\t1")), "its parent lives");
        assert!(!is_orphan(&status(1, "15668")), "it has no namespace of its own");
        assert!(!is_orphan(&status(1, "15669\t2")), "the first one ends it");
    }
}

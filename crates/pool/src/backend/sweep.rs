//! Kills what got away from its process group: everything that a task's own user still runs.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// How often to look: a process may be born while another is killed.
const LOOKS: usize = 20;

/// Kills every process of this user.
pub(crate) fn sweep(uid: u32) {
    for _ in 0..LOOKS {
        let found = processes(uid);
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
fn processes(uid: u32) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let living = entries.flatten().filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        lives_as(&status, uid).then(|| Pid::from_raw(number)).flatten()
    });
    living.collect()
}

/// Whether this status is of a living process of the user.
fn lives_as(status: &str, uid: u32) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let users = field("Uid:").unwrap_or_default();
    let state = field("State:").unwrap_or("Z").trim_start();
    users.split_whitespace().any(|user| user == uid.to_string()) && !state.starts_with(['Z', 'X'])
}

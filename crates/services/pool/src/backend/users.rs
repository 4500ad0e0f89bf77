//! Claims user ids for programs that no other pool of this machine uses: if two pools shared one, the end of a task
//! of one pool would kill a program of the other.
//!
//! All processes of a claimed user are killed sooner or later, so users with an entry in `/etc/passwd` are never
//! claimed.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The folder with a lock file for each claimed user.
const LOCKS: &str = "/run/taskyard-pool";
/// The list of named users.
const PASSWD: &str = "/etc/passwd";
/// How many user ids to try.
const TRIES_MAX: u32 = 20_000;
/// User ids that the system uses for unmapped users.
const RESERVED_UIDS: [u32; 2] = [65_534, 65_535];

/// Consecutive user ids; they are free for other pools when this is dropped.
#[derive(Debug)]
pub(crate) struct ClaimedUsers {
    first: u32,
    _locks: Vec<File>,
}

impl ClaimedUsers {
    /// Claims `count` users, from `first` on or after those of other pools.
    pub fn claim(first: u32, count: u32) -> io::Result<Self> {
        let named = named(&fs::read_to_string(PASSWD).unwrap_or_default());
        ClaimedUsers::claim_in(Path::new(LOCKS), &named, first, count)
    }

    fn claim_in(folder: &Path, named: &HashSet<u32>, wanted: u32, count: u32) -> io::Result<Self> {
        let own = |user: &u32| !RESERVED_UIDS.contains(user) && !named.contains(user);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let (mut first, mut locks) = (wanted, Vec::new());
        for user in (wanted..=u32::MAX - 1).take(TRIES_MAX as usize) {
            match lock(folder.join(user.to_string()))? {
                Some(file) if own(&user) => locks.push(file),
                _ => {
                    first = user + 1;
                    locks.clear();
                }
            }
            if locks.len() == count as usize {
                return Ok(ClaimedUsers { first, _locks: locks });
            }
        }
        Err(io::Error::other(format!("no {count} consecutive user ids are free from {wanted} on")))
    }

    /// The first of them.
    pub fn first(&self) -> u32 {
        self.first
    }
}

/// The user ids in this text, which has lines of the form `NAME:PASSWORD:NUMBER:…`.
fn named(text: &str) -> HashSet<u32> {
    text.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect()
}

/// Locks the file; `None` if it is locked already.
fn lock(path: PathBuf) -> io::Result<Option<File>> {
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Two pools as root ran their programs under the same users, and without bubblewrap each end of a task killed the
    // programs of the other pool.
    #[test]
    fn two_pools_have_different_users() {
        let folder = tempfile::tempdir().unwrap();
        let named = named("root:x:0:0:root:/root:/bin/sh\nann:x:70003:70003:Ann::/bin/sh\n");
        let claim =
            |first, count| ClaimedUsers::claim_in(folder.path(), &named, first, count).unwrap();
        let one = claim(60_600, 8);
        let two = claim(60_600, 4);
        let three = claim(60_605, 4);
        assert_eq!([&one, &two, &three].map(ClaimedUsers::first), [60_600, 60_608, 60_612]);
        drop(one);
        assert_eq!(claim(60_600, 9).first(), 60_616, "nine consecutive ids are free only there");
        assert_eq!(claim(60_602, 6).first(), 60_602);
        assert_eq!(claim(65_530, 6).first(), 65_536, "reserved ids are skipped");
        assert_eq!(claim(70_000, 4).first(), 70_004, "a named user is skipped");
        assert!(ClaimedUsers::claim_in(folder.path(), &named, u32::MAX - 2, 8).is_err());
    }
}

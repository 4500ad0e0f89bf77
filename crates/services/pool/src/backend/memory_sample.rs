//! Counts the memory of a task without a control group: of its processes, of memory they share and of its folders in
//! memory.
//!
//! Memory that no process maps is not visible here. So programs cannot make files in memory or shared segments that
//! exist without being mapped (see `seccomp`), except in the two folders, whose size is limited.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Folders inside a sandbox that are in memory.
pub(super) const MEMORY_FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];
/// What a file in such a folder needs beside its content, in bytes.
const INODE_BYTES: u64 = 1024;
/// Size of a memory page, in bytes; larger ones are counted too low.
const PAGE: u64 = 4096;
/// Unit of the size of a file in memory, in bytes.
const BLOCK: u64 = 512;
/// The name of shared memory without a file in the list of mappings, and the beginning of one that a program has given
/// it.
const SHARED: &str = "/dev/zero (deleted)";
const SHARED_NAMED: &str = " [anon_shmem:";

/// Memory of these processes together. What several share is counted once.
pub(super) fn memory_of_processes(ids: impl Iterator<Item = u32>) -> u64 {
    let mut files = HashMap::new();
    let memory: u64 = ids.map(|id| memory_of_process(id, &mut files)).sum();
    memory + files.values().sum::<u64>()
}

/// Memory of a process. Shared memory without a file is added to `files` by its number, with all its pages: a
/// process may have unmapped most of them. Only root may read that; otherwise mapped pages are counted.
fn memory_of_process(id: u32, files: &mut HashMap<u64, u64>) -> u64 {
    let read = |file: &str| fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
    let rollup = read("smaps_rollup");
    let Some(parts) = MemoryParts::parse(&rollup) else {
        // A process that is ending, or a kernel without this file.
        let pages = read("statm").split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
        return pages.unwrap_or(0) * PAGE;
    };
    let maps = read("maps");
    let mut all_read = true;
    for range in maps.lines().filter_map(shared_range) {
        match fs::metadata(format!("/proc/{id}/map_files/{range}")) {
            Ok(file) => _ = files.insert(file.ino(), file.blocks() * BLOCK),
            // Unmapped meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // Not allowed; then none of the others is.
            Err(_) => {
                all_read = false;
                break;
            }
        }
    }
    parts.private + if all_read { 0 } else { parts.shared }
}

/// What a process has mapped, in bytes; pages that several processes map are divided among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryParts {
    private: u64,
    /// Shared memory, including files of folders in memory.
    shared: u64,
}

impl MemoryParts {
    /// Reads the sums of `smaps_rollup`.
    fn parse(rollup: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
            let size: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(size * 1024)
        };
        let (all, swap) = (field("Pss:")?, field("SwapPss:").unwrap_or(0));
        let shared = field("Pss_Shmem:").unwrap_or(0);
        Some(MemoryParts { private: all.saturating_sub(shared) + swap, shared })
    }
}

/// The range of a line of `maps` if it is shared memory without a file, as `map_files` writes it.
fn shared_range(line: &str) -> Option<String> {
    let (range, rest) = line.split_once(' ')?;
    (rest.ends_with(SHARED) || rest.contains(SHARED_NAMED)).then_some(())?;
    let (from, to) = range.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(format!("{:x}-{:x}", number(from)?, number(to)?))
}

/// Memory of the folders of a sandbox, with this size each, as seen by a process in it.
pub(super) fn memory_of_folders(inside: u32, size: u64) -> u64 {
    let of_folder = |folder: &&str| {
        let Ok(usage) = rustix::fs::statvfs(format!("/proc/{inside}/root{folder}")) else {
            return 0;
        };
        // While the sandbox is being built this is another file system.
        if usage.f_blocks * usage.f_frsize != size {
            return 0;
        }
        let bytes = usage.f_blocks.saturating_sub(usage.f_bfree) * usage.f_frsize;
        bytes + usage.f_files.saturating_sub(usage.f_ffree) * INODE_BYTES
    };
    MEMORY_FOLDERS.iter().map(of_folder).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_pages_are_counted_apart() {
        let rollup = "5581-7fff ---p 00000000 00:00 0 [rollup]\nRss:  9000 kB\nPss:  700 kB\nPss_Dirty: 5 kB\n\
                      Pss_Anon: 400 kB\nPss_File: 100 kB\nPss_Shmem: 200 kB\nSwap: 90 kB\nSwapPss: 30 kB\n";
        let parts = MemoryParts::parse(rollup).unwrap();
        assert_eq!(parts, MemoryParts { private: 530 << 10, shared: 200 << 10 });
        assert_eq!(MemoryParts::parse(""), None);
        assert_eq!(MemoryParts::parse("Pss: x kB\n"), None);
    }

    #[test]
    fn shared_memory_without_a_file_is_found() {
        let line = "00400000-7f0000001000 rw-s 00000000 00:01 77          /dev/zero (deleted)";
        assert_eq!(shared_range(line).as_deref(), Some("400000-7f0000001000"));
        let named = line.replace(SHARED, "[anon_shmem:name]");
        assert_eq!(shared_range(&named), shared_range(line));
        assert_eq!(shared_range(&line.replace("/dev/zero", "/usr/lib/libc.so")), None);
        assert_eq!(shared_range(""), None);
    }

    #[test]
    fn a_process_is_counted_and_a_missing_one_is_not() {
        let ballast = vec![1_u8; 20 << 20];
        let own = memory_of_processes([std::process::id()].into_iter());
        assert!(own > ballast.len() as u64, "{own}");
        assert_eq!(memory_of_processes([u32::MAX].into_iter()), 0);
        assert_eq!(memory_of_folders(u32::MAX, 1), 0);
    }
}

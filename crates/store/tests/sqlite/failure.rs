//! Commits that fail, disks that are full, folders that must not be opened.

mod commit;
mod disk;
mod folder;

//! Tests failed commits, full disks and folders that must not be opened.

mod checkpoint;
mod commit;
mod disk;
mod folder;
mod health;
mod lock;
mod log;
mod modes;
mod reserved;

//! Tests the embedded store when it is killed, damaged, out of disk space and short of memory.
//!
//! Random tests print their seed when they fail; `TASKYARD_SEED` repeats it.

mod fixture;
mod suite;
mod wall_clock;

// Backups of stores in use, and what is refused as one.
mod backup;
mod backup_damage;
// Processes killed at random times.
mod crash;
// Flipped bits, truncated and removed files.
mod damage;
// Failed commits, full disks, folders that must not be opened.
mod failure;
// Interruptions of firings of schedules.
mod firings;
// Batches that are in the journal only.
mod journal;
// The same for keys and semaphores.
mod key_crash;
mod killed_child;
mod semaphore_crash;
mod semaphores;
// Unique keys in the journal and in the database.
mod keys;
// More payloads than fit in memory.
mod memory;
// Retry policies, rate limits and schedules.
mod pace;

//! The embedded store against a hostile world: killed, damaged, out of space, short of memory.
//!
//! Random tests print their seed when they fail; `TASKYARD_SEED` repeats it.

mod suite;
mod wall;
mod yard;

// Killed at random moments.
mod crash;
// Bits flipped, files cut and removed.
mod damage;
// Commits that fail, disks that are full, folders that must not be opened.
mod failure;
// Batches that are not in the database yet.
mod journal;
// Semaphores in all of that.
mod semaphore_crash;
mod semaphores;
// More payloads than memory.
mod memory;

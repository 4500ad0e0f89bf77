//! What every store must do, on each of the stores.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

mod fill;

// That the suite itself is worth something.
mod durable;
mod faulty;

//! What every store must do, on each of the stores.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

mod choosing;
#[cfg(feature = "sqlite")]
#[path = "../../../stores/open/tests/copying/content.rs"]
mod content;
#[cfg(feature = "sqlite")]
mod copy;
mod fill;
#[cfg(feature = "sqlite")]
#[path = "../../../stores/open/tests/copying/weak.rs"]
mod weak;

// That the suite itself is worth something.
mod durable;
mod faulty;

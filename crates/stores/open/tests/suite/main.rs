//! Tests the list of stores and copies between embedded stores.

mod choosing;
#[path = "../copying/content.rs"]
mod content;
mod copy;
#[path = "../copying/failing_store.rs"]
mod failing_store;

//! The list of stores and copying between embedded stores.

mod choosing;
#[path = "../copying/content.rs"]
mod content;
mod copy;
#[path = "../copying/weak.rs"]
mod weak;

//! The taskyard binary.

fn main() {}

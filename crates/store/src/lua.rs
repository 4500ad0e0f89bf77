//! Holds the Lua code that the libraries inside Redis and Tarantool share.

/// Constants and pure functions: times, states, attempts.
pub const VALUES: &str = include_str!("lua/values.lua");
/// The arithmetic of retry policies and rate limits.
pub const PACE_RULES: &str = include_str!("lua/pace_rules.lua");
/// The rules of semaphores over a storage interface, which its first lines describe.
pub const SEMAPHORE_RULES: &str = include_str!("lua/semaphore_rules.lua");

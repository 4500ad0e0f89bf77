//! Tasks in Tarantool: the suite, and what only a server beyond a network can get wrong.

mod suite;

mod adapter;
mod exact;
mod failures;
mod fixture;
mod full_disk;
mod kills;
mod large;
mod lost_replies;
mod replicas;
mod semaphores;
mod servers;
mod straight;

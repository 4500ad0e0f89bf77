//! Tasks in Tarantool: the suite, and what only a server beyond a network can get wrong.

mod suite;

mod adapter;
mod exact;
mod failures;
mod fixture;
mod full_disk;
mod kill;
mod large;
mod replicas;
mod semaphores;
mod servers;
mod straight;
mod unheard;

//! Tasks in Redis: the suite, and what only a server beyond a network can get wrong.

mod suite;

mod cluster;
mod earlier;
mod exact;
mod failures;
mod fixture;
mod kills;
mod lost_replies;
mod lost_tail;
mod naming;
mod overlap;
mod semaphores;
mod servers;
mod tls;
mod together;

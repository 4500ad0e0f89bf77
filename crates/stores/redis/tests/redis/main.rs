//! Tasks in Redis: the suite, and what only a server beyond a network can get wrong.

mod instance;
mod yard;

mod suite;

mod cluster;
mod earlier;
#[path = "../../../../testkit/src/exact.rs"]
mod exact;
mod failures;
mod fixture;
mod kill;
mod lost_tail;
mod naming;
mod overlap;
mod semaphores;
mod servers;
mod tls;
mod together;
mod unheard;

//! The real binary, as people and scripts use it.

mod crash;
mod exits;
mod help;
mod pool;
mod rig;
mod serve;
mod tasks;
mod top;
mod tubes;
mod worker;

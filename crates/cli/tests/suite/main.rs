//! The real binary, as people and scripts use it.

mod contract;
mod crash;
mod exits;
mod help;
mod rig;
mod serve;
mod tasks;
mod top;
mod tubes;
mod worker;

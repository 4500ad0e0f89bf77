//! Tests of the binary `taskyard`.

mod bench;
mod cli_page;
mod contract;
mod copy;
mod crash;
mod exits;
mod help;
mod manager;
mod many;
mod pace;
mod pool;
mod process;
mod schedules;
mod semaphores;
mod serve;
mod sql;
mod tasks;
mod top;
mod tubes;
#[cfg(target_os = "linux")]
mod wall_clock;
mod worker;
mod workers;

//! Tests of the binary `taskyard`.

mod audit;
mod backup;
#[cfg(target_os = "linux")]
mod backup_kills;
mod bench;
mod cli_page;
mod config;
mod contract;
mod copy;
mod crash;
mod demo;
mod deploy;
mod documents;
mod earlier;
mod exits;
mod help;
mod manager;
mod many;
mod pace;
mod pool;
#[cfg(target_os = "linux")]
mod preload;
mod process;
mod progress;
mod pseudo_terminal;
mod schedules;
mod secrets;
mod semaphores;
mod serve;
mod simulate;
mod sql;
mod storms;
mod tasks;
mod tls;
mod top;
mod tubes;
mod users;
#[cfg(target_os = "linux")]
mod wall_clock;
mod worker;
mod workers;

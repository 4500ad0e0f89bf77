//! The taskyard binary: parse, call, print.
//!
//! It decides nothing about tasks: `serve` starts the server, every other command asks a running one
//! over HTTP. A file per command; what they share is at the end of the list.
//!
//! Start reading at `args` (every command), then `serve` and `take` (one of each sort).

mod args;
mod bench;
mod completions;
mod contract;
mod copy;
mod delete;
mod finish;
mod kick;
mod manager;
mod migrate;
mod peek;
mod pool;
mod put;
mod semaphore;
mod serve;
mod sql;
mod stats;
mod take;
mod top;
mod tube;
mod worker;

mod connect;
mod data;
mod failure;
mod internal;
mod iproto;
mod log;
mod opening;
mod output;
mod progress;
mod reach;
mod table;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Verb};

/// Tasks are made on one thread and dropped on another all the time, which this allocator minds less
/// than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Inside the sandboxes of a pool this executable is their init process.
    if let Some(end) = taskyard_pool::backend::run_as_sandbox_init() {
        return end;
    }
    let done = match Cli::parse().verb {
        Verb::Serve(args) => serve::run(args),
        Verb::Migrate(args) => migrate::run(args),
        Verb::Copy(args) => copy::run(args),
        Verb::Put(args) => put::run(args),
        Verb::Take(args) => take::run(args),
        Verb::Ack(args) => finish::ack(args),
        Verb::Release(args) => finish::release(args),
        Verb::Bury(args) => finish::bury(args),
        Verb::Touch(args) => finish::touch(args),
        Verb::Kick(args) => kick::run(args),
        Verb::Delete(args) => delete::run(args),
        Verb::Peek(args) => peek::run(args),
        Verb::Stats(args) => stats::run(args),
        Verb::Top(args) => top::run(args),
        Verb::Tube(args) => tube::run(args),
        Verb::Sql(args) => sql::run(args),
        Verb::Semaphore(args) => semaphore::run(args),
        Verb::Pool(args) => pool::run(args),
        Verb::Worker(args) => worker::run(args),
        Verb::Manager(args) => manager::run(args),
        Verb::Contract(args) => contract::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Completions(args) => completions::run(args),
    };
    done.unwrap_or_else(|error| failure::report(&error)).into()
}

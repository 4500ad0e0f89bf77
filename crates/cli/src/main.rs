//! The taskyard binary: parses arguments, calls the server or a library, prints the result.
//!
//! It contains no rules about tasks: `serve` starts the server, most other commands send a request to a running server
//! over HTTP. Each command has a file; shared modules are at the end of the list.
//!
//! Start reading at `args` (all commands), then `serve` and `take` (a server and a client command).

mod access;
mod actions;
mod args;
mod audit;
mod backup;
mod bench;
mod completions;
mod config;
mod contract;
mod copy;
mod delete;
mod demo;
#[cfg(test)]
mod document_check;
mod document_routes;
mod filter;
mod finish;
mod health;
mod kick;
#[cfg(feature = "man")]
mod man;
mod manager;
mod migrate;
mod peek;
mod pool;
mod put;
mod restore;
mod schedule;
mod semaphore;
mod serve;
mod simulate;
mod sql;
mod stats;
mod take;
mod task_args;
mod tasks;
mod top;
mod tube;
mod user;
mod when;
mod worker;
mod workers;

mod confirm;
mod connect;
mod contract_check;
mod estimate;
mod failure;
mod fields;
mod internal_tubes;
mod iproto;
mod listen_addresses;
mod log;
mod open_store;
mod output;
mod payload;
mod peers;
mod progress;
mod secret_file;
mod service_manager;
mod settings;
mod sparkline;
mod table;
mod tls;
mod units;
mod users_file;

use std::process::ExitCode;

use taskyard_wire::Exit;

use args::Verb;

/// Tasks are often allocated on one thread and freed on another, which this allocator handles faster than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Inside a sandbox of the pool this executable runs another program.
    if let Some(end) = taskyard_pool::backend::run_as_sandbox_init() {
        return end;
    }
    let done = settings::parse_command_line().and_then(|cli| run(cli.verb));
    done.unwrap_or_else(|error| failure::report(&error)).into()
}

fn run(verb: Verb) -> anyhow::Result<Exit> {
    match verb {
        Verb::Serve(args) => serve::run(*args),
        Verb::Demo(args) => demo::run(args),
        Verb::Config(args) => config::run(args),
        Verb::Migrate(args) => migrate::run(args),
        Verb::Copy(args) => copy::run(args),
        Verb::Backup(args) => backup::run(args),
        Verb::Restore(args) => restore::run(args),
        Verb::Put(args) => put::run(args),
        Verb::Take(args) => take::run(args),
        Verb::Ack(args) => finish::ack(args),
        Verb::Release(args) => finish::release(args),
        Verb::Bury(args) => finish::bury(args),
        Verb::Touch(args) => finish::touch(args),
        Verb::Fail(args) => finish::fail(args),
        Verb::Retry(args) => actions::retry(args),
        Verb::Kick(args) => kick::run(args),
        Verb::Delete(args) => delete::run(args),
        Verb::Peek(args) => peek::run(args),
        Verb::Tasks(args) => tasks::list(args),
        Verb::Task(args) => tasks::show(args),
        Verb::When(args) => when::run(args),
        Verb::Simulate(args) => simulate::run(args),
        Verb::Stats(args) => stats::run(args),
        Verb::Health(args) => health::run(args),
        Verb::Top(args) => top::run(args),
        Verb::Tube(args) => tube::run(args),
        Verb::Sql(args) => sql::run(args),
        Verb::Schedule(args) => schedule::run(args),
        Verb::Semaphore(args) => semaphore::run(args),
        Verb::Pool(args) => pool::run(args),
        Verb::Worker(args) => worker::run(args),
        Verb::Workers(args) => workers::run(args),
        Verb::Audit(args) => audit::run(args),
        Verb::Manager(args) => manager::run(args),
        Verb::Contract(args) => contract::run(args),
        Verb::User(args) => user::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Completions(args) => completions::run(args),
        #[cfg(feature = "man")]
        Verb::Man(args) => man::run(args),
    }
}

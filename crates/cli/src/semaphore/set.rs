//! `semaphore create` and `semaphore set`: creates and changes semaphores.

use clap::Args;
use taskyard_core::{Error, SemaphoreChange, SemaphoreCommand, SemaphoreReply, Span};
use taskyard_wire::Exit;

use super::{execute, key, show};
use crate::connect::{ServerArgs, unexpected_reply};
use crate::failure::exit_of;
use crate::units::{self, OrNone};

/// The options of a semaphore. Options that are not given stay unchanged or have their default.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore create yang --active 1000 --try-release 900 --margin 0.5
  taskyard semaphore set yang --active 10 --shed true
  taskyard semaphore set yang --lease none")]
pub struct SetArgs {
    /// The key of the semaphore: 1 to 128 bytes without control characters, / or :
    key: String,
    /// How many tasks may hold a grant at the same time; default 1000.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    active: Option<i64>,
    /// How many of the holders with the lowest priorities may be asked to release; default 900.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    try_release: Option<i64>,
    /// How much larger than the priority of a holder that of a waiting task must be for the holder to be asked.
    #[arg(long, value_name = "GAP", allow_negative_numbers = true)]
    margin: Option<f64>,
    /// How long the holder of a new grant is not asked to release.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    min_hold: Option<Span>,
    /// How long a task that yielded cannot get another grant.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    cool_down: Option<Span>,
    /// How many holders may be asked at the same time, or none for the default of 16.
    #[arg(long, value_name = "N", value_parser = units::number_or_none::<i64>)]
    max_revoking: Option<OrNone<i64>>,
    /// How long to wait before a holder is asked again; default 1 minute.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    revoke_grace: Option<Span>,
    /// Revoke the grant after --revoke-grace instead of asking again.
    #[arg(long, value_name = "BOOL")]
    force: Option<bool>,
    /// How long a grant lasts unless it is extended, or none for no limit.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    lease: Option<OrNone<Span>>,
    /// How long the event of a grant may stay unacknowledged, or none for no limit.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    ack_timeout: Option<OrNone<Span>>,
    /// Ask holders to release when --active was lowered below their number.
    #[arg(long, value_name = "BOOL")]
    shed: Option<bool>,
    /// Remove tasks whose lease has expired, instead of enqueueing them again.
    #[arg(long, value_name = "BOOL")]
    drop_expired: Option<bool>,
    #[command(flatten)]
    server: ServerArgs,
}

/// The arguments of `semaphore create`.
#[derive(Debug, Args)]
pub struct SemaphoreCreateArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Accept an existing semaphore if it has the given options.
    #[arg(long)]
    if_not_exists: bool,
}

/// Creates a semaphore and prints it; refuses an existing one, as for tubes.
pub fn create(args: &SemaphoreCreateArgs) -> anyhow::Result<Exit> {
    let (key, set) = (key(&args.set.key)?, &args.set);
    if !args.if_not_exists {
        let list = SemaphoreCommand::List { key: Some(key.clone()) };
        match execute(&set.server.connect, list) {
            // A semaphore that another client creates meanwhile stays unchanged.
            Err(error) if exit_of(&error) == Exit::NotFound => {}
            found => {
                let SemaphoreReply::Semaphores(infos) = found? else {
                    return Err(unexpected_reply("semaphore"));
                };
                for info in &infos {
                    change(set).check_same(&key, &info.options)?;
                }
                return Err(Error::SemaphoreExists { key, differs: String::new() }.into());
            }
        }
    }
    run(set, true)
}

fn change(args: &SetArgs) -> SemaphoreChange {
    SemaphoreChange {
        active: args.active,
        try_release: args.try_release,
        margin: args.margin,
        min_hold: args.min_hold,
        cool_down: args.cool_down,
        max_revoking: args.max_revoking.map(|most| most.0),
        revoke_grace: args.revoke_grace,
        force: args.force,
        lease: args.lease.map(|lease| lease.0),
        ack_timeout: args.ack_timeout.map(|timeout| timeout.0),
        shed: args.shed,
        drop_expired: args.drop_expired,
    }
}

/// Creates or changes a semaphore and prints it.
pub fn run(args: &SetArgs, only_new: bool) -> anyhow::Result<Exit> {
    let (key, change) = (key(&args.key)?, Box::new(change(args)));
    let configure = SemaphoreCommand::Configure { key, change, only_new };
    match execute(&args.server.connect, configure)? {
        SemaphoreReply::Semaphores(infos) => {
            for info in &infos {
                show::print(info, args.server.json)?;
            }
            Ok(Exit::Ok)
        }
        _ => Err(unexpected_reply("semaphore")),
    }
}

//! Making and changing semaphores.

use clap::Args;
use taskyard_core::{Error, SemaphoreChange, SemaphoreCommand, SemaphoreReply, Span};
use taskyard_wire::Exit;

use super::{ask, key, show};
use crate::connect::{ConnectArgs, misfit};
use crate::failure::exit_of;
use crate::units::{self, OrNone};

/// What the semaphore does. What is not said stays or has its default.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore create yang --active 1000 --try-release 900 --margin 0.5
  taskyard semaphore set yang --active 10 --shed true
  taskyard semaphore set yang --lease none")]
pub struct SetArgs {
    /// Its key: 1 to 128 bytes without control characters, / or :
    key: String,
    /// How many may hold a grant at the same time; 1000 in a new one.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    active: Option<i64>,
    /// How many of them, from the worst on, may be asked to release; 900 in a new one.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    try_release: Option<i64>,
    /// How much better than a holder a task must be for that holder to be asked.
    #[arg(long, value_name = "GAP", allow_negative_numbers = true)]
    margin: Option<f64>,
    /// How long a new grant is left alone.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    min_hold: Option<Span>,
    /// How long a task that yielded stays out of the line.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    cool_down: Option<Span>,
    /// How many may be asked at the same time, or none for the usual 16.
    #[arg(long, value_name = "N", value_parser = units::number_or_none::<i64>)]
    max_revoking: Option<OrNone<i64>>,
    /// After this time a holder that was asked is asked again; a minute in a new one.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    revoke_grace: Option<Span>,
    /// Take the grant away then.
    #[arg(long, value_name = "BOOL")]
    force: Option<bool>,
    /// How long a grant lasts unless it is extended, or none.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    lease: Option<OrNone<Span>>,
    /// How long the event of a grant may go without acknowledgement, or none.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    ack_timeout: Option<OrNone<Span>>,
    /// Ask holders to release when --active was lowered below their number.
    #[arg(long, value_name = "BOOL")]
    shed: Option<bool>,
    /// Let tasks leave whose lease is over, instead of standing in line again.
    #[arg(long, value_name = "BOOL")]
    drop_expired: Option<bool>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What the new semaphore does.
#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Leave a semaphore of that key as it is instead of refusing, if it has the options that are named here.
    #[arg(long)]
    if_not_exists: bool,
}

/// Makes a semaphore and shows it; refuses one that is there, as for tubes.
pub fn create(args: &CreateArgs) -> anyhow::Result<Exit> {
    let (key, set) = (key(&args.set.key)?, &args.set);
    if !args.if_not_exists {
        let list = SemaphoreCommand::List { key: Some(key.clone()) };
        match ask(&set.connect, list) {
            // Should another make it meanwhile, this changes nothing about it.
            Err(error) if exit_of(&error) == Exit::NotFound => {}
            found => {
                let SemaphoreReply::Semaphores(infos) = found? else {
                    return Err(misfit("semaphore"));
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

/// Makes or changes a semaphore and shows it.
pub fn run(args: &SetArgs, only_new: bool) -> anyhow::Result<Exit> {
    let (key, change) = (key(&args.key)?, Box::new(change(args)));
    let configure = SemaphoreCommand::Configure { key, change, only_new };
    match ask(&args.connect, configure)? {
        SemaphoreReply::Semaphores(infos) => {
            for info in &infos {
                show::print(info, args.json)?;
            }
            Ok(Exit::Ok)
        }
        _ => Err(misfit("semaphore")),
    }
}

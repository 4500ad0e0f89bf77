//! `tube create`, `alter`, `pause`, `resume` and `rename`: creates and changes tubes.

use clap::Args;
use clap::builder::PossibleValuesParser;
use taskyard_core::{Command, Kind, RateLimit, Reply, RetryPolicy, Span, TubeChange, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::{CreateAnswer, CreateRequest, RateRequest, RetryRequest, seconds_of};

use super::{NameArgs, RenameArgs, pace, show};
use crate::connect::{ConnectArgs, ServerArgs, unexpected_reply};
use crate::failure::UsageError;
use crate::output;
use crate::units::{self, OrNone};

/// The arguments of `tube create`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tube create mail
  taskyard tube create mail --ttr 5m --attempts-max 10
  taskyard tube create mail --retry default --rate 100/1m
  taskyard tube create mail --retry 10s,factor=3,max=2h,jitter=0.1 --retry-lost
  taskyard tube create inbox --kind limfifottl --capacity 1000
  taskyard tube create orders --kind utubettl --if-not-exists
  taskyard tube create reports --keep-done 2d     done tasks and their results stay for two days
  taskyard tube create checks --semaphore yang
  taskyard tube create emails --queue-num 1")]
pub struct TubeCreateArgs {
    /// The name of the tube: 1 to 128 bytes without control characters, / or :
    tube: String,
    /// The kind of the tube, default fifottl; see taskyard tube --help.
    #[arg(long, value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)))]
    kind: Option<String>,
    /// Do not store its tasks durably: faster, but they are lost at a restart.
    #[arg(long)]
    temporary: bool,
    /// Maximum number of tasks in any state; 0 accepts none; required for limfifottl.
    #[arg(long, value_name = "N")]
    capacity: Option<u64>,
    /// Remove a task that is not taken within this time.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    ttl: Option<Span>,
    /// Return a task that is taken and not acknowledged within this time.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    ttr: Option<Span>,
    /// Make a new task ready after this time.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    delay: Option<Span>,
    /// Default priority of tasks, 0 unless given; smaller numbers are delivered first.
    #[arg(long, value_name = "N", value_parser = units::pri, allow_negative_numbers = true)]
    pri: Option<u64>,
    /// Bury a task after this many failed deliveries.
    #[arg(long, value_name = "N")]
    attempts_max: Option<u32>,
    /// Delays before further attempts: default, or DELAY[,factor=2,max=1h,jitter=0.2].
    #[arg(long, value_name = "POLICY", value_parser = pace::policy)]
    retry: Option<RetryPolicy>,
    /// Delay tasks whose lease expired as failed ones.
    #[arg(long, requires = "retry")]
    retry_lost: bool,
    /// Maximum rate of deliveries, such as 10/s or 100/1m; at most N at once, COUNT unless given.
    #[arg(long, value_name = "COUNT/PER[,burst=N]", value_parser = pace::rate)]
    rate: Option<RateLimit>,
    /// Keep done tasks for this time, with their results; see taskyard tasks TUBE --state done.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    keep_done: Option<Span>,
    /// Maximum number of done tasks to keep, 10000 unless given; the oldest are removed first.
    #[arg(long, value_name = "N")]
    keep_done_max: Option<u64>,
    /// Remove a taken task when its ttl ends, as Tarantool's queue does.
    #[arg(long)]
    ttl_kills_taken: bool,
    /// Deliver no tasks until the tube is resumed.
    #[arg(long)]
    paused: bool,
    /// The semaphore of the tube: a task is ready only while it holds a grant, and releases the grant when it ends.
    #[arg(long, value_name = "KEY")]
    semaphore: Option<String>,
    /// The number of the tube's queue in a contract, for workers without the right to create tubes.
    #[arg(long, value_name = "N")]
    queue_num: Option<u32>,
    /// Accept an existing tube of this name if it has the given options.
    #[arg(long)]
    if_not_exists: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The arguments of `tube alter`; `none` removes a limit.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tube alter mail --ttr 10m
  taskyard tube alter mail --ttl none --attempts-max 5
  taskyard tube alter mail --retry 10s --rate none")]
pub struct AlterArgs {
    /// The tube.
    tube: String,
    /// Maximum number of tasks in any state, or none.
    #[arg(long, value_name = "N", value_parser = units::number_or_none::<u64>)]
    capacity: Option<OrNone<u64>>,
    /// Default time to live, or none.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    ttl: Option<OrNone<Span>>,
    /// Default time to run, or none.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    ttr: Option<OrNone<Span>>,
    /// Default delay, or none.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    delay: Option<OrNone<Span>>,
    /// Default priority; smaller numbers are delivered first.
    #[arg(long, value_name = "N", value_parser = units::pri, allow_negative_numbers = true)]
    pri: Option<u64>,
    /// Failed deliveries before a task is buried, or none.
    #[arg(long, value_name = "N", value_parser = units::number_or_none::<u32>)]
    attempts_max: Option<OrNone<u32>>,
    /// Delays before further attempts: default, DELAY[,factor=2,max=1h,jitter=0.2], or none.
    #[arg(long, value_name = "POLICY", value_parser = pace::policy_or_none)]
    retry: Option<OrNone<RetryPolicy>>,
    /// Delay tasks whose lease expired as failed ones; =false makes them ready at once.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    retry_lost: Option<bool>,
    /// Maximum rate of deliveries, such as 10/s or 100/1m,burst=20, or none.
    #[arg(long, value_name = "COUNT/PER[,burst=N]", value_parser = pace::rate_or_none)]
    rate: Option<OrNone<RateLimit>>,
    /// Time for which done tasks are kept, or none.
    #[arg(long, value_name = "TIME", value_parser = units::span_or_none)]
    keep_done: Option<OrNone<Span>>,
    /// Maximum number of done tasks to keep.
    #[arg(long, value_name = "N")]
    keep_done_max: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Creates a tube.
pub fn create(args: TubeCreateArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let request = request(&args)?;
    let connect = &args.server.connect;
    let create = request.clone().into_command(tube.clone())?;
    let Reply::Created(created) = connect.execute(create)? else {
        return Err(unexpected_reply("create"));
    };
    if !created {
        let list = Command::Tubes { tube: Some(tube.clone()) };
        let Reply::Tubes(infos) = connect.execute(list)? else {
            return Err(unexpected_reply("tubes"));
        };
        for info in &infos {
            request.check_same(&tube, &info.options)?;
        }
    }
    if args.server.json {
        output::json(&CreateAnswer { created })?;
    } else if created {
        output::line(format!("created {tube}"))?;
    } else {
        output::line(format!("{tube} already exists"))?;
    }
    Ok(Exit::Ok)
}

/// The options that were given.
fn request(args: &TubeCreateArgs) -> anyhow::Result<CreateRequest> {
    let kind = args.kind.as_deref().map(|name| {
        Kind::from_name(name).ok_or_else(|| UsageError(format!("no such kind of tube: {name}")))
    });
    let seconds = |span: Option<Span>| span.map(seconds_of);
    Ok(CreateRequest {
        kind: kind.transpose()?.map(Into::into),
        temporary: args.temporary.then_some(true),
        capacity: args.capacity,
        ttl: seconds(args.ttl),
        ttr: seconds(args.ttr),
        delay: seconds(args.delay),
        pri: args.pri,
        attempts_max: args.attempts_max,
        retry: args.retry.as_ref().map(RetryRequest::new),
        retry_lost: args.retry_lost.then_some(true),
        rate: args.rate.as_ref().map(RateRequest::new),
        keep_done: seconds(args.keep_done),
        keep_done_max: args.keep_done_max,
        ttl_kills_taken: args.ttl_kills_taken.then_some(true),
        paused: args.paused.then_some(true),
        semaphore: args.semaphore.clone(),
        queue_num: args.queue_num,
        if_not_exists: args.if_not_exists,
        lenient: false,
    })
}

/// Changes a tube.
pub fn alter(args: AlterArgs) -> anyhow::Result<Exit> {
    let retry = pace::change(&args.server.connect, &args.tube, args.retry, args.retry_lost)?;
    let change = TubeChange {
        retry: retry.map(|retry| retry.map(Box::new)),
        rate: args.rate.map(|rate| rate.0.map(Box::new)),
        paused: None,
        capacity: args.capacity.map(|capacity| capacity.0),
        ttl: args.ttl.map(|ttl| ttl.0),
        ttr: args.ttr.map(|ttr| ttr.0),
        delay: args.delay.map(|delay| delay.0),
        pri: args.pri,
        attempts_max: args.attempts_max.map(|attempts| attempts.0),
        keep_done: args.keep_done.map(|keep| keep.0),
        keep_done_max: args.keep_done_max,
    };
    if change == TubeChange::default() {
        return Err(UsageError("nothing to change; give an option such as --ttr 5m".into()).into());
    }
    apply(&args.server.connect, &args.tube, change, args.server.json)
}

/// Pauses or resumes deliveries.
pub fn pause(args: &NameArgs, paused: bool) -> anyhow::Result<Exit> {
    let change = TubeChange { paused: Some(paused), ..TubeChange::default() };
    apply(&args.server.connect, &args.tube, change, args.server.json)
}

fn apply(
    connect: &ConnectArgs,
    tube: &str,
    change: TubeChange,
    json: bool,
) -> anyhow::Result<Exit> {
    let tube = TubeName::new(tube)?;
    connect.execute(Command::AlterTube { tube: tube.clone(), change })?;
    show::print_one(connect, &tube, json)
}

/// Renames a tube.
pub fn rename(args: &RenameArgs) -> anyhow::Result<Exit> {
    let (tube, name) = (TubeName::new(&args.tube)?, TubeName::new(&args.name)?);
    args.server.connect.execute(Command::NameTube { tube, name: name.clone(), queue_num: None })?;
    show::print_one(&args.server.connect, &name, args.server.json)
}

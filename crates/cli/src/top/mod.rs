//! `top`: a live view of a server, as `htop` is one of processes.
//!
//! `sample` queries the server and compares two replies, `view` is the state of the screen, `screen` draws it,
//! `live` runs it on the `terminal`. `columns` and `text` are plain functions that `print` uses too.

mod columns;
mod keys;
mod live;
mod print;
mod sample;
mod screen;
mod stop;
mod styled;
mod terminal;
mod text;
mod view;

use std::time::Duration;

use clap::Args;
use taskyard_core::Span;
use taskyard_wire::Exit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::connect::{ConnectArgs, block_on};
use crate::internal_tubes::InternalArgs;
use crate::{output, units};

use columns::{Column, ColumnSet, Order};
use print::Source;
use view::{Choice, View};

/// A shorter interval is not readable, and zero would overload the server.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// A longer interval is no live view.
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What to show.
#[derive(Debug, Args)]
#[command(after_help = "\
A line for each tube: tasks by state, consumers that wait, puts, takes, acks and failures a second
over the last interval, and when time alone next changes something in it (a delay, a ttl, a lease
that ends). Failures are those that this server noticed: reported ones, leases that expired, and
deliveries whose session ended.

Above them the sums of all tubes, and the median (p50) and the 99th percentile (p99) of how long
tasks had been ready when they were taken (wait) and how long deliveries lasted (run), in the
latest second of the last minute that has any. The view of times has these for each tube, as this
server saw them, with the 90th percentile; a terminal of 120 columns shows some beside the counts.

Keys:
  q, Esc, Ctrl-C         quit
  left, right, < and >   order by another column
  r                      reverse the order
  t                      show the times of each tube, or the counts
  /                      show only tubes with this in their name; Enter keeps it, Esc removes it
  up, down, PgUp, PgDn, Home, End   scroll

The view waits for an unreachable server. Where the output is no terminal, one table is printed,
measured over one interval; an unreachable server is then an error.

Examples:
  taskyard top                             live, until q
  taskyard top --interval 5s --sort ready  the fullest tubes first
  taskyard top --filter mail               only tubes with mail in their name
  taskyard top --once                      one table
  taskyard top --view times                how long tasks of each tube waited and ran
  taskyard top --json                      a line of JSON each second, until Ctrl-C
  taskyard top --json | jq .total.rates.put")]
pub struct TopArgs {
    /// How often to ask, from 100ms to 1d.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "1s")]
    interval: Span,
    /// The column to order by.
    #[arg(long, value_name = "COLUMN", default_value = "tube")]
    sort: Column,
    /// Reverse the order.
    #[arg(long)]
    reverse: bool,
    /// Which columns come first: tasks and rates, or how long tasks waited and ran.
    #[arg(long, value_name = "VIEW", default_value = "counts")]
    view: ColumnSet,
    /// Show only tubes whose name contains this text; upper and lower case are the same.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    #[command(flatten)]
    internal: InternalArgs,
    /// Print one table, measured over one interval, and end.
    #[arg(long)]
    once: bool,
    /// Print one JSON object a line each interval; with --once only one.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Shows the server.
pub fn run(args: TopArgs) -> anyhow::Result<Exit> {
    let http = args.connect.http()?;
    let interval = Duration::from(args.interval).clamp(INTERVAL_MIN, INTERVAL_MAX);
    let order = Order { column: args.sort, reversed: args.reverse };
    let choice = Choice { order, columns: args.view, filter: args.filter };
    let source = |http| Source::new(http, args.internal, ticks(interval));
    block_on(async {
        if args.json {
            print::json(source(http), &choice, args.once).await?;
        } else if args.once || !output::is_terminal() {
            print::table(source(http), &choice).await?;
        } else {
            let view = View::new(http.url(), interval, choice);
            live::run(http, args.internal, view).await?;
        }
        Ok(Exit::Ok)
    })
}

/// A clock that ticks immediately and then every interval; a late tick delays the next one, because rates over a very
/// short time are meaningless.
fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

//! `tube list`, `show`, `deliveries` and `consumers`: prints tubes, taken tasks and waiting sessions.

use clap::Args;
use taskyard_core::{Kind, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::TubeAnswer;

use super::{NameArgs, pace};
use crate::connect::{ConnectArgs, ServerLinesArgs, block_on};
use crate::internal_tubes::InternalArgs;
use crate::{output, units};

/// The arguments of `tube list`.
#[derive(Debug, Args)]
pub struct TubeListArgs {
    #[command(flatten)]
    internal: InternalArgs,
    #[command(flatten)]
    server: ServerLinesArgs,
}

/// The arguments of `tube deliveries` and `consumers`.
#[derive(Debug, Args)]
pub struct TubePageArgs {
    /// The tube.
    tube: String,
    /// Print at most this many.
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: usize,
    #[command(flatten)]
    server: ServerLinesArgs,
}

/// Prints all tubes.
pub fn list(args: &TubeListArgs) -> anyhow::Result<Exit> {
    let http = args.server.connect.http()?;
    let mut tubes = block_on(async { Ok(http.tubes(None).await?) })?;
    args.internal.hide(&mut tubes);
    if args.server.json {
        output::json_lines(&tubes)?;
        return Ok(Exit::Ok);
    }
    let mut table = output::table(&["tube", "kind", "tasks", "options"]);
    for tube in &tubes {
        let kind = Kind::from(tube.kind).name().to_owned();
        let options: Vec<String> =
            options(tube).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        table.add_row([tube.name.clone(), kind, tube.tasks.total.to_string(), options.join(" ")]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

/// Prints one tube.
pub fn one(args: &NameArgs) -> anyhow::Result<Exit> {
    print_one(&args.server.connect, &TubeName::new(&args.tube)?, args.server.json)
}

/// Prints the current state of a tube.
pub fn print_one(connect: &ConnectArgs, tube: &TubeName, json: bool) -> anyhow::Result<Exit> {
    let http = connect.http()?;
    for tube in block_on(async { Ok(http.tubes(Some(tube)).await?) })? {
        if json {
            output::json(&tube)?;
        } else {
            print(&tube)?;
        }
    }
    Ok(Exit::Ok)
}

fn print(tube: &TubeAnswer) -> anyhow::Result<()> {
    let tasks = &tube.tasks;
    let mut lines = vec![
        ("tube", tube.name.clone()),
        ("kind", Kind::from(tube.kind).name().to_owned()),
        ("paused", if tube.paused { "yes" } else { "no" }.to_owned()),
    ];
    lines.extend(options(tube).into_iter().filter(|(name, _)| *name != "paused"));
    lines.extend([
        ("ready", format!("{} ({} can be taken now)", tasks.ready, tube.takeable)),
        ("oldest", tube.oldest_ready.map_or_else(|| "no ready task".into(), ready_for)),
        ("taken", tasks.taken.to_string()),
        ("delayed", tasks.delayed.to_string()),
        ("buried", tasks.buried.to_string()),
        ("done", format!("{} since the server started", tasks.done)),
        ("kept", format!("{} done tasks", tasks.kept)),
        ("waiting", format!("{} consumers", tube.consumers)),
    ]);
    let text: String =
        lines.into_iter().map(|(name, value)| format!("{name:<15} {value}\n")).collect();
    Ok(output::bytes(text.as_bytes())?)
}

fn ready_for(since: f64) -> String {
    format!("ready for {}", units::age(since))
}

/// The options that differ from the default, by name.
fn options(tube: &TubeAnswer) -> Vec<(&'static str, String)> {
    let seconds = |name, value: Option<f64>| value.map(|value| (name, format!("{value}s")));
    let flag = |name, value: bool| value.then(|| (name, "yes".to_owned()));
    let number = |name, value: Option<u64>| value.map(|value| (name, value.to_string()));
    let options = [
        flag("paused", tube.paused),
        flag("temporary", tube.temporary),
        number("capacity", tube.capacity),
        seconds("ttl", tube.ttl),
        seconds("ttr", tube.ttr),
        seconds("delay", tube.delay),
        number("pri", Some(tube.pri).filter(|pri| *pri != 0)),
        number("attempts-max", tube.attempts_max.map(u64::from)),
        tube.retry.as_ref().map(|retry| ("retry", pace::show_policy(retry))),
        flag("retry-lost", tube.retry_lost),
        tube.rate.as_ref().map(|rate| ("rate", pace::show_rate(rate))),
        seconds("keep-done", tube.keep_done),
        number("keep-done-max", tube.keep_done_max),
        number("queue-num", tube.queue_num.map(u64::from)),
        flag("ttl-kills-taken", tube.ttl_kills_taken),
        tube.semaphore.clone().map(|key| ("semaphore", key)),
    ];
    options.into_iter().flatten().collect()
}

/// Prints the taken tasks.
pub fn deliveries(args: &TubePageArgs) -> anyhow::Result<Exit> {
    let (http, tube) = (args.server.connect.http()?, TubeName::new(&args.tube)?);
    let deliveries = block_on(async { Ok(http.deliveries(&tube, args.count).await?) })?;
    if args.server.json {
        output::json_lines(&deliveries)?;
        return Ok(Exit::Ok);
    }
    let mut table = output::table(&["id", "lease", "taken at", "until", "session"]);
    for delivery in &deliveries {
        table.add_row([
            delivery.id.to_string(),
            delivery.lease.map(|lease| lease.to_string()).unwrap_or_default(),
            moment(delivery.time),
            moment(delivery.until),
            delivery.session.clone().unwrap_or_default(),
        ]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

/// Prints the waiting sessions.
pub fn consumers(args: &TubePageArgs) -> anyhow::Result<Exit> {
    let (http, tube) = (args.server.connect.http()?, TubeName::new(&args.tube)?);
    let consumers = block_on(async { Ok(http.consumers(&tube, args.count).await?) })?;
    if args.server.json {
        output::json_lines(&consumers)?;
        return Ok(Exit::Ok);
    }
    let mut table = output::table(&["waiting since", "until", "session"]);
    for consumer in &consumers {
        table.add_row([
            moment(Some(consumer.since)),
            moment(consumer.until),
            consumer.session.clone().unwrap_or_default(),
        ]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

/// A time in UTC; `never` without one.
fn moment(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "never".into(), units::utc)
}

//! `migrate`: upgrades the schema of a database.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anyhow::Context as _;
use clap::Args;
use taskyard_store::OpenOptions;
use taskyard_wire::Exit;

use crate::open_store::{self, STORE_WAIT};
use crate::output;

/// The arguments of `migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
`serve` upgrades the schema when it starts. Use this command to do it earlier, with a role that
may change the schema. It can run at any time and several times at once: it locks the database,
and changes nothing if the schema is current.

Examples:
  taskyard migrate --store postgres://owner@db/queue")]
pub struct MigrateArgs {
    /// The store: sqlite:DIR, postgres://…, redis://… or tarantool://…
    #[arg(long, value_name = "URL", env = "TASKYARD_STORE", hide_env_values = true)]
    store: String,
}

/// Opens the store, which migrates it, and closes it again.
pub fn run(args: MigrateArgs) -> anyhow::Result<Exit> {
    let options = OpenOptions { wait: STORE_WAIT, ..OpenOptions::default() };
    let store = open_store::open(&args.store, &options)?;
    let mut closing = pin!(store.close());
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let closed = loop {
        match closing.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(closed) => break closed,
            Poll::Pending => std::thread::park(),
        }
    };
    closed.context("cannot close the store")?;
    output::line(format!("the schema of {} is current", without_password(&args.store)))?;
    Ok(Exit::Ok)
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// The URL of a store without its password, for messages.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    // The query part may contain a password too.
    let rest = rest.split('?').next().unwrap_or_default();
    let Some((user, host)) = rest.rsplit_once('@') else { return format!("{scheme}://{rest}") };
    let name = user.split(':').next().unwrap_or_default();
    format!("{scheme}://{name}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, expected) in [
            ("memory:", "memory:"),
            ("sqlite:some/folder", "sqlite:some/folder"),
            ("postgres://db/queue", "postgres://db/queue"),
            ("postgres://ann@db/queue", "postgres://ann@db/queue"),
            ("postgres://ann:se:c@ret@db:5432/queue", "postgres://ann@db:5432/queue"),
            ("postgres://db/queue?user=ann&password=x", "postgres://db/queue"),
        ] {
            assert_eq!(without_password(url), expected);
        }
    }
}

//! `migrate`: bring a database to the form that this version needs.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anyhow::Context as _;
use clap::Args;
use taskyard_store::OpenOptions;
use taskyard_wire::Exit;

use crate::opening::{self, STORE_WAIT};
use crate::output;

/// Which database.
#[derive(Debug, Args)]
#[command(after_help = "\
`serve` does the same when it starts; this is for those who want it done before, by somebody who may
change the database. It may be run at any time and by several at once: the database is locked
meanwhile, and nothing is done when nothing is to do.

Examples:
  taskyard migrate --store postgres://owner@db/queue")]
pub struct MigrateArgs {
    /// Where tasks live: sqlite:DIR, postgres://…, redis://… or tarantool://…
    #[arg(long, value_name = "URL")]
    store: String,
}

/// Opens the store, which migrates it, and closes it again.
pub fn run(args: MigrateArgs) -> anyhow::Result<Exit> {
    let options = OpenOptions { wait: STORE_WAIT, ..OpenOptions::default() };
    let store = opening::open(&args.store, &options)?;
    let mut closing = pin!(store.close());
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let closed = loop {
        match closing.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(closed) => break closed,
            Poll::Pending => std::thread::park(),
        }
    };
    closed.context("cannot close it properly")?;
    output::line(format!("{} has the form of this version", shown(&args.store)))?;
    Ok(Exit::Ok)
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// The URL of a store as it may be shown: without a password.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    // What follows the question mark may name a password too.
    let rest = rest.split('?').next().unwrap_or_default();
    let Some((user, place)) = rest.rsplit_once('@') else { return format!("{scheme}://{rest}") };
    let name = user.split(':').next().unwrap_or_default();
    format!("{scheme}://{name}@{place}")
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
            assert_eq!(shown(url), expected);
        }
    }
}

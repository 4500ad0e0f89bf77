//! `demo`: a server in memory with producers and workers, to look around.

mod jobs;
mod load;

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use taskyard::Client;
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{BindError, Config, Listeners};
use taskyard_store::MemoryStore;
use taskyard_wire::Exit;

use crate::connect::program_anywhere;
use crate::document_routes::document_routes;
use crate::serve::{StopSignals, runtime, stop_at_first};
use crate::{log, output};

/// The usual port of a server.
const PORT: u16 = 7070;

/// The arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Tubes with realistic names and payloads, producers, and workers in the same process: failures with
errors, buried tasks, priorities, delays, sub-queues, a schedule, a semaphore and estimates.

Everything is in memory and on 127.0.0.1 only: Ctrl-C ends it and leaves nothing behind.

Examples:
  taskyard demo
  taskyard demo --no-open       does not open the page in the browser
  taskyard demo --seconds 60    ends by itself")]
pub struct DemoArgs {
    /// The port on 127.0.0.1; another one if it is in use.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Do not open the page in the browser; it is only opened from a terminal of a desktop.
    #[arg(long)]
    no_open: bool,
    /// End after this many seconds.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
}

/// Runs the example until a signal, or until its time is over.
pub fn run(args: DemoArgs) -> anyhow::Result<Exit> {
    log::start();
    runtime()?.block_on(async {
        let listeners = listen(args.port).await?;
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let server = listeners.serve(engine.clone()).await?;
        let client = Client::new(engine);
        load::prepare(&client).await.context("cannot prepare the example")?;
        load::start(&client);
        drop(client);
        let (stop, again) = (StopSignals::new()?, StopSignals::new()?);
        // A closed standard output does not stop the example.
        let _ = output::bytes(screen(&server.url()).as_bytes());
        let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| is_set(name));
        if opens_page(args.no_open, output::is_terminal(), has_display) {
            open_page(&server.url());
        }
        let stopping = async {
            tokio::select! {
                () = stop_at_first(stop, again) => {}
                () = end_after(args.seconds) => {}
            }
        };
        server.run(stopping).await.context("cannot stop the server")?;
        let _ = output::line("stopped; nothing is left of it");
        Ok(Exit::Ok)
    })
}

/// Listens on this port, or on any if that is in use.
async fn listen(port: u16) -> Result<Listeners, BindError> {
    let at = |port| Config {
        program: program_anywhere(),
        extra_routes: vec![document_routes()],
        ..Config::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    match Listeners::bind(at(port)).await {
        Err(BindError::Busy(_)) => Listeners::bind(at(0)).await,
        bound => bound,
    }
}

async fn end_after(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// The start message.
fn screen(url: &str) -> String {
    let program = program_anywhere();
    format!(
        "taskyard {} with an example, in memory\n\n\
         \x20 page   {url}\n\n\
         Three things to look at:\n\
         \x20 {url}/tubes/webhooks.deliver  deliveries that fail, their errors, and buried tasks to retry\n\
         \x20 {program} tasks images.resize --estimate --url {url}  why each task waits, and when it starts\n\
         \x20 {program} top --url {url}  rates and latencies of all tubes\n\n\
         Ctrl-C ends it and leaves nothing behind.\n",
        env!("CARGO_PKG_VERSION"),
    )
}

/// Whether a variable of the environment has a value.
fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Whether the page is opened: a person sees it, and did not decline.
fn opens_page(no_open: bool, is_terminal: bool, has_display: bool) -> bool {
    !no_open && is_terminal && has_display
}

/// Opens the page in the browser of the desktop.
fn open_page(url: &str) {
    let mut open = Command::new("xdg-open");
    open.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match open.spawn() {
        // It ends when the browser has the address.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => output::note(format!("cannot open the page: {error}; open {url} yourself")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_opened_for_a_person_at_a_desktop() {
        assert!(opens_page(false, true, true));
        for (no_open, is_terminal, has_display) in
            [(true, true, true), (false, false, true), (false, true, false)]
        {
            assert!(!opens_page(no_open, is_terminal, has_display));
        }
    }
}

//! How client commands find and ask the server.

use std::convert::Infallible;
use std::env;
use std::future::Future;

use clap::Args;
use taskyard::{Http, HttpError};
use taskyard_core::{Command, Reply};

use crate::output::quoted;

/// Where a server listens unless told otherwise.
pub const URL_DEFAULT: &str = "http://127.0.0.1:7070";

/// Where the server is.
#[derive(Clone, Debug, Args)]
pub struct ConnectArgs {
    /// Where the server is; http:// may be left out.
    #[arg(long, env = "TASKYARD_URL", default_value = URL_DEFAULT, value_name = "URL")]
    #[arg(value_parser = with_scheme)]
    #[arg(help_heading = "Server")]
    url: String,
    /// The token that the server asks for.
    #[arg(long, env = "TASKYARD_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    #[arg(help_heading = "Server")]
    token: Option<String>,
}

impl ConnectArgs {
    /// The server, not yet spoken to.
    pub fn http(&self) -> Result<Http, HttpError> {
        let http = Http::new(&self.url)?;
        match self.token.as_deref().filter(|token| !token.trim().is_empty()) {
            Some(token) => http.with_token(token),
            None => Ok(http),
        }
    }

    /// Asks one thing.
    pub fn ask(&self, command: Command) -> anyhow::Result<Reply> {
        let http = self.http()?;
        block_on(async { Ok(http.ask(command).await?) })
    }

    /// What to add to a command line that a person pastes, so that it reaches the same server.
    pub fn flags(&self) -> String {
        let known =
            env::var("TASKYARD_URL").is_ok_and(|url| with_scheme(&url).as_ref() == Ok(&self.url));
        if known || self.url == URL_DEFAULT {
            return String::new();
        }
        format!(" --url {}", quoted(&self.url))
    }
}

/// The address with its scheme: people write `localhost:7071`.
fn with_scheme(url: &str) -> Result<String, Infallible> {
    Ok(if url.contains("://") { url.to_owned() } else { format!("http://{url}") })
}

/// This program as the person called it, for lines to paste.
pub fn program() -> String {
    env::args().next().map_or_else(|| "taskyard".into(), |name| quoted(&name))
}

/// Runs to the end on this thread.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work)
}

/// What is said of an answer that does not fit the question.
pub fn misfit(verb: &str) -> anyhow::Error {
    anyhow::anyhow!("the server answered something else to {verb}; is it the same version?")
}

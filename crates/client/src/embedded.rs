//! A queue inside this process.

use std::panic::resume_unwind;
use std::sync::Arc;

use taskyard_core::{Command, Error as Refusal, Execute, Kind, Reply, TubeOptions};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_store::OpenOptions;
use taskyard_stores::open;

use crate::client::Client;
use crate::error::Result;

/// A store and its engine in this process. Cheap to clone: clones share the queue.
#[derive(Clone, Debug)]
pub struct Embedded {
    engine: Engine,
    strict: bool,
}

impl Client {
    /// Opens the store at this URL with a memory budget, or a damaged one.
    pub async fn open_with(url: &str, options: &OpenOptions) -> Result<Self> {
        let (url, options) = (url.to_owned(), options.clone());
        // A store reads its files or waits for its database.
        let opened = tokio::task::spawn_blocking(move || open(&url, &options)).await;
        let store = opened.unwrap_or_else(|ended| resume_unwind(ended.into_panic()))?;
        // No caller of an embedded queue can read time series or the list of workers.
        let settings = Settings { series_tubes_max: 0, workers_max: 0, ..Settings::default() };
        Ok(Client::embedded(Engine::start(store, Arc::new(SystemClock::new()), settings)))
    }

    /// A client of an engine that this process has started itself. The first put into a tube creates it.
    pub fn embedded(engine: Engine) -> Self {
        Client::new(Embedded { engine, strict: false })
    }
}

impl Embedded {
    /// The engine, for what a client does not offer.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Refuses a put into a tube that does not exist.
    pub(crate) fn strict_tubes(self) -> Self {
        Embedded { strict: true, ..self }
    }

    /// Creates the tube of a refused put, and puts again.
    async fn put_into_new_tube(&self, put: Command) -> Result<Reply, Refusal> {
        let Command::Put { tube, .. } = &put else { return Ok(Reply::Nothing) };
        let create = Command::CreateTube {
            tube: tube.clone(),
            options: TubeOptions::new(Kind::FifoTtl),
            if_not_exists: true,
        };
        let mut replies = self.engine.execute(vec![create, put]).await;
        let put = replies.pop().unwrap_or(Err(Refusal::ShuttingDown));
        replies.pop().unwrap_or(Err(Refusal::ShuttingDown)).and(put)
    }
}

impl Execute for Embedded {
    /// A put that found no tube is repeated after the other commands of the batch.
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Refusal>> {
        let copies = if self.strict { Vec::new() } else { puts_of(&commands) };
        let mut replies = self.engine.execute(commands).await;
        for (index, put) in copies {
            if let Some(reply @ Err(Refusal::TubeNotFound(_))) = replies.get_mut(index) {
                // In a box, because it is rare: every request is as large as its largest part.
                *reply = Box::pin(self.put_into_new_tube(put)).await;
            }
        }
        replies
    }

    /// Only a store that is reached over a network loses replies.
    fn may_lose_replies(&self) -> bool {
        self.engine.capabilities().shared
    }
}

/// The puts of a batch, each with its index.
fn puts_of(commands: &[Command]) -> Vec<(usize, Command)> {
    let is_put = |(_, command): &(usize, &Command)| matches!(command, Command::Put { .. });
    let puts = commands.iter().enumerate().filter(is_put);
    puts.map(|(index, command)| (index, command.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // They had grown to 2,664 bytes, which every call copied; single puts of many callers were 14 % slower.
    #[tokio::test]
    async fn futures_stay_small() {
        let client = Client::open_with("memory:", &OpenOptions::default()).await.unwrap();
        let embedded = client.transport::<Embedded>().unwrap();
        let size = size_of_val(&embedded.execute(Vec::new()));
        assert!(size <= 800, "a call has {size} bytes");
        let put = size_of_val(&client.put_tasks("mail", Vec::new(), Default::default()));
        assert!(put <= 400, "a put has {put} bytes");
    }
}

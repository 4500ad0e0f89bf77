//! A queue inside this process.

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

impl Client<Embedded> {
    /// Opens a queue for this process alone: `memory:`, lost at the end of the process, or `sqlite:DIR`, on disk.
    ///
    /// ```
    /// # async fn example() -> Result<(), taskyard::Error> {
    /// use std::time::Duration;
    ///
    /// let client = taskyard::Client::open("memory:")?;
    /// client.put("mail", "hello").await?;
    /// let task = client.take("mail", Duration::ZERO).await?.expect("there is one");
    /// assert_eq!(task.data::<String>()?, "hello");
    /// client.ack(&task).await?;
    /// client.close().await
    /// # }
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(example()).unwrap();
    /// ```
    pub fn open(url: &str) -> Result<Self> {
        Client::open_with(url, &OpenOptions::default())
    }

    /// Opens a queue with a memory budget, or a damaged store.
    pub fn open_with(url: &str, options: &OpenOptions) -> Result<Self> {
        let store = open(url, options)?;
        // No caller of an embedded queue can read time series or the list of workers.
        let settings = Settings { series_tubes_max: 0, workers_max: 0, ..Settings::default() };
        let engine = Engine::start(store, Arc::new(SystemClock::new()), settings);
        Ok(Client::new(Embedded { engine, strict: false }))
    }

    /// Refuses a put into a tube that does not exist, instead of creating the tube.
    pub fn strict_tubes(mut self) -> Self {
        self.queue.strict = true;
        self
    }

    /// Finishes all pending commands and closes the store. Taken tasks are ready for the next
    /// process.
    pub async fn close(&self) -> Result<()> {
        Ok(self.queue.engine.stop().await?)
    }
}

impl Embedded {
    /// The engine, for what a client does not offer.
    pub fn engine(&self) -> &Engine {
        &self.engine
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
        let is_put = |command: &Command| matches!(command, Command::Put { .. });
        let puts: Vec<Option<Command>> = if self.strict {
            Vec::new()
        } else {
            commands.iter().map(|command| is_put(command).then(|| command.clone())).collect()
        };
        let mut replies = self.engine.execute(commands).await;
        for (reply, put) in replies.iter_mut().zip(puts) {
            if let (Err(Refusal::TubeNotFound(_)), Some(put)) = (&reply, put) {
                *reply = self.put_into_new_tube(put).await;
            }
        }
        replies
    }

    /// Only a store that is reached over a network loses replies.
    fn may_lose_replies(&self) -> bool {
        self.engine.capabilities().shared
    }
}

//! One task of one client, from its arrival to its last frame. Dropping it frees everything.

use std::sync::Arc;

use taskyard_core::Span;
use tokio::sync::mpsc;

use crate::backend::{Plan, Running};
use crate::pool::Pool;
use crate::protocol::Outgoing;
use crate::scheduler::{Move, Place, Stopping};

/// A task under way.
#[derive(Debug)]
pub struct Visit {
    pool: Pool,
    plan: Arc<Plan>,
    place: Place,
    running: Option<Running>,
    ended: bool,
}

/// What is said next.
#[derive(Debug)]
pub enum News {
    /// A frame for the client.
    Frame(Outgoing),
    /// Nothing more.
    End,
}

impl Visit {
    /// The task arrives at the scheduler.
    pub async fn begin(pool: Pool, plan: Plan) -> Result<Self, Stopping> {
        let place = pool.0.scheduler.arrive(plan.ask, Arc::default()).await?;
        Ok(Visit { pool, plan: Arc::new(plan), place, running: None, ended: false })
    }

    /// The next thing to say. It may be dropped and asked again without losing anything.
    pub async fn next(&mut self) -> News {
        while !self.ended {
            let runs = self.running.is_some();
            tokio::select! {
                biased;
                frame = next_frame(&mut self.running) => match frame {
                    Some(frame) => return self.say(frame),
                    // The backend is gone; whether the task goes on is the scheduler's next word.
                    None => self.running = None,
                },
                step = next_move(&mut self.place.moves, runs) => match step {
                    Some(Move::Start(allocation)) => {
                        let running = self.pool.0.backends.run(allocation, self.plan.clone());
                        self.running = Some(running);
                    }
                    Some(Move::Deny(why)) => return self.say(Outgoing::Deny(why)),
                    Some(Move::Lost) => {
                        let why = "the program or its backend was killed";
                        return self.say(Outgoing::Complete(Some(why.into())));
                    }
                    None => {
                        let why = "the pool is stopping";
                        return self.say(Outgoing::Complete(Some(why.into())));
                    }
                },
                Ok(()) = self.place.news.changed(), if !runs => {
                    let news = self.place.news.borrow_and_update().clone();
                    if let Some(news) = news {
                        return News::Frame(Outgoing::Queue(news));
                    }
                }
            }
        }
        News::End
    }

    fn say(&mut self, frame: Outgoing) -> News {
        self.ended = frame.is_last();
        News::Frame(frame)
    }

    /// The client wants less time; what is wrong with that is the answer.
    pub async fn lower(&mut self, wish: Span) -> Result<(), String> {
        match self.place.lower(wish).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The way to the program's standard input; nothing before it runs.
    pub fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.running.as_ref().map(|running| running.input.clone())
    }
}

async fn next_frame(running: &mut Option<Running>) -> Option<Outgoing> {
    match running {
        Some(running) => running.frames.recv().await,
        None => std::future::pending().await,
    }
}

/// What happens next to the task. When the scheduler has nothing more to say while the program has, that is the
/// end of the program, and comes with its frames.
async fn next_move(moves: &mut mpsc::UnboundedReceiver<Move>, runs: bool) -> Option<Move> {
    match moves.recv().await {
        None if runs => std::future::pending().await,
        step => step,
    }
}

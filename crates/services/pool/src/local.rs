//! The way of a task within one process: the scheduler gives it a backend, which runs it.

use std::sync::Arc;

use serde_json::Value;
use taskyard_core::Span;
use tokio::sync::mpsc;

use crate::backend::{Backends, Plan, Running};
use crate::gateway::{Away, Soon, Stay, Yard};
use crate::protocol::Outgoing;
use crate::scheduler::{Move, Place, Scheduler, Stopping};

/// What is said to those whose program was killed, or its backend.
pub(crate) const LOST: &str = "the program or its backend was killed";
/// What is said to everybody who is here when the pool ends.
const STOPPING: &str = "the pool is stopping";

/// The scheduler and the backends of this process.
#[derive(Debug)]
pub(crate) struct Local {
    pub scheduler: Scheduler,
    pub backends: Arc<Backends>,
}

impl Yard for Local {
    fn arrive(&self, plan: Plan) -> Soon<'_, Result<Box<dyn Stay>, Away>> {
        Box::pin(async move {
            let place = self.scheduler.arrive(plan.ask, Arc::default()).await?;
            let (plan, backends) = (Arc::new(plan), self.backends.clone());
            Ok(Box::new(LocalStay { backends, plan, place, running: None }) as Box<dyn Stay>)
        })
    }

    fn status(&self) -> Soon<'_, Result<Value, Away>> {
        Box::pin(async move {
            let status = self.scheduler.status().await?;
            let mut body = serde_json::to_value(status).unwrap_or_default();
            body["not_isolated"] = self.backends.isolation().gaps().into();
            body["walls"] = serde_json::to_value(self.backends.walls()).unwrap_or_default();
            body["folders"] = self.backends.folders().into();
            Ok(body)
        })
    }
}

impl From<Stopping> for Away {
    fn from(stopping: Stopping) -> Self {
        Away(stopping.to_string())
    }
}

/// A task of this process.
#[derive(Debug)]
struct LocalStay {
    backends: Arc<Backends>,
    plan: Arc<Plan>,
    place: Place,
    running: Option<Running>,
}

impl LocalStay {
    async fn next_frame(&mut self) -> Outgoing {
        loop {
            let runs = self.running.is_some();
            tokio::select! {
                biased;
                frame = frame_of(&mut self.running) => match frame {
                    Some(frame) => return frame,
                    // The backend is gone; whether the task goes on is the scheduler's next word.
                    None => self.running = None,
                },
                step = next_move(&mut self.place.moves, runs) => match step {
                    Some(Move::Start(allocation)) => {
                        self.running = Some(self.backends.run(allocation, self.plan.clone()));
                    }
                    Some(Move::Deny(why)) => return Outgoing::Deny(why),
                    Some(Move::Lost) => return Outgoing::Complete(Some(LOST.into())),
                    None => return Outgoing::Complete(Some(STOPPING.into())),
                },
                Ok(()) = self.place.news.changed(), if !runs => {
                    let news = self.place.news.borrow_and_update().clone();
                    if let Some(news) = news {
                        return Outgoing::Queue(news);
                    }
                }
            }
        }
    }
}

impl Stay for LocalStay {
    fn next(&mut self) -> Soon<'_, Outgoing> {
        Box::pin(self.next_frame())
    }

    fn lower(&mut self, wish: Span) -> Soon<'_, Result<(), String>> {
        Box::pin(async move {
            match self.place.lower(wish).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.running.as_ref().map(|running| running.input.clone())
    }
}

async fn frame_of(running: &mut Option<Running>) -> Option<Outgoing> {
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

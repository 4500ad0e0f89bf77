//! One task of one client, from its arrival to its last frame. Dropping it frees everything.

use taskyard_core::Span;
use tokio::sync::mpsc;

use super::gate::Gate;
use super::yard::{Away, Stay};
use crate::backend::Plan;
use crate::protocol::Outgoing;

/// A task under way.
#[derive(Debug)]
pub struct Visit {
    stay: Box<dyn Stay>,
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
    /// The task arrives at the pool.
    pub async fn begin(gate: &Gate, plan: Plan) -> Result<Self, Away> {
        let stay = gate.0.yard.arrive(plan).await?;
        Ok(Visit { stay, ended: false })
    }

    /// The next thing to say. It may be dropped and asked again without losing anything.
    pub async fn next(&mut self) -> News {
        if self.ended {
            return News::End;
        }
        let frame = self.stay.next().await;
        self.ended = frame.is_last();
        News::Frame(frame)
    }

    /// The client wants less time; what is wrong with that is the answer.
    pub async fn lower(&mut self, wish: Span) -> Result<(), String> {
        self.stay.lower(wish).await
    }

    /// The way to the program's standard input; nothing before it runs.
    pub fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.stay.input()
    }
}

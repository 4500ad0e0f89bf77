//! What the desk decided, as calls to Redis.

use std::collections::HashMap;

use taskyard_core::classes::Ticket;
use taskyard_redis::Call;

use super::NO_WISH;
use super::wire::Wire;
use crate::local::LOST;
use crate::scheduler::{Desk, Order};

/// Most clients that are told by one call.
const TOLD_AT_ONCE: usize = 200;

/// The run of a task that holds a backend: its name in Redis, and its number at the desk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub name: String,
    pub number: u64,
}

/// Makes calls of orders, all with the number under which this scheduler leads.
pub(super) struct Orders<'a> {
    pub wire: &'a Wire,
    pub lead: &'a str,
    /// How long what clients are told is kept, in milliseconds.
    pub lease: String,
    pub attempts: &'a mut HashMap<Ticket, Attempt>,
}

/// A call, and whose start it is.
pub(super) type Step = (Call, Option<Ticket>);

impl Orders<'_> {
    /// The calls, in the order in which they must be made.
    pub fn calls(&mut self, desk: &Desk, orders: Vec<Order>) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut told: Vec<String> = Vec::new();
        for order in orders {
            if let Order::News(ticket, news) = &order {
                told.push(ticket.to_string());
                told.push(serde_json::to_string(news).unwrap_or_default());
                continue;
            }
            steps.extend(self.step(desk, order));
        }
        for part in told.chunks(TOLD_AT_ONCE * 2) {
            let mut args = vec![self.lead.to_owned(), self.lease.clone()];
            args.extend_from_slice(part);
            steps.push((self.wire.prepare("tell", args), None));
        }
        steps
    }

    /// A task takes its place in the queue again.
    pub fn put_back(&self, ticket: Ticket, attempt: &str) -> Step {
        (self.call("put_back", ticket, &[attempt.to_owned()]), None)
    }

    /// A run was lost, and its task with it, unless that has ended meanwhile.
    pub fn lose(&self, ticket: Ticket, attempt: &str) -> Step {
        let words = ["lost".into(), LOST.into(), attempt.to_owned()];
        (self.call("give_up", ticket, &words), None)
    }

    fn step(&mut self, desk: &Desk, order: Order) -> Option<Step> {
        match order {
            Order::Start { ticket, attempt, limit, again } => {
                // Numbers of the desk begin again with each lead, those of leads never do.
                let name = format!("{}-{attempt}", self.lead);
                self.attempts.insert(ticket, Attempt { name: name.clone(), number: attempt });
                let class = desk.class_now(ticket).map_or("-".into(), |class| class.to_string());
                let kind = desk.kind(ticket).map_or("explicit", |kind| kind.name());
                let limit = limit.map_or("-".into(), |limit| limit.as_micros().to_string());
                let args = [name, class, kind.to_owned(), limit, u8::from(again).to_string()];
                Some((self.call("start", ticket, &args), Some(ticket)))
            }
            Order::Limit(ticket, limit) => {
                let class = desk.class_now(ticket).unwrap_or_default().to_string();
                let limit = limit.as_micros().min(u128::from(NO_WISH)).to_string();
                let attempt = self.attempts.get(&ticket)?.name.clone();
                Some((self.call("lower", ticket, &[attempt, class, limit]), None))
            }
            Order::Halt(ticket, why) => {
                let attempt = self.attempts.remove(&ticket)?.name;
                Some((self.call("halt", ticket, &[attempt, why]), None))
            }
            Order::Deny(ticket, why) => {
                Some((self.call("give_up", ticket, &["deny".into(), why]), None))
            }
            Order::Lost(ticket) => {
                Some((self.call("give_up", ticket, &["lost".into(), LOST.into()]), None))
            }
            Order::News(..) => None,
        }
    }

    fn call(&self, function: &'static str, ticket: Ticket, args: &[String]) -> Call {
        let mut all = vec![self.lead.to_owned(), ticket.to_string()];
        all.extend_from_slice(args);
        self.wire.prepare(function, all)
    }
}

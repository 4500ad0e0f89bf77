//! Translates the actions of the scheduler state into calls to Redis.

use std::collections::BTreeMap;

use taskyard_core::classes::Ticket;
use taskyard_redis::Call;

use super::NO_DURATION;
use super::client::RedisClient;
use crate::local_pool::LOST_ERROR;
use crate::scheduler::{Action, SchedulerState};

/// How many estimates one call publishes.
const ESTIMATES_PER_CALL: usize = 200;

/// The run of a task that holds a backend: its name in Redis, and its number in the scheduler state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub name: String,
    pub number: u64,
}

/// Builds the calls, all with the number of this scheduler's lead.
pub(super) struct ActionCalls<'a> {
    pub redis: &'a RedisClient,
    pub lead: &'a str,
    /// How long estimates are stored, in milliseconds.
    pub lease: String,
    pub attempts: &'a mut BTreeMap<Ticket, Attempt>,
}

/// A call, and the task if it is a start.
pub(super) type Step = (Call, Option<Ticket>);

impl ActionCalls<'_> {
    /// The calls, in the order in which they must be made.
    pub fn calls(&mut self, state: &SchedulerState, actions: Vec<Action>) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut estimates: Vec<String> = Vec::new();
        for action in actions {
            if let Action::Estimate(ticket, position) = &action {
                estimates.push(ticket.to_string());
                estimates.push(serde_json::to_string(position).unwrap_or_default());
                continue;
            }
            steps.extend(self.step(state, action));
        }
        for part in estimates.chunks(ESTIMATES_PER_CALL * 2) {
            let mut args = vec![self.lead.to_owned(), self.lease.clone()];
            args.extend_from_slice(part);
            steps.push((self.redis.prepare("publish_estimates", args), None));
        }
        steps
    }

    /// Requeues a task at its old position.
    pub fn requeue(&self, ticket: Ticket, attempt: &str) -> Step {
        (self.call("requeue", ticket, &[attempt.to_owned()]), None)
    }

    /// Ends a task whose run was lost, unless the run has ended meanwhile.
    pub fn end_lost(&self, ticket: Ticket, attempt: &str) -> Step {
        let args = ["lost".into(), LOST_ERROR.into(), attempt.to_owned()];
        (self.call("end_task", ticket, &args), None)
    }

    fn step(&mut self, state: &SchedulerState, action: Action) -> Option<Step> {
        match action {
            Action::Start { ticket, attempt, limit, may_rerun } => {
                // Run numbers begin again with each lead, numbers of leads never do.
                let name = format!("{}-{attempt}", self.lead);
                self.attempts.insert(ticket, Attempt { name: name.clone(), number: attempt });
                let class =
                    state.current_class(ticket).map_or("-".into(), |class| class.to_string());
                let kind = state.kind(ticket).map_or("explicit", |kind| kind.name());
                let limit = limit.map_or("-".into(), |limit| limit.as_micros().to_string());
                let args = [name, class, kind.to_owned(), limit, u8::from(may_rerun).to_string()];
                Some((self.call("start", ticket, &args), Some(ticket)))
            }
            Action::Limit(ticket, limit) => {
                let class = state.current_class(ticket).unwrap_or_default().to_string();
                let limit = limit.as_micros().min(u128::from(NO_DURATION)).to_string();
                let attempt = self.attempts.get(&ticket)?.name.clone();
                Some((self.call("lower", ticket, &[attempt, class, limit]), None))
            }
            Action::Halt(ticket, why) => {
                let attempt = self.attempts.remove(&ticket)?.name;
                Some((self.call("halt", ticket, &[attempt, why]), None))
            }
            Action::Deny(ticket, why) => {
                Some((self.call("end_task", ticket, &["deny".into(), why]), None))
            }
            Action::Lost(ticket) => {
                Some((self.call("end_task", ticket, &["lost".into(), LOST_ERROR.into()]), None))
            }
            Action::Estimate(..) => None,
        }
    }

    fn call(&self, function: &'static str, ticket: Ticket, args: &[String]) -> Call {
        let mut all = vec![self.lead.to_owned(), ticket.to_string()];
        all.extend_from_slice(args);
        self.redis.prepare(function, all)
    }
}

//! Serves `taskyard.run_schedule`: puts the task of a schedule, whose payload the client need not see.

use std::sync::Arc;

use taskyard_core::access::{AccessTarget, Denied};
use taskyard_core::{
    Command, Reply, Result as CoreResult, ScheduleCommand, ScheduleName, ScheduleReply,
};
use taskyard_iproto::{RUN_SCHEDULE, encode_executed, faults};

use super::batch::Completion;
use super::expected_replies::ReplySize;
use super::inflight::WaitMode;
use super::protocol_session::{ProtocolSession, ReplyTo};
use super::replies::unexpected_reply;
use super::server::IprotoServer;
use crate::users::Principal;

impl ProtocolSession {
    /// Puts the task of a schedule that the user may run, and records it.
    pub(super) fn run_schedule(&mut self, reply_to: ReplyTo, name: ScheduleName) {
        // The schedule may be set by a request before this one.
        self.submit();
        if !self.admit(reply_to) {
            return;
        }
        let draft = self.draft("run_schedule", AccessTarget::Schedule(name.as_str()));
        let charge = self.expected.add(ReplySize::Small);
        let (server, share) = (self.server.clone(), self.batch.share.split());
        let mut user = self.principal.clone();
        let future = Box::pin(async move {
            let (recorded, result) = match put_now(&server, &mut user, name).await {
                Ok(reply) => {
                    let mut data = Vec::new();
                    let recorded = draft.finish(reply.as_ref());
                    encode_executed(&mut data, &[reply]);
                    (recorded, Ok(data))
                }
                Err(denied) => {
                    let fault = faults::denied(RUN_SCHEDULE, user.name()).because(&denied);
                    (draft.refused(&denied.to_string()), Err(fault))
                }
            };
            recorded.written().await;
            Completion::Encoded { reply_to, result, charge, share }
        });
        self.start(future, WaitMode::Immediate);
    }
}

/// Puts the task of a schedule, if the user may put into its tube.
async fn put_now(
    server: &Arc<IprotoServer>,
    user: &mut Principal,
    name: ScheduleName,
) -> Result<CoreResult<Reply>, Denied> {
    let get = Command::Schedule(Box::new(ScheduleCommand::Get { name }));
    let schedule = match server.execute_one(get).await {
        Ok(Reply::Schedule(ScheduleReply::Schedules(mut found))) if !found.is_empty() => {
            found.remove(0)
        }
        Ok(_) => return Ok(Err(unexpected_reply())),
        Err(error) => return Ok(Err(error)),
    };
    let put = match schedule.run_now() {
        Ok(put) => put,
        Err(error) => return Ok(Err(error)),
    };
    // The users may have changed meanwhile.
    server.users.refresh(user);
    user.permissions().check(&put)?;
    Ok(server.execute_one(put).await)
}

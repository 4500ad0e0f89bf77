//! Records actions of operators and administrators that arrive over iproto.

use taskyard_core::access::{AccessTarget, AccessVerb, Denied, audited_action};
use taskyard_core::{Command, Reply, Result as CoreResult};
use taskyard_iproto::{Call, CallAction};

use super::access::verb_of_method;
use super::protocol_session::ProtocolSession;
use crate::audit::{AuditDraft, Requester, TaskCounts};

/// The audit entries of a batch, each with the position of its command.
#[derive(Debug, Default)]
pub(super) struct BatchDrafts(Vec<(usize, AuditDraft)>);

impl BatchDrafts {
    /// Counts the tasks that commands of the batch change, where an entry says it and no reply does.
    pub fn count(&self, commands: Vec<Command>) -> (Vec<Command>, TaskCounts) {
        match self.0.is_empty() {
            true => (commands, TaskCounts::default()),
            false => TaskCounts::insert(commands),
        }
    }

    /// Records the outcomes, before the replies are sent; returns the replies to the commands of the client.
    pub async fn record(
        self,
        replies: Vec<CoreResult<Reply>>,
        counts: TaskCounts,
    ) -> Vec<CoreResult<Reply>> {
        let (replies, before) = counts.remove(replies);
        for (position, draft) in self.0 {
            // Without a reply the outcome stays unknown.
            if let Some(reply) = replies.get(position) {
                let before = before.of(position);
                draft.finish_counted(reply.as_ref(), before).written().await;
            }
        }
        replies
    }
}

impl ProtocolSession {
    /// Begins the audit entry of a call, if it has one, before it is added to the batch.
    pub(super) fn audit_call(&mut self, command: &Command) {
        if self.is_audited_call(command)
            && let Some(draft) = self.draft_of(command)
        {
            self.batch.drafts.0.push((self.batch.commands.len(), draft));
        }
    }

    /// Begins the audit entries of native commands before they are added to the batch.
    pub(super) fn audit_native(&mut self, commands: &[Command]) {
        for (position, command) in (self.batch.commands.len()..).zip(commands) {
            if let Some(draft) = self.draft_of(command) {
                self.batch.drafts.0.push((position, draft));
            }
        }
    }

    /// Records the refusal of a call, if it would have been audited. The line is written soon after
    /// the answer is sent.
    pub(super) fn audit_refusal(&self, call: &Call, denied: &Denied) {
        let error = denied.to_string();
        let refuse = |command: &Command| {
            if let Some(draft) = self.draft_of(command) {
                drop(draft.refused(&error));
            }
        };
        match &call.action {
            CallAction::Command(command, _) if self.is_audited_call(command) => refuse(command),
            CallAction::Batch(commands) => commands.iter().for_each(refuse),
            CallAction::DependsOnKind { tube, .. }
                if verb_of_method(call.function).is_audited() =>
            {
                let target = AccessTarget::Tube(tube.as_str());
                drop(self.draft(call.function, target).refused(&error));
            }
            CallAction::RunSchedule { name } => {
                let target = AccessTarget::Schedule(name.as_str());
                drop(self.draft(call.function, target).refused(&error));
            }
            CallAction::NoSettings => {
                drop(self.draft("configure_sessions", AccessTarget::All).refused(&error));
            }
            _ => {}
        }
    }

    /// Records the refusal of tubes that an expression would have created.
    pub(super) fn audit_refused_tubes(&self, commands: &[Command], denied: &Denied) {
        let drafts = commands.iter().filter_map(|command| self.draft_of(command));
        drafts.for_each(|draft| drop(draft.refused(&denied.to_string())));
    }

    /// The method `bury` never names a delivery: it is how consumers set aside what they have taken. A user who
    /// may not take from the tube is no consumer.
    fn is_audited_call(&self, command: &Command) -> bool {
        match command {
            Command::Finish { tube, .. } => audited_action(command).is_some_and(|action| {
                action.verb != AccessVerb::BuryAny
                    || !self.permissions().allows(AccessVerb::Take, tube.as_str())
            }),
            _ => true,
        }
    }

    fn draft_of(&self, command: &Command) -> Option<AuditDraft> {
        AuditDraft::of_command(&self.server.audit, command, || self.requester())
    }

    /// Begins the audit entry of an action of several commands.
    pub(super) fn draft(&self, action: &str, target: AccessTarget<'_>) -> AuditDraft {
        AuditDraft::new(&self.server.audit, self.requester(), action, target)
    }

    fn requester(&self) -> Requester<'_> {
        Requester { user: self.principal.name(), peer: self.peer, protocol: "iproto" }
    }
}

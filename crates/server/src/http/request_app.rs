//! The state of the server as one request may use it: every command is checked for the rights of
//! its user, and what the user may not see is left out of the reply.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use taskyard_core::access::{AccessTarget, AccessVerb, Denied, Permissions};
use taskyard_core::{Command, Error, Reply, SemaphoreCommand};
use taskyard_wire::Code;

use super::Refusal;
use crate::app::{App, SharedApp, unanswered};
use crate::audit::{AuditDraft, Requester, TaskCounts};
use crate::guard::ClientConnection;
use crate::users::{Principal, UserKey};

/// The state of the server, and the user that sent the request.
#[derive(Clone)]
pub(crate) struct RequestApp {
    app: SharedApp,
    principal: Principal,
    /// The address of the client, if it is known.
    peer: Option<IpAddr>,
}

/// Why a command was not run.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The user may not run it.
    Denied {
        /// The name of the user.
        user: String,
        /// The missing right.
        denied: Denied,
    },
    /// It failed.
    Failed(Error),
}

impl RequestApp {
    /// The state for this user.
    pub fn new(app: SharedApp, principal: Principal, peer: Option<IpAddr>) -> Self {
        RequestApp { app, principal, peer }
    }

    /// Runs one command, if the user may. An action of an operator or administrator is recorded.
    pub async fn run(&self, command: Command) -> Result<Reply, RunError> {
        match self.draft_of(&command) {
            None => self.run_part(command).await,
            // What is rare is on the heap: the state of a call is copied with each request.
            Some(draft) => Box::pin(self.run_recorded(draft, command)).await,
        }
    }

    async fn run_recorded(&self, draft: AuditDraft, command: Command) -> Result<Reply, RunError> {
        let principal = self.principal();
        if let Err(denied) = principal.permissions().check(&command) {
            let refused = refused(&principal, denied);
            draft.refused(&refused.to_string()).written().await;
            return Err(refused);
        }
        let (commands, counts) = TaskCounts::insert(vec![command]);
        let replies = self.app.execute_as(principal.creator(), commands).await;
        let (mut replies, before) = counts.remove(replies);
        let mut reply = replies.pop().unwrap_or_else(|| Err(unanswered()));
        draft.finish_counted(reply.as_ref(), before.of(0)).written().await;
        if let Ok(reply) = &mut reply {
            principal.permissions().hide(reply);
        }
        Ok(reply?)
    }

    /// Runs one command, if the user may, as a part of an action that its caller records.
    pub async fn run_part(&self, command: Command) -> Result<Reply, RunError> {
        let principal = self.principal();
        principal.permissions().check(&command).map_err(|denied| refused(&principal, denied))?;
        let mut reply = match waits(&command) {
            true => Box::pin(self.run_waiting(&principal, command)).await?,
            false => self.app.run_as(principal.creator(), command).await?,
        };
        principal.permissions().hide(&mut reply);
        Ok(reply)
    }

    /// Runs a command that waits, as long as the user may: the users may change meanwhile. What the engine delivers to a future
    /// that is dropped returns.
    async fn run_waiting(
        &self,
        principal: &Principal,
        command: Command,
    ) -> Result<Reply, RunError> {
        let (mut changes, checked) = (self.app.users.changes(), command.clone());
        let mut running = pin!(self.app.run_as(principal.creator(), command));
        loop {
            // The first time as well: they may have changed right before.
            let current = self.principal();
            let found = current.permissions().check(&checked);
            found.map_err(|denied| refused(&current, denied))?;
            tokio::select! {
                biased;
                reply = &mut running => return Ok(reply?),
                Ok(()) = changes.changed() => {}
            }
        }
    }

    /// Runs one command that is part of a request for which the user has the rights.
    pub async fn run_checked(&self, command: Command) -> Result<Reply, Error> {
        let draft = self.draft_of(&command);
        let result = self.app.run_as(self.principal().creator(), command).await;
        if let Some(draft) = draft {
            draft.finish(result.as_ref()).written().await;
        }
        result
    }

    /// Begins an audit entry for an action of several commands.
    pub fn draft(&self, action: &str, target: AccessTarget<'_>) -> AuditDraft {
        AuditDraft::new(&self.app.audit, self.requester(), action, target)
    }

    fn draft_of(&self, command: &Command) -> Option<AuditDraft> {
        AuditDraft::of_command(&self.app.audit, command, || self.requester())
    }

    fn requester(&self) -> Requester<'_> {
        Requester { user: self.principal.name(), peer: self.peer, protocol: "http" }
    }

    /// Refuses unless the user may do this.
    pub fn require(&self, verb: AccessVerb, target: AccessTarget<'_>) -> Result<(), RunError> {
        let principal = self.principal();
        let found = principal.permissions().require(verb, target);
        found.map_err(|denied| refused(&principal, denied))
    }

    /// Identifies the user.
    pub fn user(&self) -> UserKey {
        self.principal.key()
    }

    /// Uses the rights of the user.
    pub fn with_permissions<T>(&self, using: impl FnOnce(&Permissions) -> T) -> T {
        using(self.principal().permissions())
    }

    /// The user with the current rights: a socket may be open for long.
    fn principal(&self) -> Principal {
        let mut principal = self.principal.clone();
        self.app.users.refresh(&mut principal);
        let has_ended = |session| !self.app.page_sessions.is_open(session);
        if principal.session().is_some_and(has_ended) {
            principal.withdraw();
        }
        principal
    }
}

/// Whether a command waits for a delivery.
fn waits(command: &Command) -> bool {
    match command {
        Command::Take(take) => !take.wait.is_zero(),
        Command::Semaphore(SemaphoreCommand::Events { wait, .. }) => !wait.is_zero(),
        _ => false,
    }
}

pub(super) fn refused(principal: &Principal, denied: Denied) -> RunError {
    RunError::Denied { user: principal.name().into(), denied }
}

impl Deref for RequestApp {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

impl FromRequestParts<SharedApp> for RequestApp {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &SharedApp) -> Result<Self, Refusal> {
        // Without the checks of `guard` there is no user, and so no right.
        let principal = parts.extensions.get::<Principal>().cloned();
        let principal =
            principal.ok_or_else(|| Refusal::new(Code::Forbidden, "the user is not known"))?;
        let peer = parts.extensions.get::<Arc<ClientConnection>>().map(|client| client.peer);
        Ok(RequestApp::new(app.clone(), principal, peer))
    }
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        RunError::Failed(error)
    }
}

impl From<RunError> for Refusal {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Failed(error) => error.into(),
            denied @ RunError::Denied { .. } => Refusal::new(Code::Forbidden, denied.to_string()),
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Denied { user, denied } => {
                write!(f, "user '{user}' may not do this: {denied}")
            }
            RunError::Failed(error) => error.fmt(f),
        }
    }
}

//! The state of the server as one request may use it: every command is checked for the rights of
//! its user, and what the user may not see is left out of the reply.

use std::fmt;
use std::ops::Deref;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use taskyard_core::access::{AccessTarget, AccessVerb, Denied, Permissions};
use taskyard_core::{Command, Error, Reply};
use taskyard_wire::Code;

use super::Refusal;
use crate::app::{App, SharedApp};
use crate::users::Principal;

/// The state of the server, and the user that sent the request.
#[derive(Clone)]
pub(crate) struct RequestApp {
    app: SharedApp,
    principal: Principal,
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
    /// Runs one command, if the user may.
    pub async fn run(&self, command: Command) -> Result<Reply, RunError> {
        let principal = self.principal();
        principal.permissions().check(&command).map_err(|denied| refused(&principal, denied))?;
        let mut reply = self.app.run_as(principal.creator(), command).await?;
        principal.permissions().hide(&mut reply);
        Ok(reply)
    }

    /// Runs one command that is part of a request for which the user has the rights.
    pub async fn run_checked(&self, command: Command) -> Result<Reply, Error> {
        self.app.run_as(self.principal().creator(), command).await
    }

    /// Refuses unless the user may do this.
    pub fn require(&self, verb: AccessVerb, target: AccessTarget<'_>) -> Result<(), RunError> {
        let principal = self.principal();
        let found = principal.permissions().require(verb, target);
        found.map_err(|denied| refused(&principal, denied))
    }

    /// Uses the rights of the user.
    pub fn with_permissions<T>(&self, using: impl FnOnce(&Permissions) -> T) -> T {
        using(self.principal().permissions())
    }

    /// The user with the current rights: a socket may be open for long.
    fn principal(&self) -> Principal {
        let mut principal = self.principal.clone();
        self.app.users.refresh(&mut principal);
        principal
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
        Ok(RequestApp { app: app.clone(), principal })
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

//! The rights that each endpoint needs at least, checked before a body is read.
//!
//! A role on the name in the path is required here; what the body asks for is checked with its
//! commands, by [`RequestApp`](super::RequestApp). An endpoint that is not listed is for
//! administrators.

use std::net::IpAddr;
use std::sync::Arc;

use axum::RequestExt;
use axum::body::HttpBody;
use axum::extract::{RawPathParams, Request};
use axum::http::Request as HttpRequest;
use taskyard_core::access::{AccessTarget, AccessVerb as Verb, Denied, Permissions};
use taskyard_wire::Code;

use super::Refusal;
use super::request_app::refused;
use crate::audit::{Audit, AuditDraft, Requester};
use crate::guard::{self, ClientConnection};
use crate::users::Principal;

/// The rights that an endpoint needs at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteAccess {
    /// None: it shows nothing about tasks.
    Open,
    /// None but a token or a session, or the rights of a guest: it shows nothing but the user.
    Admitted,
    /// One of these verbs, on the name in the path or, without one, on any name.
    Any(&'static [Verb]),
    /// This verb on all names.
    All(Verb),
}

/// What is checked of a request to an endpoint before its handler runs.
pub(crate) struct RouteChecks {
    pub access: RouteAccess,
    /// Whether a query is read.
    pub accepts_query: bool,
    /// Where refused requests may get an entry.
    pub audit: Arc<Audit>,
    /// The operation id.
    pub name: &'static str,
}

/// The entry of the endpoint with this operation id.
pub(crate) fn access_of(operation: &str) -> Option<RouteAccess> {
    use RouteAccess::{Admitted, All, Any, Open};
    Some(match operation {
        "health" | "openapi" | "sign_in" => Open,
        "show_session" | "sign_out" => Admitted,
        "metrics" | "manager" | "services" => All(Verb::ShowServer),
        "audit" => All(Verb::ShowAudit),
        "backup" => All(Verb::Backup),
        "list_tubes" | "show_tube" | "stats" | "series" | "consumers" | "positions" => {
            Any(&[Verb::ShowTube])
        }
        "workers" => Any(&[Verb::ShowWorkers]),
        "create_tube" => Any(&[Verb::CreateTube]),
        "alter_tube" => Any(&[Verb::PauseTube, Verb::AlterTube]),
        "name_tube" => Any(&[Verb::NameTube]),
        "drop_tube" => Any(&[Verb::DropTube]),
        "truncate" => Any(&[Verb::Truncate]),
        "release_all" => Any(&[Verb::ReleaseAll]),
        "put" => Any(&[Verb::Put]),
        "take" => Any(&[Verb::Take]),
        // Without a lease these end the delivery of any consumer.
        "ack" => Any(&[Verb::Ack, Verb::Delete]),
        "release" => Any(&[Verb::Release, Verb::ReleaseAll]),
        "touch" => Any(&[Verb::Touch, Verb::ReleaseAll]),
        "fail" | "finish" => Any(&[Verb::Release, Verb::ReleaseAll]),
        "bury" => Any(&[Verb::Bury]),
        "bury_tasks" => Any(&[Verb::BuryAny]),
        "kick" | "kick_tasks" => Any(&[Verb::Kick]),
        "delete" | "delete_tasks" => Any(&[Verb::Delete]),
        "release_tasks" => Any(&[Verb::ReleaseAll]),
        "peek" | "peek_one" | "tasks" => Any(&[Verb::Peek]),
        "deliveries" => Any(&[Verb::ShowHolders]),
        _ => return access_of_named(operation),
    })
}

/// The entries of semaphores and schedules.
fn access_of_named(operation: &str) -> Option<RouteAccess> {
    use RouteAccess::Any;
    Some(match operation {
        "list_semaphores" | "show_semaphore" | "holders" | "waiting" | "peek_semaphore" => {
            Any(&[Verb::ShowSemaphore])
        }
        "set_semaphore" | "drop_semaphore" => Any(&[Verb::ConfigureSemaphore]),
        "enqueue"
        | "finish_grants"
        | "semaphore_events"
        | "acknowledge_events"
        | "semaphore_event_socket" => Any(&[Verb::UseSemaphore]),
        "list_schedules" | "show_schedule" | "next_times" => Any(&[Verb::ShowSchedule]),
        "set_schedule" | "remove_schedule" => Any(&[Verb::SetSchedule]),
        "pause_schedule" | "resume_schedule" => Any(&[Verb::PauseSchedule]),
        // The task of a schedule is put into its tube.
        "run_schedule" => Any(&[Verb::RunSchedule]),
        _ => return None,
    })
}

impl RouteChecks {
    /// Refuses a request without the rights of its endpoint, with a query that would be ignored, or with content that is not JSON.
    pub async fn admit(&self, request: &mut Request) -> Result<(), Refusal> {
        let principal = request.extensions().get::<Principal>();
        if !principal.is_some_and(RouteChecks::may_do_all) {
            Box::pin(self.access.require(request, (&self.audit, self.name))).await?;
        }
        self.check_content(request)
    }

    /// Refuses a query that would be ignored, or content that is not JSON.
    pub fn check_content<B: HttpBody>(&self, request: &HttpRequest<B>) -> Result<(), Refusal> {
        if !self.accepts_query {
            guard::refuse_query(request)?;
        }
        guard::require_json(request)
    }

    /// Refuses a user without the rights of the endpoint for this target.
    pub async fn require(
        &self,
        principal: &Principal,
        peer: Option<IpAddr>,
        target: AccessTarget<'_>,
    ) -> Result<(), Refusal> {
        let of = (&self.audit, self.name);
        self.access.require_on(principal, peer, target, of).await
    }

    /// Whether a user has all rights.
    pub fn may_do_all(principal: &Principal) -> bool {
        *principal.permissions() == Permissions::All
    }

    /// The checks of this operation, without an audit.
    #[cfg(test)]
    pub fn of_test(name: &'static str) -> Self {
        let access = access_of(name).expect("every endpoint has an entry");
        RouteChecks { access, accepts_query: false, audit: Arc::default(), name }
    }
}

impl RouteAccess {
    /// Refuses a request without these rights; the entry of an audited one names the operation.
    pub async fn require(
        self,
        request: &mut Request,
        of: (&Arc<Audit>, &'static str),
    ) -> Result<(), Refusal> {
        let params = request.extract_parts::<RawPathParams>().await;
        let Some(principal) = request.extensions().get::<Principal>() else {
            return Err(Refusal::new(Code::Forbidden, "the user is not known"));
        };
        // A path that cannot be decoded is refused by the handler.
        let params = params.as_ref().ok().into_iter().flat_map(RawPathParams::iter);
        let target = params.into_iter().find_map(|(key, value)| match key {
            "tube" => Some(AccessTarget::Tube(value)),
            "semaphore" => Some(AccessTarget::Semaphore(value)),
            "schedule" => Some(AccessTarget::Schedule(value)),
            _ => None,
        });
        let target = target.unwrap_or(AccessTarget::Any);
        let client = request.extensions().get::<Arc<ClientConnection>>();
        self.require_on(principal, client.map(|client| client.peer), target, of).await
    }

    /// Refuses a user without these rights for this target.
    async fn require_on(
        self,
        principal: &Principal,
        peer: Option<IpAddr>,
        target: AccessTarget<'_>,
        (audit, operation): (&Arc<Audit>, &'static str),
    ) -> Result<(), Refusal> {
        let Some(denied) = self.missing(principal, target) else { return Ok(()) };
        let is_audited = denied.verb.is_audited();
        let refused = refused(principal, denied);
        if is_audited {
            let requester = Requester { user: principal.name(), peer, protocol: "http" };
            let draft = AuditDraft::new(audit, requester, action(operation), target);
            let recorded = draft.refused(&refused.to_string());
            recorded.written().await;
        }
        Err(Refusal::from(refused))
    }

    /// The right that is missing.
    fn missing(self, principal: &Principal, target: AccessTarget<'_>) -> Option<Denied> {
        let permissions: &Permissions = principal.permissions();
        match self {
            RouteAccess::Open | RouteAccess::Admitted => None,
            RouteAccess::All(verb) => permissions.require(verb, AccessTarget::All).err(),
            RouteAccess::Any(verbs) => {
                let mut found = verbs.iter().map(|verb| permissions.require(*verb, target).err());
                let first = found.next().flatten();
                first.filter(|_| found.all(|missing| missing.is_some()))
            }
        }
    }
}

/// The name of an action, which is the same for all tasks of a tube and for chosen ones.
fn action(operation: &'static str) -> &'static str {
    operation.strip_suffix("_tasks").unwrap_or(operation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes;

    // A new endpoint without an entry would be refused to all users but administrators, and its
    // rights would not be tested.
    #[test]
    fn every_endpoint_has_an_entry() {
        for route in routes() {
            let access = access_of(route.name);
            assert!(access.is_some(), "no entry for {} {}", route.method, route.path);
            assert_eq!(access == Some(RouteAccess::Open), route.open, "{}", route.name);
        }
    }
}

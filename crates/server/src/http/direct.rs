//! Answers requests for the tasks of a tube without the router, whose layers allocate and copy for every request.
//!
//! The router has the same endpoints, and answers whatever is not found here: other methods, encoded names, names
//! that are refused. Both ways make the same checks, in the same order, and call the same handlers.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use taskyard_core::TubeName;
use taskyard_core::access::AccessTarget;

use super::request::{Caller, Json, TubePath};
use super::route_access::RouteChecks;
use super::{Refusal, RequestApp};
use crate::app::SharedApp;
use crate::guard::{self, ClientConnection};
use crate::users::Principal;

/// How the path of an endpoint begins, before the name of its verb.
const PATTERN: &str = "/v1/tubes/{tube}/";
/// How the path of a request begins, before the name of the tube.
const TUBES: &str = "/v1/tubes/";

/// A response that is being made.
type PendingResponse = Pin<Box<dyn Future<Output = Response> + Send>>;
/// A handler with the extraction of its arguments.
pub(crate) type DirectHandler = Box<dyn Fn(TubeCall) -> PendingResponse + Send + Sync>;

/// An admitted request, from which a handler gets its arguments.
pub(crate) struct TubeCall {
    app: RequestApp,
    tube: TubePath,
    caller: Caller,
    body: Body,
}

/// A handler of a verb: an async function of user, tube and JSON body, and perhaps the caller.
pub(crate) trait TubeHandler<Args>: Send + Sync + 'static {
    /// Parses the body and runs the handler.
    fn begin(&self, call: TubeCall) -> PendingResponse;
}

impl<F, T, Running> TubeHandler<(T,)> for F
where
    F: Fn(RequestApp, TubePath, Json<T>) -> Running + Clone + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Running: Future<Output = Result<Response, Refusal>> + Send,
{
    fn begin(&self, call: TubeCall) -> PendingResponse {
        let handler = self.clone();
        Box::pin(async move {
            let TubeCall { app, tube, body, .. } = call;
            match app.request_reader.read(body).await {
                Ok(request) => handler(app, tube, Json(request)).await.into_response(),
                Err(error) => Refusal::from(error).into_response(),
            }
        })
    }
}

impl<F, T, Running> TubeHandler<(Caller, T)> for F
where
    F: Fn(RequestApp, TubePath, Caller, Json<T>) -> Running + Clone + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Running: Future<Output = Result<Response, Refusal>> + Send,
{
    fn begin(&self, call: TubeCall) -> PendingResponse {
        let handler = self.clone();
        Box::pin(async move {
            let TubeCall { app, tube, caller, body } = call;
            match app.request_reader.read(body).await {
                Ok(request) => handler(app, tube, caller, Json(request)).await.into_response(),
                Err(error) => Refusal::from(error).into_response(),
            }
        })
    }
}

/// The endpoints with the method POST and a path of tube and verb.
pub(crate) struct DirectRoutes(Vec<DirectRoute>);

/// One endpoint.
pub(crate) struct DirectRoute {
    verb: &'static str,
    path: &'static str,
    checks: Arc<RouteChecks>,
    handler: DirectHandler,
}

/// The verb in a path of tube and verb.
fn verb_of(path: &str) -> Option<&str> {
    path.strip_prefix(PATTERN).filter(|verb| !verb.contains('/'))
}

impl DirectRoutes {
    /// No endpoints yet.
    pub fn new() -> Self {
        DirectRoutes(Vec::new())
    }

    /// Adds an endpoint with the checks that the router makes for it.
    pub fn add(&mut self, path: &'static str, checks: Arc<RouteChecks>, handler: DirectHandler) {
        if let Some(verb) = verb_of(path) {
            self.0.push(DirectRoute { verb, path, checks, handler });
        }
    }

    /// The endpoint of a request, and the tube in its path.
    pub fn find<B>(&self, request: &Request<B>) -> Option<(&DirectRoute, TubeName)> {
        if *request.method() != Method::POST {
            return None;
        }
        let (tube, verb) = request.uri().path().strip_prefix(TUBES)?.split_once('/')?;
        let route = self.0.iter().find(|route| route.verb == verb)?;
        if tube.contains('%') {
            return None;
        }
        Some((route, TubeName::new(tube).ok()?))
    }
}

impl DirectRoute {
    /// Answers a request for this tube.
    pub async fn answer<B>(
        &self,
        app: &SharedApp,
        request: Request<B>,
        client: Arc<ClientConnection>,
        tube: TubeName,
    ) -> Response
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let counted = app.requests.begin_known(self.path, request.method());
        let response = match self.admit(app, &request, &client, &tube).await {
            Ok(principal) => {
                let app = RequestApp::new(app.clone(), principal, Some(client.peer));
                let caller = Caller::new(Some(client), request.headers());
                let body = Body::new(request.into_body());
                (self.handler)(TubeCall { app, tube: TubePath(tube), caller, body }).await
            }
            Err(refusal) => refusal.into_response(),
        };
        guard::finish(app, counted, response)
    }

    /// The user that sends a request, if it is one that the handler may get.
    async fn admit<B: HttpBody>(
        &self,
        app: &SharedApp,
        request: &Request<B>,
        client: &Arc<ClientConnection>,
        tube: &TubeName,
    ) -> Result<Principal, Refusal> {
        let principal = guard::check(app, request, Some(client))?;
        if !RouteChecks::may_do_all(&principal) {
            let target = AccessTarget::Tube(tube.as_str());
            Box::pin(self.checks.require(&principal, Some(client.peer), target)).await?;
        }
        self.checks.check_content(request)?;
        Ok(principal)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::routes;

    fn found(routes: &DirectRoutes, method: Method, uri: &str) -> Option<(&'static str, String)> {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        routes.find(&request).map(|(route, tube)| (route.verb, tube.to_string()))
    }

    fn direct_routes() -> DirectRoutes {
        let mut direct = DirectRoutes::new();
        for route in routes() {
            if let Some(handler) = route.direct {
                direct.add(route.path, Arc::new(RouteChecks::of_test(route.name)), handler);
            }
        }
        direct
    }

    #[test]
    fn a_tube_and_a_verb_are_found() {
        let routes = direct_routes();
        let verbs: BTreeSet<_> = routes.0.iter().map(|route| route.verb).collect();
        assert!(
            ["put", "take", "ack", "finish"].iter().all(|verb| verbs.contains(verb)),
            "{verbs:?}"
        );
        assert_eq!(verbs.len(), routes.0.len(), "each verb is one endpoint");
        let put = Some(("put", "mail".into()));
        assert_eq!(found(&routes, Method::POST, "/v1/tubes/mail/put"), put);
        assert_eq!(found(&routes, Method::POST, "http://host/v1/tubes/mail/put?a=b"), put);
    }

    // The router decodes names, and refuses what is no name with the message of its extractor.
    #[test]
    fn the_router_answers_everything_else() {
        let routes = direct_routes();
        for uri in [
            "/v1/tubes/a%20b/put",
            "/v1/tubes//put",
            "/v1/tubes/./put",
            "/v1/tubes/a:b/put",
            "/v1/tubes/mail/tasks/kick",
            "/v1/tubes/mail/put/",
            "/v1/tubes/mail/unknown",
            "/v1/tubes/mail",
            "/v1/semaphores/mail/put",
        ] {
            assert_eq!(found(&routes, Method::POST, uri), None, "{uri}");
        }
        assert_eq!(found(&routes, Method::GET, "/v1/tubes/mail/put"), None);
        assert_eq!(found(&routes, Method::OPTIONS, "*"), None);
    }
}

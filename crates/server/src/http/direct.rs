//! Answers requests for the tasks of a tube without the router, whose layers allocate and copy for every request.
//!
//! The router has the same endpoints, and answers whatever is not found here: other methods, encoded names, names
//! that are refused. Both ways make the same checks, in the same order, and call the same handlers.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use taskyard_core::TubeName;

use super::route_access::RouteChecks;
use crate::app::SharedApp;
use crate::guard::{self, RequestContext};

/// How the path of an endpoint begins, before the name of its verb.
const PATTERN: &str = "/v1/tubes/{tube}/";
/// How the path of a request begins, before the name of the tube.
const TUBES: &str = "/v1/tubes/";

/// A response that is being made.
type PendingResponse = Pin<Box<dyn Future<Output = Response> + Send>>;
/// The handler of an endpoint, which extracts what it needs from the request.
pub(super) type DirectHandler = Arc<dyn Fn(Request, SharedApp) -> PendingResponse + Send + Sync>;

/// The endpoints with the method POST and a path of tube and verb.
pub(crate) struct DirectRoutes(Vec<DirectRoute>);

/// One endpoint.
pub(crate) struct DirectRoute {
    verb: &'static str,
    path: &'static str,
    checks: Arc<RouteChecks>,
    handler: DirectHandler,
}

/// The handler of an endpoint without the router, if its method and path are of this kind.
pub(super) fn handler_of<H, T>(method: &Method, path: &str, handler: &H) -> Option<DirectHandler>
where
    H: Handler<T, SharedApp>,
    T: 'static,
{
    if *method != Method::POST || verb_of(path).is_none() {
        return None;
    }
    let handler = handler.clone();
    Some(Arc::new(move |request, app| Box::pin(handler.clone().call(request, app))))
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
    pub fn find<B>(&self, request: &hyper::Request<B>) -> Option<(&DirectRoute, TubeName)> {
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
        request: hyper::Request<B>,
        context: RequestContext,
    ) -> Response
    where
        B: axum::body::HttpBody<Data = axum::body::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(context);
        let counted = app.requests.begin_known(self.path, request.method());
        let answering = |mut request: Request| async move {
            match self.checks.admit(&mut request).await {
                Ok(()) => (self.handler)(request, app.clone()).await,
                Err(refusal) => refusal.into_response(),
            }
        };
        guard::admit_counted(app, counted, request, answering).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::routes;

    fn found(routes: &DirectRoutes, method: Method, uri: &str) -> Option<(&'static str, String)> {
        let request = hyper::Request::builder().method(method).uri(uri).body(()).unwrap();
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

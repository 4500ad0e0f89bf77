//! Describes one endpoint: its handler, and its entry in the OpenAPI document.

use std::collections::BTreeMap;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use taskyard_wire::Code;

use super::described::{Described, ToSchema};
use super::direct::{DirectHandler, TubeHandler};
use crate::app::SharedApp;

/// One path with one method. The router and the OpenAPI document are both built from these, so they
/// always list the same endpoints.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "read by the test that writes the OpenAPI document")
)]
pub(crate) struct Route {
    /// The HTTP method.
    pub method: Method,
    /// The path.
    pub path: &'static str,
    /// The operation id in the document.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// The shape of the request body.
    pub request: Option<Shape>,
    /// Its query parameters.
    pub query: Vec<QueryField>,
    /// The responses: status, meaning, shape.
    pub responses: Vec<(u16, &'static str, Shape)>,
    /// The error codes by status.
    pub refusals: BTreeMap<u16, Vec<Code>>,
    /// Whether it needs no token.
    pub open: bool,
    /// The handler.
    pub handler: MethodRouter<SharedApp>,
    /// The same for requests that need no router.
    pub direct: Option<DirectHandler>,
}

/// A shape of the wire, or a text, as the document shows it.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "read by the test that writes the OpenAPI document")
)]
pub(crate) enum Shape {
    /// JSON of a named shape.
    Json(Described),
    /// A text of this kind.
    Text(&'static str),
    /// Any JSON object.
    Object,
}

/// A query parameter.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "read by the test that writes the OpenAPI document")
)]
pub(crate) struct QueryField {
    /// Its name.
    pub name: &'static str,
    /// The description.
    pub about: &'static str,
    /// What it may be.
    pub kind: QueryKind,
}

/// What a query parameter may be.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "read by the test that writes the OpenAPI document")
)]
pub(crate) enum QueryKind {
    /// Yes or no.
    Flag,
    /// A text.
    Text,
    /// A text of this form, a regular expression.
    Pattern(&'static str),
    /// A number from 1 to this.
    Count(usize),
    /// Any number.
    Number,
    /// The name of a tube.
    Name,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

impl Route {
    /// An endpoint with this handler; the checks of `guard` may refuse every one.
    pub fn new<H: Handler<T, SharedApp>, T: 'static>(
        method: Method,
        path: &'static str,
        (name, summary): (&'static str, &'static str),
        handler: H,
    ) -> Self {
        let filter = MethodFilter::try_from(method.clone());
        let filter = filter.expect("endpoints use standard methods");
        let route = Route {
            method,
            path,
            name,
            summary,
            request: None,
            query: Vec::new(),
            responses: Vec::new(),
            refusals: BTreeMap::new(),
            open: false,
            handler: on(filter, handler),
            direct: None,
        };
        let route = route.refuses([Code::Invalid, Code::Forbidden, Code::Overloaded]);
        if path.contains("{tube}") {
            route.refuses([Code::TubeNotFound])
        } else if path.contains("{semaphore}") {
            route.refuses([Code::SemaphoreNotFound])
        } else if path.contains("{schedule}") {
            route.refuses([Code::ScheduleNotFound])
        } else {
            route
        }
    }

    /// An endpoint for the tasks of a tube, with the method POST, which is also answered without the router.
    pub fn of_tube<H, T, Args>(
        path: &'static str,
        about: (&'static str, &'static str),
        handler: H,
    ) -> Self
    where
        H: Handler<T, SharedApp> + TubeHandler<Args>,
        T: 'static,
    {
        let direct = handler.clone();
        let route = Route::new(Method::POST, path, about, handler);
        Route { direct: Some(Box::new(move |call| direct.begin(call))), ..route }
    }

    /// Sets the shape of the request body.
    pub fn request_body<T: ToSchema>(mut self) -> Self {
        self.request = Some(Shape::of::<T>());
        self.refuses([Code::TooLarge, Code::UnsupportedMediaType])
    }

    /// Adds a query parameter.
    pub fn query_param(mut self, field: QueryField) -> Self {
        self.query.push(field);
        self
    }

    /// Adds a response with status 200.
    pub fn responds<T: ToSchema>(self, about: &'static str) -> Self {
        self.responds_with(200, about, Shape::of::<T>())
    }

    /// Adds a response with this status.
    pub fn responds_with(mut self, status: u16, about: &'static str, shape: Shape) -> Self {
        self.responses.push((status, about, shape));
        self
    }

    /// The handler runs commands on the engine, which may fail or stop; and it needs the token.
    pub fn uses_engine(self) -> Self {
        let store = [Code::Store, Code::StoreUnavailable, Code::OutcomeUnknown];
        self.refuses([Code::Unauthorized, Code::ShuttingDown]).refuses(store)
    }

    /// Adds error codes.
    pub fn refuses<const N: usize>(mut self, codes: [Code; N]) -> Self {
        for code in codes {
            self.refusals.entry(code.status()).or_default().push(code);
        }
        self
    }

    /// The endpoint needs no token.
    pub fn open(mut self) -> Self {
        self.open = true;
        self
    }
}

impl Shape {
    /// The shape of this type.
    pub fn of<T: ToSchema>() -> Self {
        Shape::Json(Described::of::<T>())
    }
}

impl QueryField {
    /// A boolean.
    pub fn flag(name: &'static str, about: &'static str) -> Self {
        QueryField { name, about, kind: QueryKind::Flag }
    }

    /// A text.
    pub fn text(name: &'static str, about: &'static str) -> Self {
        QueryField { name, about, kind: QueryKind::Text }
    }

    /// A text of this form, a regular expression.
    pub fn pattern(name: &'static str, about: &'static str, pattern: &'static str) -> Self {
        QueryField { name, about, kind: QueryKind::Pattern(pattern) }
    }

    /// Any number.
    pub fn number(name: &'static str, about: &'static str) -> Self {
        QueryField { name, about, kind: QueryKind::Number }
    }

    /// The name of a tube.
    pub fn name(name: &'static str, about: &'static str) -> Self {
        QueryField { name, about, kind: QueryKind::Name }
    }

    /// One of these texts.
    pub fn one_of(
        name: &'static str,
        about: &'static str,
        values: &'static [&'static str],
    ) -> Self {
        QueryField { name, about, kind: QueryKind::OneOf(values) }
    }

    /// A number from 1 to `max`.
    pub fn count(name: &'static str, about: &'static str, max: usize) -> Self {
        QueryField { name, about, kind: QueryKind::Count(max) }
    }
}

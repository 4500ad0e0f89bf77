//! One address: what answers there, and what the OpenAPI document says about it.

use std::collections::BTreeMap;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use taskyard_wire::Code;

use super::described::{Described, ToSchema};
use crate::app::Shared;

/// One address with one method. The router and the document are both made from these, so that
/// neither knows an address that the other does not.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "read by the test that writes the OpenAPI document")
)]
pub(crate) struct Route {
    /// How it is asked.
    pub method: Method,
    /// Where it is.
    pub path: &'static str,
    /// Its name in the document.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// What it reads.
    pub request: Option<Shape>,
    /// Its query parameters.
    pub query: Vec<QueryField>,
    /// What it answers: status, meaning, shape.
    pub answers: Vec<(u16, &'static str, Shape)>,
    /// How it may refuse.
    pub refusals: BTreeMap<u16, Vec<Code>>,
    /// Whether it needs no token.
    pub open: bool,
    /// What answers there.
    pub answering: MethodRouter<Shared>,
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
    /// What it is for.
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
}

impl Route {
    /// An address that `handler` answers; every one may refuse in the ways that guards do.
    pub fn new<H: Handler<T, Shared>, T: 'static>(
        method: Method,
        path: &'static str,
        (name, summary): (&'static str, &'static str),
        handler: H,
    ) -> Self {
        let filter = MethodFilter::try_from(method.clone());
        let filter = filter.expect("addresses are asked by the usual methods");
        let route = Route {
            method,
            path,
            name,
            summary,
            request: None,
            query: Vec::new(),
            answers: Vec::new(),
            refusals: BTreeMap::new(),
            open: false,
            answering: on(filter, handler),
        };
        let route = route.refuses([Code::Invalid, Code::Forbidden, Code::Overloaded]);
        if path.contains("{tube}") {
            route.refuses([Code::TubeNotFound])
        } else if path.contains("{semaphore}") {
            route.refuses([Code::SemaphoreNotFound])
        } else {
            route
        }
    }

    /// It reads this shape.
    pub fn reads<T: ToSchema>(mut self) -> Self {
        self.request = Some(Shape::of::<T>());
        self.refuses([Code::TooLarge, Code::UnsupportedMediaType])
    }

    /// It has this query parameter.
    pub fn asks(mut self, field: QueryField) -> Self {
        self.query.push(field);
        self
    }

    /// It answers this shape with status 200.
    pub fn answers<T: ToSchema>(self, about: &'static str) -> Self {
        self.answers_with(200, about, Shape::of::<T>())
    }

    /// It answers this with that status.
    pub fn answers_with(mut self, status: u16, about: &'static str, shape: Shape) -> Self {
        self.answers.push((status, about, shape));
        self
    }

    /// It asks the engine, which may fail or stop; and it needs the token.
    pub fn commands(self) -> Self {
        let store = [Code::Store, Code::StoreAway, Code::OutcomeUnknown];
        self.refuses([Code::Unauthorized, Code::ShuttingDown]).refuses(store)
    }

    /// It may refuse in these ways.
    pub fn refuses<const N: usize>(mut self, codes: [Code; N]) -> Self {
        for code in codes {
            self.refusals.entry(code.status()).or_default().push(code);
        }
        self
    }

    /// It needs no token.
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
    /// Yes or no.
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

    /// A number from 1 to `max`.
    pub fn count(name: &'static str, about: &'static str, max: usize) -> Self {
        QueryField { name, about, kind: QueryKind::Count(max) }
    }
}

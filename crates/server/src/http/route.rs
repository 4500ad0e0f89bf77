//! One address: what answers there, and what the OpenAPI document says about it.

use std::collections::BTreeMap;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use taskyard_wire::Code;
use utoipa::openapi::schema::{Schema, SchemaType};
use utoipa::openapi::{ObjectBuilder, RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::app::Shared;

/// One address with one method. The router and the document are both made from these, so that
/// neither knows an address that the other does not.
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
pub(crate) enum Shape {
    /// JSON of a named shape, with all the shapes it is made of.
    Json { name: String, parts: Vec<(String, RefOr<Schema>)> },
    /// A text of this kind.
    Text(&'static str),
    /// Any JSON object.
    Object,
}

/// A query parameter.
pub(crate) struct QueryField {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// What it may be.
    pub schema: Schema,
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
        let name = T::name().into_owned();
        let mut parts = vec![(name.clone(), <T as PartialSchema>::schema())];
        T::schemas(&mut parts);
        Shape::Json { name, parts }
    }
}

impl QueryField {
    /// Yes or no.
    pub fn flag(name: &'static str, about: &'static str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::Boolean).build();
        QueryField { name, about, schema: schema.into() }
    }

    /// A text.
    pub fn text(name: &'static str, about: &'static str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::String).build();
        QueryField { name, about, schema: schema.into() }
    }

    /// A text of this form, a regular expression.
    pub fn pattern(name: &'static str, about: &'static str, pattern: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).build();
        QueryField { name, about, schema: schema.into() }
    }

    /// A number from 1 to `max`.
    pub fn count(name: &'static str, about: &'static str, max: usize) -> Self {
        let number = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
        let schema = number.minimum(Some(1)).maximum(Some(max)).build();
        QueryField { name, about, schema: schema.into() }
    }
}

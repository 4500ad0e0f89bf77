//! Writes the OpenAPI document from the same list of addresses as the router.
//!
//! Compiled for tests only: `cargo xtask docs` writes the document to `openapi.json`, the server embeds that file, and a
//! test fails when it is out of date.

use serde_json::Value;
use taskyard_core::limits::{TASK_ID_MAX, TUBE_NAME_BYTES_MAX};
use taskyard_wire::Code;
use taskyard_wire::http::ErrorAnswer;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{
    Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ComponentsBuilder, Schema};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, HttpMethod, InfoBuilder, LicenseBuilder, ObjectBuilder, OpenApi, OpenApiBuilder,
    Paths, Ref, RefOr, Required, Response, ResponseBuilder, Type,
};

mod shapes;

use crate::http::{QueryField, QueryKind, Route, Shape, routes};

const ABOUT: &str = "A task queue. Times are seconds and may have a \
                     fraction; moments count from the Unix epoch. Every error response is an ErrorAnswer.";
const TOKEN: &str = "token";

/// The OpenAPI document with this limit for waiting.
fn document(wait_seconds_max: f64) -> Value {
    let mut document = serde_json::to_value(describe(&routes())).unwrap();
    shapes::complete(document.pointer_mut("/components/schemas").unwrap(), wait_seconds_max);
    document
}

fn describe(routes: &[Route]) -> OpenApi {
    let mut paths = Paths::new();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let mut components = ComponentsBuilder::new().security_scheme(TOKEN, bearer);
    let refusal = Shape::of::<ErrorAnswer>();
    for route in routes {
        let shapes = route.responses.iter().map(|answer| &answer.2).chain(&route.request);
        for shape in shapes.chain([&refusal]) {
            if let Shape::Json(described) = shape {
                components = components.schemas_from_iter(described.parts.clone());
            }
        }
        paths.add_path_operation(route.path, vec![method(route)], operation(route));
    }
    let license = LicenseBuilder::new().name("MIT OR Apache-2.0").build();
    let info = InfoBuilder::new()
        .title("Taskyard")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(license));
    OpenApiBuilder::new()
        .info(info.build())
        .paths(paths)
        .components(Some(components.build()))
        .build()
}

/// The pattern of tube names and semaphore keys.
const NAME: &str =
    r"^[^/:\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+$";

fn method(route: &Route) -> HttpMethod {
    match route.method.as_str() {
        "POST" => HttpMethod::Post,
        "PUT" => HttpMethod::Put,
        "PATCH" => HttpMethod::Patch,
        "DELETE" => HttpMethod::Delete,
        _ => HttpMethod::Get,
    }
}

fn operation(route: &Route) -> Operation {
    let mut operation = OperationBuilder::new()
        .operation_id(Some(route.name))
        .summary(Some(route.summary))
        .parameters(Some(parameters(route)));
    if let Some(shape) = &route.request {
        let body = RequestBodyBuilder::new()
            .content("application/json", content(shape))
            .required(Some(Required::True));
        operation = operation.request_body(Some(body.build()));
    }
    for (status, about, shape) in &route.responses {
        let kind = if let Shape::Text(kind) = shape { kind } else { "application/json" };
        let response = ResponseBuilder::new().description(*about).content(kind, content(shape));
        operation = operation.response(status.to_string(), response.build());
    }
    for (status, codes) in &route.refusals {
        operation = operation.response(status.to_string(), refusal(codes));
    }
    if !route.open {
        // A server without a token needs none: the second alternative is empty.
        let token = SecurityRequirement::new(TOKEN, [] as [&str; 0]);
        operation = operation.securities(Some([token, SecurityRequirement::default()]));
    }
    operation.build()
}

fn content(shape: &Shape) -> Content {
    let schema: RefOr<Schema> = match shape {
        Shape::Json(described) => Ref::from_schema_name(&described.name).into(),
        Shape::Text(_) => Schema::from(ObjectBuilder::new().schema_type(Type::String)).into(),
        Shape::Object => Schema::from(ObjectBuilder::new().schema_type(Type::Object)).into(),
    };
    Content::new(Some(schema))
}

fn refusal(codes: &[Code]) -> Response {
    let mut names: Vec<String> = codes.iter().map(|code| format!("`{}`", code.name())).collect();
    names.sort();
    names.dedup();
    let refusal = Shape::of::<ErrorAnswer>();
    let mut response = ResponseBuilder::new()
        .description(names.join(", "))
        .content("application/json", content(&refusal));
    if codes.iter().any(|code| code.retry_after_secs().is_some()) {
        response = response.header("Retry-After", text_header("Seconds to wait before a retry."));
    }
    if codes.contains(&Code::Unauthorized) {
        response = response.header("WWW-Authenticate", text_header("The authentication scheme."));
    }
    response.build()
}

fn text_header(about: &str) -> Header {
    let mut header = Header::new(Schema::from(ObjectBuilder::new().schema_type(Type::String)));
    header.description = Some(about.into());
    header
}

fn parameters(route: &Route) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    let names = [
        ("tube", "The tube's name: 1 to 128 bytes without control characters, / or :"),
        (
            "schedule",
            "The schedule's name: 1 to 128 bytes without control characters or /, at most 119 with overlap skip",
        ),
        ("semaphore", "The semaphore's key: 1 to 128 bytes without control characters, / or :"),
    ];
    for (name, about) in names {
        if route.path.contains(&format!("{{{name}}}")) {
            parameters.push(parameter(name, about, ParameterIn::Path, name_schema().into()));
        }
    }
    if route.path.contains("{id}") {
        let id = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(0))
            .maximum(Some(TASK_ID_MAX));
        parameters.push(parameter("id", "The task id", ParameterIn::Path, id.into()));
    }
    for field in &route.query {
        let schema = query_schema(field).into();
        parameters.push(parameter(field.name, field.about, ParameterIn::Query, schema));
    }
    parameters
}

fn name_schema() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(TUBE_NAME_BYTES_MAX))
        .pattern(Some(NAME))
}

fn query_schema(field: &QueryField) -> ObjectBuilder {
    let schema = |kind| ObjectBuilder::new().schema_type(kind);
    match field.kind {
        QueryKind::Flag => schema(Type::Boolean),
        QueryKind::Text => schema(Type::String),
        QueryKind::Pattern(pattern) => schema(Type::String).pattern(Some(pattern)),
        QueryKind::Number => schema(Type::Number),
        QueryKind::Name => name_schema(),
        QueryKind::OneOf(values) => schema(Type::String).enum_values(Some(values.iter().copied())),
        QueryKind::Count(max) => schema(Type::Integer).minimum(Some(1)).maximum(Some(max)),
    }
}

fn parameter(name: &str, about: &str, place: ParameterIn, schema: Schema) -> Parameter {
    let required = if place == ParameterIn::Path { Required::True } else { Required::False };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .description(Some(about))
        .schema(Some(schema))
        .build()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::WAIT_SECONDS_MAX;

    /// The committed file is what the server embeds.
    #[test]
    fn the_committed_document_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let text = serde_json::to_string_pretty(&document(WAIT_SECONDS_MAX)).unwrap() + "\n";
        if std::env::var_os("TASKYARD_WRITE_DOCS").is_some() {
            fs::write(path, &text).unwrap();
        }
        let committed = fs::read_to_string(path).unwrap_or_default();
        assert!(committed == text, "openapi.json is out of date: run `cargo xtask docs`");
    }

    #[test]
    fn a_server_shows_its_own_limit_for_waiting() {
        let shown: Value = serde_json::from_str(&crate::document::document(7.5)).unwrap();
        assert!(shown == document(7.5), "only the limits for waiting may differ");
    }
}

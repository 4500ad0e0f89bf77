//! Describes payloads in the OpenAPI document.

use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType};
use utoipa::openapi::{RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

use super::{Packed, Payload};

impl PartialSchema for Payload {
    fn schema() -> RefOr<Schema> {
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        any.description(Some("Any JSON value, nested at most 64 levels deep.")).into()
    }
}

impl ToSchema for Payload {}

impl PartialSchema for Packed {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String);
        text.description(Some("One MessagePack value, as standard base64.")).into()
    }
}

impl ToSchema for Packed {}

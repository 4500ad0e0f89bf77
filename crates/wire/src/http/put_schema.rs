//! Describes a put request in the OpenAPI document: the fields of a task, and those of the request.

use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType,
};
use utoipa::openapi::{Ref, RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

use super::put::{PutRequest, PutTask};

impl PartialSchema for PutRequest {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut object)) = PutTask::schema() else {
            return PutTask::schema();
        };
        let tasks = ArrayBuilder::new()
            .schema_type(SchemaType::from_iter([Type::Array, Type::Null]))
            .items(Ref::from_schema_name(PutTask::name()))
            .description(Some("Several tasks. Without it the other fields are the one task."));
        let timeout = ObjectBuilder::new()
            .schema_type(SchemaType::from_iter([Type::Number, Type::Null]))
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Double)))
            .description(Some(
                "Seconds to wait for free capacity when the tube is full; 0 answers at once.",
            ));
        object.properties.insert("tasks".into(), tasks.into());
        let estimate = ObjectBuilder::new().schema_type(Type::Boolean).description(Some(
            "Whether the answer says when the tasks will start; for at most 100 tasks.",
        ));
        object.properties.insert("estimate".into(), estimate.into());
        object.properties.insert("timeout".into(), timeout.into());
        object.description = Some(
            "One task or several to add: the fields of a task, or `tasks`. All are added or none."
                .into(),
        );
        Schema::Object(object).into()
    }
}

impl ToSchema for PutRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((PutTask::name().into_owned(), PutTask::schema()));
        PutTask::schemas(schemas);
    }
}

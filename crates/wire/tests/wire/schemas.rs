//! The OpenAPI schemas.

use taskyard_wire::http::{
    AckRequest, AlterRequest, PeekRequest, PutRequest, PutTask, TakeRequest, TaskAnswer,
    TubesAnswer,
};
use taskyard_wire::{Packed, Payload};
use utoipa::{PartialSchema, ToSchema};

fn schema<T: PartialSchema>() -> serde_json::Value {
    serde_json::to_value(T::schema()).unwrap()
}

#[test]
fn a_payload_may_be_any_value() {
    assert_eq!(Payload::name(), "Payload");
    assert_eq!(schema::<Payload>().get("type"), None);
    assert_eq!(schema::<Packed>()["type"], "string");
}

#[test]
fn fields_are_described() {
    for shape in [
        schema::<PutRequest>(),
        schema::<TakeRequest>(),
        schema::<AlterRequest>(),
        schema::<TaskAnswer>(),
        schema::<TubesAnswer>(),
    ] {
        // A shape that contains the fields of another one has its own in the last part.
        let own = shape["allOf"].as_array().and_then(|parts| parts.last()).unwrap_or(&shape);
        let fields = own["properties"].as_object().unwrap();
        for (name, field) in fields {
            assert!(field.to_string().contains("\"description\""), "{name}: {field}");
        }
    }
    assert_eq!(schema::<TakeRequest>().get("required"), None);
}

// The schema of the request is written by hand; its own fields must look like derived ones.
#[test]
fn a_put_request_has_the_fields_of_a_task_and_its_own() {
    let (request, task) = (schema::<PutRequest>(), schema::<PutTask>());
    let mut fields = request["properties"].as_object().unwrap().clone();
    let mut tasks = fields.remove("tasks").unwrap();
    let mut timeout = fields.remove("timeout").unwrap();
    let mut estimate = fields.remove("estimate").unwrap();
    assert_eq!(serde_json::Value::Object(fields), task["properties"]);
    assert_eq!(request["additionalProperties"], task["additionalProperties"]);
    assert_eq!(request["type"], task["type"]);

    let mut derived = schema::<AckRequest>()["properties"]["tasks"].clone();
    derived["items"]["$ref"] = "#/components/schemas/PutTask".into();
    derived["description"] = tasks["description"].take();
    tasks["description"] = derived["description"].clone();
    assert_eq!(tasks, derived);
    let mut derived = task["properties"]["ttl"].clone();
    derived["description"] = timeout["description"].take();
    timeout["description"] = derived["description"].clone();
    assert_eq!(timeout, derived);

    let mut derived = schema::<PeekRequest>()["properties"]["estimate"].clone();
    derived["description"] = estimate["description"].take();
    estimate["description"] = derived["description"].clone();
    assert_eq!(estimate, derived);

    let mut shapes = Vec::new();
    PutRequest::schemas(&mut shapes);
    assert!(shapes.iter().any(|(name, _)| name == "PutTask"));
    assert_eq!(PutRequest::name(), "PutRequest");
}

//! The shapes as OpenAPI shows them.

use taskyard_wire::http::{AlterRequest, PutRequest, TakeRequest, TaskAnswer, TubesAnswer};
use taskyard_wire::{Packed, Payload};
use utoipa::{PartialSchema, ToSchema};

fn schema<T: PartialSchema>() -> serde_json::Value {
    serde_json::to_value(T::schema()).unwrap()
}

#[test]
fn a_payload_may_be_anything() {
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
        let fields = shape["properties"].as_object().unwrap();
        for (name, field) in fields {
            assert!(field.to_string().contains("\"description\""), "{name}: {field}");
        }
    }
    assert_eq!(schema::<TakeRequest>().get("required"), None);
}

//! Converts the fields of a typed task to a JSON object.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};
use taskyard_contract::{FieldType, Queue};
use taskyard_worker::{FieldError, FieldReader};

/// The fields of a queue's tasks.
pub struct Fields {
    fields: Vec<(&'static str, FieldType)>,
}

impl Fields {
    pub fn of(queue: &Queue) -> Self {
        // Errors need static field names, as generated code has them; a contract is read once and is small.
        let field = |field: &taskyard_contract::Field| {
            let name: &'static str = field.name.clone().leak();
            (name, field.kind)
        };
        Fields { fields: queue.fields.iter().map(field).collect() }
    }

    /// The payload as JSON; bytes as base64.
    pub fn json(&self, payload: &[u8]) -> Result<Value, FieldError> {
        let mut reader = FieldReader::new(payload)?;
        let mut object = Map::new();
        for (name, kind) in &self.fields {
            let value = match kind {
                FieldType::Int | FieldType::Int64 => reader.int(name)?.into(),
                FieldType::String => reader.string(name)?.into(),
                FieldType::Bool => reader.bool(name)?.into(),
                FieldType::Bytes => BASE64_STANDARD.encode(reader.bytes(name)?).into(),
                FieldType::Ints | FieldType::Int64s => reader.ints(name)?.into(),
            };
            object.insert((*name).into(), value);
        }
        reader.finish()?;
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_become_an_object() {
        let contract = include_str!("../../../contract/tests/every_type.yaml");
        let contract = taskyard_contract::parse(contract).unwrap();
        let fields = Fields::of(&contract.queues[0]);
        let payload = [0x97, 1, 0xd0, 0x80, 0xa1, b'a', 0xc3, 0xc4, 1, 0xff, 0x91, 2, 0x92, 3, 4];
        let wanted = json!({
            "int": 1, "match": -128, "list": "a", "from": true, "field": "/w==", "encode": [2],
            "numbers": [3, 4],
        });
        assert_eq!(fields.json(&payload).unwrap(), wanted);
        assert!(fields.json(&[0x91, 0xc3]).is_err());
    }
}

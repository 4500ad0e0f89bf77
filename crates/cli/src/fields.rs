//! The fields of typed tasks: checks payloads, and converts them to JSON objects.

use std::fmt;

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

impl Fields {
    /// Checks that a payload can be decoded.
    pub fn check(&self, payload: &[u8]) -> Result<(), FieldError> {
        let mut reader = FieldReader::new(payload)?;
        for (name, kind) in &self.fields {
            match kind {
                FieldType::Int | FieldType::Int64 => drop(reader.int(name)?),
                FieldType::String => drop(reader.string(name)?),
                FieldType::Bool => drop(reader.bool(name)?),
                FieldType::Bytes => drop(reader.bytes(name)?),
                FieldType::Ints | FieldType::Int64s => drop(reader.ints(name)?),
            }
        }
        reader.finish()
    }

    /// The name of the type of a field.
    pub fn type_of(&self, field: &str) -> Option<&'static str> {
        let found = self.fields.iter().find(|(name, _)| *name == field);
        found.map(|(_, kind)| kind.name())
    }
}

/// The names of the fields with their types, in order.
impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, kind)) in self.fields.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {}", kind.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_become_an_object() {
        let contract = include_str!("../../contract/tests/every_type.yaml");
        let contract = taskyard_contract::parse(contract).unwrap();
        let fields = Fields::of(&contract.queues[0]);
        let payload = [0x97, 1, 0xd0, 0x80, 0xa1, b'a', 0xc3, 0xc4, 1, 0xff, 0x91, 2, 0x92, 3, 4];
        let wanted = json!({
            "int": 1, "match": -128, "list": "a", "from": true, "field": "/w==", "encode": [2],
            "numbers": [3, 4],
        });
        assert_eq!(fields.json(&payload).unwrap(), wanted);
        assert_eq!(fields.check(&payload), Ok(()));
        let wrong = [0x91, 0xc3];
        assert_eq!(fields.json(&wrong).unwrap_err(), fields.check(&wrong).unwrap_err());
    }
}

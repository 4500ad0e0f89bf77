//! Reads a put request, whose fields stand beside those of its one task, and describes it for OpenAPI.
//!
//! A derived `flatten` would copy all values into a buffer first, and a payload is only read from the
//! text itself. So the fields of the request are picked out of the object here, and
//! the rest of the object is read as a [`PutTask`].

use std::borrow::Cow;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::put::{PutRequest, PutTask};

impl<'de> Deserialize<'de> for PutRequest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_struct("PutRequest", &[], PutRequestVisitor)
    }
}

struct PutRequestVisitor;

impl<'de> Visitor<'de> for PutRequestVisitor {
    type Value = PutRequest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("struct PutRequest")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PutRequest, A::Error> {
        let (mut tasks, mut timeout, mut estimate) = (None, None, None);
        let entries =
            TaskEntries { map, tasks: &mut tasks, timeout: &mut timeout, estimate: &mut estimate };
        let task = PutTask::deserialize(MapAccessDeserializer::new(entries))?;
        let (tasks, timeout) = (tasks.flatten(), timeout.flatten());
        Ok(PutRequest { tasks, timeout, estimate: estimate.unwrap_or_default(), task })
    }
}

/// The entries of the object that belong to its one task; the others are stored on the way.
struct TaskEntries<'r, A> {
    map: A,
    tasks: &'r mut Option<Option<Vec<PutTask>>>,
    timeout: &'r mut Option<Option<f64>>,
    estimate: &'r mut Option<bool>,
}

/// A key, borrowed from the request if it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for TaskEntries<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error>
    where
        K: DeserializeSeed<'de>,
    {
        while let Some(Key(key)) = self.map.next_key()? {
            match &*key {
                "tasks" => store("tasks", self.tasks, &mut self.map)?,
                "timeout" => store("timeout", self.timeout, &mut self.map)?,
                "estimate" => store("estimate", self.estimate, &mut self.map)?,
                key => {
                    let field = seed.deserialize(key.into_deserializer());
                    return field.map(Some).map_err(with_own_fields);
                }
            }
        }
        Ok(None)
    }

    fn next_value_seed<V>(&mut self, seed: V) -> Result<V::Value, A::Error>
    where
        V: DeserializeSeed<'de>,
    {
        self.map.next_value_seed(seed)
    }
}

fn store<'de, T, A>(name: &'static str, field: &mut Option<T>, map: &mut A) -> Result<(), A::Error>
where
    T: Deserialize<'de>,
    A: MapAccess<'de>,
{
    if field.is_some() {
        return Err(A::Error::duplicate_field(name));
    }
    *field = Some(map.next_value()?);
    Ok(())
}

/// Adds the fields of the request to those that an unknown field could have been.
fn with_own_fields<E: Error>(error: E) -> E {
    const LIST: &str = "expected one of ";
    let text = error.to_string();
    match text.rsplit_once(LIST) {
        Some((before, fields)) => {
            E::custom(format_args!("{before}{LIST}`tasks`, `timeout`, `estimate`, {fields}"))
        }
        None => error,
    }
}

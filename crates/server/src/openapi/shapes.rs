//! Completes the schemas with what the wire types do not express: ranges, and which fields exclude
//! each other.

use serde_json::{Map, Value, json};
use taskyard_core::limits::{
    BATCH_TASKS_MAX, KEEP_DONE_MAX, POSITIONS_MAX, SEMAPHORE_ACTIVE_MAX, SEMAPHORE_REVOKING_MAX,
    SUBQUEUE_BYTES_MAX, TUBE_NAME_BYTES_MAX,
};
use taskyard_core::semaphore::OWN_TASK_MAX;

use super::NAME;
use crate::http::STATES_PATTERN;

/// Completes the schemas of the document.
pub(super) fn complete(shapes: &mut Value, wait_seconds_max: f64) {
    let Some(shapes) = shapes.as_object_mut() else { return };
    shapes.values_mut().for_each(complete_numbers);
    let wait = json!({ "maximum": wait_seconds_max });
    let subqueue = json!({ "maxLength": SUBQUEUE_BYTES_MAX });
    let batch = json!({ "maxItems": BATCH_TASKS_MAX });
    let holders = json!({ "minimum": 0, "maximum": SEMAPHORE_ACTIVE_MAX });
    let revoking = json!({ "minimum": 0, "maximum": SEMAPHORE_REVOKING_MAX });
    let (smallest_time, any) = (json!({ "minimum": 1e-6 }), json!({ "minimum": f64::MIN }));
    let task = json!({ "maximum": OWN_TASK_MAX });
    let key = json!({ "minLength": 1, "maxLength": TUBE_NAME_BYTES_MAX, "pattern": NAME });
    for (shape, field, more) in [
        ("SemaphoreRequest", "active", holders.clone()),
        ("SemaphoreRequest", "try_release", holders),
        ("SemaphoreRequest", "max_revoking", revoking),
        ("SemaphoreRequest", "revoke_grace", smallest_time.clone()),
        ("SemaphoreRequest", "lease", smallest_time.clone()),
        ("SemaphoreRequest", "ack_timeout", smallest_time.clone()),
        ("EnqueueItemRequest", "priority", any.clone()),
        ("EnqueueItemRequest", "task", task.clone()),
        ("GrantRequest", "task", task.clone()),
        ("SemaphorePeekRequest", "tasks/items", task),
        ("MemberInfoAnswer", "priority", any.clone()),
        ("PutRequest", "semaphore_priority", any.clone()),
        ("PutTask", "semaphore_priority", any.clone()),
        ("TaskAnswer", "semaphore_priority", any),
        ("EventsRequest", "semaphore", key.clone()),
        ("TakeRequest", "wait", wait.clone()),
        ("EventsRequest", "wait", wait.clone()),
        ("PutRequest", "timeout", wait),
        // A lease of zero would expire at once.
        ("TakeRequest", "lease", smallest_time.clone()),
        ("CreateRequest", "attempts_max", json!({ "minimum": 1 })),
        ("CreateRequest", "queue_num", json!({ "minimum": 1 })),
        ("NameRequest", "queue_num", json!({ "minimum": 1 })),
        ("NameRequest", "name", key.clone()),
        ("AlterRequest", "attempts_max", json!({ "minimum": 1 })),
        ("CreateRequest", "keep_done", smallest_time.clone()),
        ("AlterRequest", "keep_done", smallest_time.clone()),
        ("CreateRequest", "keep_done_max", json!({ "minimum": 1, "maximum": KEEP_DONE_MAX })),
        ("AlterRequest", "keep_done_max", json!({ "minimum": 1, "maximum": KEEP_DONE_MAX })),
        ("PutRequest", "subqueue", subqueue.clone()),
        ("PutTask", "subqueue", subqueue),
        ("PutRequest", "tasks", batch.clone()),
        ("AckRequest", "tasks", batch.clone()),
        ("BuryRequest", "tasks", batch.clone()),
        ("FailRequest", "tasks", batch.clone()),
        ("TaskActionRequest", "ids", batch.clone()),
        ("TaskActionRequest", "after", json!({ "pattern": "^[0-9]{1,15}$" })),
        ("TaskFilterRequest", "state", json!({ "pattern": STATES_PATTERN })),
        ("TaskFilterRequest", "match", json!({ "minLength": 1 })),
        ("TaskFilterRequest", "error", json!({ "minLength": 1 })),
        ("TaskFilterRequest", "attempts_min", json!({ "minimum": 1, "maximum": u32::MAX })),
        ("TakeRequest", "worker", key),
        ("ReleaseRequest", "tasks", batch.clone()),
        ("TouchRequest", "tasks", batch.clone()),
        ("FinishRequest", "tasks", batch.clone()),
        ("DeleteRequest", "ids", batch.clone()),
        ("PeekRequest", "ids", batch.clone()),
        ("EnqueueRequest", "tasks", batch.clone()),
        ("SemaphorePeekRequest", "tasks", batch.clone()),
        ("GrantsRequest", "items", batch.clone()),
        ("AcknowledgeRequest", "events", batch),
    ] {
        refine(shapes, (shape, field), more);
    }
    refine(shapes, ("PositionsRequest", "ids"), json!({ "maxItems": POSITIONS_MAX }));
    complete_choices(shapes);
}

/// Says which fields of a shape exclude each other.
fn complete_choices(shapes: &mut Map<String, Value>) {
    let one_or_several = one_or_several();
    for (shape, choices) in [
        ("PutTask", carrying()),
        ("PutRequest", carrying_one_or_several()),
        ("AckRequest", one_or_several.clone()),
        ("BuryRequest", one_or_several.clone()),
        ("FailRequest", one_or_several.clone()),
        ("TaskActionRequest", ids_or_filter()),
        ("ReleaseRequest", one_or_several.clone()),
        ("TouchRequest", one_or_several),
        ("FinishPart", finishing()),
        ("ScheduleRequest", timed()),
    ] {
        extend(shapes.get_mut(shape), json!({ "oneOf": choices }));
    }
}

/// The fields of one task: the payload has one of two forms. In `data`, null is a payload; in the
/// other fields it means absent.
fn carrying() -> Value {
    json!([
        { "required": ["data"], "properties": { "data_base64": { "type": "null" } } },
        {
            "required": ["data_base64"],
            "properties": { "data": false, "data_base64": { "type": "string" } }
        }
    ])
}

/// The times of a schedule: a cron expression with its zone, or an interval with its start.
fn timed() -> Value {
    let absent = json!({ "type": "null" });
    json!([
        {
            "required": ["cron"],
            "properties": { "cron": { "type": "string" }, "every": absent, "start": absent }
        },
        {
            "required": ["every"],
            "properties": { "every": { "type": "number" }, "cron": absent, "zone": absent }
        }
    ])
}

/// The same, or several tasks and no fields of a single one.
fn carrying_one_or_several() -> Value {
    let mut choices = carrying();
    for one in choices.as_array_mut().into_iter().flatten() {
        one["properties"]["tasks"] = json!({ "type": "null" });
    }
    let of_one = [
        "data_base64",
        "pri",
        "ttl",
        "ttr",
        "delay",
        "at",
        "subqueue",
        "semaphore_priority",
        "meta",
        "meta_base64",
    ];
    let absent = of_one.map(|field| (field.to_owned(), json!({ "type": "null" })));
    let mut several = Map::from_iter(absent);
    several.insert("data".into(), false.into());
    several.insert("tasks".into(), json!({ "type": "array" }));
    if let Some(choices) = choices.as_array_mut() {
        choices.push(json!({ "required": ["tasks"], "properties": several }));
    }
    choices
}

/// One delivery, or several and no single one.
fn one_or_several() -> Value {
    let absent = json!({ "type": "null" });
    json!([
        { "required": ["id"], "properties": { "id": { "type": "integer" }, "tasks": absent } },
        {
            "required": ["tasks"],
            "properties": { "tasks": { "type": "array" }, "id": absent, "lease": absent }
        }
    ])
}

/// Tasks by their ids, or by a filter.
fn ids_or_filter() -> Value {
    let absent = json!({ "type": "null" });
    json!([
        {
            "required": ["ids"],
            "properties": {
                "ids": { "type": "array" }, "filter": absent, "after": absent, "limit": absent
            }
        },
        { "required": ["filter"], "properties": { "filter": { "type": "object" }, "ids": absent } }
    ])
}

/// Which fields belong to which verb.
fn finishing() -> Value {
    let absent = json!({ "type": "null" });
    json!([
        {
            "properties": {
                "verb": { "const": "ack" },
                "delay": absent, "default_delay": absent, "counted": absent, "seconds": absent,
                "error": absent
            }
        },
        {
            "properties": {
                "verb": { "const": "bury" },
                "delay": absent, "default_delay": absent, "counted": absent, "seconds": absent,
                "result": false, "result_base64": absent
            }
        },
        {
            "properties": {
                "verb": { "const": "release" },
                "default_delay": absent, "seconds": absent, "error": absent,
                "result": false, "result_base64": absent
            }
        },
        {
            "required": ["error"],
            "properties": {
                "verb": { "const": "fail" },
                "counted": absent, "seconds": absent, "error": { "type": "string" },
                "result": false, "result_base64": absent
            }
        },
        {
            "required": ["seconds"],
            "properties": {
                "verb": { "const": "touch" },
                "delay": absent, "default_delay": absent, "counted": absent, "error": absent,
                "seconds": { "type": "number" },
                "result": false, "result_base64": absent
            }
        }
    ])
}

/// Adds constraints to a field of a shape.
fn refine(shapes: &mut Map<String, Value>, (shape, field): (&str, &str), more: Value) {
    let place = format!("/properties/{field}");
    let Some(shape) = shapes.get_mut(shape) else { return };
    // A shape that contains the fields of another one has its own in the last part.
    let own = match shape.pointer("/allOf") {
        Some(Value::Array(parts)) => format!("/allOf/{}{place}", parts.len() - 1),
        _ => place,
    };
    let found = shape.pointer_mut(&own);
    if let (Some(Value::Object(fields)), Value::Object(more)) = (found, more) {
        fields.extend(more);
    }
}

/// Every number on the wire is a time or a count: none is negative, and counts fit their type.
/// `anyOf` replaces `oneOf` for nullable shapes, so that it also holds when the shape accepts any
/// value.
fn complete_numbers(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            if let Some(range) = range_of(fields) {
                extend(Some(part), range);
                return;
            }
            if let Some(choices) = fields.remove("oneOf") {
                fields.insert("anyOf".into(), choices);
            }
            fields.values_mut().for_each(complete_numbers);
        }
        Value::Array(items) => items.iter_mut().for_each(complete_numbers),
        _ => {}
    }
}

fn range_of(fields: &Map<String, Value>) -> Option<Value> {
    let range = match fields.get("format")?.as_str()? {
        "double" => json!({ "minimum": 0 }),
        "int64" => json!({ "format": "uint64", "maximum": u64::MAX }),
        "int32" => json!({ "format": "uint32", "maximum": u32::MAX }),
        _ => return None,
    };
    Some(range)
}

/// Adds fields; existing ones that are stricter stay.
fn extend(part: Option<&mut Value>, more: Value) {
    if let (Some(Value::Object(fields)), Value::Object(more)) = (part, more) {
        let stays = |name: &str| matches!(name, "minimum" | "maximum") && fields.contains_key(name);
        let more: Vec<_> = more.into_iter().filter(|(name, _)| !stays(name)).collect();
        fields.extend(more);
    }
}

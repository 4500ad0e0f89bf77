//! Generates TypeScript source code from a contract.

use crate::names::{pascal_case, typescript_field};
use crate::schema::{Contract, Field, FieldType, Queue};

use super::fill;

/// The TypeScript source of a contract: a class for each queue that checks its fields. It depends on nothing; the package
/// `taskyard` encodes the values.
pub fn typescript(contract: &Contract) -> String {
    let mut text = HEAD.to_owned();
    for queue in &contract.queues {
        text.push('\n');
        text.push_str(&fill(QUEUE, &values(queue)));
    }
    text
}

const HEAD: &str = include_str!("typescript_head.ts");

const QUEUE: &str = "\
/** The fields of a task of the queue `«name»`; absent ones have their empty value. */
export interface «Name»Fields {
«arguments»}

/** A task of the queue `«name»`. */
export class «Name»Task {
  static readonly QUEUE_NUM = «id»;
  static readonly QUEUE_NAME = \"«name»\";

«fields»
  constructor(fields: «Name»Fields = {}) {
«assign»  }

  /** The payload of a put. */
  values(): unknown[] {
    return [«values»];
  }

  /** The task of a payload; throws a TypeError that names the field if it is invalid. */
  static from(data: unknown): «Name»Task {
    const fields = fieldsOf(data);
    return new «Name»Task({
«read»    });
  }
}
";

fn values(queue: &Queue) -> Vec<(&'static str, String)> {
    let lines = |line: fn(&Field) -> String| queue.fields.iter().map(line).collect::<String>();
    let read = queue.fields.iter().enumerate().map(|(position, field)| {
        let (name, convert) = (typescript_field(&field.name), converter(field.kind));
        let quoted = format!("\"{}\"", field.name);
        format!("      {name}: named({quoted}, () => {convert}(fields[{position}])),\n")
    });
    let own = queue.fields.iter().map(|field| format!("this.{}", typescript_field(&field.name)));
    vec![
        ("name", queue.name.clone()),
        ("Name", pascal_case(&queue.name)),
        ("id", queue.id.to_string()),
        ("arguments", lines(argument)),
        ("fields", lines(definition)),
        ("assign", lines(assignment)),
        ("values", own.collect::<Vec<_>>().join(", ")),
        ("read", read.collect()),
    ]
}

fn argument(field: &Field) -> String {
    let kind = match field.kind {
        FieldType::Int | FieldType::Int64 => "Int",
        FieldType::String => "string",
        FieldType::Bool => "boolean",
        FieldType::Bytes => "Uint8Array",
        FieldType::Ints | FieldType::Int64s => "readonly Int[]",
    };
    format!("  {}?: {kind} | undefined;\n", typescript_field(&field.name))
}

fn definition(field: &Field) -> String {
    let kind = match field.kind {
        FieldType::Int | FieldType::Int64 => "bigint",
        FieldType::String => "string",
        FieldType::Bool => "boolean",
        FieldType::Bytes => "Uint8Array",
        FieldType::Ints | FieldType::Int64s => "bigint[]",
    };
    format!("  {}: {kind};\n", typescript_field(&field.name))
}

fn assignment(field: &Field) -> String {
    let (name, convert) = (typescript_field(&field.name), converter(field.kind));
    format!("    this.{name} = named(\"{}\", () => {convert}(fields.{name}));\n", field.name)
}

/// The function that checks a value.
fn converter(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Int | FieldType::Int64 => "to.int",
        FieldType::String => "to.string",
        FieldType::Bool => "to.bool",
        FieldType::Bytes => "to.bytes",
        FieldType::Ints | FieldType::Int64s => "to.ints",
    }
}

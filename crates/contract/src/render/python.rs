//! Generates Python source code from a contract.

use crate::names::{pascal_case, python_field};
use crate::schema::{Contract, Field, FieldType, Queue};

use super::fill;

/// The Python source of a contract: a class with a codec for each queue. It depends on nothing but Python, and its encoding
/// is that of the Rust code.
pub fn python(contract: &Contract) -> String {
    let mut text = HEAD.to_owned();
    for queue in &contract.queues {
        text.push_str("\n\n");
        text.push_str(&fill(QUEUE, &values(queue)));
    }
    text
}

const HEAD: &str = include_str!("python_head.py");

const QUEUE: &str = "\
@dataclass
class «Name»Task:
    \"\"\"A task of the queue `«name»`.\"\"\"

    QUEUE_NUM = «id»
    QUEUE_NAME = \"«name»\"

«fields»
    def encode(self) -> bytes:
        \"\"\"Encodes the payload: one MessagePack list, the fields by position.\"\"\"
        out = bytearray()
        _write_list(out, «count»)
«encode»        return bytes(out)

    @classmethod
    def decode(cls, payload: bytes) -> \"«Name»Task\":
        \"\"\"Decodes a payload; raises ValueError if it is invalid.\"\"\"
        fields = _Fields(payload)
        task = cls(
«decode»        )
        fields.finish()
        return task
";

fn values(queue: &Queue) -> Vec<(&'static str, String)> {
    let lines = |line: fn(&Field) -> String| queue.fields.iter().map(line).collect::<String>();
    vec![
        ("name", queue.name.clone()),
        ("Name", pascal_case(&queue.name)),
        ("id", queue.id.to_string()),
        ("count", queue.fields.len().to_string()),
        ("fields", lines(definition)),
        (
            "encode",
            lines(|field| {
                format!(
                    "        _write_{}(out, self.{})\n",
                    codec_suffix(field.kind),
                    python_field(&field.name)
                )
            }),
        ),
        (
            "decode",
            lines(|field| {
                let (name, suffix) = (python_field(&field.name), codec_suffix(field.kind));
                format!("            {name}=fields.next(\"{}\", _Fields.{suffix}),\n", field.name)
            }),
        ),
    ]
}

fn definition(field: &Field) -> String {
    let kind = match field.kind {
        FieldType::Int | FieldType::Int64 => "int = 0",
        FieldType::String => "str = \"\"",
        FieldType::Bool => "bool = False",
        FieldType::Bytes => "bytes = b\"\"",
        FieldType::Ints | FieldType::Int64s => "List[int] = _field(default_factory=_new_list)",
    };
    format!("    {}: {kind}\n", python_field(&field.name))
}

fn codec_suffix(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Int | FieldType::Int64 => "int",
        FieldType::String => "str",
        FieldType::Bool => "bool",
        FieldType::Bytes => "bytes",
        FieldType::Ints | FieldType::Int64s => "ints",
    }
}

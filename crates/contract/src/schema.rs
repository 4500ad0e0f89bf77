//! The parts of a valid contract: queues, fields and their types.

use crate::problem::Position;

/// The queues of one worker and the fields of their tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// In the order of the file.
    pub queues: Vec<Queue>,
}

/// One queue, stored in the tube with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its permanent number: a renamed queue keeps it, and no other queue gets it.
    pub id: u32,
    /// Its name, in lower-case letters, digits and `_`.
    pub name: String,
    /// Earlier names: tubes with such a name are renamed.
    pub was: Vec<String>,
    /// The fields of its tasks, by position.
    pub fields: Vec<Field>,
    /// Its position in the file.
    pub position: Position,
}

/// One field of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, in lower-case letters, digits and `_`.
    pub name: String,
    /// Its type.
    pub kind: FieldType,
    /// Its position in the file.
    pub position: Position,
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldType {
    /// A signed integer of 64 bits.
    Int,
    /// The same as `Int`, with an explicit size.
    Int64,
    /// A UTF-8 string.
    String,
    /// A boolean.
    Bool,
    /// Bytes.
    Bytes,
    /// A list of integers.
    Ints,
    /// The same as `Ints`, with an explicit size.
    Int64s,
}

impl FieldType {
    /// All types, in the order of the documentation.
    pub const ALL: [FieldType; 7] = [
        FieldType::Int,
        FieldType::Int64,
        FieldType::String,
        FieldType::Bool,
        FieldType::Bytes,
        FieldType::Ints,
        FieldType::Int64s,
    ];

    /// Its name in a contract.
    pub const fn name(self) -> &'static str {
        match self {
            FieldType::Int => "int",
            FieldType::Int64 => "int64",
            FieldType::String => "string",
            FieldType::Bool => "bool",
            FieldType::Bytes => "[]byte",
            FieldType::Ints => "[]int",
            FieldType::Int64s => "[]int64",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<FieldType> {
        FieldType::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether both have the same encoding, so that one can replace the other.
    pub fn same_encoding(self, other: FieldType) -> bool {
        self.canonical() == other.canonical()
    }

    fn canonical(self) -> FieldType {
        match self {
            FieldType::Int64 => FieldType::Int,
            FieldType::Int64s => FieldType::Ints,
            other => other,
        }
    }
}

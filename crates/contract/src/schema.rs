//! What a contract says, once it is known to be good.

use crate::problem::Place;

/// The queues of one worker and what their tasks carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// In the order of the file.
    pub queues: Vec<Queue>,
}

/// One queue: the tube of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its number, which never changes: renaming the queue keeps it, and no other queue gets it.
    pub id: u32,
    /// Its name, in small letters, digits and `_`.
    pub name: String,
    /// What it was called before: the tubes that get the new name.
    pub was: Vec<String>,
    /// What its tasks carry, by position.
    pub fields: Vec<Field>,
    /// Where the file defines it.
    pub place: Place,
}

/// One field of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, in small letters, digits and `_`.
    pub name: String,
    /// What it holds.
    pub kind: FieldType,
    /// Where the file defines it.
    pub place: Place,
}

/// What a field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldType {
    /// A whole number of 64 bits.
    Int,
    /// The same, by its exact name.
    Int64,
    /// A text.
    String,
    /// Yes or no.
    Bool,
    /// Bytes.
    Bytes,
    /// Whole numbers.
    Ints,
    /// The same, by their exact name.
    Int64s,
}

impl FieldType {
    /// All of them, in the order of the documents.
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

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<FieldType> {
        FieldType::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether both are written alike, so that one may take the other's place.
    pub fn same_bytes(self, other: FieldType) -> bool {
        self.plain() == other.plain()
    }

    fn plain(self) -> FieldType {
        match self {
            FieldType::Int64 => FieldType::Int,
            FieldType::Int64s => FieldType::Ints,
            other => other,
        }
    }
}

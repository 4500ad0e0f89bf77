//! The definitions of the readable spaces: their fields and indexes.

use super::pack::{self, Out};
use super::rows::Space;

/// A space: its number and name, its fields by name and type, its indexes.
pub(super) struct Definition {
    pub space: Space,
    pub id: u32,
    pub name: &'static str,
    pub fields: &'static [(&'static str, &'static str)],
    pub indexes: &'static [Index],
    /// Whether its content is lost when the server stops.
    pub temporary: bool,
}

/// System spaces of Tarantool that are not readable here. Tarantool refuses a tube of such a name.
const SYSTEM_SPACES: [&str; 25] = [
    "_ck_constraint",
    "_cluster",
    "_collation",
    "_fk_constraint",
    "_func",
    "_func_index",
    "_index",
    "_priv",
    "_queue_session_ids",
    "_queue_shared_sessions",
    "_queue_taken_2",
    "_schema",
    "_sequence",
    "_sequence_data",
    "_session_settings",
    "_space",
    "_space_sequence",
    "_trigger",
    "_truncate",
    "_user",
    "_vfunc",
    "_vinyl_deferred_delete",
    "_vpriv",
    "_vsequence",
    "_vuser",
];

/// Whether a system space has this name.
pub(super) fn is_system_space(name: &str) -> bool {
    name.starts_with('_')
        && (SYSTEM_SPACES.contains(&name) || SPACES.iter().any(|space| space.name == name))
}

/// An index: the fields it orders by, counted from zero.
pub(super) struct Index {
    pub id: u32,
    pub name: &'static str,
    pub unique: bool,
    pub parts: &'static [usize],
}

const fn primary(parts: &'static [usize]) -> Index {
    Index { id: 0, name: "primary", unique: true, parts }
}

/// Every space that can be read, by number.
pub(super) const SPACES: &[Definition] = &[
    Definition {
        space: Space::Collations,
        id: 277,
        name: "_vcollation",
        fields: &[("id", "unsigned"), ("name", "string")],
        indexes: &[primary(&[0])],
        temporary: false,
    },
    Definition {
        space: Space::Spaces,
        id: 281,
        name: "_vspace",
        fields: &[
            ("id", "unsigned"),
            ("owner", "unsigned"),
            ("name", "string"),
            ("engine", "string"),
            ("field_count", "unsigned"),
            ("flags", "map"),
            ("format", "array"),
        ],
        indexes: &[primary(&[0]), Index { id: 2, name: "name", unique: true, parts: &[2] }],
        temporary: false,
    },
    Definition {
        space: Space::Indexes,
        id: 289,
        name: "_vindex",
        fields: &[
            ("id", "unsigned"),
            ("iid", "unsigned"),
            ("name", "string"),
            ("type", "string"),
            ("opts", "map"),
            ("parts", "array"),
        ],
        indexes: &[primary(&[0, 1]), Index { id: 2, name: "name", unique: true, parts: &[0, 2] }],
        temporary: false,
    },
    Definition {
        space: Space::Tubes,
        id: 512,
        name: "_queue",
        fields: &[
            ("tube", "string"),
            ("tube_id", "unsigned"),
            ("space", "string"),
            ("type", "string"),
            ("opts", "map"),
        ],
        indexes: &[primary(&[0]), Index { id: 1, name: "tube_id", unique: true, parts: &[1] }],
        temporary: false,
    },
    Definition {
        space: Space::Consumers,
        id: 513,
        name: "_queue_consumers",
        fields: &[
            ("session", "string"),
            ("fid", "unsigned"),
            ("tube_id", "unsigned"),
            ("timeout", "unsigned"),
            ("time", "unsigned"),
        ],
        indexes: &[primary(&[0, 1]), Index { id: 1, name: "tube", unique: false, parts: &[2] }],
        temporary: true,
    },
    Definition {
        space: Space::Taken,
        id: 514,
        name: "_queue_taken",
        fields: &[
            ("session", "string"),
            ("tube_id", "unsigned"),
            ("task_id", "unsigned"),
            ("time", "unsigned"),
        ],
        indexes: &[
            primary(&[0, 1, 2]),
            Index { id: 1, name: "task", unique: true, parts: &[1, 2] },
        ],
        temporary: true,
    },
];

/// The definition of a space.
pub(super) fn of(space: Space) -> &'static Definition {
    // The list is in the order of the enum; a test compares them.
    &SPACES[space as usize]
}

impl Definition {
    /// Whether it describes the schema, which every client reads; the other spaces describe the
    /// queue.
    pub const fn is_schema(&self) -> bool {
        self.id < 512
    }

    /// Its row in `_vspace`.
    pub fn write_space(&self, out: &mut Out) {
        pack::array(out, 7);
        pack::uint(out, self.id.into());
        // The owner: the administrator.
        pack::uint(out, 1);
        pack::str(out, self.name);
        pack::str(out, if self.is_schema() { "sysview" } else { "memtx" });
        pack::uint(out, 0);
        pack::map(out, usize::from(self.temporary));
        if self.temporary {
            pack::str(out, "temporary");
            pack::bool(out, true);
        }
        pack::array(out, self.fields.len());
        for (name, kind) in self.fields {
            pack::map(out, 2);
            pack::str(out, "name");
            pack::str(out, name);
            pack::str(out, "type");
            pack::str(out, kind);
        }
    }

    /// The row of one of its indexes in `_vindex`.
    pub fn write_index(&self, out: &mut Out, at: usize) {
        let index = &self.indexes[at];
        pack::array(out, 6);
        pack::uint(out, self.id.into());
        pack::uint(out, index.id.into());
        pack::str(out, index.name);
        pack::str(out, "tree");
        pack::map(out, 1);
        pack::str(out, "unique");
        pack::bool(out, index.unique);
        pack::array(out, index.parts.len());
        for field in index.parts {
            pack::array(out, 2);
            pack::uint(out, *field as u64);
            pack::str(out, self.fields[*field].1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_stands_in_the_order_of_the_enum() {
        for definition in SPACES {
            assert_eq!(of(definition.space).id, definition.id);
            assert_eq!(Space::from_id(definition.id.into()), Some(definition.space));
        }
    }
}

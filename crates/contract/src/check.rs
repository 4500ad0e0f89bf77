//! Parses and validates a contract; reports all problems at once.

use std::collections::BTreeMap;

use crate::names::{SERVICE_FIELDS, name_error, pascal_case, suggested_name};
use crate::problem::{Position, Problems};
use crate::schema::{Contract, Field, FieldType, Queue};
use crate::yaml::{YamlNode, YamlValue, read};

/// The largest number of queues in a contract.
const QUEUES_MAX: usize = 1000;
/// The largest number of fields in a queue.
const FIELDS_MAX: usize = 255;

/// Parses a contract, or returns all its problems.
pub fn parse(text: &str) -> Result<Contract, Problems> {
    let mut check = ContractChecker::default();
    let start = Position { line: 1, column: 1 };
    let Some(root) = read(text)? else {
        check.problems.add(start, "no queues defined", QUEUES_HINT);
        return check.problems.into_result(Contract { queues: Vec::new() });
    };
    let position = root.position;
    let queues = match check.map(root, "a contract", &["queues"]) {
        Some(mut map) => map.remove("queues"),
        None => return check.problems.into_result(Contract { queues: Vec::new() }),
    };
    let queues = match queues {
        None => {
            check.problems.add(position, "no queues defined", QUEUES_HINT);
            Vec::new()
        }
        Some(node) => check.queues(node),
    };
    check.problems.into_result(Contract { queues })
}

const QUEUES_HINT: &str = "begin with 'queues:' and a list of queues with id, name and fields";

/// The state of the validation.
#[derive(Default)]
struct ContractChecker {
    problems: Problems,
    ids: BTreeMap<u32, Position>,
    queue_names: NameRegistry,
}

/// The names seen so far and the type names made from them, with the position of their first use.
#[derive(Default)]
struct NameRegistry {
    exact: BTreeMap<String, Position>,
    pascal: BTreeMap<String, String>,
}

impl ContractChecker {
    fn queues(&mut self, node: YamlNode) -> Vec<Queue> {
        let position = node.position;
        let Some(items) = self.list(node, "queues") else { return Vec::new() };
        if items.is_empty() {
            self.problems.add(position, "no queues defined", QUEUES_HINT);
        }
        if items.len() > QUEUES_MAX {
            let message = format!("{} queues, the limit is {QUEUES_MAX}", items.len());
            self.problems.add(position, message, "split the contract");
        }
        items.into_iter().filter_map(|item| self.queue(item)).collect()
    }

    fn queue(&mut self, node: YamlNode) -> Option<Queue> {
        let position = node.position;
        let mut map = self.map(node, "a queue", &["id", "name", "was", "fields"])?;
        let id = match map.remove("id") {
            Some(node) => self.id(node),
            None => {
                let hint = "give it the next free number from 1; the number is permanent";
                self.problems.add(position, "a queue without id", hint);
                None
            }
        };
        let name = match map.remove("name") {
            Some(node) => self.queue_name(node),
            None => {
                self.problems.add(
                    position,
                    "a queue without name",
                    "add 'name:' in lower-case letters",
                );
                None
            }
        };
        let was = map.remove("was").map(|node| self.was(node)).unwrap_or_default();
        let name_or_none = name.clone().unwrap_or_else(|| "without name".into());
        let fields = match map.remove("fields") {
            Some(node) => self.fields(node, &name_or_none),
            None => {
                let message = format!("queue {name_or_none} has no fields");
                self.problems.add(
                    position,
                    message,
                    "add 'fields:' with at least one name and type",
                );
                Vec::new()
            }
        };
        Some(Queue { id: id?, name: name?, was, fields, position })
    }

    fn id(&mut self, node: YamlNode) -> Option<u32> {
        let position = node.position;
        let text = self.scalar(node, "id")?;
        let id = text.parse().ok().filter(|id: &u32| *id >= 1 && !text.starts_with(['+', '0']));
        let Some(id) = id else {
            let hint = format!("use a whole number from 1 to {}", u32::MAX);
            self.problems.add(position, format!("invalid queue id: {text}"), hint);
            return None;
        };
        if let Some(first) = self.ids.insert(id, position) {
            let hint =
                format!("the other is in line {}; use a number that was never used", first.line);
            self.problems.add(position, format!("duplicate queue id: {id}"), hint);
        }
        Some(id)
    }

    fn queue_name(&mut self, node: YamlNode) -> Option<String> {
        let position = node.position;
        let name = self.name(node)?;
        let mut names = std::mem::take(&mut self.queue_names);
        names.add(&mut self.problems, "queue", &name, position);
        self.queue_names = names;
        Some(name)
    }

    /// One earlier name or a list of them. No other queue may have or have had one of them.
    fn was(&mut self, node: YamlNode) -> Vec<String> {
        let items = match node.value {
            YamlValue::List(items) => items,
            value => vec![YamlNode { position: node.position, value }],
        };
        let mut names = Vec::new();
        for item in items {
            let position = item.position;
            let Some(name) = self.name(item) else { continue };
            let mut queue_names = std::mem::take(&mut self.queue_names);
            queue_names.add(&mut self.problems, "queue", &name, position);
            self.queue_names = queue_names;
            names.push(name);
        }
        names
    }

    fn fields(&mut self, node: YamlNode, queue: &str) -> Vec<Field> {
        let position = node.position;
        let Some(items) = self.list(node, "fields") else { return Vec::new() };
        if items.is_empty() {
            let hint = "give it at least one field with name and type";
            self.problems.add(position, format!("queue {queue} has no fields"), hint);
        }
        if items.len() > FIELDS_MAX {
            let message = format!("{} fields, the limit is {FIELDS_MAX}", items.len());
            self.problems.add(position, message, "combine related fields into one []byte");
        }
        let mut names = NameRegistry::default();
        items.into_iter().filter_map(|item| self.field(item, &mut names)).collect()
    }

    fn field(&mut self, node: YamlNode, names: &mut NameRegistry) -> Option<Field> {
        let position = node.position;
        let mut map = self.map(node, "a field", &["name", "type"])?;
        let name = match map.remove("name") {
            Some(node) => self.field_name(node, names),
            None => {
                self.problems.add(
                    position,
                    "a field without name",
                    "add 'name:' in lower-case letters",
                );
                None
            }
        };
        let kind = match map.remove("type") {
            Some(node) => self.kind(node),
            None => {
                self.problems.add(position, "a field without type", types_hint());
                None
            }
        };
        Some(Field { name: name?, kind: kind?, position })
    }

    fn field_name(&mut self, node: YamlNode, names: &mut NameRegistry) -> Option<String> {
        let position = node.position;
        let name = self.name(node)?;
        if SERVICE_FIELDS.iter().any(|service| pascal_case(service) == pascal_case(&name)) {
            let hint = "every task has a field with this name; choose another name";
            self.problems.add(position, format!("field name '{name}' is taken"), hint);
        }
        names.add(&mut self.problems, "field", &name, position);
        Some(name)
    }

    fn kind(&mut self, node: YamlNode) -> Option<FieldType> {
        let position = node.position;
        // Without quotes `[]byte` is a list, or not YAML.
        let text = match node.value {
            YamlValue::List(_) => "a list".into(),
            value => self.scalar(YamlNode { position, value }, "type")?,
        };
        let kind = FieldType::from_name(&text);
        if kind.is_none() {
            let message = format!("invalid type: {text}");
            self.problems.add(position, message, types_hint());
        }
        kind
    }

    fn name(&mut self, node: YamlNode) -> Option<String> {
        let position = node.position;
        let name = self.scalar(node, "name")?;
        let Some(message) = name_error(&name) else { return Some(name) };
        let hint = format!(
            "use lower-case letters, digits and _, starting with a letter, such as '{}'",
            suggested_name(&name)
        );
        self.problems.add(position, message, hint);
        None
    }

    /// The entries of a map by key; reports unknown and duplicate keys.
    fn map(
        &mut self,
        node: YamlNode,
        what: &str,
        keys: &[&'static str],
    ) -> Option<BTreeMap<&'static str, YamlNode>> {
        let position = node.position;
        let YamlValue::Map(entries) = node.value else {
            let message = format!("{what} must be a map, not {}", node.value.describe());
            self.problems.add(position, message, format!("write {}", join_words(keys)));
            return None;
        };
        let mut known = BTreeMap::new();
        for (key, value) in entries {
            let position = key.position;
            let Some(text) = self.scalar(key, "key") else { continue };
            let Some(name) = keys.iter().find(|name| **name == text) else {
                let hint = format!("{what} has {}", join_words(keys));
                self.problems.add(position, format!("unknown key '{text}'"), hint);
                continue;
            };
            if known.insert(*name, value).is_some() {
                self.problems.add(position, format!("duplicate key '{text}'"), "remove one");
            }
        }
        Some(known)
    }

    fn list(&mut self, node: YamlNode, what: &str) -> Option<Vec<YamlNode>> {
        match node.value {
            YamlValue::List(items) => Some(items),
            YamlValue::Scalar(text) if text.is_empty() => Some(Vec::new()),
            other => {
                let message = format!("'{what}' must be a list, not {}", other.describe());
                self.problems.add(node.position, message, "begin each entry with '- '");
                None
            }
        }
    }

    fn scalar(&mut self, node: YamlNode, what: &str) -> Option<String> {
        match node.value {
            YamlValue::Scalar(text) => Some(text),
            other => {
                let message = format!("'{what}' must be a single value, not {}", other.describe());
                self.problems.add(node.position, message, "write one word or one number");
                None
            }
        }
    }
}

impl NameRegistry {
    fn add(&mut self, problems: &mut Problems, what: &str, name: &str, position: Position) {
        if let Some(first) = self.exact.insert(name.into(), position) {
            let hint = format!("the other is in line {}; choose another name", first.line);
            problems.add(position, format!("duplicate {what} name: {name}"), hint);
            return;
        }
        if let Some(other) = self.pascal.insert(pascal_case(name), name.into()) {
            let message =
                format!("{what} names '{other}' and '{name}' both become {}", pascal_case(name));
            problems.add(position, message, "choose names that differ in more than _");
        }
    }
}

fn types_hint() -> String {
    let names: Vec<_> = FieldType::ALL.iter().map(|kind| kind.name()).collect();
    format!("use one of {}, those with brackets in quotes", names.join(", "))
}

fn join_words(keys: &[&str]) -> String {
    match keys {
        [] => String::new(),
        [one] => format!("'{one}'"),
        [most @ .., last] => format!("'{}' and '{last}'", most.join("', '")),
    }
}

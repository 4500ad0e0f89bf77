//! When a text is a contract: everything that is wrong with it is found in one go.

use std::collections::BTreeMap;

use crate::names::{SERVICE_FIELDS, fault, pascal, repaired};
use crate::problem::{Place, Problems};
use crate::schema::{Contract, Field, FieldType, Queue};
use crate::yaml::{Node, Value, read};

/// Most queues in a contract.
const QUEUES_MAX: usize = 1000;
/// Most fields in a queue.
const FIELDS_MAX: usize = 255;

/// Reads a contract, or says everything that is wrong with it.
pub fn parse(text: &str) -> Result<Contract, Problems> {
    let mut check = Check::default();
    let start = Place { line: 1, column: 1 };
    let Some(root) = read(text)? else {
        check.problems.add(start, "no queues defined", QUEUES_HINT);
        return check.problems.or(Contract { queues: Vec::new() });
    };
    let place = root.place;
    let queues = match check.map(root, "a contract", &["queues"]) {
        Some(mut map) => map.remove("queues"),
        None => return check.problems.or(Contract { queues: Vec::new() }),
    };
    let queues = match queues {
        None => {
            check.problems.add(place, "no queues defined", QUEUES_HINT);
            Vec::new()
        }
        Some(node) => check.queues(node),
    };
    check.problems.or(Contract { queues })
}

const QUEUES_HINT: &str = "begin with 'queues:' and a list of queues with id, name and fields";

/// What has been seen so far.
#[derive(Default)]
struct Check {
    problems: Problems,
    ids: BTreeMap<u32, Place>,
    queue_names: Names,
}

/// Names and the types made of them, with the place of their first use.
#[derive(Default)]
struct Names {
    exact: BTreeMap<String, Place>,
    pascal: BTreeMap<String, String>,
}

impl Check {
    fn queues(&mut self, node: Node) -> Vec<Queue> {
        let place = node.place;
        let Some(items) = self.list(node, "queues") else { return Vec::new() };
        if items.is_empty() {
            self.problems.add(place, "no queues defined", QUEUES_HINT);
        }
        if items.len() > QUEUES_MAX {
            let wrong = format!("{} queues, {QUEUES_MAX} are allowed", items.len());
            self.problems.add(place, wrong, "split the contract");
        }
        items.into_iter().filter_map(|item| self.queue(item)).collect()
    }

    fn queue(&mut self, node: Node) -> Option<Queue> {
        let place = node.place;
        let mut map = self.map(node, "a queue", &["id", "name", "was", "fields"])?;
        let id = match map.remove("id") {
            Some(node) => self.id(node),
            None => {
                let hint = "give it the next free number from 1; it never changes afterwards";
                self.problems.add(place, "a queue without id", hint);
                None
            }
        };
        let name = match map.remove("name") {
            Some(node) => self.queue_name(node),
            None => {
                self.problems.add(place, "a queue without name", "add 'name:' in small letters");
                None
            }
        };
        let was = map.remove("was").map(|node| self.was(node)).unwrap_or_default();
        let called = name.clone().unwrap_or_else(|| "without name".into());
        let fields = match map.remove("fields") {
            Some(node) => self.fields(node, &called),
            None => {
                let wrong = format!("queue {called} has no fields");
                self.problems.add(place, wrong, "add 'fields:' with at least one name and type");
                Vec::new()
            }
        };
        Some(Queue { id: id?, name: name?, was, fields, place })
    }

    fn id(&mut self, node: Node) -> Option<u32> {
        let place = node.place;
        let text = self.scalar(node, "id")?;
        let id = text.parse().ok().filter(|id: &u32| *id >= 1 && !text.starts_with(['+', '0']));
        let Some(id) = id else {
            let hint = format!("use a whole number from 1 to {}", u32::MAX);
            self.problems.add(place, format!("invalid queue id: {text}"), hint);
            return None;
        };
        if let Some(first) = self.ids.insert(id, place) {
            let hint = format!("the other is in line {}; take a number never used", first.line);
            self.problems.add(place, format!("duplicate queue id: {id}"), hint);
        }
        Some(id)
    }

    fn queue_name(&mut self, node: Node) -> Option<String> {
        let place = node.place;
        let name = self.name(node)?;
        let mut names = std::mem::take(&mut self.queue_names);
        names.add(&mut self.problems, "queue", &name, place);
        self.queue_names = names;
        Some(name)
    }

    /// One earlier name or a list of them. No other queue may have had or have one of them.
    fn was(&mut self, node: Node) -> Vec<String> {
        let items = match node.value {
            Value::List(items) => items,
            value => vec![Node { place: node.place, value }],
        };
        let mut names = Vec::new();
        for item in items {
            let place = item.place;
            let Some(name) = self.name(item) else { continue };
            let mut queue_names = std::mem::take(&mut self.queue_names);
            queue_names.add(&mut self.problems, "queue", &name, place);
            self.queue_names = queue_names;
            names.push(name);
        }
        names
    }

    fn fields(&mut self, node: Node, queue: &str) -> Vec<Field> {
        let place = node.place;
        let Some(items) = self.list(node, "fields") else { return Vec::new() };
        if items.is_empty() {
            let hint = "give it at least one field with name and type";
            self.problems.add(place, format!("queue {queue} has no fields"), hint);
        }
        if items.len() > FIELDS_MAX {
            let wrong = format!("{} fields, {FIELDS_MAX} are allowed", items.len());
            self.problems.add(place, wrong, "put what belongs together into one []byte");
        }
        let mut names = Names::default();
        items.into_iter().filter_map(|item| self.field(item, &mut names)).collect()
    }

    fn field(&mut self, node: Node, names: &mut Names) -> Option<Field> {
        let place = node.place;
        let mut map = self.map(node, "a field", &["name", "type"])?;
        let name = match map.remove("name") {
            Some(node) => self.field_name(node, names),
            None => {
                self.problems.add(place, "a field without name", "add 'name:' in small letters");
                None
            }
        };
        let kind = match map.remove("type") {
            Some(node) => self.kind(node),
            None => {
                self.problems.add(place, "a field without type", types_hint());
                None
            }
        };
        Some(Field { name: name?, kind: kind?, place })
    }

    fn field_name(&mut self, node: Node, names: &mut Names) -> Option<String> {
        let place = node.place;
        let name = self.name(node)?;
        if SERVICE_FIELDS.iter().any(|service| pascal(service) == pascal(&name)) {
            let hint = "every task has that already; choose another name";
            self.problems.add(place, format!("field name '{name}' is taken"), hint);
        }
        names.add(&mut self.problems, "field", &name, place);
        Some(name)
    }

    fn kind(&mut self, node: Node) -> Option<FieldType> {
        let place = node.place;
        // Without quotes `[]byte` is a list, or no YAML at all.
        let text = match node.value {
            Value::List(_) => "a list".into(),
            value => self.scalar(Node { place, value }, "type")?,
        };
        let kind = FieldType::from_name(&text);
        if kind.is_none() {
            let wrong = format!("invalid type: {text}");
            self.problems.add(place, wrong, types_hint());
        }
        kind
    }

    fn name(&mut self, node: Node) -> Option<String> {
        let place = node.place;
        let name = self.scalar(node, "name")?;
        let Some(wrong) = fault(&name) else { return Some(name) };
        let hint = format!(
            "use small letters, digits and _, beginning with a letter, such as '{}'",
            repaired(&name)
        );
        self.problems.add(place, wrong, hint);
        None
    }

    /// The entries of a map by key; unknown and repeated keys are noted.
    fn map(
        &mut self,
        node: Node,
        what: &str,
        keys: &[&'static str],
    ) -> Option<BTreeMap<&'static str, Node>> {
        let place = node.place;
        let Value::Map(entries) = node.value else {
            let wrong = format!("{what} must be a map, not {}", node.value.describe());
            self.problems.add(place, wrong, format!("write {}", words(keys)));
            return None;
        };
        let mut known = BTreeMap::new();
        for (key, value) in entries {
            let place = key.place;
            let Some(text) = self.scalar(key, "key") else { continue };
            let Some(name) = keys.iter().find(|name| **name == text) else {
                let hint = format!("{what} has {}", words(keys));
                self.problems.add(place, format!("unknown key '{text}'"), hint);
                continue;
            };
            if known.insert(*name, value).is_some() {
                self.problems.add(place, format!("'{text}' stands here twice"), "remove one");
            }
        }
        Some(known)
    }

    fn list(&mut self, node: Node, what: &str) -> Option<Vec<Node>> {
        match node.value {
            Value::List(items) => Some(items),
            Value::Scalar(text) if text.is_empty() => Some(Vec::new()),
            other => {
                let wrong = format!("'{what}' must be a list, not {}", other.describe());
                self.problems.add(node.place, wrong, "begin each entry with '- '");
                None
            }
        }
    }

    fn scalar(&mut self, node: Node, what: &str) -> Option<String> {
        match node.value {
            Value::Scalar(text) => Some(text),
            other => {
                let wrong = format!("'{what}' must be a single value, not {}", other.describe());
                self.problems.add(node.place, wrong, "write one word or number");
                None
            }
        }
    }
}

impl Names {
    fn add(&mut self, problems: &mut Problems, what: &str, name: &str, place: Place) {
        if let Some(first) = self.exact.insert(name.into(), place) {
            let hint = format!("the other is in line {}; choose another name", first.line);
            problems.add(place, format!("duplicate {what} name: {name}"), hint);
            return;
        }
        if let Some(other) = self.pascal.insert(pascal(name), name.into()) {
            let wrong = format!("{what} names '{other}' and '{name}' both become {}", pascal(name));
            problems.add(place, wrong, "choose a name that differs in more than _");
        }
    }
}

fn types_hint() -> String {
    let names: Vec<_> = FieldType::ALL.iter().map(|kind| kind.name()).collect();
    format!("use one of {}, those with brackets in quotes", names.join(", "))
}

fn words(keys: &[&str]) -> String {
    match keys {
        [] => String::new(),
        [one] => format!("'{one}'"),
        [most @ .., last] => format!("'{}' and '{last}'", most.join("', '")),
    }
}

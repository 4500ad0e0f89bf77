//! The slot map of a cluster: which node has which keys.

use std::collections::BTreeSet;

use crate::resp::Value;
use crate::url::Address;

/// The masters of a cluster by their slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// First and last slot, and their node.
    ranges: Vec<(u16, u16, Address)>,
}

impl Slots {
    /// Reads the answer of a node to `CLUSTER SLOTS`.
    pub fn read(said: Value, asked: &Address) -> Option<Self> {
        let mut ranges = Vec::new();
        for range in said.list()? {
            let range = range.list()?;
            let [first, last, master, ..] = &range[..] else { return None };
            let master = master.clone().list()?;
            let [host, port, ..] = &master[..] else { return None };
            let host = match host {
                Value::Text(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
                // A node that does not know its own name has the address that was asked.
                _ => asked.host.clone(),
            };
            let port = u16::try_from(port.int()?).ok()?;
            let number = |value: &Value| u16::try_from(value.int()?).ok();
            ranges.push((number(first)?, number(last)?, Address { host, port }));
        }
        Some(Slots { ranges })
    }

    /// The node of this slot.
    pub fn node(&self, slot: u16) -> Option<&Address> {
        let range = self.ranges.iter().find(|range| (range.0..=range.1).contains(&slot));
        range.map(|range| &range.2)
    }

    /// All masters.
    pub fn nodes(&self) -> BTreeSet<Address> {
        self.ranges.iter().map(|range| range.2.clone()).collect()
    }
}

/// The slot of a key: that of the text between its first braces, if there is any.
pub fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let text = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    checksum(text.as_bytes()) % 16384
}

/// CRC-16/XMODEM.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_one_tag_are_together() {
        assert_eq!(checksum(b"123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("{foo}:a"), slot("foo"));
        assert_eq!(slot("{foo}bar}:a"), slot("foo"));
        assert_ne!(slot("{}foo"), slot("foo"), "an empty tag is none");
    }

    #[test]
    fn a_map_is_read() {
        let text = |text: &str| Value::Text(text.into());
        let node = |host: &str| Value::List(vec![text(host), Value::Int(7000), text("id")]);
        let range = |first, last, host| {
            Value::List(vec![Value::Int(first), Value::Int(last), node(host), node("replica")])
        };
        let asked = Address { host: "asked".into(), port: 1 };
        let said = Value::List(vec![range(0, 8191, "a"), range(8192, 16383, "")]);
        let slots = Slots::read(said, &asked).unwrap();
        assert_eq!(slots.node(8191).unwrap().host, "a");
        assert_eq!(slots.node(8192).unwrap(), &Address { host: "asked".into(), port: 7000 });
        assert_eq!(slots.nodes().len(), 2);
        for wrong in
            [Value::Nil, Value::List(vec![Value::Int(1)]), Value::List(vec![range(-1, 5, "a")])]
        {
            assert_eq!(Slots::read(wrong, &asked), None);
        }
    }
}

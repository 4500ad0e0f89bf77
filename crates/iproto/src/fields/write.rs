//! Encodes fields.

use rmp::encode::{write_array_len, write_bin, write_bool, write_sint, write_str};

/// Writes the fields of a task, each in its shortest form.
#[derive(Debug, Default)]
pub struct FieldWriter {
    bytes: Vec<u8>,
}

impl FieldWriter {
    /// Begins a task with this many fields.
    pub fn new(fields: u32) -> Self {
        FieldWriter::reusing(Vec::new(), fields)
    }

    /// Begins a task in the memory of an earlier one.
    pub fn reusing(mut bytes: Vec<u8>, fields: u32) -> Self {
        bytes.clear();
        let mut writer = FieldWriter { bytes };
        writer.list(fields);
        writer
    }

    /// A whole number.
    pub fn int(&mut self, value: i64) {
        match u8::try_from(value) {
            // Most numbers are small, and this is much faster than the general case.
            Ok(small) if small < 0x80 => self.bytes.push(small),
            _ => written(write_sint(&mut self.bytes, value).map(drop)),
        }
    }

    /// A text.
    pub fn string(&mut self, value: &str) {
        written(write_str(&mut self.bytes, value));
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        written(write_bool(&mut self.bytes, value));
    }

    /// Bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        written(write_bin(&mut self.bytes, value));
    }

    /// Whole numbers.
    pub fn ints(&mut self, values: &[i64]) {
        // A payload may have 64 MiB at most, so a longer list is refused by the queue anyway.
        self.list(u32::try_from(values.len()).unwrap_or(u32::MAX));
        for value in values {
            self.int(*value);
        }
    }

    /// The encoded task.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn list(&mut self, length: u32) {
        written(write_array_len(&mut self.bytes, length).map(drop));
    }
}

/// Writing to memory cannot fail.
fn written<E>(result: Result<(), E>) {
    debug_assert!(result.is_ok());
}

//! The task type of the worker benchmark, in the form of generated code.

use taskyard_worker::{Delivery, FieldError, FieldReader, FieldWriter, Queue, TypedTask};

/// A small task: a number, a short text, a flag.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Note {
    pub task_id: u64,
    pub user: i64,
    pub text: String,
    pub urgent: bool,
}

impl TypedTask for Note {
    const QUEUE: Queue = Queue { num: 1, name: "notes", was: &[] };

    fn encode(&self) -> Vec<u8> {
        let mut fields = FieldWriter::new(3);
        fields.int(self.user);
        fields.string(&self.text);
        fields.bool(self.urgent);
        fields.finish()
    }

    fn decode(delivery: Delivery, payload: &[u8]) -> Result<Self, FieldError> {
        let mut fields = FieldReader::new(payload)?;
        let note = Note {
            task_id: delivery.task_id,
            user: fields.int("user")?,
            text: fields.string("text")?,
            urgent: fields.bool("urgent")?,
        };
        fields.finish()?;
        Ok(note)
    }
}

/// Any of them.
pub fn note(user: i64) -> Note {
    Note { user, text: "a short text of 30 characters.".into(), urgent: true, task_id: 0 }
}

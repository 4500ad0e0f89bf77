//! Refuses puts whose payloads do not match the contract of their queue.

use std::collections::HashMap;
use std::path::PathBuf;

use taskyard_core::{Error, NewTask, Result, TubeName};
use taskyard_worker::FieldError;

use crate::contract;
use crate::failure::UsageError;
use crate::fields::Fields;

/// The fields of the queues of all contracts, by tube.
#[derive(Default)]
pub struct ContractCheck {
    tubes: HashMap<TubeName, Fields>,
}

impl ContractCheck {
    /// Reads contracts. A tube may be in one of them only.
    pub fn read(files: &[PathBuf]) -> anyhow::Result<Self> {
        let mut check = ContractCheck::default();
        for file in files {
            for queue in contract::read(file)?.queues {
                // A renamed queue has its old name until a worker of the contract starts.
                for name in [&queue.name].into_iter().chain(&queue.was) {
                    let tube = TubeName::new(name)?;
                    if check.tubes.insert(tube, Fields::of(&queue)).is_some() {
                        let file = file.display();
                        let message = format!(
                            "{file}: queue '{name}' is in another contract too; leave it out of one of them"
                        );
                        return Err(UsageError(message).into());
                    }
                }
            }
        }
        Ok(check)
    }

    /// Refuses tasks that a worker of the contract could not decode.
    pub fn check(&self, tube: &TubeName, tasks: &[NewTask]) -> Result<()> {
        let Some(fields) = self.tubes.get(tube) else { return Ok(()) };
        for (index, task) in tasks.iter().enumerate() {
            fields.check(task.body.payload()).map_err(|error| {
                let which = match tasks.len() {
                    1 => "the payload".to_owned(),
                    count => format!("the payload of task {} of {count}", index + 1),
                };
                let what = wrong_field(fields, &error);
                Error::Invalid(format!(
                    "{which} does not match the contract of queue '{tube}': {what}; put a list with the fields: {fields}"
                ))
            })?;
        }
        Ok(())
    }
}

fn wrong_field(fields: &Fields, error: &FieldError) -> String {
    match fields.type_of(error.field) {
        Some(kind) => {
            format!("field '{}' must be of type {kind}: {}", error.field, error.what)
        }
        None => error.what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use taskyard_core::Body;

    use super::*;

    const EMAILS: &str = "queues:\n  - {id: 1, name: emails, was: [mails], fields: \
                          [{name: to, type: string}, {name: copies, type: int}]}\n";

    fn read(texts: &[&str]) -> anyhow::Result<ContractCheck> {
        let folder = tempfile::tempdir().unwrap();
        let write = |(index, text): (usize, &&str)| {
            let path = folder.path().join(format!("{index}.yaml"));
            fs::write(&path, text).unwrap();
            path
        };
        ContractCheck::read(&texts.iter().enumerate().map(write).collect::<Vec<_>>())
    }

    fn check(check: &ContractCheck, tube: &str, payloads: &[&[u8]]) -> String {
        let task = |payload: &&[u8]| NewTask::new(Body::new(payload));
        let tasks: Vec<_> = payloads.iter().map(task).collect();
        let checked = check.check(&TubeName::new(tube).unwrap(), &tasks);
        checked.map_or_else(|error| error.to_string(), |()| String::new())
    }

    const GOOD: &[u8] = &[0x92, 0xa1, b'a', 2];

    #[test]
    fn the_refusal_names_the_field_and_what_was_expected() {
        let contracts = read(&[EMAILS]).unwrap();
        for tube in ["emails", "mails"] {
            let wrong = check(&contracts, tube, &[&[0x92, 0xa1, b'a', 0xc3]]);
            let wanted = format!(
                "the payload does not match the contract of queue '{tube}': field 'copies' must be of type int: \
                 not a whole number; put a list with the fields: to string, copies int"
            );
            assert!(wrong.contains(&wanted), "{wrong}");
        }
        let wrong = check(&contracts, "emails", &[GOOD, &[0x80]]);
        assert!(wrong.contains("task 2 of 2"), "{wrong}");
        assert!(wrong.contains("'emails': not a list of fields; put"), "{wrong}");
        assert_eq!(check(&contracts, "emails", &[GOOD, GOOD]), "");
        assert_eq!(check(&contracts, "other", &[&[0x80]]), "", "a tube without a contract");
    }

    /// Producers of an older or a newer contract are valid: fields are appended.
    #[test]
    fn other_versions_of_the_contract_are_accepted() {
        let contracts = read(&[EMAILS]).unwrap();
        for payload in
            [&[0x90][..], &[0x91, 0xa1, b'a'], &[0x92, 0xc0, 0xc0], &[0x93, 0xa0, 0, 0xc3]]
        {
            assert_eq!(check(&contracts, "emails", &[payload]), "", "{payload:?}");
        }
    }

    #[test]
    fn a_queue_of_two_contracts_is_refused() {
        let error = read(&[EMAILS, EMAILS]).err().unwrap().to_string();
        assert!(error.contains("1.yaml: queue 'emails' is in another contract too"), "{error}");
        assert!(read(&["queues: []"]).is_err());
    }
}

//! Checks the characters in new names.
//!
//! An existing name is read with any characters, so that a store of an earlier version opens; it
//! can be used, renamed and dropped. [`check_names`] refuses only commands that would create a new
//! one.

use crate::command::{Command, NewTask, Take};
use crate::error::{Error, Result};
use crate::failure::is_worker_name;
use crate::limits::WORKER_BYTES_MAX;
use crate::semaphore::SemaphoreCommand;
use crate::stored_schedule::ScheduleCommand;

/// Whether the character invisibly changes the direction of the surrounding text. With such a
/// character one name can look like another one.
pub const fn is_bidi_control(char: char) -> bool {
    matches!(
        char,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// The first character that no name may contain: a control character, or one that changes the
/// direction of text.
pub fn unfit_char(name: &str) -> Option<char> {
    // Nearly all names have only these bytes, which are compared faster than characters.
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return None;
    }
    name.chars().find(|char| char.is_control() || is_bidi_control(*char))
}

/// Refuses a command that would create a tube, sub-queue or semaphore name with a character that
/// changes the direction of text, and a take by a worker whose name is not allowed. Stores whose
/// rules run in the database call this first.
#[inline]
pub fn check_names(command: &Command) -> Result<()> {
    match command {
        Command::CreateTube { tube, .. } => check_name("a tube name", tube.as_str()),
        Command::NameTube { tube, name, .. } if name != tube => {
            check_name("a tube name", name.as_str())
        }
        Command::Semaphore(SemaphoreCommand::Configure { key, .. }) => {
            check_name("the key of a semaphore", key.as_str())
        }
        Command::Put { tasks, .. } => check_subqueues(tasks),
        Command::Schedule(command) => check_schedule(command),
        Command::Take(Take { worker: Some(worker), .. }) => check_worker(worker),
        _ => Ok(()),
    }
}

fn check_schedule(command: &ScheduleCommand) -> Result<()> {
    if let ScheduleCommand::Set { schedule, .. } = command {
        check_name("the name of a schedule", schedule.name.as_str())?;
    }
    check_subqueues(command.tasks())
}

fn check_worker(name: &str) -> Result<()> {
    if is_worker_name(name) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the name of a worker has 1 to {WORKER_BYTES_MAX} bytes and no control characters, not {name:?}"
    )))
}

#[inline]
fn check_subqueues(tasks: &[NewTask]) -> Result<()> {
    let mut names = tasks.iter().filter_map(|task| task.subqueue.as_deref());
    names.try_for_each(|name| check_name("the name of a sub-queue", name))
}

fn check_name(what: &str, name: &str) -> Result<()> {
    match name.chars().find(|char| is_bidi_control(*char)) {
        Some(bad) => Err(Error::Invalid(format!(
            "{what} must not contain {bad:?}, which changes the direction of text; leave it out"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semaphore::SemaphoreKey;
    use crate::tube::TubeName;

    // A store of an earlier version may contain such names, and a tube that cannot be named cannot
    // be renamed or dropped.
    #[test]
    fn existing_names_are_read() {
        let tube = TubeName::new("liam\u{202e}x").expect("a name that is read");
        assert!(SemaphoreKey::new("gnay\u{202e}").is_ok());
        let drop = Command::DropTube { tube: tube.clone() };
        let name = TubeName::new("mail").expect("a good name");
        let rename = Command::NameTube { tube: tube.clone(), name, queue_num: None };
        let number = Command::NameTube { name: tube.clone(), tube, queue_num: Some(1) };
        for command in [drop, rename, number] {
            assert_eq!(check_names(&command), Ok(()), "{command:?}");
        }
    }

    #[test]
    fn characters_that_change_the_text_direction_are_refused() {
        for name in ["mail", "почта", "דואר", "بريد", "a b", "e\u{301}", "👩\u{200d}🚀"]
        {
            assert_eq!(unfit_char(name), None, "{name:?}");
        }
        let marks =
            ['\u{061c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'];
        for bad in marks.into_iter().chain(['\n', '\u{7f}', '\u{85}']) {
            assert_eq!(unfit_char(&format!("ma{bad}il")), Some(bad), "{bad:?}");
        }
        for good in ['\u{202f}', '\u{2065}', '\u{206a}', '\u{200d}'] {
            assert!(!is_bidi_control(good), "{good:?}");
        }
    }
}

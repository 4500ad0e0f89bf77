//! Input: invalid input is an error and changes nothing.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{EnqueueItem, Error, SemaphoreChange, SemaphoreCommand, Span, TaskId};

use super::super::Harness;
use super::SemaphoreCommands;
use super::commands::{YANG, key};

/// Priorities must be numbers.
pub async fn priorities_must_be_numbers<H: Harness>(queue: H) {
    queue.limits(5, 5).await;
    let wish = |task, priority| EnqueueItem { task: TaskId(task), priority };
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let entries = vec![wish(1, 1.0), wish(2, bad)];
        let refused = queue.semaphore(SemaphoreCommand::Enqueue { key: key(YANG), entries }).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        assert_eq!(queue.member(1).await, None);
    }
    for extreme in [f64::MAX, f64::MIN, f64::MIN_POSITIVE, -0.0] {
        assert_eq!(queue.enqueue(1, extreme).await.priority.value(), extreme);
    }
}

/// Invalid limits are refused.
pub async fn invalid_limits_are_refused<H: Harness>(queue: H) {
    queue.limits(5, 4).await;
    let before = queue.info().await;
    let wrong = [
        SemaphoreChange::limits(-1, 0),
        SemaphoreChange::limits(5, 6),
        SemaphoreChange::limits(5, -1),
        SemaphoreChange { margin: Some(-1.0), active: Some(9), ..Default::default() },
        SemaphoreChange { margin: Some(f64::NAN), ..Default::default() },
        SemaphoreChange { max_revoking: Some(Some(-1)), ..Default::default() },
        SemaphoreChange { max_revoking: Some(Some(10_001)), ..Default::default() },
        SemaphoreChange { lease: Some(Some(Span::ZERO)), ..Default::default() },
    ];
    for change in wrong {
        for (text, only_new) in [(YANG, false), (YANG, true), ("new", false)] {
            let (key, change) = (key(text), Box::new(change.clone()));
            let refused = SemaphoreCommand::Configure { key, change, only_new };
            let refused = queue.semaphore(refused).await;
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
    }
    assert_eq!(queue.info().await, before);
    let new = queue.semaphore(SemaphoreCommand::List { key: Some(key("new")) }).await;
    assert_eq!(new, Err(Error::SemaphoreNotFound(key("new"))));
}

/// An absent key is an error.
pub async fn an_absent_key_is_an_error<H: Harness>(queue: H) {
    let nowhere = key("nowhere");
    let commands = [
        SemaphoreCommand::Enqueue { key: nowhere.clone(), entries: Vec::new() },
        SemaphoreCommand::Finish { key: nowhere.clone(), items: Vec::new() },
        SemaphoreCommand::Peek { key: nowhere.clone(), tasks: Vec::new() },
        SemaphoreCommand::List { key: Some(nowhere.clone()) },
        SemaphoreCommand::Events { key: Some(nowhere.clone()), count: 1, wait: Span::ZERO },
    ];
    for command in commands {
        let missing = Err(Error::SemaphoreNotFound(nowhere.clone()));
        assert_eq!(queue.semaphore(command).await, missing);
    }
}

/// A key with a character that changes the direction of text looked like another one.
pub async fn a_key_that_changes_text_direction_is_refused<H: Harness>(queue: H) {
    for bad in ["gnay\u{202e}", "\u{2067}yang"] {
        let (key, change) = (key(bad), Box::new(SemaphoreChange::limits(5, 5)));
        let make = SemaphoreCommand::Configure { key: key.clone(), change, only_new: false };
        let refused = queue.semaphore(make).await;
        let explained =
            matches!(&refused, Err(Error::Invalid(text)) if text.contains("direction of text"));
        assert!(explained, "{refused:?}");
        let look = SemaphoreCommand::List { key: Some(key.clone()) };
        assert_eq!(queue.semaphore(look).await, Err(Error::SemaphoreNotFound(key)));
    }
}

/// The number of items of a command is limited.
pub async fn a_command_has_its_limit<H: Harness>(queue: H) {
    queue.limits(5, 5).await;
    let tasks = vec![TaskId(1); BATCH_TASKS_MAX + 1];
    let look = SemaphoreCommand::Peek { key: key(YANG), tasks };
    let refused = queue.semaphore(look).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
}

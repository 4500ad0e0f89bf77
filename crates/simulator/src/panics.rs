//! Notes panics within a run, so that they are violations of it and do not end the process.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::pin::pin;
use std::sync::Once;
use std::task::Poll;

/// What the thread does.
enum Noted {
    /// No run: panics are reported as usual.
    Idle,
    /// A run that has not panicked.
    Runs,
    /// A run, and its first panic.
    Panicked(String),
}

thread_local! {
    static NOTED: RefCell<Noted> = const { RefCell::new(Noted::Idle) };
}

/// Does the work of a run. Returns also its first panic, whatever caught it: a runtime catches those of its tasks.
///
/// Panics on purpose, with `resume_unwind`, are none.
pub fn noting<T>(work: impl FnOnce() -> T) -> (Result<T, Box<dyn Any + Send>>, Option<String>) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    NOTED.set(Noted::Runs);
    let done = catch_unwind(AssertUnwindSafe(work));
    match NOTED.replace(Noted::Idle) {
        Noted::Panicked(text) => (done, Some(text)),
        Noted::Idle | Noted::Runs => (done, None),
    }
}

/// Completes also if the work panics, with `None`.
pub async fn caught<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let poll = std::future::poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    });
    poll.await
}

fn install() {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        let is_idle = NOTED.with_borrow_mut(|noted| {
            if matches!(noted, Noted::Runs) {
                *noted = Noted::Panicked(text(info));
            }
            matches!(noted, Noted::Idle)
        });
        if is_idle {
            usual(info);
        }
    }));
}

/// The message and the place of a panic, in one line.
fn text(info: &PanicHookInfo<'_>) -> String {
    info.to_string().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_panic_is_noted_with_its_place() {
        let (done, panicked) = noting(|| {
            let first = catch_unwind(|| panic!("the first"));
            assert!(first.is_err());
            panic!("the second")
        });
        let done: Result<(), _> = done;
        let text = panicked.expect("it panicked");
        assert!(
            done.is_err() && text.contains("the first") && text.contains("panics.rs"),
            "{text}"
        );
        assert_eq!(noting(|| 5).1, None);
    }

    #[test]
    fn a_panic_on_purpose_is_none() {
        let on_purpose = || std::panic::resume_unwind(Box::new("on purpose"));
        let (done, panicked) = noting(on_purpose);
        let done: Result<(), _> = done;
        assert!(done.is_err() && panicked.is_none());
    }
}

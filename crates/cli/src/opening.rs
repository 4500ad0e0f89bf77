//! Opening a store that may not be up yet.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::ProgressBar;
use taskyard_store::{OpenError, OpenOptions, Store};

use crate::migrate::shown;

/// How long to wait for a database that is started together with this program.
pub const STORE_WAIT: Duration = Duration::from_secs(30);

/// Opens a store; a person sees that it takes its time.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    let progress = if io::stderr().is_terminal() {
        ProgressBar::new_spinner().with_message(format!("opening {}", shown(url)))
    } else {
        ProgressBar::hidden()
    };
    progress.enable_steady_tick(Duration::from_millis(200));
    let store = taskyard_stores::open(url, options);
    progress.finish_and_clear();
    store
}

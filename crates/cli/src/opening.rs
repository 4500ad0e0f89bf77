//! Opening a store that may not be up yet.

use std::time::Duration;

use taskyard_store::{OpenError, OpenOptions, Store};

use crate::migrate::shown;
use crate::progress::Waiting;

/// How long to wait for a database that is started together with this program.
pub const STORE_WAIT: Duration = Duration::from_secs(30);

/// Opens a store; a person sees that it takes its time.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    let _waiting = Waiting::new(format!("opening {}", shown(url)));
    taskyard_stores::open(url, options)
}

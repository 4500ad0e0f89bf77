//! Opens a store, and waits for a database that is starting.

use std::time::Duration;

use taskyard_store::{OpenError, OpenOptions, Store};

use crate::migrate::without_password;
use crate::progress::Waiting;

/// How long to wait for a database that is started together with this program.
pub const STORE_WAIT: Duration = Duration::from_secs(30);

/// Opens a store; a terminal shows a spinner meanwhile.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    let _waiting = Waiting::new(format!("opening {}", without_password(url)));
    taskyard_stores::open(url, options)
}

//! Opening a store whose connection has a thread of its own.

use std::fmt::Display;

use tokio::runtime::{Builder, Runtime};

use crate::OpenError;

/// Opens it on a new runtime of this name. The caller may be on a runtime of its own, where it must not wait for
/// another one, nor drop one that could not be used.
pub(crate) fn on_own_thread<T: Send + 'static>(
    name: &str,
    unavailable: impl Fn(&dyn Display) -> OpenError,
    open: impl Future<Output = Result<T, OpenError>> + Send + 'static,
) -> Result<(Runtime, T), OpenError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| unavailable(&error))?;
    let (done, opened) = std::sync::mpsc::channel();
    runtime.spawn(async move { done.send(open.await) });
    match opened.recv().map_err(|error| unavailable(&error)).and_then(|opened| opened) {
        Ok(store) => Ok((runtime, store)),
        Err(error) => {
            runtime.shutdown_background();
            Err(error)
        }
    }
}

//! Refuses connections beyond the limit, and those that are not encrypted but must be.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taskyard_iproto::{Greeting, faults, write_fault};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::server::IprotoServer;
use crate::server_stream::send_and_close;
use crate::tls_listener::accept;

/// How long the goodbye frame may take to arrive.
pub(super) const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// Sends the goodbye frame for a connection beyond the limit, and closes it.
pub(crate) async fn refuse_connection(stream: TcpStream, server: Arc<IprotoServer>, limit: usize) {
    let so_far = server.counters.refused_connections.fetch_add(1, Ordering::Relaxed) + 1;
    // Repeated attempts must not fill the log.
    if so_far.is_power_of_two() {
        tracing::warn!(limit, so_far, "refused iproto connections: connection limit reached");
    }
    // When too many goodbye frames are being sent, the connection is closed without one.
    let Ok(_permit) = server.goodbyes.try_acquire() else { return };
    let text = format!("overloaded: connection limit of {limit} reached; try again later");
    let frame = goodbye_frame(server.instance, text);
    let sending = async {
        match accept(server.tls.as_deref(), stream).await {
            Some(stream) => send_and_close(stream, &frame).await,
            None => Ok(()),
        }
    };
    // A client that does not read gets no answer.
    let _ = timeout(GOODBYE_MAX, sending).await;
}

/// The protocol has no refusal before the greeting, and only refusals of requests; this frame
/// belongs to no request.
pub(super) fn goodbye_frame(instance: [u8; 16], text: String) -> Vec<u8> {
    // No password is checked on this connection, so the salt need not be secret.
    let mut frame = Greeting::new(instance, [0; 32]).encode().to_vec();
    write_fault(&mut frame, 0, &faults::lua(text));
    frame
}

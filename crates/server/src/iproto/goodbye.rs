//! Closes connections so that the last frame arrives, and refuses connections beyond the limit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taskyard_iproto::{Greeting, faults, write_fault};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::server::IprotoServer;

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
    let frame = goodbye_frame(&server, limit);
    let sending = async {
        match &server.tls {
            None => send_and_close(stream, &frame).await,
            Some(tls) => match tls.accept(stream).await {
                Some(stream) => send_and_close(stream, &frame).await,
                None => Ok(()),
            },
        }
    };
    // A client that does not read gets no answer.
    let _ = timeout(GOODBYE_MAX, sending).await;
}

/// The protocol has no refusal before the greeting, and only refusals of requests; this frame
/// belongs to no request.
fn goodbye_frame(server: &IprotoServer, limit: usize) -> Vec<u8> {
    // No password is checked on this connection, so the salt need not be secret.
    let mut frame = Greeting::new(server.instance, [0; 32]).encode().to_vec();
    let text = format!("overloaded: connection limit of {limit} reached; try again later");
    write_fault(&mut frame, 0, &faults::lua(text));
    frame
}

async fn send_and_close<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    frame: &[u8],
) -> io::Result<()> {
    stream.write_all(frame).await?;
    close_gracefully(&mut stream).await
}

/// Closes a connection so that the last written bytes arrive: unread bytes would reset it.
pub(super) async fn close_gracefully<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

//! The last words to a client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taskyard_wire::iproto::{Greeting, faults, write_fault};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::face::Face;

/// How long the last words to a client are seen through.
pub(super) const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// Says that there is no room for this connection beside so many others, and closes it.
pub(crate) async fn turn_away(stream: TcpStream, face: Arc<Face>, most: usize) {
    let so_far = face.counters.refused_connections.fetch_add(1, Ordering::Relaxed) + 1;
    // Those who come again and again must not fill the log.
    if so_far.is_power_of_two() {
        tracing::warn!(most, so_far, "turned iproto connections away: no room for more");
    }
    // Whoever comes while many others are told this is closed without a word.
    let Ok(_permit) = face.farewells.try_acquire() else { return };
    let words = no_room(&face, most);
    let saying = async {
        match &face.tls {
            None => say(stream, &words).await,
            Some(tls) => match tls.accept(stream).await {
                Some(stream) => say(stream, &words).await,
                None => Ok(()),
            },
        }
    };
    // Whoever does not listen gets no answer; there is nothing else to do about it.
    let _ = timeout(FAREWELL_MAX, saying).await;
}

/// The protocol has no refusal before the greeting, and none but to requests; this one answers none.
fn no_room(face: &Face, most: usize) -> Vec<u8> {
    // Nobody is asked for a password here, so that the salt need not be a secret.
    let mut words = Greeting::new(face.instance, [0; 32]).encode().to_vec();
    let text = format!(
        "overloaded: the server has {most} connections, the most there may be; try again a little later"
    );
    write_fault(&mut words, 0, &faults::lua(text));
    words
}

async fn say<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, words: &[u8]) -> io::Result<()> {
    stream.write_all(words).await?;
    say_goodbye(&mut stream).await
}

/// Closes so that what was written last arrives: unread bytes would reset the connection.
pub(super) async fn say_goodbye<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

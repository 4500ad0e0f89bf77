//! Tells systemd when the server is ready and when it stops, if the unit asks for it (`Type=notify`).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;

/// The variable that names the socket of the service manager.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The server answers requests.
pub fn ready() {
    notify("READY=1");
}

/// The server finishes requests and accepts no new ones.
pub fn stopping() {
    notify("STOPPING=1");
}

fn notify(state: &str) {
    let Some(socket) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, state, "cannot tell the service manager; check {VARIABLE}");
    }
}

/// Sends a state to a socket: a path, or a name that begins with `@`.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    #[cfg(target_os = "linux")]
    if let Some(name) = socket.as_encoded_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        return sender.send_to_addr(state.as_bytes(), &address).map(drop);
    }
    sender.send_to(state.as_bytes(), socket).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_state_arrives_at_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&manager), "READY=1");
        assert!(send(folder.path().join("missing").as_os_str(), "READY=1").is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_state_arrives_at_an_abstract_name() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let name = format!("taskyard-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&manager), "STOPPING=1");
    }
}

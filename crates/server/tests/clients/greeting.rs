//! The first bytes of a connection.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::site::ScenarioServer;

/// net.box refused one server in eight: its random identity was no real uuid. One that is has 10 as
/// the first bits of its fourth group.
#[tokio::test]
async fn every_server_has_a_real_uuid() {
    for _ in 0..64 {
        let site = ScenarioServer::new().await;
        let mut greeting = [0; 128];
        let mut stream = TcpStream::connect(site.address()).await.unwrap();
        stream.read_exact(&mut greeting).await.unwrap();
        let text = str::from_utf8(&greeting[..63]).unwrap();
        let uuid = text.split_whitespace().last().unwrap();
        let groups: Vec<_> = uuid.split('-').collect();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(groups[3].starts_with(['8', '9', 'a', 'b']), "{text}");
    }
}

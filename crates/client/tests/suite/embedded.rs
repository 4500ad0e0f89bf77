//! A queue inside this process.

use std::time::Duration;

use taskyard::{Client, Error};
use taskyard_core::Error as Refusal;

use taskyard_testkit::server::block_on;

#[test]
fn the_first_put_creates_the_tube() {
    block_on(async {
        let client = Client::open("memory:").unwrap();
        let missing = client.take("mail", Duration::ZERO).await.unwrap_err();
        assert!(matches!(missing, Error::Refused(Refusal::TubeNotFound(_))), "{missing}");
        client.put("mail", "x").await.unwrap();
        assert_eq!(client.tube("mail").await.unwrap().options.kind, taskyard::Kind::FifoTtl);
    });
}

#[test]
fn a_strict_queue_creates_no_tube() {
    block_on(async {
        let client = Client::open("memory:").unwrap().strict_tubes();
        let missing = client.put("mail", "x").await.unwrap_err();
        assert!(matches!(missing, Error::Refused(Refusal::TubeNotFound(_))), "{missing}");
    });
}

#[test]
fn tasks_survive_closing() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().display());
        let client = Client::open(&url).unwrap();
        client.put("mail", "kept").await.unwrap();
        client.take("mail", Duration::ZERO).await.unwrap().expect("the queue has a task");
        client.close().await.unwrap();
        assert!(client.put("mail", "late").await.is_err());
        drop(client);
        let client = Client::open(&url).unwrap();
        let task = client.take("mail", Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(task.data::<String>().unwrap(), "kept");
    });
}

#[test]
fn an_error_of_opening_names_its_reason() {
    assert!(matches!(Client::open("nowhere:").unwrap_err(), Error::Open(_)));
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().display());
    let _first = Client::open(&url).unwrap();
    assert!(Client::open(&url).unwrap_err().to_string().contains("in use"));
}

//! A queue inside this process.

use std::time::Duration;

use taskyard::{Client, Embedded, Error};
use taskyard_core::Error as Refusal;

use taskyard_testkit::server::block_on;

#[test]
fn the_first_put_creates_the_tube() {
    block_on(async {
        let client = Client::open("memory:").await.unwrap();
        let missing = client.take("mail", Duration::ZERO).await.unwrap_err();
        assert!(matches!(missing, Error::Refused(Refusal::TubeNotFound(_))), "{missing}");
        client.put("mail", "x").await.unwrap();
        assert_eq!(client.tube("mail").await.unwrap().options.kind, taskyard::Kind::FifoTtl);
    });
}

#[test]
fn a_strict_queue_creates_no_tube() {
    block_on(async {
        let client = Client::open("memory:").await.unwrap().strict_tubes();
        let missing = client.put("mail", "x").await.unwrap_err();
        assert!(matches!(missing, Error::Refused(Refusal::TubeNotFound(_))), "{missing}");
    });
}

#[test]
fn tasks_survive_closing() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().display());
        let client = Client::open(&url).await.unwrap();
        client.put("mail", "kept").await.unwrap();
        client.take("mail", Duration::ZERO).await.unwrap().expect("the queue has a task");
        client.close().await.unwrap();
        assert!(client.put("mail", "late").await.is_err());
        drop(client);
        let client = Client::open(&url).await.unwrap();
        let task = client.take("mail", Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(task.data::<String>().unwrap(), "kept");
    });
}

#[test]
fn an_error_of_opening_names_its_reason() {
    block_on(async {
        let unknown = Client::open("nowhere:").await.unwrap_err();
        assert!(matches!(unknown, Error::UnknownScheme(_)), "{unknown}");
        assert!(matches!(Client::open("sqlite:").await.unwrap_err(), Error::Open(_)));
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().display());
        let _first = Client::open(&url).await.unwrap();
        assert!(Client::open(&url).await.unwrap_err().to_string().contains("in use"));
    });
}

#[test]
fn an_engine_of_this_process_has_a_client() {
    block_on(async {
        let opened = Client::open("memory:").await.unwrap();
        let engine = opened.transport::<Embedded>().expect("it is embedded").engine().clone();
        let client = Client::embedded(engine.clone());
        client.put("mail", "x").await.unwrap();
        assert_eq!(opened.stats("mail").await.unwrap().tasks.ready, 1);
        let strict = Client::new(engine);
        assert!(strict.put("other", "x").await.is_err(), "an engine creates no tubes");
        client.close().await.unwrap();
        assert!(opened.put("mail", "late").await.is_err());
    });
}

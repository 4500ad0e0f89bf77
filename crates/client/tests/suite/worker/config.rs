//! Settings in a file, changed while a worker runs.

use std::fs;
use std::time::Duration;

use taskyard::worker::ConfigFile;
use taskyard::worker::kit::Kit;

use super::post::{Act, Post, metric};
use crate::rig::block_on;

fn text(processors: &str) -> String {
    let worker = format!("{{max_processors: {processors}, queue: {{1: {{batch_size: 7}}}}}}");
    format!("shop:\n  worker:\n    queue:\n      test: {worker}\n")
}

#[test]
fn a_changed_file_is_read_again_and_a_bad_value_changes_nothing() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.yaml");
        let mut config = ConfigFile::new(&path, "shop");
        assert_eq!(config.load(&worker).len(), 1, "there is no file");
        assert_eq!(config.load(&worker), [""; 0], "which is told once");
        fs::write(&path, text("3")).unwrap();
        assert_eq!(config.load(&worker), [""; 0]);
        assert_eq!((worker.settings().max_processors, worker.settings().batch_of(1)), (3, 7));
        fs::write(&path, text("none")).unwrap();
        let complaints = config.load(&worker);
        assert!(complaints[0].contains("max_processors must be"), "{complaints:?}");
        assert_eq!(worker.settings().max_processors, 3, "the last good value");
        assert_eq!(metric(&worker.metrics().text(), "queue_config_errors_total"), 2.0);
        fs::write(&path, text("2")).unwrap();
        config.load(&worker);
        assert_eq!(worker.settings().max_processors, 2);
        fs::write(&path, "").unwrap();
        let complaints = config.load(&worker);
        assert!(complaints[0].contains("is empty"), "{complaints:?}");
        assert_eq!(worker.settings().max_processors, 2, "an empty file is not a setting");
    });
}

/// Whoever follows a file must not outlive the worker.
#[test]
fn following_a_file_ends_with_the_worker() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.yaml");
        fs::write(&path, text("5")).unwrap();
        let running = kit.start(&worker).await;
        let following = tokio::spawn(ConfigFile::new(&path, "shop").follow(worker.clone()));
        while worker.settings().max_processors != 5 {
            tokio::task::yield_now().await;
        }
        running.stop().await;
        following.await.unwrap();
    });
}

#[test]
fn what_is_set_in_code_can_be_wrong_too() {
    let (kit, post) = (Kit::new(), Post::new(Act::Done));
    let default = taskyard::worker::Settings::default;
    for wrong in [
        taskyard::worker::Settings { batch_size: 10_001, ..default() },
        taskyard::worker::Settings { visibility_timeout: Duration::ZERO, ..default() },
        taskyard::worker::Settings { max_processors: 0, ..default() },
    ] {
        assert!(post.worker(&kit).settings(wrong).build().is_err());
    }
}

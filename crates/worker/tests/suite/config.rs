//! A settings file that changes while a worker runs.

use std::fs;
use std::time::Duration;

use taskyard_worker::ConfigFile;
use taskyard_worker::testing::TestKit;

use crate::recording_handler::{Act, RecordingHandler, metric};
use taskyard_testkit::server::block_on;

fn text(processors: &str) -> String {
    let worker = format!("{{max_processors: {processors}, queue: {{1: {{batch_size: 7}}}}}}");
    format!("shop:\n  worker:\n    queue:\n      test: {worker}\n")
}

#[test]
fn a_changed_file_is_applied_and_an_invalid_value_changes_nothing() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.yaml");
        let mut config = ConfigFile::new(&path, "shop");
        assert_eq!(config.load(&worker).len(), 1, "the file does not exist");
        assert_eq!(config.load(&worker), [""; 0], "which is reported once");
        fs::write(&path, text("3")).unwrap();
        assert_eq!(config.load(&worker), [""; 0]);
        assert_eq!((worker.settings().max_processors, worker.settings().batch_size_of(1)), (3, 7));
        fs::write(&path, text("none")).unwrap();
        let problems = config.load(&worker);
        assert!(problems[0].contains("max_processors must be"), "{problems:?}");
        assert_eq!(worker.settings().max_processors, 3, "the last valid value");
        assert_eq!(metric(&worker.metrics().text(), "queue_config_errors_total"), 2.0);
        fs::write(&path, text("2")).unwrap();
        config.load(&worker);
        assert_eq!(worker.settings().max_processors, 2);
        fs::write(&path, "").unwrap();
        let problems = config.load(&worker);
        assert!(problems[0].contains("is empty"), "{problems:?}");
        assert_eq!(worker.settings().max_processors, 2, "an empty file is not a setting");
    });
}

/// The task that follows a file must end with its worker.
#[test]
fn following_a_file_ends_with_the_worker() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
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
fn invalid_settings_in_code_are_refused() {
    let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
    let default = taskyard_worker::Settings::default;
    for wrong in [
        taskyard_worker::Settings { batch_size: 10_001, ..default() },
        taskyard_worker::Settings { visibility_timeout: Duration::ZERO, ..default() },
        taskyard_worker::Settings { max_processors: 0, ..default() },
    ] {
        assert!(recorder.worker(&kit).settings(wrong).build().is_err());
    }
}

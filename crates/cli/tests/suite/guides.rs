//! The commands of documents, run in their order on an empty server.

use crate::document_page::{DocumentPage, assert_start_screen};
use crate::process::{Serving, TestServer, binary};

/// Runs all commands of a document.
fn play(name: &str) {
    let (page, server) = (DocumentPage::read(name), TestServer::new());
    let folder = tempfile::tempdir().expect("a folder can be made");
    let blocks = page.blocks(&["console", "sh"]);
    assert!(!blocks.is_empty(), "{name} has no commands");
    for block in blocks {
        page.run(&block, &server.serving, folder.path());
    }
}

#[test]
fn limits_by_semaphore() {
    play("docs/guides/limits-by-semaphore.md");
}

#[test]
fn priorities_and_fairness() {
    play("docs/guides/priorities-and-fairness.md");
}

#[test]
fn recurring_tasks() {
    play("docs/guides/recurring-tasks.md");
}

#[test]
fn unique_work() {
    play("docs/guides/unique-work.md");
}

#[test]
fn requests_of_sqs() {
    play("docs/coming-from/sqs.md");
}

#[test]
fn semaphores() {
    play("docs/semaphores.md");
}

#[test]
fn tubes() {
    play("docs/tubes.md");
}

#[test]
fn schedules() {
    play("docs/schedules.md");
}

/// The session of the README, whose server is the one that it starts.
#[test]
fn the_first_session() {
    let page = DocumentPage::read("README.md");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let server = Serving::folder(folder.path(), &[]);
    let blocks = page.blocks(&["console"]);
    assert_eq!(blocks.len(), 1);
    page.run(&blocks[0], &server, folder.path());
}

/// The start screen in `docs/start.md`, without Python.
#[test]
fn the_start_screen_of_a_server() {
    let page = DocumentPage::read("docs/start.md");
    let shown = &page.blocks(&["console"])[0].text;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut serve = binary();
    serve.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0"]);
    let server = Serving::start(serve.current_dir(folder.path()));
    assert_start_screen(shown, &server);
}

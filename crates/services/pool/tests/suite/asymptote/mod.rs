//! The shipped example with the real Asymptote: a picture, a session, and the page in a real Chromium.

mod page;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use taskyard_pool::Config;
use taskyard_testkit::skipped::skip_without;

use crate::fixture::{self, TestPool};

const EXAMPLE: &str = include_str!("../../../../../../examples/asymptote.yaml");
const PICTURE: &str = "size(3cm); draw(unitcircle, red); label(\"$x^2$\", (0, 0));";

/// A pool of the example; `None` if the tests run without Asymptote.
async fn site() -> Option<TestPool> {
    site_lasting(2, 30.0).await
}

/// The same with so many backends and so many seconds for the longest class.
async fn site_lasting(backends: u32, seconds: f64) -> Option<TestPool> {
    let program = "/usr/bin/asy";
    if !std::path::Path::new(program).exists() {
        skip_without(program);
        return None;
    }
    let mut config = Config { backends, ..Config::parse(EXAMPLE).unwrap() };
    config.classes.last_mut().unwrap().seconds = seconds;
    Some(TestPool::of(config).await)
}

async fn draw(site: &TestPool, code: &str, options: Value) -> Value {
    let file = json!({ "filename": "main.asy", "text": code });
    site.post_to("asy", json!({ "input": [file], "options": options })).await.1
}

#[tokio::test]
async fn a_real_picture_in_every_format() {
    let Some(site) = site().await else { return };
    for (format, begins) in [("svg", &b"<?xml"[..]), ("pdf", b"%PDF"), ("png", b"\x89PNG")] {
        let answer = draw(&site, PICTURE, json!({ "format": format, "duration": 30 })).await;
        let result = answer["ok"]["result"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let bytes = STANDARD.decode(result).unwrap();
        assert!(bytes.starts_with(begins), "{format}");
        assert!(bytes.len() > 500, "{format}");
    }
    site.until_empty().await;
}

#[tokio::test]
async fn an_error_of_asymptote_is_passed_on() {
    let Some(site) = site().await else { return };
    let answer = draw(&site, "draw(unitcircl);", json!({})).await;
    let output = answer["error"]["output"][0]["text"].as_str().unwrap_or_default();
    assert!(output.contains("main.asy: 1.6: no matching variable 'unitcircl'"), "{answer}");
}

#[tokio::test]
async fn an_endless_loop_is_stopped() {
    let Some(site) = site().await else { return };
    let answer = draw(&site, "while (true) {}", json!({ "duration": 0.5 })).await;
    assert_eq!(answer["error"]["error"], "time limit (0.5 s)");
    site.until_empty().await;
}

#[tokio::test]
async fn the_shell_calculates() {
    let Some(site) = site().await else { return };
    let mut client = site.connect("/pool/run/asy/interactive").await;
    client.send("start {}").await;
    client.stdin("int a = 6;\n").await;
    client.stdin("write(a * 7);\n").await;
    client.until_output("42").await;
    // Two tasks occupy both backends, so the shell is halted.
    let busy = "while (true) {}";
    for _ in 0..2 {
        let file = json!({ "filename": "main.asy", "text": busy });
        let options = json!({ "duration": 0.5 });
        let body = json!({ "input": [file], "options": options });
        let address = site.address.clone();
        tokio::spawn(async move { fixture::post(&address, "asy", body).await });
    }
    let end = client.until("complete").await;
    assert_eq!(end.error(), "halted: a waiting task needs its backend");
}

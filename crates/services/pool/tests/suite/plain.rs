//! Tasks over plain HTTP.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use taskyard_pool::Config;

use crate::fixture::TestPool;

#[tokio::test]
async fn a_task_runs_and_its_output_and_result_come_back() {
    let site = TestPool::new(1, "").await;
    let answer = site.run("echo hello; printf picture > result.txt").await;
    assert_eq!(answer["ok"]["output"], json!([{ "stream": "stdout", "text": "hello\n" }]));
    let result = STANDARD.decode(answer["ok"]["result"].as_str().unwrap()).unwrap();
    assert_eq!((answer["ok"]["format"].as_str(), &*result), (Some("txt"), &b"picture"[..]));
    assert_eq!(answer["error"], Value::Null);
    site.until_empty().await;
}

#[tokio::test]
async fn a_program_that_fails_is_an_error_with_its_output() {
    let site = TestPool::new(1, "").await;
    let answer = site.run("echo no >&2; exit 3").await;
    assert_eq!(answer["error"]["error"], "the program exited with status 3");
    assert_eq!(answer["error"]["output"][0]["text"], "no\n");
    assert_eq!(answer["ok"], Value::Null);
}

#[tokio::test]
async fn a_program_without_a_result_says_so() {
    let site = TestPool::new(1, "").await;
    assert_eq!(site.run("true").await["error"]["error"], "the program wrote no result");
}

#[tokio::test]
async fn several_files_need_a_main_one() {
    let site = TestPool::new(1, "").await;
    let files = json!([
        { "filename": "a.sh", "text": ". ./b.sh" },
        { "filename": "b.sh", "base64": STANDARD.encode("echo from b > result.txt") },
    ]);
    let (status, answer) = site.post(json!({ "input": files })).await;
    assert_eq!(status, 400, "{answer}");
    let (_, answer) = site.post(json!({ "input": files, "start": { "main": "a.sh" } })).await;
    assert_eq!(answer["ok"]["result"], STANDARD.encode("from b\n"), "{answer}");
}

#[tokio::test]
async fn invalid_requests_are_refused_with_a_reason() {
    let site = TestPool::new(1, "").await;
    let file = json!({ "filename": "a.sh", "text": "" });
    for (body, expected) in [
        (json!([]), "invalid request"),
        (json!({ "input": [{ "filename": "a.sh" }] }), "either `text` or `base64`"),
        (json!({ "input": [{ "filename": "a.sh", "base64": "%" }] }), "base64"),
        (json!({ "input": [file], "options": { "format": "gif" } }), "unknown format"),
        (json!({ "input": [file], "options": { "duration": -1 } }), "number of seconds"),
        (json!({ "input": [] }), "`main` must name one of the files"),
        (json!({ "input": [file, file] }), "was sent twice"),
    ] {
        let (status, answer) = site.post(body.clone()).await;
        assert_eq!(status, 400, "{body}");
        let error = answer["error"]["error"].as_str().unwrap();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(site.status().await.counts.arrived, 0);
}

/// More than two mebibytes were never accepted, whatever the limit was, and the refusal was not JSON.
#[tokio::test]
async fn input_may_be_as_large_as_the_limit() {
    let site = TestPool::new(1, "limits: {input_bytes_max: 4000000}").await;
    let text = format!("echo x > result.txt\nexit\n{}", "#".repeat(3_900_000));
    let file = json!({ "filename": "a.sh", "base64": STANDARD.encode(&text) });
    let (status, answer) = site.post(json!({ "input": [file] })).await;
    assert_eq!((status, answer["ok"]["format"].as_str()), (200, Some("txt")), "{answer}");
    let file = json!({ "filename": "a.sh", "text": "#".repeat(9_000_000) });
    let (status, answer) = site.post(json!({ "input": [file] })).await;
    assert_eq!(status, 413);
    let error = answer["error"]["error"].as_str().unwrap();
    assert!(error.starts_with("the input is too large"), "{error}");
}

/// A result without a format was accepted and never sent.
#[test]
fn a_result_needs_formats() {
    let text = "programs: {one: {command: [/bin/true], result: out}}";
    let error = Config::parse(text).unwrap_err().to_string();
    assert!(error.contains("`result` needs at least one entry in `formats`"), "{error}");
}

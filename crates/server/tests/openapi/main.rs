//! Compares the server with its OpenAPI document: a fuzzer sends valid and invalid requests
//! generated from the document, and checks every response against it. No response may be a server
//! error.
//!
//! `schemathesis.toml` beside this crate's manifest configures the checks.

use std::env;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use reqwest::Client;
use serde_json::{Value, json};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use taskyard_store::MemoryStore;
use taskyard_testkit::skipped::find_tool;

/// The same requests in every run. Another number in TASKYARD_SEED finds other mistakes: try one
/// from time to time.
const SEED: &str = "20261115";
/// How many requests of each kind an address gets, beside the hundreds that its limits suggest. `TASKYARD_RUNS`
/// multiplies it.
const EXAMPLES: u64 = 10;
/// How many tasks the tubes may have: one kind needs a limit, and none shall meet it.
const CAPACITY: u64 = 1_000_000;
/// The longest wait on this server. The document contains it too, so the fuzzer tries it.
const WAIT_SECONDS_MAX: f64 = 0.05;

#[tokio::test(flavor = "multi_thread")]
async fn the_server_conforms_to_its_document() {
    let usual = root().join("target/tools/python/bin/schemathesis");
    let Some(fuzzer) = find_tool("TASKYARD_SCHEMATHESIS", usual) else { return };
    let url = serve().await;
    let client = Client::builder().no_proxy().build().unwrap();
    create_tubes(&client, &url).await;
    let fuzzing = tokio::task::spawn_blocking({
        let url = url.clone();
        move || fuzz(&fuzzer, &url)
    });
    let output = fuzzing.await.unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    println!("{said}");
    let unmet = unmet(&client, &url).await;
    assert!(unmet.is_empty(), "no request to these did anything: {unmet:?}");
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

async fn serve() -> String {
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.wait_seconds_max = WAIT_SECONDS_MAX;
    let store = Box::new(MemoryStore::default());
    let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
    let server = Server::bind(config, engine).await.unwrap();
    let url = server.url();
    tokio::spawn(server.run(std::future::pending()));
    url
}

/// Creates the tubes named in the settings of the fuzzer, one of each kind, with a few tasks.
async fn create_tubes(client: &Client, url: &str) {
    let kinds = ["fifo", "fifottl", "limfifottl", "utube", "utubettl"];
    for (name, kind) in kinds.map(|kind| (kind, kind)).into_iter().chain([("kept", "fifottl")]) {
        let tube = format!("{url}/v1/tubes/{name}");
        let options = json!({ "kind": kind, "capacity": CAPACITY });
        let created = client.put(&tube).json(&options).send().await.unwrap();
        assert_eq!(created.status(), 201);
        let tasks = json!({ "tasks": vec![json!({ "data": 1 }); 20] });
        let put = client.post(format!("{tube}/put")).json(&tasks).send().await.unwrap();
        assert_eq!(put.status(), 200);
    }
}

/// The operations of the document that never succeeded: a fuzzer that is refused everywhere finds
/// nothing.
async fn unmet(client: &Client, url: &str) -> Vec<String> {
    let text = async |path: &str| {
        let answer = client.get(format!("{url}{path}")).send().await.unwrap();
        answer.text().await.unwrap()
    };
    let counted = text("/metrics").await;
    let document: Value = serde_json::from_str(&text("/openapi.json").await).unwrap();
    let mut unmet = Vec::new();
    let paths = document["paths"].as_object().unwrap().iter();
    // This server keeps its tasks in memory, of which there are no backups.
    let is_possible = |path: &str| !path.ends_with("/socket") && path != "/v1/backup";
    for (path, item) in paths.filter(|(path, _)| is_possible(path)) {
        for method in item.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            let answered = format!("{{method=\"{method}\",route=\"{path}\",status=\"2");
            if !counted.contains(&answered) {
                unmet.push(format!("{method} {path}"));
            }
        }
    }
    unmet
}

fn fuzz(fuzzer: &Path, url: &str) -> Output {
    // It stores data for its next run in its working folder; this run must not use any.
    let folder = tempfile::tempdir().unwrap();
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/schemathesis.toml");
    let hooks = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openapi/hooks.py");
    let seed = env::var("TASKYARD_SEED").unwrap_or_else(|_| SEED.into());
    let runs = env::var("TASKYARD_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(1);
    let examples = (EXAMPLES * runs).to_string();
    let mut command = Command::new(fuzzer);
    command.current_dir(folder.path()).env("NO_PROXY", "127.0.0.1");
    command.env("SCHEMATHESIS_HOOKS", hooks).env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["--config-file", settings, "run", &format!("{url}/openapi.json")]);
    command.args(["--checks", "all", "--seed", &seed, "--max-examples", &examples]);
    // It asks as HTTP does, which a socket refuses.
    command.args(["--exclude-operation-id", "semaphore_event_socket"]);
    command.args(["--generation-database", "none", "--request-timeout", "20"]);
    command.args(["--suppress-health-check", "all", "--warnings", "off", "--no-color"]);
    command.output().expect("schemathesis starts")
}

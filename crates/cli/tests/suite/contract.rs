//! `contract`, `worker --contract` and `serve --contract`.

use std::fs;
use std::process::Command;

use crate::process::{Running, Serving, TestServer, binary, http_post, run};
use crate::worker::{fetch, metrics_address};
use taskyard_testkit::server_process::shown_iproto;

const GOOD: &str = include_str!("../../../contract/tests/reference.yaml");

#[test]
fn a_contract_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good.yaml", GOOD);
    assert!(run(&["contract", "check", &good]).good().ends_with("is valid: 2 queues\n"));
    let bad = file("bad.yaml", "queues:\n  - id: 0\n    name: Mail\n    fields: []\n");
    let ran = run(&["contract", "check", &bad]).ends(2);
    assert_eq!(ran.err.lines().count(), 3, "{}", ran.err);
    assert!(
        ran.err.contains("bad.yaml:3:11: invalid name 'Mail'; use lower-case letters"),
        "{}",
        ran.err
    );
    let newer = file("newer.yaml", &GOOD.replace("type: bool", "type: int"));
    let ran = run(&["contract", "check", &newer, "--previous", &good]).ends(2);
    assert!(ran.err.contains("newer.yaml:15:9: field 'is_urgent' was bool"), "{}", ran.err);
    run(&["contract", "check", &folder.path().join("none").display().to_string()]).ends(2);
}

#[test]
fn source_is_generated_and_not_written_if_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("queues.yaml");
    fs::write(&contract, GOOD).unwrap();
    let contract = contract.to_str().unwrap();
    let printed = run(&["contract", "generate", contract]).good();
    assert!(printed.contains("pub struct EmailsTask {"));
    let target = folder.path().join("queues.rs");
    let generate =
        || run(&["contract", "generate", contract, "--output", target.to_str().unwrap()]);
    generate().good();
    assert_eq!(fs::read_to_string(&target).unwrap(), printed);
    let written = target.metadata().unwrap().modified().unwrap();
    generate().good();
    assert_eq!(target.metadata().unwrap().modified().unwrap(), written);
    let python = run(&["contract", "generate", contract, "--language", "python"]).good();
    assert!(python.contains("class NotificationsTask:"));
    let typescript = run(&["contract", "generate", contract, "--language", "typescript"]).good();
    assert!(typescript.contains("NotificationsTask"));
    assert_eq!(run(&["contract", "generate", contract, "--typescript"]).good(), typescript);
}

/// A worker for the contract on this server, with a program that runs without a shell.
fn worker(server: &TestServer, contract: &str, program: &[&str]) -> Running {
    let mut command = binary();
    command.args(["worker", "--contract", contract, "--"]).args(program);
    Running::start(command.env("TASKYARD_URL", &server.serving.url))
}

#[test]
fn a_program_works_on_the_tasks_of_a_contract() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let contract = folder.path().join("queues.yaml");
    fs::write(&contract, GOOD).unwrap();
    let contract = contract.to_str().unwrap();
    server.run(&["put", "emails", r#"["ann", "hi", null, 7]"#]).good();
    let mut working = worker(&server, contract, &["cat"]);
    let line = working.line();
    assert_eq!(line, "{\"body\":\"\",\"subject\":\"hi\",\"to\":\"ann\",\"user_id\":7}\n");
    server.run(&["put", "notifications", r#"["$(rm -rf x)", [1], true]"#]).good();
    let line = working.line();
    assert!(line.contains("\"message\":\"$(rm -rf x)\""), "no shell: {line}");
    let done = || {
        ["emails", "notifications"]
            .iter()
            .all(|queue| server.run(&["stats", queue, "--json"]).json()[0]["tasks"]["total"] == 0)
    };
    while !done() {}
    working.signal("TERM");
    working.ended().ends(0);
}

#[test]
fn a_failed_program_has_its_task_tried_again() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let contract = folder.path().join("queues.yaml");
    fs::write(&contract, GOOD).unwrap();
    let contract = contract.to_str().unwrap();
    server.run(&["put", "emails", r#"["ann"]"#, "\"poison\""]).good();
    let mut working = worker(&server, contract, &["false"]);
    assert!(working.error_line().contains("exit status: 1; will be tried again"));
    let tasks = || server.run(&["peek", "emails", "0", "1", "--json"]).json();
    while !tasks().iter().all(|task| task["attempts"] != 0) {}
    working.signal("INT");
    assert!(working.ended().ends(0).err.contains("stopping when the running programs"));
    let ran = server.run(&["worker", "--contract", contract]).ends(2);
    assert!(ran.err.contains("PROGRAM"), "{}", ran.err);
    // Options for tubes were accepted without effect; a typing error used up the attempts of all tasks.
    for wrong in
        [&["--drain", "--", "cat"][..], &["--retry", "3s", "--", "cat"], &["--", "no-such"]]
    {
        let mut args = vec!["worker", "--contract", contract];
        args.extend(wrong);
        server.run(&args).ends(2);
    }
}

#[test]
fn a_killed_worker_loses_no_task() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let (contract, gate) = (folder.path().join("queues.yaml"), folder.path().join("gate"));
    fs::write(&contract, GOOD).unwrap();
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let contract = contract.to_str().unwrap();
    server
        .run(&["put", "emails", r#"["a"]"#, r#"["b"]"#, r#"["c"]"#, r#"["d"]"#, r#"["e"]"#])
        .good();
    let waiting = format!("echo started; cat {}", gate.display());
    let mut command = binary();
    command.args(["worker", "--contract", contract, "--processors", "3", "--lease", "2s", "--"]);
    command.args(["sh", "-c", &waiting]).env("TASKYARD_URL", &server.serving.url);
    let mut killed = Running::start(&mut command);
    for _ in 0..3 {
        assert_eq!(killed.line(), "started\n");
    }
    killed.signal("KILL");
    drop(killed);
    let working = worker(&server, contract, &["true"]);
    let emails = || {
        let tubes = server.run(&["stats", "--json"]).json();
        tubes.into_iter().find(|tube| tube["name"] == "emails").unwrap()
    };
    while emails()["tasks"]["total"] != 0 {}
    assert_eq!(emails()["calls"]["ack"], 5);
    working.signal("TERM");
    working.ended().ends(0);
    // The programs of the killed worker end too.
    fs::write(&gate, "").unwrap();
}

/// Reads lines of standard error until one contains these words.
fn complained(working: &mut Running, words: &str) -> String {
    loop {
        let line = working.error_line();
        assert!(!line.is_empty(), "it ended without {words:?}");
        if line.contains(words) {
            return line;
        }
    }
}

/// The log of the worker was not started: an unreadable task and an invalid setting were
/// ignored silently.
#[test]
fn errors_of_tasks_and_settings_are_logged() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let (contract, config) = (folder.path().join("queues.yaml"), folder.path().join("conf.yaml"));
    fs::write(&contract, GOOD).unwrap();
    let settings = |count: &str| {
        let text =
            format!("{{shop: {{worker: {{queue: {{mailer: {{max_processors: {count}}}}}}}}}}}");
        fs::write(&config, text).unwrap();
    };
    settings("2");
    let mut command = binary();
    command.args(["worker", "--name", "shop/mailer", "--contract"]).arg(&contract);
    command.arg("--config").arg(&config).args(["--", "cat"]);
    let mut working = Running::start(command.env("TASKYARD_URL", &server.serving.url));
    server.run(&["put", "emails", "\"poison\""]).good();
    let line = complained(&mut working, "cannot decode the payload of a task");
    assert!(line.contains("emails"), "{line}");
    settings("many");
    complained(&mut working, "shop/worker/queue/mailer/max_processors must be a whole number");
    working.signal("TERM");
    working.ended().ends(0);
}

/// A worker that was started before its server ended at once.
#[test]
fn it_waits_for_a_server_that_is_not_started_yet() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("queues.yaml");
    fs::write(&contract, GOOD).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut command = binary();
    command.args(["worker", "--contract"]).arg(&contract).args(["--", "cat"]);
    let mut working = Running::start(command.env("TASKYARD_URL", format!("http://{address}")));
    complained(&mut working, "retrying until the server answers");
    let mut serve = binary();
    serve.args(["serve", "--store", "memory:", "--iproto", "off", "--http", &address]);
    let serving = Serving::start(&mut serve);
    complained(&mut working, "connected to the server");
    serving.run(&["put", "emails", r#"["ann"]"#]).good();
    assert!(working.line().contains("ann"));
    working.signal("TERM");
    working.ended().ends(0);
}

/// After a restart of the server the lease was lost; the program kept running, and so did a second one.
#[test]
fn a_program_whose_lease_is_lost_is_killed() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let (contract, gate) = (folder.path().join("queues.yaml"), folder.path().join("gate"));
    fs::write(&contract, GOOD).unwrap();
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let waiting = format!("echo $TASKYARD_ATTEMPTS; cat {}", gate.display());
    let mut command = binary();
    command.args(["worker", "--lease", "1s", "--contract"]).arg(&contract);
    command.args(["--", "sh", "-c", &waiting]).env("TASKYARD_URL", &server.serving.url);
    server.run(&["put", "emails", r#"["ann"]"#]).good();
    let mut working = Running::start(&mut command);
    assert_eq!(working.line(), "0\n");
    server.run(&["release", "emails", "0"]).good();
    complained(&mut working, "the lease was lost; killed");
    assert_eq!(working.line(), "1\n");
    working.signal("TERM");
    complained(&mut working, "stopping when the running programs");
    working.signal("TERM");
    working.ended();
}

/// A hanging program kept its task for ever. A limit on attempts in the tube, which buries what a handler would retry, was
/// ignored silently.
#[test]
fn a_program_is_killed_after_run_max_and_its_task_tried_again() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let (contract, gate) = (folder.path().join("queues.yaml"), folder.path().join("gate"));
    fs::write(&contract, GOOD).unwrap();
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    server.run(&["tube", "create", "emails", "--queue-num", "1", "--attempts-max", "9"]).good();
    server.run(&["put", "emails", r#"["ann"]"#]).good();
    let mut command = binary();
    command.args(["worker", "--lease", "1s", "--run-max", "2s", "--metrics", "127.0.0.1:0"]);
    command.arg("--contract").arg(&contract).args(["--", "cat"]).arg(&gate);
    let mut working = Running::start(command.env("TASKYARD_URL", &server.serving.url));
    complained(&mut working, "the tube has attempts_max");
    let address = metrics_address(&complained(&mut working, "metrics: "));
    complained(&mut working, "handler ran longer than run_max");
    complained(&mut working, "emails 0: ran longer than run_max; killed; will be tried again");
    let counted = "queue_handler_timeouts_total{queue_num=\"1\"} 1";
    assert!(fetch(&address, "/metrics").lines().any(|line| line == counted));
    while server.run(&["peek", "emails", "0", "--json"]).json()[0]["attempts"] == 0 {}
    working.signal("TERM");
    working.signal("TERM");
    working.ended();
}

/// Settings for a queue that the contract does not have were ignored, and so was an empty file.
#[test]
fn settings_without_effect_are_refused() {
    let (server, folder) = (TestServer::new(), tempfile::tempdir().unwrap());
    let (contract, config) = (folder.path().join("queues.yaml"), folder.path().join("conf.yaml"));
    fs::write(&contract, GOOD).unwrap();
    let lacking = "{shop: {worker: {queue: {mailer: {queue: {7: {batch_size: 3}}}}}}}";
    for (text, wanted) in [
        (lacking, "the worker has no queue 7; its queues are 1, 2"),
        ("", "the settings file is empty"),
    ] {
        fs::write(&config, text).unwrap();
        let args = ["worker", "--name", "shop/mailer", "--contract", contract.to_str().unwrap()];
        let args = [&args[..], &["--config", config.to_str().unwrap(), "--", "cat"]].concat();
        let refused = server.run(&args).ends(2);
        assert!(refused.err.contains(wanted), "{refused:?}");
    }
}

/// Over every protocol, for one task, for many, and for a schedule.
#[test]
fn a_server_with_a_contract_refuses_puts_that_do_not_match() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("queues.yaml");
    fs::write(&contract, GOOD).unwrap();
    let contract = contract.to_str().unwrap();
    let server = TestServer::with(&["--contract", contract]);
    server.run(&["put", "emails", r#"["ann", "hi", null, 7]"#]).good();
    let wrong = "field 'user_id' must be of type int64: not a whole number";
    let ran = server.run(&["put", "emails", r#"["ann", "hi", null, "seven"]"#]).ends(2);
    assert!(ran.err.contains(wrong), "{}", ran.err);
    let ran = server.run(&["put", "emails", r#"["ann"]"#, r#"{"to": "ben"}"#]).ends(2);
    assert!(
        ran.err.contains("task 2 of 2 does not match the contract of queue 'emails'"),
        "{}",
        ran.err
    );
    let schedule =
        ["schedule", "add", "daily", "--tube", "emails", "--data", "[7]", "--every", "1d"];
    let ran = server.run(&schedule).ends(2);
    assert!(ran.err.contains("field 'to' must be of type string"), "{}", ran.err);
    server.run(&["put", "other", r#"{"to": "ben"}"#]).good();

    let response = http_post(&server.serving.url, "/v1/tubes/emails/put", r#"{"data": [7]}"#);
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    assert!(response.contains("field 'to' must be of type string: not a text"), "{response}");
    let iproto = format!("iproto://{}", shown_iproto(&server.serving.screen));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for url in [&server.serving.url, &iproto] {
        runtime.block_on(async {
            let client = taskyard::Client::open(url).await.unwrap();
            let refused = client.put("emails", &(7,)).await.unwrap_err().to_string();
            assert!(refused.contains("field 'to' must be of type string"), "{url}: {refused}");
            client.put("emails", &("ben", "hi")).await.unwrap();
            assert_eq!(client.stats("other").await.unwrap().tasks.ready, 1);
        });
    }
    assert_eq!(server.run(&["stats", "emails", "--json"]).json()[0]["tasks"]["ready"], 3);
    let ran = run(&["serve", "--store", "memory:", "--contract", contract, "--contract", contract]);
    assert!(ran.ends(2).err.contains("queue 'emails' is in another contract too"));
}

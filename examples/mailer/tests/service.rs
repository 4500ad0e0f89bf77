//! The service: it follows its settings, serves metrics and stops at a signal.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use mailer::queues::EmailsTask;
use taskyard::Client;
use taskyard_worker::{PutOptions, TypedTask};

/// A running service, killed when dropped.
struct Service {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Service {
    fn start(url: &str, settings: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mailer-service"));
        command.arg(url).arg(settings).arg("127.0.0.1:0").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Service { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the metrics until they contain all these lines.
fn wait_for_metrics(address: &str, lines: &[&str]) {
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        if lines.iter().all(|wanted| text.lines().any(|line| line == *wanted)) {
            return;
        }
    }
}

/// Runs a function with a client of the store, which is closed afterwards.
fn with_client<T>(url: &str, work: impl AsyncFnOnce(&Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::open(url).await.unwrap();
        let done = work(&client).await;
        client.close().await.unwrap();
        done
    })
}

#[test]
fn the_service_follows_its_settings_serves_metrics_and_stops_at_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("data").display());
    let mails = ["ann", "ben"].map(|to| EmailsTask { to: to.into(), ..EmailsTask::default() });
    with_client(&url, async |client| {
        EmailsTask::put_many(client, &mails, PutOptions::default()).await.unwrap();
    });
    let settings = folder.path().join("settings.yaml");
    let write = |processors: u32| {
        let text =
            format!("shop: {{worker: {{queue: {{mailer: {{max_processors: {processors}}}}}}}}}");
        fs::write(&settings, text).unwrap();
    };
    write(3);
    let mut service = Service::start(&url, &settings);
    let metrics = service.line();
    let address =
        metrics.strip_prefix("metrics: http://").unwrap().strip_suffix("/metrics").unwrap();
    assert_eq!([service.line(), service.line()], ["to ann:", "to ben:"]);
    let processed = "queue_tasks_processed_total{queue_num=\"1\"} 2";
    wait_for_metrics(address, &[processed, "queue_running_job_processors 3"]);
    write(2);
    wait_for_metrics(address, &["queue_running_job_processors 2"]);

    let process = service.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    assert!(service.child.wait().unwrap().success());
    let left = with_client(&url, async |client| client.stats("emails").await.unwrap());
    assert_eq!(left.tasks.total(), 0);
}

//! Function workers and their server, each in a process of its own that is killed while tasks run: no task is lost.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{env, thread};

use taskyard::{Client, Kind, RunningTask, Span, TubeOptions};
use taskyard_core::RetryPolicy;
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use taskyard_store::OpenOptions;
use taskyard_testkit::server::block_on;
use tokio::task::yield_now;

/// The environment variable with the address of the server that a child process is, and the folder of its store.
const SERVER: &str = "TASKYARD_KILLED_SERVER";
/// The environment variable with the URL of the server for which a child process works.
const WORKER: &str = "TASKYARD_KILLED_WORKER";

const TASKS: u32 = 10_000;

/// Not a test: the test below runs it in processes of their own.
#[test]
fn child() {
    if let Ok(settings) = env::var(SERVER) {
        let (address, folder) = settings.split_once(' ').expect("address and folder");
        block_on(serve(address, folder));
    } else if let Ok(url) = env::var(WORKER) {
        block_on(work(&url));
    }
}

async fn serve(address: &str, folder: &str) {
    let store = taskyard_stores::open(&format!("sqlite:{folder}"), &OpenOptions::default());
    let clock = Arc::new(SystemClock::new());
    let engine = Engine::start(store.expect("the store opens"), clock, Settings::default());
    let config = Config::new(address.parse().expect("an address"));
    let server = Server::bind(config, engine).await.expect("the port is free");
    // The harness has printed a line without its end.
    println!("\nserves {}", server.url());
    server.run(std::future::pending()).await.expect("the server runs until it is killed");
}

async fn work(url: &str) {
    println!();
    let client = Client::open(url).await.expect("the URL is good");
    let worker = client.worker("mail").concurrency(8).lease(Duration::from_secs(1));
    let function = async |number: u32, task: RunningTask| {
        if number.is_multiple_of(10) && task.attempts() == 0 {
            return Err("the first attempt fails");
        }
        println!("did {number}");
        Ok(())
    };
    worker.run(function).await.expect("the worker runs until it is killed");
}

/// A child process; it is killed when this is dropped.
struct Process(Child);

impl Process {
    /// Starts one; each line that it prints after this word is sent on.
    fn start(name: &str, value: &str, word: &'static str, lines: &Sender<String>) -> Self {
        let mut command = Command::new(env::current_exe().expect("a test program knows its path"));
        command.args(["--exact", "killed::child", "--nocapture"]).env(name, value);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("a process starts");
        let printed = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let lines = lines.clone();
        thread::spawn(move || {
            let printed = printed.lines().map_while(Result::ok);
            for line in printed {
                if let Some(rest) = line.strip_prefix(word) {
                    let _ = lines.send(rest.to_owned());
                }
            }
        });
        Process(child)
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("its state is known").is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server in a process of its own, and its URL.
fn start_server(address: &str, folder: &std::path::Path) -> (Process, String) {
    let (lines, printed) = channel();
    let settings = format!("{address} {}", folder.display());
    let server = Process::start(SERVER, &settings, "serves ", &lines);
    drop(lines);
    let url = printed.recv().expect("the server prints its URL");
    (server, url)
}

/// Waits until this many different tasks are done.
fn wait_for(count: usize, done: &mut BTreeSet<u32>, lines: &Receiver<String>) {
    while done.len() < count {
        let line = lines.recv().expect("a worker runs");
        done.insert(line.parse().expect("the number of a task"));
    }
}

#[test]
fn nothing_is_lost_when_workers_and_their_server_are_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder is created");
    let (server, url) = start_server("127.0.0.1:0", folder.path());
    let policy = RetryPolicy { delay: Span::from_micros(1_000), ..RetryPolicy::DEFAULT };
    let retry = Some(Box::new(policy));
    block_on(async {
        let client = Client::open(&url).await.unwrap();
        let options = TubeOptions { retry, ..TubeOptions::new(Kind::FifoTtl) };
        client.create("mail", options).await.unwrap();
        let numbers: Vec<u32> = (0..TASKS).collect();
        for part in numbers.chunks(1_000) {
            client.put_many("mail", part).await.unwrap();
        }
    });
    let (lines, printed) = channel();
    let worker = || Process::start(WORKER, &url, "did ", &lines);
    let (mut done, mut survivor, victim) = (BTreeSet::new(), worker(), worker());
    wait_for(TASKS as usize / 5, &mut done, &printed);
    drop(victim);
    let mut second = worker();
    wait_for(TASKS as usize / 2, &mut done, &printed);
    drop(server);
    let address = url.strip_prefix("http://").expect("a URL of HTTP");
    let (_server, _) = start_server(address, folder.path());
    wait_for(TASKS as usize, &mut done, &printed);
    assert!(done.into_iter().eq(0..TASKS), "each task is done");
    block_on(async {
        let client = Client::open(&url).await.unwrap();
        while client.stats("mail").await.unwrap().tasks.total() > 0 {
            yield_now().await;
        }
    });
    assert!(survivor.is_running() && second.is_running(), "workers wait for their server");
}

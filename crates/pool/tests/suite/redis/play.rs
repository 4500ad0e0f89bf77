//! Parts of a pool as processes of their own, which can be killed and frozen: this test program, once more.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use taskyard_pool::Config;
use taskyard_pool::backend::{Runner, Stub, Workshop};
use taskyard_pool::gateway::router;
use taskyard_pool::redis::{Bay, BayOptions, Leader, RedisGateway, Site};
use tokio::net::TcpListener;

/// What a process plays: `scheduler`, `gateway`, `backend` or `stub MILLISECONDS`.
const ROLE: &str = "TASKYARD_TEST_ROLE";
const URL: &str = "TASKYARD_TEST_URL";
const CONFIG: &str = "TASKYARD_TEST_CONFIG";

/// A part that runs; it is killed when this is dropped.
pub struct Process {
    child: Child,
    /// What it said when it was ready: a gateway where it listens.
    pub said: String,
}

impl Process {
    pub fn start(role: &str, url: &str, config: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "redis::play::play", "--nocapture"])
            .env(ROLE, role)
            .env(URL, url)
            .env(CONFIG, config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said =
            lines.find_map(|line| line.split_once("ready ").map(|(_, said)| said.to_owned()));
        // What it says later is of no interest, but must go somewhere.
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, said: said.expect("it gets ready") }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits for that.
    pub fn stop(mut self) {
        // Waiting closes the input, which would end it at once.
        let _input = self.child.stdin.take();
        self.signal(Signal::TERM);
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No test: plays a part where another test has asked for it.
#[test]
fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // Whoever started this has ended when the input has.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let config = Config::parse(&std::env::var(CONFIG).unwrap()).unwrap();
    let (kind, _) = role.split_once(" ").unwrap_or((&role, ""));
    let site = Site::parse(&std::env::var(URL).unwrap(), kind).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let mut stop =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        let stop = async move { _ = stop.recv().await };
        match role.split_once(' ').unwrap_or((&role, "")) {
            ("scheduler", name) => {
                let leader = Leader::new(config, &site, name).unwrap();
                println!("ready {name}");
                leader.run(stop).await;
            }
            ("gateway", _) => gateway(config, &site).await,
            (_, takes) => {
                let runner: Arc<dyn Runner> = match takes.parse() {
                    Ok(takes) => Arc::new(Stub { takes: Duration::from_millis(takes) }),
                    Err(_) => Arc::new(Workshop::start(&config).await.unwrap()),
                };
                let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
                let grace = Duration::from_millis(100);
                let options = BayOptions { listen, advertise: None, grace };
                let bay = Bay::open(config, &site, runner, options).await.unwrap();
                println!("ready {}", bay.address());
                bay.run(stop).await;
            }
        }
    });
}

async fn gateway(config: Config, site: &Site) {
    let gateway = RedisGateway::start(&config, site).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = router(gateway.gate().clone()).into_make_service_with_connect_info::<SocketAddr>();
    println!("ready {}", listener.local_addr().unwrap());
    axum::serve(listener, app).await.unwrap();
}

//! Parts of a pool as processes that can be killed and frozen: this test executable, started again.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};
use taskyard_pool::Config;
use taskyard_pool::backend::{LocalRunner, Runner, StubRunner};
use taskyard_pool::gateway::router;
use taskyard_pool::redis::{
    BackendHost, BackendHostOptions, CallObserver, CallStage, PoolAddress, RedisGateway,
    RedisScheduler,
};
use tokio::net::TcpListener;

use super::fake_runner::FakeRunner;
use crate::fixture::enable_sandboxes;

/// The role of a process: `scheduler`, `gateway`, `backend`, `stub MILLISECONDS` or `fake`.
const ROLE: &str = "TASKYARD_TEST_ROLE";
const URL: &str = "TASKYARD_TEST_URL";
const CONFIG: &str = "TASKYARD_TEST_CONFIG";
/// What it does beside its role: `report`, or a function, which call of it, and `before` or `after`.
const BEHAVIOR: &str = "TASKYARD_TEST_FATE";

/// What a part does beside its role.
#[derive(Clone, Debug)]
pub enum Behavior {
    Lives,
    /// It runs and reports which functions it calls.
    Reports,
    /// It is killed at this call of this function, before it is sent or after its reply.
    Dies(String, usize, CallStage),
}

/// A running part; it is killed when this is dropped.
pub struct Process {
    child: Child,
    /// What it printed when it was ready: a gateway prints its address.
    pub ready_line: String,
    later: Option<JoinHandle<Vec<String>>>,
}

impl Process {
    pub fn start(role: &str, url: &str, config: &str) -> Self {
        Process::start_with(role, url, config, &Behavior::Lives)
    }

    pub fn start_with(role: &str, url: &str, config: &str, behavior: &Behavior) -> Self {
        let text = match behavior {
            Behavior::Lives => String::new(),
            Behavior::Reports => "report".into(),
            Behavior::Dies(function, at, moment) => format!("{function} {at} {moment:?}"),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "redis::process::run_part", "--nocapture"])
            .env(ROLE, role)
            .env(URL, url)
            .env(CONFIG, config)
            .env(BEHAVIOR, text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let ready_line = lines.find_map(|line| {
            line.split_once("ready ").map(|(_, ready_line)| ready_line.to_owned())
        });
        let calls = |line: String| line.strip_prefix("calls ").map(str::to_owned);
        let later = std::thread::spawn(move || lines.filter_map(calls).collect());
        // A part that is to be killed may be so before.
        assert!(ready_line.is_some() || matches!(behavior, Behavior::Dies(..)), "it gets ready");
        Process { child, ready_line: ready_line.unwrap_or_default(), later: Some(later) }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Whether it has ended.
    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end and waits for that. Returns whether it was killed instead, and the calls that it reported.
    pub fn stop(mut self) -> (bool, Vec<String>) {
        // Waiting closes the input, which would end it at once.
        let _input = self.child.stdin.take();
        if !self.is_dead() {
            self.signal(Signal::TERM);
        }
        let status = self.child.wait().unwrap();
        let calls = self.later.take().and_then(|later| later.join().ok());
        let killed = std::os::unix::process::ExitStatusExt::signal(&status);
        (killed == Some(Signal::KILL.as_raw()), calls.unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports calls, or ends this process at one of them.
fn watch(behavior: &str) -> Option<CallObserver> {
    let mut parts = behavior.split_whitespace();
    let function = parts.next()?.to_owned();
    if function == "report" {
        return Some(Arc::new(|function, moment| {
            if moment == CallStage::Before {
                println!("\ncalls {function}");
            }
        }));
    }
    let last: usize = parts.next()?.parse().ok()?;
    let moment = if parts.next()? == "Before" { CallStage::Before } else { CallStage::After };
    let calls = AtomicUsize::new(0);
    Some(Arc::new(move |called, now| {
        let counts = called == function && now == moment;
        if counts && calls.fetch_add(1, Ordering::AcqRel) + 1 == last {
            kill_process(getpid(), Signal::KILL).unwrap();
            // Nothing more happens in this process.
            loop {
                std::thread::park();
            }
        }
    }))
}

/// Not a test: runs a part of a pool if another test has started this process for it.
#[test]
fn run_part() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // The process that started this one has ended when the input is closed.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let config = Config::parse(&std::env::var(CONFIG).unwrap()).unwrap();
    let (kind, _) = role.split_once(" ").unwrap_or((&role, ""));
    let mut site = PoolAddress::parse(&std::env::var(URL).unwrap(), kind).unwrap();
    if let Some(watch) = watch(&std::env::var(BEHAVIOR).unwrap_or_default()) {
        site = site.observed(watch);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let mut stop =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        let stop = async move { _ = stop.recv().await };
        match role.split_once(' ').unwrap_or((&role, "")) {
            ("scheduler", name) => {
                let leader = RedisScheduler::new(config, &site, name).unwrap();
                println!("ready {name}");
                leader.run(stop).await;
            }
            ("gateway", _) => tokio::select! {
                () = gateway(config, &site) => {}
                () = stop => {}
            },
            (kind, takes) => {
                let runner: Arc<dyn Runner> = match takes.parse() {
                    Ok(takes) => Arc::new(StubRunner { takes: Duration::from_millis(takes) }),
                    Err(_) if kind == "fake" => Arc::new(FakeRunner),
                    Err(_) => {
                        Arc::new(LocalRunner::start(&enable_sandboxes(&config)).await.unwrap())
                    }
                };
                let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
                let grace = Duration::from_millis(100);
                let options = BackendHostOptions { listen, advertise: None, identity: None, grace };
                let host = BackendHost::open(config, &site, runner, options).await.unwrap();
                println!("ready {}", host.address());
                host.run(stop).await;
            }
        }
    });
}

async fn gateway(config: Config, site: &PoolAddress) {
    let gateway = RedisGateway::start(&config, site).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = router(gateway.gateway().clone()).into_make_service_with_connect_info::<SocketAddr>();
    println!("ready {}", listener.local_addr().unwrap());
    axum::serve(listener, app).await.unwrap();
}

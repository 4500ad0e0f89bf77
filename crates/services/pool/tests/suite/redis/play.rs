//! Parts of a pool as processes of their own, which can be killed and frozen: this test program, once more.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};
use taskyard_pool::Config;
use taskyard_pool::backend::{Runner, Stub, Workshop};
use taskyard_pool::gateway::router;
use taskyard_pool::redis::{Bay, BayOptions, Leader, Moment, RedisGateway, Site, Watch};
use tokio::net::TcpListener;

use super::acting::Actor;
use crate::rig::walls;

/// What a process plays: `scheduler`, `gateway`, `backend`, `stub MILLISECONDS` or `actor`.
const ROLE: &str = "TASKYARD_TEST_ROLE";
const URL: &str = "TASKYARD_TEST_URL";
const CONFIG: &str = "TASKYARD_TEST_CONFIG";
/// What becomes of it: `tells`, or a function, which call of it, and `before` or `after`.
const FATE: &str = "TASKYARD_TEST_FATE";

/// What becomes of a part.
#[derive(Clone, Debug)]
pub enum Fate {
    Lives,
    /// It lives and tells which functions it calls.
    Tells,
    /// It is killed at this call of this function, before it leaves or after its answer.
    Dies(String, usize, Moment),
}

/// A part that runs; it is killed when this is dropped.
pub struct Process {
    child: Child,
    /// What it said when it was ready: a gateway where it listens.
    pub said: String,
    later: Option<JoinHandle<Vec<String>>>,
}

impl Process {
    pub fn start(role: &str, url: &str, config: &str) -> Self {
        Process::start_with(role, url, config, &Fate::Lives)
    }

    pub fn start_with(role: &str, url: &str, config: &str, fate: &Fate) -> Self {
        let text = match fate {
            Fate::Lives => String::new(),
            Fate::Tells => "tells".into(),
            Fate::Dies(function, at, moment) => format!("{function} {at} {moment:?}"),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "redis::play::play", "--nocapture"])
            .env(ROLE, role)
            .env(URL, url)
            .env(CONFIG, config)
            .env(FATE, text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said =
            lines.find_map(|line| line.split_once("ready ").map(|(_, said)| said.to_owned()));
        let calls = |line: String| line.strip_prefix("calls ").map(str::to_owned);
        let later = std::thread::spawn(move || lines.filter_map(calls).collect());
        // One that is to die may do so before.
        assert!(said.is_some() || matches!(fate, Fate::Dies(..)), "it gets ready");
        Process { child, said: said.unwrap_or_default(), later: Some(later) }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Whether it has ended.
    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits for that. Answers whether it was killed instead, and the calls that it told of.
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

/// Tells of calls, or ends this process at one of them.
fn watch(fate: &str) -> Option<Watch> {
    let mut words = fate.split_whitespace();
    let function = words.next()?.to_owned();
    if function == "tells" {
        return Some(Arc::new(|function, moment| {
            if moment == Moment::Before {
                println!("\ncalls {function}");
            }
        }));
    }
    let last: usize = words.next()?.parse().ok()?;
    let moment = if words.next()? == "Before" { Moment::Before } else { Moment::After };
    let calls = AtomicUsize::new(0);
    Some(Arc::new(move |called, now| {
        let counts = called == function && now == moment;
        if counts && calls.fetch_add(1, Ordering::AcqRel) + 1 == last {
            kill_process(getpid(), Signal::KILL).unwrap();
            // Nothing more happens here.
            loop {
                std::thread::park();
            }
        }
    }))
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
    walls();
    let config = Config::parse(&std::env::var(CONFIG).unwrap()).unwrap();
    let (kind, _) = role.split_once(" ").unwrap_or((&role, ""));
    let mut site = Site::parse(&std::env::var(URL).unwrap(), kind).unwrap();
    if let Some(watch) = watch(&std::env::var(FATE).unwrap_or_default()) {
        site = site.watched(watch);
    }
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
            ("gateway", _) => tokio::select! {
                () = gateway(config, &site) => {}
                () = stop => {}
            },
            (kind, takes) => {
                let runner: Arc<dyn Runner> = match takes.parse() {
                    Ok(takes) => Arc::new(Stub { takes: Duration::from_millis(takes) }),
                    Err(_) if kind == "actor" => Arc::new(Actor),
                    Err(_) => Arc::new(Workshop::start(&config).await.unwrap()),
                };
                let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
                let grace = Duration::from_millis(100);
                let options = BayOptions { listen, advertise: None, identity: None, grace };
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

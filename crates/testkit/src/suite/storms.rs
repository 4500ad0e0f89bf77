//! Servers and their database are killed, frozen and disconnected under load, the same storms on each database that servers share.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taskyard_conformance::random::runs;
use taskyard_conformance::semaphores::storm as semaphores;
use taskyard_conformance::{Harness, StoreHarness};
use taskyard_core::{
    Body, Command, Execute, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, SessionId,
    Span, Take, Task, Timestamp, TubeOptions,
};
use taskyard_store::remote::{Clock, RemoteStore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::faulty_proxy::{FaultyProxy, Protocol};
use crate::server_process::{Binary, ServerProcess};
use crate::storm::faulty_servers::{CutServers, KilledServers};
use crate::storm::judge::{self, wait_for_returns};
use crate::storm::live_servers::LiveServers;
use crate::storm::load::{Finishes, PLAIN, ServerFate, StormLoad, TUBES, create_tubes, tube};
use crate::storm::server::StormServer;
use crate::storm::{StormDatabase, keys, run, schedules, steps};
use crate::{OwnServer, SharedDatabase};

/// How many replies arrive before and after each fault.
const REPLIES: usize = 150;

/// A database under a storm, and the program of its servers.
struct StormField<D: SharedDatabase> {
    database: D::Server,
    binary: Binary,
}

impl<D: SharedDatabase<Server: StormDatabase>> StormField<D> {
    /// Starts a server process without connecting to it.
    fn start(&self) -> ServerProcess {
        ServerProcess::on_store(self.binary, &self.database.url())
    }

    fn serve(&self) -> StormServer {
        StormServer::new(self.start())
    }

    /// Two servers with the tubes of a load and clients of it.
    async fn two_loaded_servers(&self) -> ([StormServer; 2], std::sync::Arc<StormLoad>) {
        let servers = [self.serve(), self.serve()];
        create_tubes(&servers[0].http, None).await;
        let load = StormLoad::new(Finishes::Any);
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        (servers, load)
    }

    /// A proxy between servers and the database, and the URL by way of it.
    fn proxy(&self) -> (FaultyProxy, String) {
        let proxy = FaultyProxy::new(self.database.target(), Protocol::default());
        let address: SocketAddr = proxy.address();
        let url = self.database.url_by(address);
        (proxy, url)
    }

    /// Waits until the database knows so many servers.
    fn wait_for_servers(&self, count: usize) {
        while self.database.server_count() != count {
            thread::yield_now();
        }
    }

    fn audit(&self, tubes: &[&str]) {
        tubes.iter().for_each(|name| self.database.audit(&tube(name)));
        self.database.audit_sessions();
    }

    async fn judge(&self, server: &StormServer, load: &StormLoad) {
        judge_storm::<D>(&self.database, server, load).await;
    }
}

/// Ends a load and checks its calls and what is stored.
pub async fn judge_storm<D: SharedDatabase<Server: StormDatabase>>(
    database: &D::Server,
    server: &StormServer,
    load: &StormLoad,
) {
    load.end().await;
    judge_through::<D>(server, load).await;
    TUBES.iter().for_each(|name| database.audit(&tube(name)));
    database.audit_sessions();
}

/// Checks the calls of a load that has ended by what a server shows.
pub async fn judge_through<D: SharedDatabase>(server: &StormServer, load: &StormLoad) {
    // The database of the tests is on this machine and uses its clock.
    judge::judge(&server.iproto(), load, now(), D::LEASES_INCREASE).await;
}

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_micros();
    Timestamp::from_micros(i64::try_from(now).expect("it is not that late"))
}

/// Runs a storm that neither kills nor freezes the database.
fn with_steady<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
    storm: impl AsyncFnOnce(StormField<D>),
) {
    if let Some(database) = D::Server::steady() {
        run(storm(StormField { database, binary }));
    }
}

/// Runs a storm that does.
fn with_own<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
    storm: impl AsyncFnOnce(StormField<D>),
) {
    if let Some(database) = D::server() {
        run(storm(StormField { database, binary }));
    }
}

pub fn killed_servers_lose_no_task<D: SharedDatabase<Server: StormDatabase>>(binary: Binary) {
    with_steady::<D>(binary, async |field| {
        let stays = field.serve();
        create_tubes(&stays.http, None).await;
        let load = StormLoad::new(Finishes::Any);
        load.begin(&stays, ServerFate::Stays).await;
        for _ in 0..2 {
            let killed = field.serve();
            load.begin(&killed, ServerFate::Stops).await;
            load.wait_for_replies(REPLIES).await;
            killed.process.signal("KILL");
            load.wait_for_replies(REPLIES).await;
        }
        load.end().await;
        wait_for_returns(&stays.iproto()).await;
        field.judge(&stays, &load).await;
    });
}

pub fn killed_servers_fire_each_time_once<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
) {
    with_steady::<D>(binary, async |field| {
        schedules::fire_each_time_once(KilledServers::new(2, || field.start())).await;
        field.audit(&[schedules::TUBE]);
    });
}

/// The process of a server is killed before the end of each of its requests for a firing, and before each reply.
pub fn servers_killed_at_each_step_fire_each_time_once<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
) {
    with_steady::<D>(binary, async |field| {
        steps::kill_at_each_step::<D>(&field.database, binary).await;
        field.audit(&[schedules::TUBE]);
    });
}

pub fn killed_servers_add_each_key_once<D: SharedDatabase<Server: StormDatabase>>(binary: Binary) {
    with_steady::<D>(binary, async |field| {
        keys::add_each_key_once(KilledServers::new(2, || field.start())).await;
        field.audit(&[keys::TUBE]);
    });
}

pub fn closed_connections_are_opened_again<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
) {
    with_steady::<D>(binary, async |field| {
        let (servers, load) = field.two_loaded_servers().await;
        for _ in 0..8 {
            load.wait_for_replies(REPLIES / 2).await;
            field.database.close_connections();
        }
        load.wait_for_replies(REPLIES).await;
        field.judge(&servers[0], &load).await;
    });
}

pub fn interrupted_replies_leave_no_task_behind<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
) {
    with_steady::<D>(binary, async |field| {
        let (proxy, url) = field.proxy();
        let (near, far) = (field.serve(), StormServer::start(binary, &url));
        create_tubes(&near.http, None).await;
        let load = StormLoad::new(Finishes::Any);
        load.begin(&near, ServerFate::Stays).await;
        load.begin(&far, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        proxy.cut(40).await;
        load.wait_for_replies(REPLIES).await;
        field.judge(&near, &load).await;
    });
}

pub fn interrupted_replies_add_each_key_once<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
) {
    with_steady::<D>(binary, async |field| {
        let (proxy, url) = field.proxy();
        let servers = [field.start(), ServerProcess::on_store(binary, &url)];
        keys::add_each_key_once(CutServers::new(servers, proxy)).await;
        field.audit(&[keys::TUBE]);
    });
}

pub fn servers_survive_a_restart_of_their_database<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
) {
    with_own::<D>(binary, async |field| {
        let (servers, load) = field.two_loaded_servers().await;
        for _ in 0..2 {
            load.wait_for_replies(REPLIES).await;
            field.database.kill();
            field.database.start();
        }
        load.wait_for_replies(REPLIES).await;
        // A server that is started meanwhile waits, and does not declare the others dead.
        field.database.kill();
        let newcomer = thread::scope(|scope| {
            let starting = scope.spawn(|| field.start());
            field.database.start();
            starting.join().expect("it starts")
        });
        let newcomer = StormServer::new(newcomer);
        load.begin(&newcomer, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        field.judge(&servers[0], &load).await;
    });
}

/// Freezes it for longer than heartbeats may be missing, so that servers must check whether they were declared dead.
pub fn a_frozen_database_continues<D: SharedDatabase<Server: StormDatabase>>(binary: Binary) {
    with_own::<D>(binary, async |field| {
        let (servers, load) = field.two_loaded_servers().await;
        for seconds in [1, 5] {
            load.wait_for_replies(REPLIES).await;
            field.database.freeze();
            // Only the passing of time shows whether a server is declared dead.
            let unreachable_count = load.wait_for_replies(usize::MAX / 2);
            assert!(timeout(Duration::from_secs(seconds), unreachable_count).await.is_err());
            field.database.thaw();
        }
        load.wait_for_replies(REPLIES).await;
        field.judge(&servers[0], &load).await;
    });
}

/// A tube whose tasks the test itself takes.
const OWN: &str = "own";

async fn execute(queue: &impl Execute, command: Command) -> Reply {
    let reply = queue.execute(vec![command]).await.remove(0);
    reply.unwrap_or_else(|error| panic!("{error}"))
}

async fn put(queue: &impl Execute, count: usize) {
    let tasks = vec![NewTask::new(Body::new(&[0xc0])); count];
    execute(queue, Command::Put { tube: tube(OWN), tasks, wait: Span::ZERO }).await;
}

/// Takes one task, for a session or with a time of its own.
async fn take(queue: &impl Execute, session: Option<SessionId>) -> Task {
    let lease = session.is_none().then_some(Span::from_secs(300));
    let wait = Span::from_secs(30);
    let take = Take { tube: tube(OWN), count: 1, session, lease, worker: None, wait };
    match execute(queue, Command::Take(take)).await {
        Reply::Taken(mut tasks) if tasks.len() == 1 => tasks.remove(0),
        other => panic!("one task was expected, not {other:?}"),
    }
}

async fn ack(queue: &impl Execute, task: &Task, holder: Holder) -> Outcome {
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
    match execute(queue, Command::Finish { tube: tube(OWN), items, show: false }).await {
        Reply::Finished(mut outcomes) => outcomes.remove(0),
        other => panic!("an ack has an outcome, not {other:?}"),
    }
}

/// Other servers release the tasks of its sessions meanwhile, and it learns of that.
pub fn a_frozen_server_is_declared_dead_and_continues<D: SharedDatabase<Server: StormDatabase>>(
    binary: Binary,
) {
    with_steady::<D>(binary, async |field| {
        let (stays, frozen) = (field.serve(), field.serve());
        create_tubes(&stays.http, None).await;
        let options = TubeOptions::new(Kind::FifoTtl);
        let create = Command::CreateTube { tube: tube(OWN), options, if_not_exists: false };
        execute(&stays.http, create).await;
        put(&stays.http, 2).await;
        let client = frozen.iproto();
        let session = client.identify().await.expect("a session begins");
        let by_session = take(&client, Some(session)).await;
        let by_lease = take(&frozen.http, None).await;
        let load = StormLoad::new(Finishes::Any);
        load.begin(&stays, ServerFate::Stays).await;
        load.begin(&frozen, ServerFate::Stops).await;
        load.wait_for_replies(REPLIES).await;

        frozen.process.signal("STOP");
        let other = stays.iproto();
        let others = other.identify().await.expect("a session begins");
        let again = take(&other, Some(others)).await;
        assert_eq!((again.id, again.attempts), (by_session.id, 1));
        field.wait_for_servers(1);
        load.wait_for_replies(REPLIES).await;

        frozen.process.signal("CONT");
        let stale = Holder::Lease(by_session.lease.expect("a lease"));
        assert_eq!(ack(&client, &by_session, stale).await, Outcome::Stale);
        assert_eq!(ack(&client, &by_session, Holder::Session(session)).await, Outcome::Stale);
        // A lease with its own time belongs to no session and lasts until it ends.
        let good = Holder::Lease(by_lease.lease.expect("a lease"));
        assert_eq!(ack(&frozen.http, &by_lease, good).await, Outcome::Done(None));
        assert_eq!(ack(&other, &again, Holder::Session(others)).await, Outcome::Done(None));
        field.wait_for_servers(2);

        // The client of the frozen server was not interrupted: its session continues, and ends with its connection.
        put(&stays.http, 1).await;
        let new = take(&client, Some(session)).await;
        drop(client);
        let back = take(&other, Some(others)).await;
        assert_eq!(back.id, new.id);
        assert_eq!(ack(&other, &back, Holder::Session(others)).await, Outcome::Done(None));
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        drop(frozen);
        wait_for_returns(&stays.iproto()).await;
        field.judge(&stays, &load).await;
        assert!(load.acknowledged.lock().unwrap().keys().any(|(name, _)| name.as_str() == PLAIN));
    });
}

const SEMAPHORES: usize = 30;
/// Short, because the servers use real clocks.
const LEASE: Span = Span::from_micros(200_000);

pub fn kills_lose_no_grant_and_no_event<D: SharedDatabase<Server: StormDatabase>>(binary: Binary) {
    with_own::<D>(binary, async |field| {
        let (stays, mut killed) = (field.serve(), field.serve());
        let servers = LiveServers::new(vec![stays.http.clone(), killed.http.clone()]);
        semaphores::prepare(&servers, SEMAPHORES, LEASE).await;
        let mut clients = JoinSet::new();
        for seed in semaphores::client_seeds(4) {
            let servers = servers.clone();
            clients.spawn(
                async move { semaphores::run_client(&servers, seed, SEMAPHORES, 250).await },
            );
        }
        for round in 0..runs() {
            servers.wait_for_replies((2 * round + 1) * REPLIES).await;
            killed.process.signal("KILL");
            killed = field.serve();
            servers.replace(1, killed.http.clone());
            servers.wait_for_replies((2 * round + 2) * REPLIES).await;
            field.database.kill();
            field.database.start();
        }
        let delivered = clients.join_all().await.into_iter().flatten().collect();
        drop((stays, killed));
        // Unacknowledged events are delivered again after half a minute: the clock of the caller is an hour later.
        let url = field.database.url();
        let open = move || RemoteStore::<D::Backend>::open(&url, Clock::Caller).expect("it opens");
        let queue = StoreHarness::new(move || Box::new(open()));
        let later = now().as_micros() - queue.now().as_micros();
        queue.advance(Span::from_micros(later));
        queue.advance(Span::from_secs(3600));
        semaphores::check_invariants(&queue, SEMAPHORES, delivered).await;
        field.database.audit_semaphores();
    });
}

crate::suite::suite! {
    /// Runs the storms on a [`SharedDatabase`] with servers of this binary.
    storm_suite, storms, $:
    killed_servers_lose_no_task
    killed_servers_fire_each_time_once
    servers_killed_at_each_step_fire_each_time_once
    killed_servers_add_each_key_once
    closed_connections_are_opened_again
    interrupted_replies_leave_no_task_behind
    interrupted_replies_add_each_key_once
    servers_survive_a_restart_of_their_database
    a_frozen_database_continues
    a_frozen_server_is_declared_dead_and_continues
    kills_lose_no_grant_and_no_event
}

//! Connects simulated clients to simulated servers: by a call of the engine, or by the product's client over the network.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use taskyard::{Http, Iproto};
use taskyard_core::{
    Command, Error, Execute, HeldKey, Key, KeyRequest, NewTask, OnConflict, Reply, Result,
    ScheduleCommand, Span,
};
use taskyard_server::{Config, HttpService, IprotoConfig, IprotoService, RandomSource};

use crate::network::{ClientNetwork, Network, Protocol, StreamEnd, host};
use crate::operations::{packed, read_payload};
use crate::plan::stream;
use crate::planted::PlantedFault;
use crate::planted_store::scale_estimates;
use crate::workers::Freezer;
use crate::world::World;

/// The numbers of the clients that share a connection over iproto, and of those that share connections over HTTP.
const EVERYONE: u32 = u32::MAX - 1;
const EVERYONE_OVER_HTTP: u32 = u32::MAX - 2;

/// For how long the key of a put stays held after the end of its task, as long as a random key of the client.
const UNIQUE_FOR: Span = Span::from_secs(600);

/// Random bytes that follow from the seed of the run.
#[derive(Debug)]
struct SimulatedRandom(Mutex<Rng>);

impl RandomSource for SimulatedRandom {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
        Ok(())
    }
}

impl World {
    /// Serves the connections of a server process that has just started.
    pub fn accept_connections(&self, server: usize) {
        let Some(network) = &self.network else { return };
        let (host, mut config) =
            (&self.servers[server], IprotoConfig::new((Ipv4Addr::LOCALHOST, 0).into()));
        let random = stream(self.plan.seed, server as u64, host.incarnation() << 32);
        config.random = Arc::new(SimulatedRandom(Mutex::new(random)));
        let service = IprotoService::new(config, host.engine());
        let service = service.expect("simulated random bytes never fail");
        let connections = network.listen(server, Protocol::Iproto);
        host.serve(connections, move |end: StreamEnd| service.serve(Box::new(end)));
        if !self.plan.http_clients.is_empty() {
            self.accept_http(network, server);
        }
    }

    fn accept_http(&self, network: &Network, number: usize) {
        let server = &self.servers[number];
        let config = Config {
            host_names: vec![host(number)],
            // A put into a tube that was dropped must be refused.
            strict_tubes: true,
            ..Config::new((Ipv4Addr::LOCALHOST, 0).into())
        };
        let service = HttpService::new(config, server.engine());
        let connections = network.listen(number, Protocol::Http);
        server.serve(connections, move |end: StreamEnd| service.serve(Box::new(end)));
    }

    /// Executes a command for a client; `None` if its reply is lost.
    pub async fn execute(
        &self,
        client: u32,
        server: usize,
        command: Command,
    ) -> Option<Result<Reply>> {
        if self.network.is_none() {
            let mut reply = self.servers[server].engine().execute(vec![command]).await.pop();
            match self.planted {
                Some(PlantedFault::HalveEstimates) => scale_estimates(&mut reply, 0.5),
                Some(PlantedFault::DoubleEstimates) => scale_estimates(&mut reply, 2.0),
                _ => {}
            }
            return reply;
        }
        let client = self.client(client, server);
        match packed_command(command) {
            put @ Command::Put { .. } if self.planted == Some(PlantedFault::RepeatUnkeyedPut) => {
                repeat_put(&client, put).await
            }
            Command::Put { tube, tasks, wait } => {
                Some(put_with_keys(&client, tube.as_str(), tasks, wait.into()).await)
            }
            command => client.execute(vec![command]).await.pop(),
        }
    }

    /// Whether each client has a connection of its own, which ends with it.
    pub fn can_vanish(&self) -> bool {
        self.network.is_some() && !self.plan.shares_connections
    }

    /// Closes the connection of a client.
    pub fn drop_connection(&self, client: u32, server: usize) {
        self.clients.borrow_mut().remove(&(client, server));
    }

    /// The product's client of a simulated one.
    fn client(&self, number: u32, server: usize) -> taskyard::Client {
        let is_http = self.plan.http_clients.contains(&number);
        let is_shared = self.plan.shares_connections && number < self.plan.clients;
        let number = match (is_shared, is_http) {
            (true, true) => EVERYONE_OVER_HTTP,
            (true, false) => EVERYONE,
            (false, _) => number,
        };
        let connect =
            || if is_http { self.connect_http(server) } else { self.connect(server, None) };
        let mut clients = self.clients.borrow_mut();
        clients.entry((number, server)).or_insert_with(connect).clone()
    }

    /// A client of the product with a connection of its own, whose process may freeze.
    pub fn connect(&self, server: usize, freezer: Option<Arc<Freezer>>) -> taskyard::Client {
        let iproto = Iproto::with_dialer(&host(server), self.dialer(freezer));
        // A put into a tube that was dropped must be refused.
        taskyard::Client::new(iproto.expect("the address is good").strict_tubes())
    }

    /// A client of the product over HTTP.
    fn connect_http(&self, server: usize) -> taskyard::Client {
        let http = Http::new(&format!("http://{}", host(server))).expect("the URL is good");
        taskyard::Client::new(http.with_dialer(self.dialer(None)))
    }

    fn dialer(&self, freezer: Option<Arc<Freezer>>) -> Arc<ClientNetwork> {
        let network = self.network.clone().expect("only runs with a network have clients");
        Arc::new(ClientNetwork { network, freezer })
    }
}

/// A command with payloads that a client over iproto can send.
fn packed_command(mut command: Command) -> Command {
    match &mut command {
        Command::Put { tasks, .. } => {
            tasks.iter_mut().for_each(|task| task.body = packed(&task.body));
        }
        Command::Schedule(schedule) => {
            if let ScheduleCommand::Set { schedule, .. } = &mut **schedule {
                schedule.template.body = packed(&schedule.template.body);
            }
        }
        _ => {}
    }
    command
}

/// Puts tasks, of which each without a key gets one, as the client of the product does with random ones. A put whose answer is lost
/// is repeated by that client, because the keys stay held for long enough.
async fn put_with_keys(
    client: &taskyard::Client,
    tube: &str,
    mut tasks: Vec<NewTask>,
    wait: Duration,
) -> Result<Reply> {
    let given: Vec<bool> = tasks.iter().map(|task| task.key.is_some()).collect();
    for task in tasks.iter_mut().filter(|task| task.key.is_none()) {
        let payload = read_payload(&task.body).unwrap_or_default();
        let key = Key::new(&format!("put {payload:x}")).expect("the key is good");
        let held = HeldKey { key, unique_for: UNIQUE_FOR };
        task.key = Some(Box::new(KeyRequest { held, on_conflict: OnConflict::Keep }));
    }
    match client.put_tasks(tube, tasks, wait).await {
        Ok(mut placed) => {
            // Such a key was held by an earlier attempt of the same put.
            for (placed, given) in placed.iter_mut().zip(given) {
                placed.existing &= given;
            }
            Ok(Reply::Put(placed))
        }
        Err(taskyard::Error::Refused(error)) => Err(error),
        Err(error) => Err(Error::Store(error.to_string())),
    }
}

/// Repeats a put without a key after its reply was lost, which the client of the product never does.
async fn repeat_put(client: &taskyard::Client, put: Command) -> Option<Result<Reply>> {
    let mut reply = client.execute(vec![put.clone()]).await.pop();
    while matches!(reply, Some(Err(Error::OutcomeUnknown(_)))) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        reply = client.execute(vec![put.clone()]).await.pop();
    }
    reply
}

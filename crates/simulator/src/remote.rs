//! Connects simulated clients to simulated servers: by a call of the engine, or by the product's client over the network.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use taskyard::Iproto;
use taskyard_core::{Command, Error, Execute, Reply, Result, ScheduleCommand};
use taskyard_server::{IprotoConfig, IprotoService, RandomSource};

use crate::network::{ServerEnd, host};
use crate::operations::packed;
use crate::plan::stream;
use crate::planted::PlantedFault;
use crate::world::World;

/// The number of the clients that share a connection.
const EVERYONE: u32 = u32::MAX - 1;

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
        host.serve(network.listen(server), move |end: ServerEnd| service.serve(Box::new(end)));
    }

    /// Executes a command for a client; `None` if its reply is lost.
    pub async fn execute(
        &self,
        client: u32,
        server: usize,
        command: Command,
    ) -> Option<Result<Reply>> {
        if self.network.is_none() {
            return self.servers[server].engine().execute(vec![command]).await.pop();
        }
        let client = self.client(client, server);
        match packed_command(command) {
            put @ Command::Put { .. } if self.planted == Some(PlantedFault::RepeatUnkeyedPut) => {
                repeat_put(&client, put).await
            }
            Command::Put { tube, tasks, wait } => {
                let placed = client.put_tasks(tube.as_str(), tasks, wait.into()).await;
                Some(match placed {
                    Ok(placed) => Ok(Reply::Put(placed)),
                    Err(taskyard::Error::Refused(error)) => Err(error),
                    Err(error) => Err(Error::Store(error.to_string())),
                })
            }
            command => client.execute(vec![command]).await.pop(),
        }
    }

    /// The product's client of a simulated one.
    fn client(&self, number: u32, server: usize) -> taskyard::Client {
        let is_shared = self.plan.shares_connections && number < self.plan.clients;
        let number = if is_shared { EVERYONE } else { number };
        let mut clients = self.clients.borrow_mut();
        let client = clients.entry((number, server)).or_insert_with(|| {
            let network = self.network.as_ref().expect("only runs with a network have clients");
            let iproto = Iproto::with_dialer(&host(server), network.dialer());
            // A put into a tube that was dropped must be refused.
            taskyard::Client::new(iproto.expect("the address is good").strict_tubes())
        });
        client.clone()
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

/// Repeats a put without a key after its reply was lost, which the client of the product never does.
async fn repeat_put(client: &taskyard::Client, put: Command) -> Option<Result<Reply>> {
    let mut reply = client.execute(vec![put.clone()]).await.pop();
    while matches!(reply, Some(Err(Error::OutcomeUnknown(_)))) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        reply = client.execute(vec![put.clone()]).await.pop();
    }
    reply
}

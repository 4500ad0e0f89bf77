//! Simulates whole deployments of Taskyard: engines, stores and clients on one thread and a virtual clock, with faults.
//!
//! A run follows from its seed alone: the same seed gives the same history. [`Plan::draw`] draws what happens, [`run`] lets it
//! happen to the real engine and records what clients see, and the judges compare that with the promises of the queue. A failing run
//! is repeated with fewer operations and faults until none can be left out ([`shrink`]).
//!
//! No thread, socket, file, sleep or system time is used in a run. Start reading at `run`, then `client` and `judges`.

// Random indexes are drawn from as many bits as an address has.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("the same seed gives the same history on machines with 64 bits only");

mod client;
mod client_admin;
mod clock;
mod describe;
mod disk;
mod effects;
mod estimates;
mod evidence;
mod fast_map;
mod faults;
mod final_phase;
mod history;
mod judges;
mod network;
mod operations;
mod panics;
mod plan;
mod planted;
mod planted_store;
mod pool;
mod remote;
mod run;
mod server;
mod server_stops;
mod shrink;
mod storage;
mod tubes;
mod workers;
mod world;

pub use effects::{FaultCounts, FaultName};
pub use final_phase::{DrainedTask, Facts, ScheduleFacts};
pub use history::{CallReply, FaultWindow, History, Moment, OperationNumber, RecordedCall};
pub use judges::{HeldEstimates, Violation};
pub use plan::{Mask, Plan, Scenario};
pub use planted::PlantedFault;
pub use pool::PoolPlan;
pub use run::{RunReport, run};
pub use server_stops::ServerStop;
pub use shrink::{Failure, shrink};
pub use workers::{HandlerRun, RunEnd, WorkerStop};

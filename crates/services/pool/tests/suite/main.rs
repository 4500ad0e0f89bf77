//! A pool with real programs, seen through its own sockets.
//!
//! Nothing here sleeps: tests wait for frames, or look at the pool again and again until it is as it
//! should be.

mod rig;

mod asymptote;
mod desk;
mod ending;
mod final_frames;
mod frames;
mod hostile;
mod interactive;
mod leaving;
mod limits;
mod losing;
mod page;
mod plain;
mod queue;
mod redis;
mod short;
mod socket;
mod storm;
mod walls;

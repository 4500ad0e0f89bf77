//! The face for clients of Tarantool's queue: the iproto protocol on a port of its own.
//!
//! A connection is one task and no more. `connection` moves bytes, `arrival` keeps what is not a whole
//! frame yet, and `desk` turns frames into commands: all that arrive with one read go down to the
//! engine together, and their answers leave in one write. What may wait flies alone (`flights`, `waiting`), so
//! that answers come in any order. `asks` says which commands a call means, `landing` what the client is told
//! about their replies, and `expected` how many may be under way before too many answers are made.

mod access;
mod arrival;
mod asks;
mod batch;
mod config;
mod connection;
mod counters;
mod desk;
mod expected;
mod face;
mod farewell;
mod flights;
mod landing;
mod leaving;
mod pattern;
mod select;
mod sessions;
mod taking;
mod tls;
mod users;
mod waiting;

pub use config::IprotoConfig;
pub use tls::{Tls, TlsError};
pub use users::{Grant, Grants, User, Users, Verb};

pub(crate) use connection::serve;
pub(crate) use counters::Counters;
pub(crate) use face::Face;
pub(crate) use farewell::turn_away;

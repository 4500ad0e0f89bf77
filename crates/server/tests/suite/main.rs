//! A live server on the memory store, called by a real client over real sockets.
//!
//! No test sleeps: a test learns from the engine that a request waits.

mod access;
mod actions;
mod audit;
mod estimates;
mod fixture;
mod health;
mod internal;
mod keys;
mod limits;
mod list;
mod openapi;
mod pace;
mod peers;
mod refusals;
mod roles;
mod schedules;
mod semaphores;
mod series;
mod shutdown;
mod sign_in;
mod slow;
mod socket;
mod startup;
mod tls;
mod verbs;
mod waiting;
mod workers;

//! Tests of SQL tasks with a real PostgreSQL server.

mod fixture;

mod bad_input;
mod calendar;
mod configuration;
mod crashes;
mod doc_examples;
mod encryption;
mod groups;
mod limits;
mod lost_connections;
mod output;
mod refused_writes;
mod rights;
mod several_schedulers;
mod specification;
mod stopping;
mod table;
mod times;

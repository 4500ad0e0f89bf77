//! Tasks in a PostgreSQL database: the suite, and what only a database can get wrong.

mod cluster;
mod database;

mod suite;

mod kill;
mod plain;
mod races;
mod semaphores;
mod servers;
mod speed;
mod transaction;

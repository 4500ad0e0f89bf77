//! Tests copies between all stores: there and back, used afterwards, interrupted and resumed, and refused.

mod content;
mod databases;
mod failing_store;

mod adapter;
mod chains;
mod cluster;
mod each;

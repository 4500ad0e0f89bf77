//! The rules compared with a naive model, and the scenarios of the specification.

mod audit;
mod fixture;
mod naive;
mod random;
mod scenarios;
mod times;

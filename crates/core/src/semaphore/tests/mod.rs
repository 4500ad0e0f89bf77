//! The rules against a naive model, and the stories of the specification.

mod audit;
mod naive;
mod random;
mod rig;
mod stories;
mod times;

//! The binary protocol: bytes in, bytes out.

mod answers;
mod calls;
mod evals;
mod frames;
mod greeting;
mod hex;
mod native;
mod random;
mod refusals;
mod replies;
mod requests;
mod rows;
mod samples;

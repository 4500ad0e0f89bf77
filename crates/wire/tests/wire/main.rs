//! The HTTP/JSON requests and answers.

mod answers;
mod options;
mod payload;
mod properties;
mod requests;
mod roundtrips;
#[cfg(feature = "openapi")]
mod schemas;
mod whole;

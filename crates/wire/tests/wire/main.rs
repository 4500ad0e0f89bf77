//! What travels: bytes in, bytes out.

mod answers;
mod payload;
mod properties;
mod requests;
mod roundtrips;
mod schemas;

//! What travels: bytes in, bytes out.

mod answers;
mod fitting;
mod payload;
mod properties;
mod requests;
mod roundtrips;
mod schemas;
mod whole;

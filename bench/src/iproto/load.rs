//! Calls of the queue's functions, as the load sends them.

use anyhow::{Context, Result, bail, ensure};
use taskyard::{Call, Iproto, IprotoError};

/// The payload of every task: a text of 100 bytes.
const PAYLOAD: [u8; 100] = [b'z'; 100];

/// The names of a tube's functions, made once.
pub struct Tube {
    pub name: String,
    pub put: String,
    pub take: String,
    pub ack: String,
    pub put_many: String,
    pub take_many: String,
    pub ack_many: String,
}

impl Tube {
    fn new(name: &str) -> Tube {
        let function = |verb: &str| format!("queue.tube.{name}:{verb}");
        Tube {
            name: name.into(),
            put: function("put"),
            take: function("take"),
            ack: function("ack"),
            put_many: function("put_many"),
            take_many: function("take_many"),
            ack_many: function("ack_many"),
        }
    }

    /// Creates a new, empty tube.
    pub async fn create(queue: &Iproto, name: &str, kind: &str) -> Result<Tube> {
        let mut args = Vec::new();
        rmp::encode::write_array_len(&mut args, 2)?;
        rmp::encode::write_str(&mut args, name)?;
        rmp::encode::write_str(&mut args, kind)?;
        match queue.call("queue.create_tube", &args).await {
            // The original creates the tube and then fails to encode the reply.
            Ok(_) => {}
            Err(IprotoError::Refused(fault)) if fault.text.contains("unsupported") => {}
            Err(error) => return Err(error).context("cannot create a tube"),
        }
        Ok(Tube::new(name))
    }

    /// How many tasks the tube has.
    pub async fn total(&self, queue: &Iproto) -> Result<u64> {
        let mut args = vec![0x91];
        rmp::encode::write_str(&mut args, &self.name)?;
        let results = queue.call("queue.statistics", &args).await?;
        let mut rest = after(&results, b"\xa5total").context("no total in the statistics")?;
        Ok(rmp::decode::read_int(&mut rest)?)
    }
}

/// What follows the first occurrence of `mark`.
fn after<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let at = bytes.windows(mark.len()).position(|window| window == mark)?;
    Some(&bytes[at + mark.len()..])
}

/// The arguments of a put.
pub fn put_args() -> Vec<u8> {
    let mut args = vec![0x91];
    args.extend(payload());
    args
}

/// One payload.
pub fn payload() -> Vec<u8> {
    let mut bytes = vec![0xd9, PAYLOAD.len() as u8];
    bytes.extend(PAYLOAD);
    bytes
}

/// The arguments of a take that waits this many seconds.
pub const fn take_args(seconds: u8) -> [u8; 2] {
    [0x91, seconds]
}

/// The arguments of an ack.
pub fn ack_args(id: u64) -> Vec<u8> {
    let mut args = vec![0x91];
    write_uint(&mut args, id);
    args
}

/// Writes a number.
pub fn write_uint(out: &mut Vec<u8>, number: u64) {
    rmp::encode::write_uint(out, number).expect("writing to a buffer cannot fail");
}

/// The id of the task in the results of a put, a take or an ack.
pub fn id_of(results: &[u8]) -> Result<u64> {
    let mut rest = results;
    ensure!(rmp::decode::read_array_len(&mut rest)? == 1, "there was no task");
    ensure!(rmp::decode::read_array_len(&mut rest)? >= 3, "not a task");
    Ok(rmp::decode::read_int(&mut rest)?)
}

/// Sends these calls at once; returns the ids of their tasks.
pub async fn call_all(queue: &Iproto, function: &str, args: &[&[u8]]) -> Result<Vec<u64>> {
    let calls: Vec<_> = args.iter().map(|args| Call { function, args }).collect();
    let results = queue.call_many(&calls).await?;
    results
        .into_iter()
        .map(|result| match result {
            Ok(results) => id_of(&results),
            Err(fault) => bail!("{function}: {}", fault.text),
        })
        .collect()
}

//! What a tube answered to the commands of one call.

use taskyard_core::limits::BATCH_BYTES_MAX;
use taskyard_core::{
    Command, Error, Outcome, Placed, Reply, State, Task, TaskId, Timestamp, TubeName,
};
use taskyard_redis::Value;

use super::codec::{Bytes, Unreadable, read_info, read_task};

/// How a tube stands after a call.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Whether there is such a tube.
    pub present: bool,
    /// The clock of the tasks.
    pub clock: i64,
    pub takeable: u64,
    /// How many more it may hold, if it has a capacity.
    pub room: Option<u64>,
    /// When time next changes something.
    pub next: Option<i64>,
    pub number: u32,
    /// Whether it lost its capacity.
    pub unlimited: bool,
}

/// The parts of an answer, one after the other.
pub(super) struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    /// The answer to a call of a tube: first how it stands.
    pub fn new(answer: Value) -> Result<(Head, Self), Unreadable> {
        let list = answer.list().ok_or(Unreadable("an answer has no parts"))?;
        let mut parts = Parts(list.into_iter());
        let head = read_head(&parts.text()?)?;
        Ok((head, parts))
    }

    fn text(&mut self) -> Result<Vec<u8>, Unreadable> {
        self.0.next().and_then(Value::text).ok_or(Unreadable("an answer is too short"))
    }

    /// A number that a function answers after its status.
    pub fn counted(&mut self) -> Result<u64, Unreadable> {
        let text = self.text()?;
        let mut bytes = Bytes(&text);
        // Where there is no tube there was nothing to count.
        if bytes.byte()? == 0 { bytes.count() } else { Ok(0) }
    }

    /// A status alone.
    pub fn status(&mut self) -> Result<u8, Unreadable> {
        Bytes(&self.text()?).byte()
    }

    /// The answer to one command.
    pub fn reply(
        &mut self,
        tube: &TubeName,
        command: &Command,
    ) -> Result<Result<Reply, Error>, Unreadable> {
        let text = self.text()?;
        let mut bytes = Bytes(&text);
        let status = bytes.byte()?;
        if status != 0 {
            return refusal(status, bytes, tube, command).map(Err);
        }
        Ok(Ok(match command {
            Command::Put { .. } => placed(bytes)?,
            Command::Take(_) => Reply::Taken(self.tasks(bytes, true)?),
            Command::Peek { .. } => Reply::Tasks(self.tasks(bytes, true)?),
            Command::Deliveries { .. } => Reply::Tasks(self.tasks(bytes, false)?),
            Command::Finish { show, .. } | Command::Delete { show, .. } => {
                Reply::Finished(self.outcomes(bytes.rest(), *show)?)
            }
            Command::Kick { .. } => Reply::Kicked(bytes.count()?),
            Command::AlterTube { .. } | Command::Tubes { .. } => {
                Reply::Tubes(vec![read_info(tube, bytes)?])
            }
            _ => Reply::Nothing,
        }))
    }

    fn tasks(&mut self, mut bytes: Bytes<'_>, bodies: bool) -> Result<Vec<Task>, Unreadable> {
        let count = bytes.small()?;
        let tasks = (0..count).map(|_| {
            let text = self.text()?;
            let body = bodies.then(|| self.text()).transpose()?;
            read_task(&text, body.as_deref())
        });
        tasks.collect()
    }

    fn outcomes(&mut self, statuses: &[u8], show: bool) -> Result<Vec<Outcome>, Unreadable> {
        let outcomes = statuses.iter().map(|status| {
            Ok(match status {
                0 if show => {
                    let (text, body) = (self.text()?, self.text()?);
                    Outcome::Done(Some(Box::new(read_task(&text, Some(&body))?)))
                }
                0 => Outcome::Done(None),
                1 => Outcome::Stale,
                _ => Outcome::Missing,
            })
        });
        outcomes.collect()
    }
}

fn read_head(text: &[u8]) -> Result<Head, Unreadable> {
    let mut bytes = Bytes(text);
    let present = bytes.byte()? == 1;
    let (clock, takeable) = (bytes.number()? as i64, bytes.count()?);
    let (room, next) = (bytes.number()?, bytes.moment()?);
    let (number, _) = (bytes.small()?, bytes.byte()?);
    let room = (room >= 0.0).then_some(room as u64);
    let next = (next != Timestamp::NEVER).then(|| next.as_micros());
    Ok(Head { present, clock, takeable, room, next, number, unlimited: bytes.byte()? == 1 })
}

fn placed(mut bytes: Bytes<'_>) -> Result<Reply, Unreadable> {
    let first = bytes.count()?;
    let states = bytes.rest().iter().map(|state| match state {
        0 => State::Ready,
        _ => State::Delayed,
    });
    Ok(Reply::Put(
        (first..).zip(states).map(|(id, state)| Placed { id: TaskId(id), state }).collect(),
    ))
}

fn refusal(
    status: u8,
    mut bytes: Bytes<'_>,
    tube: &TubeName,
    command: &Command,
) -> Result<Error, Unreadable> {
    let tube = tube.clone();
    Ok(match (status, command) {
        (1, _) => Error::TubeNotFound(tube),
        (2, _) => Error::TubeFull { tube, capacity: bytes.big()? },
        (3, _) => Error::Invalid(format!("tube '{tube}' has used up its task ids")),
        (4, _) => Error::TooLarge {
            what: "the size of the tasks to show, in bytes,",
            size: bytes.count()? as usize,
            limit: BATCH_BYTES_MAX,
            advice: "ask for fewer at a time",
        },
        (5, _) => Error::Unsupported { kind: bytes.kind()?.name(), verb: "touch" },
        (6, _) => Error::TubeExists(tube),
        (7, _) => Error::TubeHasTaken(tube),
        (8, Command::Take(take)) => match take.session {
            Some(session) => Error::SessionUnknown(session),
            None => return Err(Unreadable("a session that nobody named is unknown")),
        },
        _ => return Err(Unreadable("an answer has an unknown status")),
    })
}

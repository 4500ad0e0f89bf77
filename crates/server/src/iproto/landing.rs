//! What a client is told about the replies of the engine.

use taskyard_core::{
    Body, Command, Error, Outcome, Placed, Reply, Result as CoreResult, SessionId, State, Task,
    TaskId,
};
use taskyard_wire::iproto::{Answer, Fault, encode_replies, fault_of, faults, write_ok};

use super::batch::{Tag, Wanted};
use super::desk::{Caller, Desk};

impl Desk {
    /// Answers a batch.
    pub(super) fn answer_all(&mut self, tags: Vec<Tag>, replies: Vec<CoreResult<Reply>>) {
        let mut replies = replies.into_iter();
        for Tag { caller, wanted } in tags {
            if let Wanted::Native(joins) = wanted {
                let replies: Vec<_> = replies.by_ref().take(joins.len()).collect();
                self.sessions.note(&joins, &replies);
                self.face.counters.answered(caller.verb);
                write_ok(&mut self.answers, caller.sync, |out| {
                    // A list of one result.
                    out.push(0x91);
                    encode_replies(out, &replies);
                });
                continue;
            }
            let reply = replies.next().unwrap_or_else(|| Err(misfit()));
            if let Err(fault) = self.answer(caller, wanted, reply) {
                self.deny(caller, &fault);
            }
        }
    }

    /// Answers the data of a SELECT.
    pub(super) fn answer_rows(&mut self, caller: Caller, rows: Result<Vec<u8>, Fault>) {
        match rows {
            Ok(rows) => {
                self.face.counters.answered(caller.verb);
                let write = |out: &mut Vec<u8>| out.extend_from_slice(&rows);
                write_ok(&mut self.answers, caller.sync, write);
            }
            Err(fault) => self.deny(caller, &fault),
        }
    }

    fn answer(
        &mut self,
        caller: Caller,
        wanted: Wanted,
        reply: CoreResult<Reply>,
    ) -> Result<(), Fault> {
        match (&wanted, &reply) {
            (Wanted::Joined(session), Err(_)) => {
                self.sessions.not_joined(*session);
                return Ok(());
            }
            (Wanted::Left(session), Err(Error::Overloaded(_))) => {
                self.sessions.leave_later(*session);
                return Ok(());
            }
            (Wanted::Joined(_) | Wanted::Left(_), _) => return Ok(()),
            (Wanted::Session, Err(_)) => self.sessions.not_joined(self.sessions.current()),
            (Wanted::Switched(session), Ok(_)) => self.switch(caller, *session),
            (Wanted::Created { tube, variable: Some(variable) }, Ok(_)) => {
                self.face.remember(variable.clone(), tube.clone());
            }
            (Wanted::Put(_) | Wanted::PutMany(_), Err(Error::TubeFull { .. })) => {
                return self.told(caller, &Answer::Nil);
            }
            (Wanted::Exists, Err(Error::TubeNotFound(_))) => {
                return self.told(caller, &Answer::Flag(false));
            }
            (Wanted::Statistics, Err(Error::TubeNotFound(_))) => {
                return Err(faults::no_statistics());
            }
            _ => {}
        }
        match reply {
            Ok(reply) => self.tell_reply(caller, wanted, reply),
            Err(error) => Err(self.fault(caller, &error)),
        }
    }

    fn tell_reply(&mut self, caller: Caller, wanted: Wanted, reply: Reply) -> Result<(), Fault> {
        match (wanted, reply) {
            (Wanted::Put(body), Reply::Put(placed)) => match placed.as_slice() {
                [Placed { id, state }] => {
                    let (id, state) = (*id, *state);
                    self.told(caller, &Answer::Task { id, state, data: body.payload() })
                }
                _ => Err(self.fault(caller, &misfit())),
            },
            (Wanted::PutMany(bodies), Reply::Put(placed)) => {
                let put = placed.into_iter().zip(bodies);
                let put = put.map(|(placed, body)| (placed.id, placed.state, Some(body)));
                self.told(caller, &Answer::Tasks(put.collect()))
            }
            (Wanted::Take, Reply::Taken(tasks)) => match tasks.first() {
                Some(task) => self.told(caller, &shown(task)),
                None => self.told(caller, &Answer::Nothing),
            },
            (Wanted::TakeMany, Reply::Taken(tasks)) => {
                let tasks = tasks.into_iter().map(listed).collect();
                self.told(caller, &Answer::Tasks(tasks))
            }
            (Wanted::Held, Reply::Finished(outcomes)) => {
                self.told(caller, &shown(done(&outcomes).ok_or_else(faults::not_taken)?))
            }
            (Wanted::There(id), Reply::Finished(outcomes)) => {
                self.told(caller, &shown(done(&outcomes).ok_or_else(|| faults::not_found(id))?))
            }
            (Wanted::Acked, Reply::Finished(outcomes)) => {
                let acked = outcomes.into_iter().filter_map(|outcome| match outcome {
                    Outcome::Done(Some(task)) => Some(listed(*task)),
                    _ => None,
                });
                self.told(caller, &Answer::Tasks(acked.collect()))
            }
            (Wanted::Peeked(id), Reply::Tasks(tasks)) => {
                self.told(caller, &shown(tasks.first().ok_or_else(|| faults::not_found(id))?))
            }
            (wanted, reply) => self.tell_simply(caller, wanted, reply),
        }
    }

    /// The answers that are no tasks.
    fn tell_simply(&mut self, caller: Caller, wanted: Wanted, reply: Reply) -> Result<(), Fault> {
        match (wanted, reply) {
            (Wanted::Kicked(asked @ ..0), Reply::Kicked(_)) => {
                self.told(caller, &Answer::Number(asked))
            }
            (Wanted::Kicked(_), Reply::Kicked(count)) => {
                self.told(caller, &Answer::Number(i64::try_from(count).unwrap_or(i64::MAX)))
            }
            (Wanted::True, _) => self.told(caller, &Answer::Flag(true)),
            (Wanted::Exists, _) => self.told(caller, &Answer::Flag(true)),
            (Wanted::Nothing | Wanted::Created { .. }, _) => self.told(caller, &Answer::Nothing),
            (Wanted::Session | Wanted::Switched(_), Reply::Session(session)) => {
                self.told(caller, &Answer::Session(session))
            }
            (Wanted::Statistics, Reply::Tubes(tubes)) => match tubes.first() {
                Some(tube) => self.told(caller, &Answer::Stats(&tube.stats)),
                None => Err(faults::no_statistics()),
            },
            (Wanted::AllStatistics, Reply::Tubes(tubes)) => {
                let all: Vec<_> = tubes.into_iter().map(|tube| (tube.name, tube.stats)).collect();
                self.told(caller, &Answer::AllStats(&all))
            }
            (Wanted::Names, Reply::Tubes(tubes)) => {
                let names: Vec<_> = tubes.into_iter().map(|tube| tube.name).collect();
                self.told(caller, &Answer::Names(&names))
            }
            _ => Err(self.fault(caller, &misfit())),
        }
    }

    /// Goes over to another session and leaves the one before.
    fn switch(&mut self, caller: Caller, session: SessionId) {
        if let Some(before) = self.sessions.switch(session) {
            self.batch.push(
                Command::LeaveSession { session: before },
                caller,
                Wanted::Left(before),
            );
            self.submit();
        }
    }

    fn told(&mut self, caller: Caller, answer: &Answer<'_>) -> Result<(), Fault> {
        self.tell(caller, answer);
        Ok(())
    }

    /// The fault for a refusal of the engine, with the name that was called.
    fn fault(&self, caller: Caller, error: &Error) -> Fault {
        match error {
            Error::TubeNotFound(tube) => {
                let function = format!("{}.tube.{tube}:{}", self.face.prefix, caller.verb.name());
                fault_of(error, &function)
            }
            _ => fault_of(error, caller.verb.name()),
        }
    }
}

fn shown(task: &Task) -> Answer<'_> {
    let data = task.body.as_ref().map_or(&[][..], Body::payload);
    Answer::Task { id: task.id, state: task.state, data }
}

fn listed(task: Task) -> (TaskId, State, Option<Body>) {
    (task.id, task.state, task.body)
}

fn done(outcomes: &[Outcome]) -> Option<&Task> {
    match outcomes {
        [Outcome::Done(Some(task))] => Some(task),
        _ => None,
    }
}

/// What to say when a reply is not of the kind that belongs to its command.
fn misfit() -> Error {
    Error::Store("the engine answered something else than was asked".into())
}

//! What a client is told about the replies of the engine.

use std::vec;

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Body, Command, Error, Outcome, Placed, Reply, Result as CoreResult, SessionId, State, Task,
    TaskId, TubeName,
};
use taskyard_wire::iproto::{
    Answer, Fault, encode_replies, fault_of, faults, parse_method_of, write_ok,
};

use super::batch::{Landed, Tag, Unclear, Wanted};
use super::desk::{Caller, Desk};
use super::leaving;
use super::taking::Taking;

impl Desk {
    /// Answers what has come back, until too many answers are not sent; what is left over then waits.
    pub(super) fn answer_some(&mut self, landed: Landed) -> Option<Landed> {
        let (mut tags, mut replies, share) = match landed {
            Landed::Replies { tags, replies, share } => (tags, replies, share),
            Landed::Rows { caller, rows, charge, share } if self.may_answer() => {
                self.in_flight -= share.amount();
                self.expected.settle(charge, 0);
                self.answer_rows(caller, rows);
                return None;
            }
            rows @ Landed::Rows { .. } => return Some(rows),
        };
        while self.may_answer()
            && let Some(tag) = tags.next()
        {
            self.answer_one(tag, &mut replies);
        }
        if tags.len() > 0 {
            return Some(Landed::Replies { tags, replies, share });
        }
        self.in_flight -= share.amount();
        None
    }

    /// Answers all of what decides about sessions, which are only few, however much is not sent.
    pub(super) fn answer_whole(&mut self, landed: Landed) {
        if let Landed::Replies { tags, mut replies, share } = landed {
            self.in_flight -= share.amount();
            tags.for_each(|tag| self.answer_one(tag, &mut replies));
        }
    }

    fn answer_one(&mut self, tag: Tag, replies: &mut vec::IntoIter<CoreResult<Reply>>) {
        let Tag { caller, wanted, charge } = tag;
        let before = self.answers.len();
        if let Wanted::Native(joins) = wanted {
            let replies: Vec<_> = replies.take(joins.len()).collect();
            self.sessions.note(&joins, &replies);
            self.face.counters.answered(caller.verb);
            write_ok(&mut self.answers, caller.sync, |out| {
                // A list of one result.
                out.push(0x91);
                encode_replies(out, &replies);
            });
        } else if let Wanted::Made(tubes) = wanted {
            match self.remember_made(tubes, replies) {
                Ok(()) => self.tell(caller, &Answer::Nothing),
                Err(fault) => self.deny(caller, &fault),
            }
        } else {
            let reply = replies.next().unwrap_or_else(|| Err(misfit()));
            if let Err(fault) = self.answer(caller, wanted, reply) {
                self.deny(caller, &fault);
            }
        }
        self.expected.settle(charge, self.answers.len() - before);
    }

    /// Notes which variables stand for which tubes. Of several refusals the first is told.
    fn remember_made(
        &self,
        tubes: Vec<(TubeName, Option<String>)>,
        replies: &mut vec::IntoIter<CoreResult<Reply>>,
    ) -> Result<(), Fault> {
        let mut made = Ok(());
        for (tube, variable) in tubes {
            match (replies.next().unwrap_or_else(|| Err(misfit())), variable) {
                (Ok(_), Some(variable)) => self.face.remember(variable, tube),
                (Ok(_), None) => {}
                (Err(error), _) => {
                    let name = format!("{}.tube.{tube}", self.face.prefix);
                    made = made.and(Err(fault_of(&error, &name)));
                }
            }
        }
        made
    }

    /// Answers the data of a SELECT.
    fn answer_rows(&mut self, caller: Caller, rows: Result<Vec<u8>, Fault>) {
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
            (Wanted::Joined(session, joins), Err(_)) => {
                self.sessions.not_joined(*session, *joins);
                return Ok(());
            }
            (Wanted::Left(session), Err(error)) if leaving::may_pass(error) => {
                self.face.leave_later(vec![*session]);
                return Ok(());
            }
            (Wanted::Joined(..) | Wanted::Left(_), _) => return Ok(()),
            (Wanted::Session(session, joins), Err(_)) => {
                self.sessions.not_joined(*session, *joins);
            }
            (Wanted::Take(taking), Err(Error::SessionUnknown(session))) => {
                self.sessions.not_joined(*session, taking.joins);
            }
            (Wanted::Switched(session), Ok(_)) => self.switch(caller, *session),
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
        match (wanted, reply) {
            (Wanted::Take(taking), Err(Error::SessionUnknown(_))) if !taking.repeated => {
                self.take_anew(caller, taking);
                Ok(())
            }
            (wanted, Ok(reply)) => self.tell_reply(caller, wanted, reply),
            (_, Err(error)) => Err(self.fault(caller, &error)),
        }
    }

    /// Takes once more, in a session that the queue did not know: it could not be joined while the store was away, or ended while this
    /// server was taken for dead. Nothing was taken; the session begins anew.
    fn take_anew(&mut self, caller: Caller, taking: Taking) {
        self.take(caller, taking.again());
        self.submit();
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
            (Wanted::Take(Taking { many: true, .. }), Reply::Taken(tasks)) => {
                let tasks = tasks.into_iter().map(listed).collect();
                self.told(caller, &Answer::Tasks(tasks))
            }
            (Wanted::Take(_), Reply::Taken(tasks)) => match tasks.first() {
                Some(task) => self.told(caller, &shown(task)),
                None => self.told(caller, &Answer::Nothing),
            },
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
            (Wanted::Unclear(unclear), Reply::Tubes(tubes)) => {
                self.ask_again(caller, &unclear, tubes)
            }
            (wanted, reply) => self.tell_simply(caller, wanted, reply),
        }
    }

    /// Serves a call now that the kind of its tube is known.
    fn ask_again(
        &mut self,
        caller: Caller,
        unclear: &Unclear,
        tubes: Vec<TubeInfo>,
    ) -> Result<(), Fault> {
        let Some(tube) = tubes.into_iter().next() else {
            return Err(self.fault(caller, &misfit()));
        };
        let Unclear { method, args, .. } = unclear;
        let ask = parse_method_of(tube.options.kind, tube.name, method, args)?;
        self.ask(caller, ask);
        self.submit();
        Ok(())
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
            (Wanted::Nothing, _) => self.told(caller, &Answer::Nothing),
            (Wanted::Session(..) | Wanted::Switched(_), Reply::Session(session)) => {
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
            (Wanted::Semaphore, Reply::Semaphore(reply)) => {
                self.told(caller, &Answer::Semaphore(&reply))
            }
            _ => Err(self.fault(caller, &misfit())),
        }
    }

    /// Goes over to another session, with the takes that wait, and leaves the one before.
    fn switch(&mut self, caller: Caller, session: SessionId) {
        if let Some(before) = self.sessions.switch(session) {
            self.take_along(session);
            self.add(caller, Command::LeaveSession { session: before }, Wanted::Left(before));
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

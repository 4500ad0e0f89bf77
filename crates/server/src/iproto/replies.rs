//! Writes the replies of the engine as answers to the client.

use std::vec;

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Body, Command, Error, Outcome, Placed, Reply, Result as CoreResult, SessionId, State, Task,
    TaskId, TubeName,
};
use taskyard_iproto::{
    Answer, Fault, ReplyForm, encode_executed, fault_of, faults, parse_method_of, write_ok,
};

use super::batch::{Completion, FollowUp, PendingRequest, UnresolvedCall};
use super::leave_retries;
use super::protocol_session::{ProtocolSession, ReplyTo};
use super::repeatable_take::RepeatableTake;

impl ProtocolSession {
    /// Writes replies until too many bytes are unsent; returns what is left over.
    pub(super) fn write_replies(&mut self, completion: Completion) -> Option<Completion> {
        let (mut requests, mut replies, share) = match completion {
            Completion::Replies { requests, replies, share } => (requests, replies, share),
            Completion::Encoded { reply_to, result, charge, share } if self.can_reply() => {
                self.in_flight -= share.amount();
                self.expected.record(charge, 0);
                self.write_encoded(reply_to, result);
                return None;
            }
            encoded @ Completion::Encoded { .. } => return Some(encoded),
        };
        while self.can_reply()
            && let Some(request) = requests.next()
        {
            self.write_reply(request, &mut replies);
        }
        if requests.len() > 0 {
            return Some(Completion::Replies { requests, replies, share });
        }
        self.in_flight -= share.amount();
        None
    }

    /// Writes all replies to a batch that changes sessions, however many bytes are unsent. There
    /// are only few.
    pub(super) fn write_all_replies(&mut self, completion: Completion) {
        if let Completion::Replies { requests, mut replies, share } = completion {
            self.in_flight -= share.amount();
            requests.for_each(|request| self.write_reply(request, &mut replies));
        }
    }

    fn write_reply(
        &mut self,
        request: PendingRequest,
        replies: &mut vec::IntoIter<CoreResult<Reply>>,
    ) {
        let PendingRequest { reply_to, follow_up, charge } = request;
        let before = self.answers.len();
        if let FollowUp::SendAll(changes) = follow_up {
            let mut replies: Vec<_> = replies.take(changes.len()).collect();
            for reply in replies.iter_mut().flatten() {
                self.permissions().hide(reply);
            }
            self.sessions.record(&changes, &replies);
            self.server.counters.answered(reply_to.verb);
            write_ok(&mut self.answers, reply_to.sync, |out| encode_executed(out, &replies));
        } else if let FollowUp::SetVariables(tubes) = follow_up {
            match self.store_variables(tubes, replies) {
                Ok(()) => self.send_answer(reply_to, &Answer::Nothing),
                Err(fault) => self.send_fault(reply_to, &fault),
            }
        } else {
            let reply = replies.next().unwrap_or_else(|| Err(unexpected_reply()));
            if let Err(fault) = self.answer(reply_to, follow_up, reply) {
                self.send_fault(reply_to, &fault);
            }
        }
        self.expected.record(charge, self.answers.len() - before);
    }

    /// Stores which variables stand for which tubes. Of several errors the first is sent.
    fn store_variables(
        &self,
        tubes: Vec<(TubeName, Option<String>)>,
        replies: &mut vec::IntoIter<CoreResult<Reply>>,
    ) -> Result<(), Fault> {
        let mut stored = Ok(());
        for (tube, variable) in tubes {
            match (replies.next().unwrap_or_else(|| Err(unexpected_reply())), variable) {
                (Ok(_), Some(variable)) => {
                    self.server.set_variable(self.principal.name(), variable, tube);
                }
                (Ok(_), None) => {}
                (Err(error), _) => {
                    let name = format!("{}.tube.{tube}", self.server.prefix);
                    stored = stored.and(Err(fault_of(&error, &name)));
                }
            }
        }
        stored
    }

    /// Writes a result that is encoded already, such as the rows of a SELECT.
    fn write_encoded(&mut self, reply_to: ReplyTo, result: Result<Vec<u8>, Fault>) {
        match result {
            Ok(data) => {
                self.server.counters.answered(reply_to.verb);
                let write = |out: &mut Vec<u8>| out.extend_from_slice(&data);
                write_ok(&mut self.answers, reply_to.sync, write);
            }
            Err(fault) => self.send_fault(reply_to, &fault),
        }
    }

    fn answer(
        &mut self,
        reply_to: ReplyTo,
        follow_up: FollowUp,
        reply: CoreResult<Reply>,
    ) -> Result<(), Fault> {
        match (&follow_up, &reply) {
            (FollowUp::NoteJoined(session, joins), Err(_)) => {
                self.sessions.not_joined(*session, *joins);
                return Ok(());
            }
            (FollowUp::NoteLeft(session), Err(error)) if leave_retries::is_temporary(error) => {
                self.server.leave_later(vec![*session]);
                return Ok(());
            }
            (FollowUp::NoteJoined(..) | FollowUp::NoteLeft(_), _) => return Ok(()),
            (FollowUp::SendSession(session, joins), Err(_)) => {
                self.sessions.not_joined(*session, *joins);
            }
            (FollowUp::SendTaken(take), Err(Error::SessionUnknown(session))) => {
                self.sessions.not_joined(*session, take.join_number);
            }
            (FollowUp::SwitchSession(session), Ok(_)) => self.switch(reply_to, *session),
            (FollowUp::SendPut(_) | FollowUp::SendPutMany(_), Err(Error::TubeFull { .. })) => {
                return self.reply_with(reply_to, &Answer::Nil);
            }
            (FollowUp::SendKeyedPut(put), Err(Error::TubeFull { .. })) if !put.is_placed() => {
                return self.reply_with(reply_to, &Answer::Nil);
            }
            (FollowUp::SendExists, Err(Error::TubeNotFound(_))) => {
                return self.reply_with(reply_to, &Answer::Flag(false));
            }
            (FollowUp::Send(ReplyForm::Statistics), Err(Error::TubeNotFound(_))) => {
                return Err(faults::no_statistics());
            }
            _ => {}
        }
        match (follow_up, reply) {
            (FollowUp::SendTaken(take), Err(Error::SessionUnknown(_))) if !take.repeated => {
                self.repeat_take(reply_to, take);
                Ok(())
            }
            (FollowUp::ContinuePage(page), reply) => self.continue_page(reply_to, page, reply),
            (FollowUp::SendKeyedPut(put), reply) => self.continue_put(reply_to, put, reply),
            (follow_up, Ok(mut reply)) => {
                self.permissions().hide(&mut reply);
                self.send_reply(reply_to, follow_up, reply)
            }
            (_, Err(error)) => Err(self.fault(reply_to, &error)),
        }
    }

    /// Takes once more after the session was unknown: the join failed while the store was
    /// unreachable, or the session was released because this server was declared dead. Nothing was
    /// taken; the session is joined again.
    fn repeat_take(&mut self, reply_to: ReplyTo, take: RepeatableTake) {
        self.take(reply_to, take.again());
        self.submit();
    }

    fn send_reply(
        &mut self,
        reply_to: ReplyTo,
        follow_up: FollowUp,
        reply: Reply,
    ) -> Result<(), Fault> {
        match (follow_up, reply) {
            (FollowUp::Send(form), reply) => self.send_in_form(reply_to, form, reply),
            (FollowUp::SendPut(body), Reply::Put(placed)) => match placed.as_slice() {
                [Placed { id, state, .. }] => {
                    let (id, state) = (*id, *state);
                    self.reply_with(reply_to, &Answer::Task { id, state, data: body.payload() })
                }
                _ => Err(self.fault(reply_to, &unexpected_reply())),
            },
            (FollowUp::SendPutMany(bodies), Reply::Put(placed)) => {
                let put = placed.into_iter().zip(bodies);
                let put = put.map(|(placed, body)| (placed.id, placed.state, Some(body)));
                self.reply_with(reply_to, &Answer::Tasks(put.collect()))
            }
            (FollowUp::SendTaken(RepeatableTake { many: true, .. }), Reply::Taken(tasks)) => {
                let tasks = tasks.into_iter().map(task_row).collect();
                self.reply_with(reply_to, &Answer::Tasks(tasks))
            }
            (FollowUp::SendTaken(_), Reply::Taken(tasks)) => match tasks.first() {
                Some(task) => self.reply_with(reply_to, &task_answer(task)),
                None => self.reply_with(reply_to, &Answer::Nothing),
            },
            (FollowUp::SendExists, _) => self.reply_with(reply_to, &Answer::Flag(true)),
            (FollowUp::SendSession(..) | FollowUp::SwitchSession(_), Reply::Session(session)) => {
                self.reply_with(reply_to, &Answer::Session(session))
            }
            (FollowUp::ParseAgain(unresolved), Reply::Tubes(tubes)) => {
                self.parse_again(reply_to, &unresolved, tubes)
            }
            _ => Err(self.fault(reply_to, &unexpected_reply())),
        }
    }

    /// Serves a call now that the kind of its tube is known.
    fn parse_again(
        &mut self,
        reply_to: ReplyTo,
        unresolved: &UnresolvedCall,
        tubes: Vec<TubeInfo>,
    ) -> Result<(), Fault> {
        let Some(tube) = tubes.into_iter().next() else {
            return Err(self.fault(reply_to, &unexpected_reply()));
        };
        let UnresolvedCall { method, args, .. } = unresolved;
        let (session, kind) = (self.sessions.current(), tube.options.kind);
        let call = parse_method_of(session, kind, tube.name, method, args)?;
        self.serve_call(reply_to, call);
        self.submit();
        Ok(())
    }

    /// Sends the reply to a command in the form that belongs to the call.
    fn send_in_form(
        &mut self,
        reply_to: ReplyTo,
        form: ReplyForm,
        reply: Reply,
    ) -> Result<(), Fault> {
        match (form, reply) {
            (ReplyForm::HeldTask, Reply::Finished(outcomes)) => self.reply_with(
                reply_to,
                &task_answer(finished_task(&outcomes).ok_or_else(faults::not_taken)?),
            ),
            (ReplyForm::ExistingTask(id), Reply::Finished(outcomes)) => self.reply_with(
                reply_to,
                &task_answer(finished_task(&outcomes).ok_or_else(|| faults::not_found(id))?),
            ),
            (ReplyForm::ExistingTask(id), Reply::Tasks(tasks)) => self.reply_with(
                reply_to,
                &task_answer(
                    // Done tasks that are kept do not exist for these clients.
                    tasks
                        .first()
                        .filter(|task| task.finished.is_none())
                        .ok_or_else(|| faults::not_found(id))?,
                ),
            ),
            (ReplyForm::Tasks, Reply::Finished(outcomes)) => {
                let finished = outcomes.into_iter().filter_map(|outcome| match outcome {
                    Outcome::Done(Some(task)) => Some(task_row(*task)),
                    _ => None,
                });
                self.reply_with(reply_to, &Answer::Tasks(finished.collect()))
            }
            (ReplyForm::Kicked(negative @ ..0), Reply::Kicked(_)) => {
                self.reply_with(reply_to, &Answer::Number(negative))
            }
            (ReplyForm::Kicked(_), Reply::Kicked(count)) => {
                self.reply_with(reply_to, &Answer::Number(i64::try_from(count).unwrap_or(i64::MAX)))
            }
            (ReplyForm::True, _) => self.reply_with(reply_to, &Answer::Flag(true)),
            (ReplyForm::Empty, _) => self.reply_with(reply_to, &Answer::Nothing),
            (ReplyForm::Statistics, Reply::Tubes(tubes)) => match tubes.first() {
                Some(tube) => self.reply_with(reply_to, &Answer::Stats(&tube.stats)),
                None => Err(faults::no_statistics()),
            },
            (ReplyForm::AllStatistics, Reply::Tubes(tubes)) => {
                let listed = tubes.into_iter().filter(|tube| !tube.name.is_internal());
                let all: Vec<_> = listed.map(|tube| (tube.name, tube.stats)).collect();
                self.reply_with(reply_to, &Answer::AllStats(&all))
            }
            (ReplyForm::TubeNames, Reply::Tubes(tubes)) => {
                let names = tubes.into_iter().map(|tube| tube.name);
                let names: Vec<_> = names.filter(|name| !name.is_internal()).collect();
                self.reply_with(reply_to, &Answer::Names(&names))
            }
            (ReplyForm::Semaphore, Reply::Semaphore(reply)) => {
                self.reply_with(reply_to, &Answer::Semaphore(&reply))
            }
            _ => Err(self.fault(reply_to, &unexpected_reply())),
        }
    }

    /// Switches to another session, moves the waiting takes there, and leaves the previous one.
    fn switch(&mut self, reply_to: ReplyTo, session: SessionId) {
        if let Some(before) = self.sessions.switch(session) {
            self.move_waiting_takes(session);
            self.add(
                reply_to,
                Command::LeaveSession { session: before },
                FollowUp::NoteLeft(before),
            );
            self.submit();
        }
    }

    fn reply_with(&mut self, reply_to: ReplyTo, answer: &Answer<'_>) -> Result<(), Fault> {
        self.send_answer(reply_to, answer);
        Ok(())
    }

    /// The fault for an error of the engine, with the name of the called function.
    pub(super) fn fault(&self, reply_to: ReplyTo, error: &Error) -> Fault {
        match error {
            Error::TubeNotFound(tube) => {
                let function =
                    format!("{}.tube.{tube}:{}", self.server.prefix, reply_to.verb.name());
                fault_of(error, &function)
            }
            _ => fault_of(error, reply_to.verb.name()),
        }
    }
}

fn task_answer(task: &Task) -> Answer<'_> {
    let data = task.body.as_ref().map_or(&[][..], Body::payload);
    Answer::Task { id: task.id, state: task.state, data }
}

fn task_row(task: Task) -> (TaskId, State, Option<Body>) {
    (task.id, task.state, task.body)
}

fn finished_task(outcomes: &[Outcome]) -> Option<&Task> {
    match outcomes {
        [Outcome::Done(Some(task))] => Some(task),
        _ => None,
    }
}

/// The error for a reply of another kind than the command has.
pub(super) fn unexpected_reply() -> Error {
    Error::Store("the engine returned a reply of another kind".into())
}

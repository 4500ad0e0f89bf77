//! Serves calls and expressions: checks the rights and gives their commands to the engine.

use taskyard_core::access::{AccessTarget, AccessVerb, Denied, Permissions};
use taskyard_core::{Command, SemaphoreCommand, SessionId, TubeName};
use taskyard_iproto::eval::NewTube;
use taskyard_iproto::{
    Answer, Call, CallAction, CallContext, EvalAction, ReplyForm, faults, parse_call_with,
    parse_eval, parse_method, write_answer,
};
use taskyard_wire::draw_seeds;

use super::access;
use super::batch::{FollowUp, PendingRequest, SessionChange, UnresolvedCall};
use super::counters::CountedVerb;
use super::expected_replies::{ReplySize, size_of, size_of_all};
use super::inflight::{NativeTake, WaitMode};
use super::keyed_put::KeyedPut;
use super::list_page::ListPage;
use super::protocol_session::{ProtocolSession, ReplyTo};
use super::repeatable_take::RepeatableTake;
use super::server::{LimitShare, SharedLimit};
use super::sessions::NATIVE_MAX;

/// The state of the queue: it runs as long as it answers.
const RUNNING: &str = "RUNNING";

impl ProtocolSession {
    /// Serves a call of a function.
    pub(super) fn call(&mut self, reply_to: ReplyTo, name: &str, args: &[u8]) {
        if !self.permissions().allows_anything() {
            return self.send_fault(reply_to, &faults::denied(name, self.principal.name()));
        }
        let session = self.sessions.current();
        let context = CallContext { prefix: &self.server.prefix, session };
        match parse_call_with(&mut self.recent, context, name, args) {
            Ok(call) => match access::check(self.permissions(), &call) {
                Ok(()) => self.serve_call(reply_to, call),
                Err(denied) => {
                    self.audit_refusal(&call, &denied);
                    let reply_to = ReplyTo { verb: CountedVerb::of(call.function), ..reply_to };
                    self.deny(reply_to, name, &denied);
                }
            },
            Err(fault) => self.send_fault(reply_to, &fault),
        }
    }

    /// Refuses a call of a function for which the user has no right.
    pub(super) fn deny(&mut self, reply_to: ReplyTo, function: &str, denied: &Denied) {
        let fault = faults::denied(function, self.principal.name());
        self.send_fault(reply_to, &fault.because(denied));
    }

    /// Serves an expression.
    pub(super) fn eval(&mut self, reply_to: ReplyTo, expression: &str, args: &[u8]) {
        if let Err(denied) = self.permissions().require(AccessVerb::Eval, AccessTarget::Any) {
            return self.deny_eval(reply_to, &denied);
        }
        let context = CallContext { prefix: &self.server.prefix, session: self.sessions.current() };
        let eval = match parse_eval(context, expression, args) {
            Ok(eval) => eval,
            Err(fault) => return self.send_fault(reply_to, &fault),
        };
        let reply_to = ReplyTo { returns: eval.returns, ..reply_to };
        let parsed = match eval.action {
            EvalAction::Call(call) => Ok(call),
            EvalAction::OnVariable { variable, method, args } => {
                match self.server.variable(self.principal.name(), &variable) {
                    Some(tube) => parse_method(context, tube, &method, &args),
                    None => Err(faults::lua(format!(
                        "attempt to index global '{}' (a nil value)",
                        faults::shortened(&variable)
                    ))),
                }
            }
            EvalAction::CreateTubes(tubes) => return self.create_tubes(reply_to, tubes),
            EvalAction::Tube { tube, variable } => {
                let target = AccessTarget::Tube(tube.as_str());
                if let Err(denied) = self.permissions().require(AccessVerb::ShowTube, target) {
                    return self.deny_eval(reply_to, &denied);
                }
                let exists = Command::Tubes { tube: Some(tube.clone()) };
                let follow_up = FollowUp::SetVariables(vec![(tube, Some(variable))]);
                return self.push(reply_to, exists, follow_up);
            }
            EvalAction::Nothing => return self.send_answer(reply_to, &Answer::Nothing),
        };
        match parsed {
            Ok(call) => match access::check(self.permissions(), &call) {
                Ok(()) => self.serve_call(reply_to, call),
                Err(denied) => {
                    self.audit_refusal(&call, &denied);
                    self.deny_eval(reply_to, &denied);
                }
            },
            Err(fault) => self.send_fault(reply_to, &fault),
        }
    }

    fn deny_eval(&mut self, reply_to: ReplyTo, denied: &Denied) {
        let fault = faults::eval_denied(self.principal.name());
        self.send_fault(reply_to, &fault.because(denied));
    }

    /// Creates the tubes of an expression in one batch; nothing happens unless all are allowed.
    fn create_tubes(&mut self, reply_to: ReplyTo, tubes: Vec<NewTube>) {
        let (commands, created): (Vec<_>, Vec<_>) = tubes
            .into_iter()
            .map(|NewTube { tube, options, if_not_exists, variable }| {
                let created = (tube.clone(), variable);
                (Command::CreateTube { tube, options, if_not_exists }, created)
            })
            .unzip();
        let checked = commands.iter().try_for_each(|command| self.permissions().check(command));
        if let Err(denied) = checked {
            self.audit_refused_tubes(&commands, &denied);
            return self.deny_eval(reply_to, &denied);
        }
        let reply_to = ReplyTo { verb: CountedVerb::of("create_tube"), ..reply_to };
        if !self.admit(reply_to) {
            return;
        }
        self.audit_native(&commands);
        let charge = self.expected.add(size_of_all(&commands));
        let follow_up = FollowUp::SetVariables(created);
        self.batch.push_all(commands, PendingRequest { reply_to, follow_up, charge });
    }

    /// Serves a call that is allowed.
    pub(super) fn serve_call(&mut self, reply_to: ReplyTo, call: Call) {
        let reply_to = ReplyTo { verb: CountedVerb::of(call.function), ..reply_to };
        match call.action {
            CallAction::Command(command, form) => self.run(reply_to, command, form),
            CallAction::Batch(commands) => self.execute(reply_to, commands),
            CallAction::RunSchedule { name } => self.run_schedule(reply_to, name),
            CallAction::Identify { session } => self.identify(reply_to, session),
            CallAction::Worker { name, version } => {
                if let Some(name) = name {
                    self.worker.set_name(name);
                }
                if let Some(version) = version {
                    self.worker.set_version(version);
                }
                let name = self.worker.name(&self.server);
                self.send_answer(reply_to, &Answer::Text(name.as_deref().unwrap_or_default()));
            }
            CallAction::TubeExists { name } => match TubeName::new(&name) {
                Ok(tube) => {
                    self.push(reply_to, Command::Tubes { tube: Some(tube) }, FollowUp::SendExists);
                }
                Err(_) => self.send_answer(reply_to, &Answer::Flag(false)),
            },
            CallAction::State => self.send_answer(reply_to, &Answer::Text(RUNNING)),
            CallAction::BoxInfo => self.box_info(reply_to),
            CallAction::NoSettings => self.send_answer(reply_to, &Answer::Nothing),
            CallAction::DependsOnKind { tube, args } => {
                self.find_kind(reply_to, tube, call.function, args);
            }
        }
    }

    /// Runs one command. One that may wait is sent alone, after all commands before it.
    fn run(&mut self, reply_to: ReplyTo, mut command: Command, form: ReplyForm) {
        draw_seeds(&mut command);
        if let Command::Take(take) = command {
            return self.take(reply_to, RepeatableTake::new(take, form == ReplyForm::Tasks));
        }
        let follow_up = match &command {
            Command::Put { tube, tasks, .. } if tasks.iter().any(|task| task.key.is_some()) => {
                // A user who may only put does not see the tasks of others.
                let reads = self.permissions().allows(AccessVerb::Peek, tube.as_str());
                let is_single = form == ReplyForm::Task;
                FollowUp::SendKeyedPut(Box::new(KeyedPut::new(tube, tasks, is_single, reads)))
            }
            Command::Put { tasks, .. } => match tasks.as_slice() {
                [task] if form == ReplyForm::Task => FollowUp::SendPut(task.body.clone()),
                tasks => {
                    FollowUp::SendPutMany(tasks.iter().map(|task| task.body.clone()).collect())
                }
            },
            Command::List(list) => FollowUp::ContinuePage(Box::new(ListPage::new(list))),
            _ => FollowUp::Send(form),
        };
        if !waits(&command) {
            return self.push(reply_to, command, follow_up);
        }
        self.submit();
        self.push(reply_to, command, follow_up);
        self.submit_as(WaitMode::MayWait);
    }

    /// Takes in the session of the connection, which is joined by the first take.
    pub(super) fn take(&mut self, reply_to: ReplyTo, mut repeatable: RepeatableTake) {
        let session = self.sessions.current();
        if let Some(join) = self.sessions.join() {
            self.add(reply_to, join, FollowUp::NoteJoined(session, self.sessions.join_number()));
        }
        repeatable.join_number = self.sessions.join_number();
        let take = repeatable.command(session, self.worker.name(&self.server));
        let waits = !take.wait.is_zero();
        if waits {
            self.submit();
        }
        // A repeated take was admitted before.
        if !repeatable.repeated && !self.admit(reply_to) {
            return;
        }
        let follow_up = FollowUp::SendTaken(repeatable);
        if waits {
            let charge = self.expected.add(ReplySize::Small);
            self.start_take(take, PendingRequest { reply_to, follow_up, charge });
        } else {
            self.add(reply_to, Command::Take(take), follow_up);
        }
    }

    /// Fetches the kind of the tube on which the meaning of a call depends. Later requests wait
    /// meanwhile, so that the order is kept.
    fn find_kind(
        &mut self,
        reply_to: ReplyTo,
        tube: TubeName,
        method: &'static str,
        args: Vec<u8>,
    ) {
        let mut memory = LimitShare::new(self.server.clone(), SharedLimit::Arriving);
        if !memory.grow(args.len()) {
            let text = "overloaded: the input buffers for large requests are full; try again later";
            return self.send_fault(reply_to, &faults::lua(text));
        }
        self.submit();
        if self.admit(reply_to) {
            let follow_up = FollowUp::ParseAgain(UnresolvedCall { method, args, memory });
            self.add(reply_to, Command::Tubes { tube: Some(tube) }, follow_up);
            self.start_session_change();
        }
    }

    fn box_info(&mut self, reply_to: ReplyTo) {
        let uptime = self.server.started.elapsed().as_secs();
        let info = Answer::Info { instance: self.server.instance, pid: std::process::id(), uptime };
        self.send_answer(reply_to, &info);
    }

    fn identify(&mut self, reply_to: ReplyTo, session: Option<SessionId>) {
        let current = self.sessions.current();
        match session {
            Some(other) if other != current || !self.sessions.is_joined() => {
                self.submit();
                let command = Command::JoinSession { session: other, create: false };
                if self.admit(reply_to) {
                    self.add(reply_to, command, FollowUp::SwitchSession(other));
                    self.start_session_change();
                }
            }
            _ if self.sessions.is_joined() => self.send_answer(reply_to, &Answer::Session(current)),
            _ => {
                // A join that is not admitted is not sent, so the session must not count as joined.
                if self.admit(reply_to)
                    && let Some(join) = self.sessions.join()
                {
                    self.add(
                        reply_to,
                        join,
                        FollowUp::SendSession(current, self.sessions.join_number()),
                    );
                }
            }
        }
    }

    /// Runs native commands as one batch of their own.
    fn execute(&mut self, reply_to: ReplyTo, mut commands: Vec<Command>) {
        let is_foreign = |command: &Command| match command {
            Command::LeaveSession { session } => !self.sessions.has_joined(*session),
            _ => false,
        };
        if *self.permissions() != Permissions::All && commands.iter().any(is_foreign) {
            let text = "only sessions that this connection has joined can be left";
            return self.send_fault(reply_to, &faults::lua(text));
        }
        for command in &mut commands {
            if let Command::Take(take) = command {
                take.worker = match take.worker.take() {
                    Some(name) => Some(self.worker.native_name(&self.server, name)),
                    None => self.worker.name(&self.server),
                };
            }
        }
        let changes: Vec<_> = commands.iter().map(session_change).collect();
        let joins = changes.iter().filter(|one| matches!(one, SessionChange::Join(_))).count();
        let changing = changes.iter().any(|one| *one != SessionChange::None);
        let mode = if commands.iter().any(waits) { WaitMode::MayWait } else { WaitMode::Immediate };
        if changing && mode == WaitMode::MayWait {
            let text = "a batch that joins or leaves a session must not wait; send the takes and \
                        puts that wait in another batch";
            return self.send_fault(reply_to, &faults::lua(text));
        }
        if !self.sessions.can_join(joins) {
            let text = format!(
                "this connection has joined {NATIVE_MAX} sessions, which is the limit; leave some \
                 first"
            );
            return self.send_fault(reply_to, &faults::lua(text));
        }
        self.submit();
        if !self.admit(reply_to) {
            return;
        }
        self.audit_native(&commands);
        let charge = self.expected.add(size_of_all(&commands));
        let follow_up = FollowUp::SendAll(changes);
        let waits_alone = match &commands[..] {
            [Command::Take(take)] if mode == WaitMode::MayWait => Some(take.tube.clone()),
            _ => None,
        };
        self.batch.push_all(commands, PendingRequest { reply_to, follow_up, charge });
        match waits_alone {
            Some(tube) => self.submit_native_take(NativeTake { tube, reply_to, charge }),
            None if changing => self.start_session_change(),
            None => self.submit_as(mode),
        }
    }

    /// Adds a command that does not wait to the current batch.
    pub(super) fn push(&mut self, reply_to: ReplyTo, command: Command, follow_up: FollowUp) {
        if self.admit(reply_to) {
            self.add(reply_to, command, follow_up);
        }
    }

    /// Adds a command that is admitted already, or needs no admission.
    pub(super) fn add(&mut self, reply_to: ReplyTo, command: Command, follow_up: FollowUp) {
        self.audit_call(&command);
        let charge = self.expected.add(size_of(&command));
        self.batch.push(command, PendingRequest { reply_to, follow_up, charge });
    }

    /// Answers without the engine.
    pub(super) fn send_answer(&mut self, reply_to: ReplyTo, answer: &Answer<'_>) {
        self.server.counters.answered(reply_to.verb);
        let instead = reply_to.returns.instead_of(answer);
        let answer = instead.as_ref().unwrap_or(answer);
        write_answer(&mut self.answers, reply_to.sync, reply_to.shape, answer);
    }
}

fn session_change(command: &Command) -> SessionChange {
    match command {
        Command::JoinSession { session, .. } => SessionChange::Join(*session),
        Command::LeaveSession { session } => SessionChange::Leave(*session),
        _ => SessionChange::None,
    }
}

fn waits(command: &Command) -> bool {
    match command {
        Command::Take(take) => !take.wait.is_zero(),
        Command::Put { wait, .. } => !wait.is_zero(),
        Command::Semaphore(SemaphoreCommand::Events { wait, .. }) => !wait.is_zero(),
        _ => false,
    }
}

//! Which commands a call means.

use taskyard_core::{
    Command, Finish, FinishItem, Holder, NewTask, SemaphoreCommand, SessionId, Span, TaskId,
    TubeName,
};
use taskyard_wire::iproto::eval::NewTube;
use taskyard_wire::iproto::{
    Answer, Ask, EvalAsk, faults, parse_call_with, parse_eval, parse_method, write_answer,
};

use super::access;
use super::batch::{Joins, Tag, Unclear, Wanted};
use super::counters::Verb;
use super::desk::{Caller, Desk};
use super::expected::{Size, size_of, size_of_all};
use super::face::{Of, Share};
use super::flights::Patience;
use super::taking::Taking;
use super::users;

/// What the queue says of itself: it runs as long as it answers.
const RUNNING: &str = "RUNNING";

impl Desk {
    /// Serves a call of a function.
    pub(super) fn call(&mut self, caller: Caller, name: &str, args: &[u8]) {
        if !self.grants.sees_something() {
            return self.deny(caller, &faults::denied(name, &self.user));
        }
        let asked = parse_call_with(&mut self.recent, &self.face.prefix, name, args);
        match asked {
            Ok(ask) if !access::allows(&self.grants, &ask) => {
                let caller = Caller { verb: Verb::of(ask.verb()), ..caller };
                self.deny(caller, &faults::denied(name, &self.user));
            }
            Ok(ask) => self.ask(caller, ask),
            Err(fault) => self.deny(caller, &fault),
        }
    }

    /// Serves an expression.
    pub(super) fn eval(&mut self, caller: Caller, expression: &str, args: &[u8]) {
        if !self.grants.allows_somewhere(users::Verb::Eval) {
            return self.deny(caller, &faults::eval_denied(&self.user));
        }
        let eval = match parse_eval(&self.face.prefix, expression, args) {
            Ok(eval) => eval,
            Err(fault) => return self.deny(caller, &fault),
        };
        let caller = Caller { returns: eval.returns, ..caller };
        let asked = match eval.ask {
            EvalAsk::Ask(ask) => Ok(ask),
            EvalAsk::OnVariable { variable, method, args } => {
                match self.face.remembered(&variable) {
                    Some(tube) => parse_method(&self.face.prefix, tube, &method, &args),
                    None => Err(faults::lua(format!(
                        "attempt to index global '{}' (a nil value)",
                        faults::shown(&variable)
                    ))),
                }
            }
            EvalAsk::CreateTubes(tubes) => return self.create_tubes(caller, tubes),
            EvalAsk::Tube { tube, variable } if self.grants.sees(tube.as_str()) => {
                let exists = Command::Tubes { tube: Some(tube.clone()) };
                let wanted = Wanted::Made(vec![(tube, Some(variable))]);
                return self.push(caller, exists, wanted);
            }
            EvalAsk::Tube { .. } => return self.deny(caller, &faults::eval_denied(&self.user)),
            EvalAsk::Nothing => return self.tell(caller, &Answer::Nothing),
        };
        match asked {
            Ok(ask) if !access::allows(&self.grants, &ask) => {
                self.deny(caller, &faults::eval_denied(&self.user));
            }
            Ok(ask) => self.ask(caller, ask),
            Err(fault) => self.deny(caller, &fault),
        }
    }

    /// Makes the tubes of an expression, in one batch; nothing happens unless all are allowed.
    fn create_tubes(&mut self, caller: Caller, tubes: Vec<NewTube>) {
        let may_make = |new: &NewTube| self.grants.allows(users::Verb::Create, new.tube.as_str());
        if !tubes.iter().all(may_make) {
            return self.deny(caller, &faults::eval_denied(&self.user));
        }
        let caller = Caller { verb: Verb::of("create_tube"), ..caller };
        if !self.admit(caller) {
            return;
        }
        let (commands, made): (Vec<_>, Vec<_>) = tubes
            .into_iter()
            .map(|NewTube { tube, options, if_not_exists, variable }| {
                let made = (tube.clone(), variable);
                (Command::CreateTube { tube, options, if_not_exists }, made)
            })
            .unzip();
        let charge = self.expected.add(size_of_all(&commands));
        self.batch.push_all(commands, Tag { caller, wanted: Wanted::Made(made), charge });
    }

    /// Serves what was asked, in whichever way.
    pub(super) fn ask(&mut self, caller: Caller, ask: Ask) {
        let caller = Caller { verb: Verb::of(ask.verb()), ..caller };
        match ask {
            Ask::Put { tube, task, wait } => {
                let wanted = Wanted::Put(task.body.clone());
                self.put(caller, tube, vec![task], wait, wanted);
            }
            Ask::PutMany { tube, tasks, wait } => {
                let bodies = tasks.iter().map(|task| task.body.clone()).collect();
                self.put(caller, tube, tasks, wait, Wanted::PutMany(bodies));
            }
            Ask::Take { tube, timeout } => self.take(caller, Taking::new(tube, 1, false, timeout)),
            Ask::TakeMany { tube, count, timeout } => {
                self.take(caller, Taking::new(tube, count, true, timeout));
            }
            Ask::Finish { tube, id, finish: Finish::Bury } => {
                let items = vec![FinishItem { id, holder: Holder::Any, finish: Finish::Bury }];
                self.push(caller, finished(tube, items), Wanted::There(id));
            }
            Ask::Finish { tube, id, finish } => {
                let items = vec![self.held(id, finish)];
                self.push(caller, finished(tube, items), Wanted::Held);
            }
            Ask::AckMany { tube, ids } => {
                let items = ids.into_iter().map(|id| self.held(id, Finish::Ack)).collect();
                self.push(caller, finished(tube, items), Wanted::Acked);
            }
            Ask::Identify { session } => self.identify(caller, session),
            Ask::State => self.tell(caller, &Answer::Text(RUNNING)),
            Ask::BoxInfo => self.box_info(caller),
            Ask::Unclear { tube, method, args } => self.find_kind(caller, tube, method, args),
            Ask::Cfg { ttr: None } => self.tell(caller, &Answer::Nothing),
            Ask::TubeExists { name } => match TubeName::new(&name) {
                Ok(tube) => self.push(caller, Command::Tubes { tube: Some(tube) }, Wanted::Exists),
                Err(_) => self.tell(caller, &Answer::Flag(false)),
            },
            Ask::Semaphore(command) => self.semaphore(caller, Command::Semaphore(command)),
            Ask::Execute(commands) => self.execute(caller, commands),
            other => self.ask_plainly(caller, other),
        }
    }

    /// Serves what means one command and nothing else.
    fn ask_plainly(&mut self, caller: Caller, ask: Ask) {
        let (command, wanted) = match ask {
            Ask::CreateTube { tube, options, if_not_exists } => {
                (Command::CreateTube { tube, options, if_not_exists }, Wanted::Nothing)
            }
            Ask::Nothing { tube } => (Command::Tubes { tube: Some(tube) }, Wanted::Nothing),
            Ask::Kick { tube, count } => {
                let kicked = u64::try_from(count).unwrap_or(0);
                (Command::Kick { tube, count: kicked }, Wanted::Kicked(count))
            }
            Ask::Peek { tube, id } => (Command::Peek { tube, ids: vec![id] }, Wanted::Peeked(id)),
            Ask::Delete { tube, id } => {
                (Command::Delete { tube, ids: vec![id], show: true }, Wanted::There(id))
            }
            Ask::Truncate { tube } => (Command::Truncate { tube }, Wanted::Nothing),
            Ask::ReleaseAll { tube } => (Command::ReleaseAll { tube }, Wanted::Nothing),
            Ask::Drop { tube } => (Command::DropTube { tube }, Wanted::True),
            Ask::Statistics { tube: Some(tube) } => {
                (Command::Tubes { tube: Some(tube) }, Wanted::Statistics)
            }
            Ask::Statistics { tube: None } => {
                (Command::Tubes { tube: None }, Wanted::AllStatistics)
            }
            Ask::TubeNames => (Command::Tubes { tube: None }, Wanted::Names),
            Ask::Cfg { ttr: Some(ttr) } => (Command::ConfigureSessions { ttr }, Wanted::Nothing),
            other => {
                let text = format!("{} is not served", other.verb());
                return self.deny(caller, &faults::lua(text));
            }
        };
        self.push(caller, command, wanted);
    }

    fn put(
        &mut self,
        caller: Caller,
        tube: TubeName,
        tasks: Vec<NewTask>,
        wait: Span,
        wanted: Wanted,
    ) {
        let command = Command::Put { tube, tasks, wait };
        if wait.is_zero() {
            return self.push(caller, command, wanted);
        }
        // What may wait goes down alone, behind what came before it.
        self.submit();
        self.push(caller, command, wanted);
        self.submit_as(Patience::Waits);
    }

    /// Takes in the session of the connection, which begins with the first take.
    pub(super) fn take(&mut self, caller: Caller, mut taking: Taking) {
        let session = self.sessions.current();
        if let Some(join) = self.sessions.join() {
            self.add(caller, join, Wanted::Joined(session, self.sessions.joins()));
        }
        taking.joins = self.sessions.joins();
        let take = taking.command(session);
        let waits = !take.wait.is_zero();
        if waits {
            self.submit();
        }
        // What is asked for once more was admitted before.
        if !taking.repeated && !self.admit(caller) {
            return;
        }
        let wanted = Wanted::Take(taking);
        if waits {
            let charge = self.expected.add(Size::Small);
            self.launch_take(take, Tag { caller, wanted, charge });
        } else {
            self.add(caller, Command::Take(take), wanted);
        }
    }

    /// Asks for the kind of a tube on which the meaning of a call depends. What comes after the call waits, so that it
    /// keeps its place.
    fn find_kind(&mut self, caller: Caller, tube: TubeName, method: &'static str, args: Vec<u8>) {
        let mut kept = Share::new(self.face.clone(), Of::Arriving);
        if !kept.grow(args.len()) {
            let text = "overloaded: too many bytes of large requests are on their way";
            return self.deny(caller, &faults::lua(text));
        }
        self.submit();
        if self.admit(caller) {
            let wanted = Wanted::Unclear(Unclear { method, args, kept });
            self.add(caller, Command::Tubes { tube: Some(tube) }, wanted);
            self.launch_joining();
        }
    }

    fn box_info(&mut self, caller: Caller) {
        let uptime = self.face.started.elapsed().as_secs();
        let info = Answer::Info { instance: self.face.instance, pid: std::process::id(), uptime };
        self.tell(caller, &info);
    }

    fn semaphore(&mut self, caller: Caller, command: Command) {
        if !waits(&command) {
            return self.push(caller, command, Wanted::Semaphore);
        }
        self.submit();
        self.push(caller, command, Wanted::Semaphore);
        self.submit_as(Patience::Waits);
    }

    fn held(&self, id: TaskId, finish: Finish) -> FinishItem {
        FinishItem { id, holder: Holder::Session(self.sessions.current()), finish }
    }

    fn identify(&mut self, caller: Caller, session: Option<SessionId>) {
        let current = self.sessions.current();
        match session {
            Some(other) if other != current || !self.sessions.is_joined() => {
                self.submit();
                let command = Command::JoinSession { session: other, create: false };
                if self.admit(caller) {
                    self.add(caller, command, Wanted::Switched(other));
                    self.launch_joining();
                }
            }
            _ if self.sessions.is_joined() => self.tell(caller, &Answer::Session(current)),
            _ => {
                // Only what is admitted is sent, and only what is sent is joined.
                if self.admit(caller)
                    && let Some(join) = self.sessions.join()
                {
                    self.add(caller, join, Wanted::Session(current, self.sessions.joins()));
                }
            }
        }
    }

    /// Runs native commands as one batch of their own.
    fn execute(&mut self, caller: Caller, commands: Vec<Command>) {
        let joins: Vec<_> = commands.iter().map(joins).collect();
        let joined = joins.iter().filter(|joins| matches!(joins, Joins::Join(_))).count();
        let joining = joins.iter().any(|joins| *joins != Joins::No);
        let patience = if commands.iter().any(waits) { Patience::Waits } else { Patience::None };
        if joining && patience == Patience::Waits {
            let text = "a batch that joins or leaves a session must not wait; send the takes and \
                        puts that wait in another batch";
            return self.deny(caller, &faults::lua(text));
        }
        if !self.sessions.has_room(joined) {
            let text = "this connection has joined as many sessions as it may; leave some first";
            return self.deny(caller, &faults::lua(text));
        }
        self.submit();
        if !self.admit(caller) {
            return;
        }
        let charge = self.expected.add(size_of_all(&commands));
        self.batch.push_all(commands, Tag { caller, wanted: Wanted::Native(joins), charge });
        if joining {
            self.launch_joining();
        } else {
            self.submit_as(patience);
        }
    }

    /// Adds a command that answers at once to those that go down together.
    fn push(&mut self, caller: Caller, command: Command, wanted: Wanted) {
        if self.admit(caller) {
            self.add(caller, command, wanted);
        }
    }

    /// The same for what was admitted, or need not be.
    pub(super) fn add(&mut self, caller: Caller, command: Command, wanted: Wanted) {
        let charge = self.expected.add(size_of(&command));
        self.batch.push(command, Tag { caller, wanted, charge });
    }

    /// Answers without asking anybody.
    pub(super) fn tell(&mut self, caller: Caller, answer: &Answer<'_>) {
        self.face.counters.answered(caller.verb);
        let instead = caller.returns.instead_of(answer);
        let answer = instead.as_ref().unwrap_or(answer);
        write_answer(&mut self.answers, caller.sync, caller.shape, answer);
    }
}

fn finished(tube: TubeName, items: Vec<FinishItem>) -> Command {
    Command::Finish { tube, items, show: true }
}

fn joins(command: &Command) -> Joins {
    match command {
        Command::JoinSession { session, .. } => Joins::Join(*session),
        Command::LeaveSession { session } => Joins::Leave(*session),
        _ => Joins::No,
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

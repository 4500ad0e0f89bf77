//! Writes small histories by hand, to show what a judge accepts and refuses.

use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Lease, NewTask, Outcome, Placed, Reason,
    Reply, SessionId, Span, State, Take, Task, TaskId, Timestamp, TubeName,
};
use tokio::runtime::Builder;

use crate::evidence::Evidence;
use crate::final_phase::{DrainedTask, Facts};
use crate::history::{CallReply, History, Moment, OperationNumber, RecordedCall};
use crate::plan::{Plan, Scenario};
use crate::workers::{HandlerRun, RunEnd};

/// A history that is written call by call.
pub struct Script {
    pub plan: Plan,
    pub facts: Facts,
    history: History,
    now: Timestamp,
    moments: u64,
}

impl Script {
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let history = runtime.block_on(async { History::new(Timestamp::EPOCH) });
        let plan = Plan::draw(0, Scenario::Memory);
        Script { plan, facts: Facts::default(), history, now: Timestamp::EPOCH, moments: 0 }
    }

    pub fn judge(&self, judge: fn(&Evidence<'_>) -> Option<String>) -> Option<String> {
        judge(&Evidence::new(&self.plan, &self.history, &self.facts))
    }

    /// Lets so many seconds pass.
    pub fn pass(&mut self, seconds: u64) {
        self.now = self.now + Span::from_secs(seconds);
    }

    /// Puts a task whose payload is its id.
    pub fn put(&mut self, tube: &str, id: u64, change: impl Fn(&mut NewTask)) {
        self.put_as(tube, id, id, change);
    }

    pub fn put_as(&mut self, tube: &str, payload: u64, id: u64, change: impl Fn(&mut NewTask)) {
        let mut task = NewTask::new(Body::new(&payload.to_be_bytes()));
        change(&mut task);
        let placed = Placed { id: TaskId(id), state: State::Ready, existing: false };
        let command = Command::Put { tube: name(tube), tasks: vec![task], wait: Span::ZERO };
        self.call(command, Reply::Put(vec![placed]));
    }

    /// Takes a task whose payload is its id.
    pub fn take(&mut self, tube: &str, id: u64, lease: u64, seconds: u64) {
        self.take_as(tube, id, id, lease, seconds);
    }

    pub fn take_as(&mut self, tube: &str, payload: u64, id: u64, lease: u64, seconds: u64) {
        let task = self.task(payload, id, lease, seconds);
        let (tube, count, wait) = (name(tube), 1, Span::ZERO);
        let take = Take { tube, count, session: None, lease: None, worker: None, wait };
        self.call(Command::Take(take), Reply::Taken(vec![task]));
    }

    /// Lists a delivery to the session of client 0.
    pub fn show_delivery(&mut self, tube: &str, id: u64, lease: u64) {
        let session = Some(SessionId([0; 16]));
        let task = Task { session, ..self.task(id, id, lease, 10) };
        let command = Command::Deliveries { tube: name(tube), count: 10 };
        self.call(command, Reply::Tasks(vec![task]));
    }

    pub fn task(&self, payload: u64, id: u64, lease: u64, seconds: u64) -> Task {
        Task {
            id: TaskId(id),
            state: State::Taken,
            pri: 0,
            created: Timestamp::EPOCH,
            due: None,
            expires: Timestamp::NEVER,
            ttr: Span::FOREVER,
            attempts: 0,
            start: Some(self.now),
            previous_start: None,
            subqueue: None,
            semaphore_priority: None,
            key: None,
            attempts_max: None,
            session: None,
            worker: None,
            failures: None,
            finished: None,
            lease: Some(Lease(lease)),
            lease_until: Some(self.now + Span::from_secs(seconds)),
            reason: Reason::Running,
            body: Some(Body::new(&payload.to_be_bytes())),
        }
    }

    /// Sets the attempts of the latest delivery.
    pub fn set_attempts(&mut self, attempts: u32) {
        let latest = self.history.calls.last_mut().unwrap();
        if let CallReply::Replied(Reply::Taken(tasks)) = &mut latest.reply {
            tasks[0].attempts = attempts;
        }
    }

    /// Sets the payload of the latest delivery.
    pub fn set_body(&mut self, body: Body) {
        let latest = self.history.calls.last_mut().unwrap();
        if let CallReply::Replied(Reply::Taken(tasks)) = &mut latest.reply {
            tasks[0].body = Some(body);
        }
    }

    pub fn finish(&mut self, tube: &str, id: u64, lease: u64, finish: Finish, is_done: bool) {
        let holder = Holder::Lease(Lease(lease));
        let items = vec![FinishItem { id: TaskId(id), holder, finish }];
        let outcome = if is_done { Outcome::Done(None) } else { Outcome::Stale };
        let command = Command::Finish { tube: name(tube), items, show: false };
        self.call(command, Reply::Finished(vec![outcome]));
    }

    /// Loses the reply of the latest call.
    pub fn lose_reply(&mut self) {
        self.history.calls.last_mut().unwrap().reply = CallReply::Unknown;
    }

    /// Refuses the latest call.
    pub fn refuse(&mut self, error: Error) {
        self.history.calls.last_mut().unwrap().reply = CallReply::Refused(error);
    }

    /// A finish of another client that was executed.
    pub fn finish_as(
        &mut self,
        operation: OperationNumber,
        tube: &str,
        id: u64,
        lease: u64,
        finish: Finish,
    ) {
        self.finish(tube, id, lease, finish, true);
        self.history.calls.last_mut().unwrap().operation = operation;
    }

    /// A run of a handler of worker 0.
    pub fn run(&mut self, tube: &str, id: u64, end: RunEnd) {
        let (begin, end) = (self.moment(), Some((self.moment(), end)));
        let (worker, process, tube, id) = (0, 1, name(tube), TaskId(id));
        let run = HandlerRun { worker, process, tube, id, begin, end, overlaps: None };
        self.facts.runs.push(run);
    }

    pub fn kick(&mut self, tube: &str) {
        self.call(Command::Kick { tube: name(tube), count: 1 }, Reply::Kicked(1));
    }

    /// Notes that a task was left at the end.
    pub fn drain(&mut self, tube: &str, id: u64) {
        let (tube, id, pri, payload) = (name(tube), TaskId(id), 0, Some(id));
        self.facts.drained.push(DrainedTask { tube, id, pri, payload });
    }

    pub fn call(&mut self, command: Command, reply: Reply) {
        let (begin, end) = (self.moment(), Some(self.moment()));
        let (operation, reply, ahead) = ((0, 0), CallReply::Replied(reply), Some(0));
        let (server, is_given_up) = (0, false);
        let call =
            RecordedCall { operation, server, begin, end, command, reply, is_given_up, ahead };
        self.history.calls.push(call);
    }

    fn moment(&mut self) -> Moment {
        self.moments += 1;
        Moment { number: self.moments, at: self.now }
    }
}

fn name(tube: &str) -> TubeName {
    TubeName::new(tube).unwrap()
}

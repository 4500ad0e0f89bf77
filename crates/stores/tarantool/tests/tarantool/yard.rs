//! A part of Tarantool for each case.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, NewTask, Outcome, Reply, Span, Take, Task,
    Timestamp, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store::conformance::{StoreHarness, block_on};
use taskyard_store::tarantool::{Clock, TarantoolStore};

use crate::instance::{Instance, program};

/// The server that the tests of this process share.
pub fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| Instance::new(program().expect("whoever asks has looked for it")))
}

/// A part of a test's own of this Tarantool, as a URL: its spaces have a prefix that no other has.
pub fn own(url: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{url}?prefix=case{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A store whose clock is the caller's.
pub fn open(url: &str) -> TarantoolStore {
    TarantoolStore::open(url, Clock::Caller).expect("the store opens")
}

/// A queue in a part of its own.
pub fn queue() -> StoreHarness {
    let url = own(&instance().url());
    StoreHarness::new(move || Box::new(open(&url)))
}

/// Runs a case, unless there is no Tarantool and the tests are to go on without.
pub fn run(case: impl Future) {
    if program().is_some() {
        block_on(case);
    }
}

/// The beginning of a script that calls procedures as a server does: `call(verb, …)`, and `server`, one that is there.
pub const CALL: &str = "
    local library
    for key, value in pairs(_G) do
        if type(key) == 'string' and key:match('^taskyard_1_%x+$') then library = value end
    end
    local function call(...) return library.call('taskyard', ...) end
    local server = box.space.taskyard_server and box.space.taskyard_server:select()[1][1]
";

/// The moment at which the tests of a store alone ask.
pub const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// One on a part of it that nobody else uses.
pub fn store() -> TarantoolStore {
    open(&own(&instance().url()))
}

/// Asks a store one thing.
pub fn ask(store: &TarantoolStore, command: Command) -> Result<Reply, Error> {
    block_on(store.execute(NOW, vec![command])).replies.remove(0)
}

/// Makes the tube `mail`.
pub fn make_tube(store: &TarantoolStore, options: TubeOptions) -> TubeName {
    let tube = TubeName::new("mail").expect("a name");
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    assert_eq!(ask(store, create), Ok(Reply::Created(true)));
    tube
}

/// Puts tasks that carry nothing.
pub fn put(tube: &TubeName, count: usize) -> Command {
    let tasks = vec![NewTask::new(Body::new(&[0xc0])); count];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

/// Takes without a session.
pub fn take(store: &TarantoolStore, tube: &TubeName, count: usize) -> Vec<Task> {
    let take = Take { tube: tube.clone(), count, session: None, lease: None, wait: Span::ZERO };
    match ask(store, Command::Take(take)) {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

/// Acks by lease.
pub fn ack(store: &TarantoolStore, tube: &TubeName, task: &Task) -> Outcome {
    let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
    match ask(store, Command::Finish { tube: tube.clone(), items, show: false }) {
        Ok(Reply::Finished(mut outcomes)) => outcomes.remove(0),
        other => panic!("an ack has an outcome, not {other:?}"),
    }
}

/// Asks until Tarantool is there. Nothing else may go wrong.
pub fn ask_until_there(store: &TarantoolStore, command: &Command) -> Reply {
    loop {
        match ask(store, command.clone()) {
            Ok(reply) => return reply,
            Err(Error::StoreAway(_)) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

//! Users and roles over iproto: each cell of the table of native commands and roles.

use taskyard_core::access::{NamePattern, Permissions, Role};
use taskyard_core::tube::Kind;
use taskyard_core::{
    Body, Command, EnqueueItem, EventId, Finish, FinishItem, GrantFinish, GrantItem, Holder, Lease,
    List, ListOrder, MemberGroup, NewTask, ScheduleCommand, ScheduleName, Search, SemaphoreChange,
    SemaphoreCommand, SemaphoreKey, SessionId, Span, StateSet, Take, TaskId, Timestamp, TubeChange,
    TubeName, TubeOptions,
};
use taskyard_iproto::{Fault, encode_execute, parse_reply};

use crate::fixture::RawClient;
use crate::native::{execute, set_schedule};
use crate::roles::{PASSWORD, log_in, server};

/// What a user of other names gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    /// A refusal that names what is foreign.
    Named,
    /// A refusal: the pattern of all names is needed.
    All,
    /// An answer: the command has no name.
    Unnamed,
}

/// A command, the roles that allow it, each by its first letter, and what a user of other names gets.
type CommandCase = (Command, &'static str, Foreign);

const SESSION: SessionId = SessionId([7; 16]);

fn next_tasks() -> List {
    List { tube: tube(), order: ListOrder::Queue { after: None }, limit: 10, key: None }
}

fn search() -> Search {
    let states = StateSet::UNFINISHED;
    Search { tube: tube(), first: TaskId(0), count: 10, states, run: b"x".as_slice().into() }
}

/// Lists the cases of each command of an enum. A new command does not compile until it is listed here, with a case.
macro_rules! cases {
    ($function:ident, $check:ident, $type:ty, $wrap:expr, {
        $($pattern:pat => [$(($command:expr, $roles:literal, $foreign:ident)),+ $(,)?]),+ $(,)?
    }) => {
        fn $check(command: &$type) -> &'static str {
            match command {
                $($pattern => stringify!($pattern),)+
            }
        }

        fn $function() -> Vec<CommandCase> {
            let mut cases: Vec<CommandCase> = Vec::new();
            $($({
                let command: $type = $command;
                assert_eq!($check(&command), stringify!($pattern), "a case of another command");
                cases.push(($wrap(command), $roles, Foreign::$foreign));
            })+)+
            cases
        }
    };
}

cases!(tube_cases, name_of_command, Command, std::convert::identity, {
    Command::CreateTube { .. } => [
        (create("TUBE", None), "a", Named),
        (create("other.gated", Some("TUBE")), "a", Named),
    ],
    Command::AlterTube { .. } => [
        (alter(TubeChange { pri: Some(1), ..TubeChange::default() }), "a", Named),
        (alter(TubeChange { paused: Some(false), ..TubeChange::default() }), "oa", Named),
    ],
    Command::NameTube { .. } => [
        (name_tube("TUBE", "TUBE"), "a", Named),
        (name_tube("TUBE", "other.a"), "a", Named),
        (name_tube("other.a", "TUBE"), "a", Named),
    ],
    Command::Tubes { .. } => [
        (Command::Tubes { tube: Some(tube()) }, "rpcoa", Named),
        (Command::Tubes { tube: None }, "rpcoa", Unnamed),
    ],
    Command::Put { .. } => [(put(), "pa", Named)],
    Command::Take(_) => [(take(), "ca", Named)],
    Command::Finish { .. } => [
        (finish(None), "rpcoa", Named),
        (finish(own(Finish::Ack)), "ca", Named),
        (finish(own(Finish::AckWithResult(Box::new(Body::new(b"\x01"))))), "ca", Named),
        (finish(own(release())), "ca", Named),
        (finish(own(Finish::Touch(Span::from_secs(1)))), "ca", Named),
        (finish(own(Finish::Bury)), "coa", Named),
        (finish(own(Finish::fail("no route", None))), "coa", Named),
        (finish(own(Finish::fail_by_policy("no route", 1))), "ca", Named),
        (finish(of_any(Finish::Ack)), "oa", Named),
        (finish(of_any(Finish::AckWithResult(Box::new(Body::new(b"\x01"))))), "oa", Named),
        (finish(of_any(release())), "oa", Named),
        (finish(of_any(Finish::Touch(Span::from_secs(1)))), "oa", Named),
        (finish(of_any(Finish::Bury)), "coa", Named),
        (finish(of_any(Finish::fail("no route", None))), "coa", Named),
        (finish(of_any(Finish::fail_by_policy("no route", 1))), "oa", Named),
    ],
    Command::Kick { .. } => [(Command::Kick { tube: tube(), count: 1 }, "oa", Named)],
    Command::KickTasks { .. } => [
        (Command::KickTasks { tube: tube(), ids: ids(), reset_attempts: false }, "oa", Named),
    ],
    Command::Delete { .. } => [
        (Command::Delete { tube: tube(), ids: ids(), show: false }, "oa", Named),
        (Command::Delete { tube: tube(), ids: ids(), show: true }, "oa", Named),
    ],
    Command::Peek { .. } => [(Command::Peek { tube: tube(), ids: ids() }, "oa", Named)],
    Command::Deliveries { .. } => [
        (Command::Deliveries { tube: tube(), count: 1 }, "oa", Named),
    ],
    Command::Positions { .. } => [
        (Command::Positions { tube: tube(), ids: ids() }, "rpcoa", Named),
    ],
    Command::List(_) => [(Command::List(next_tasks()), "oa", Named)],
    Command::Search(_) => [(Command::Search(search()), "oa", Named)],
    Command::Truncate { .. } => [(Command::Truncate { tube: tube() }, "oa", Named)],
    Command::ReleaseAll { .. } => [(Command::ReleaseAll { tube: tube() }, "oa", Named)],
    Command::JoinSession { .. } => [
        (Command::JoinSession { session: SESSION, create: true }, "rpcoa", Unnamed),
    ],
    Command::LeaveSession { .. } => [
        (Command::LeaveSession { session: SESSION }, "rpcoa", Unnamed),
    ],
    Command::ConfigureSessions { .. } => [
        (Command::ConfigureSessions { ttr: Span::from_secs(1) }, "a", All),
    ],
    // The commands inside have cases of their own.
    Command::Semaphore(_) => [
        (Command::Semaphore(SemaphoreCommand::List { key: None }), "rpcoa", Unnamed),
    ],
    Command::Schedule(_) => [(set_schedule("TUBE", "TUBE"), "a", Named)],
    Command::Tick { .. } => [(Command::Tick { limit: 1, seed: 0 }, "a", All)],
    Command::DropTube { .. } => [(Command::DropTube { tube: tube() }, "a", Named)],
});

cases!(semaphore_cases, name_of_semaphore_command, SemaphoreCommand, Command::Semaphore, {
    SemaphoreCommand::Configure { .. } => [
        (SemaphoreCommand::Configure { key: key(), change: active(), only_new: false }, "a", Named),
    ],
    SemaphoreCommand::Enqueue { .. } => [
        (SemaphoreCommand::Enqueue { key: key(), entries: entries() }, "ca", Named),
    ],
    SemaphoreCommand::Finish { .. } => [
        (end_grant(GrantFinish::Decline), "ca", Named),
        (end_grant(GrantFinish::Extend(Span::from_secs(1))), "ca", Named),
        (end_grant(GrantFinish::Yield), "ca", Named),
        (end_grant(GrantFinish::Release), "ca", Named),
    ],
    SemaphoreCommand::Peek { .. } => [
        (SemaphoreCommand::Peek { key: key(), tasks: vec![TaskId(7)] }, "rpcoa", Named),
    ],
    SemaphoreCommand::Members { .. } => [
        (members(MemberGroup::Holders), "rpcoa", Named),
        (members(MemberGroup::Waiting), "rpcoa", Named),
    ],
    SemaphoreCommand::List { .. } => [
        (SemaphoreCommand::List { key: Some(key()) }, "rpcoa", Named),
        (SemaphoreCommand::List { key: None }, "rpcoa", Unnamed),
    ],
    SemaphoreCommand::Events { .. } => [
        (events(Some(key())), "ca", Named),
        (events(None), "ca", All),
    ],
    SemaphoreCommand::Acknowledge { .. } => [
        (SemaphoreCommand::Acknowledge { events: vec![EventId(99)] }, "ca", All),
    ],
    SemaphoreCommand::Drop { .. } => [
        (SemaphoreCommand::Drop { key: key(), force: true }, "a", Named),
    ],
});

cases!(schedule_cases, name_of_schedule_command, ScheduleCommand, schedule_command, {
    ScheduleCommand::Set { .. } => [
        (set("TUBE", "TUBE"), "a", Named),
        (set("TUBE", "other.a"), "a", Named),
        (set("other.s", "TUBE"), "a", Named),
    ],
    ScheduleCommand::Get { .. } => [
        (ScheduleCommand::Get { name: schedule() }, "rpcoa", Named),
    ],
    ScheduleCommand::List { .. } => [
        (ScheduleCommand::List { after: None, limit: 1 }, "rpcoa", All),
    ],
    ScheduleCommand::Due { .. } => [(ScheduleCommand::Due { skip: 0, limit: 1 }, "a", All)],
    ScheduleCommand::Pause { .. } => [
        (ScheduleCommand::Pause { name: schedule(), paused: true }, "oa", Named),
        (ScheduleCommand::Pause { name: schedule(), paused: false }, "oa", Named),
    ],
    ScheduleCommand::Fire { .. } => [(fire(), "a", All)],
    ScheduleCommand::Remove { .. } => [
        (ScheduleCommand::Remove { name: schedule() }, "a", Named),
    ],
});

fn tube() -> TubeName {
    TubeName::new("TUBE").unwrap()
}

fn key() -> SemaphoreKey {
    SemaphoreKey::new("TUBE").unwrap()
}

fn schedule() -> ScheduleName {
    ScheduleName::new("TUBE").unwrap()
}

fn ids() -> Vec<TaskId> {
    vec![TaskId(0)]
}

fn create(tube: &str, semaphore: Option<&str>) -> Command {
    let semaphore = semaphore.map(|key| SemaphoreKey::new(key).unwrap());
    let options = TubeOptions { semaphore, ..TubeOptions::new(Kind::FifoTtl) };
    Command::CreateTube { tube: TubeName::new(tube).unwrap(), options, if_not_exists: true }
}

fn alter(change: TubeChange) -> Command {
    Command::AlterTube { tube: tube(), change }
}

fn name_tube(from: &str, to: &str) -> Command {
    let name = |text| TubeName::new(text).unwrap();
    Command::NameTube { tube: name(from), name: name(to), queue_num: None }
}

fn put() -> Command {
    let tasks = vec![NewTask::new(Body::new(b"\x01"))];
    Command::Put { tube: tube(), tasks, wait: Span::ZERO }
}

fn take() -> Command {
    let (session, lease, worker, wait) = (None, None, None, Span::ZERO);
    Command::Take(Take { tube: tube(), count: 1, session, lease, worker, wait })
}

fn release() -> Finish {
    Finish::Release { delay: Span::ZERO, counted: true }
}

fn own(finish: Finish) -> Option<FinishItem> {
    Some(FinishItem { id: TaskId(0), holder: Holder::Lease(Lease(99)), finish })
}

fn of_any(finish: Finish) -> Option<FinishItem> {
    Some(FinishItem { id: TaskId(0), holder: Holder::Any, finish })
}

fn finish(item: Option<FinishItem>) -> Command {
    Command::Finish { tube: tube(), items: item.into_iter().collect(), show: false }
}

fn active() -> Box<SemaphoreChange> {
    Box::new(SemaphoreChange { active: Some(1), ..SemaphoreChange::default() })
}

fn entries() -> Vec<EnqueueItem> {
    vec![EnqueueItem { task: TaskId(7), priority: 1.0 }]
}

fn end_grant(finish: GrantFinish) -> SemaphoreCommand {
    let items = vec![GrantItem { task: TaskId(7), grant: None, finish }];
    SemaphoreCommand::Finish { key: key(), items }
}

fn members(part: MemberGroup) -> SemaphoreCommand {
    SemaphoreCommand::Members { key: key(), part, after: None, count: 1 }
}

fn events(key: Option<SemaphoreKey>) -> SemaphoreCommand {
    SemaphoreCommand::Events { key, count: 1, wait: Span::ZERO }
}

fn schedule_command(command: ScheduleCommand) -> Command {
    Command::Schedule(Box::new(command))
}

fn set(name: &str, tube: &str) -> ScheduleCommand {
    match set_schedule(name, tube) {
        Command::Schedule(command) => *command,
        other => panic!("{other:?}"),
    }
}

fn fire() -> ScheduleCommand {
    let expected = Timestamp::from_micros(1);
    ScheduleCommand::Fire { name: schedule(), expected, next: None, puts: Vec::new(), skipped: 0 }
}

/// All cases. The tube, which the last of its cases drops, comes last.
fn all_cases() -> Vec<CommandCase> {
    let mut cases = semaphore_cases();
    cases.extend(schedule_cases());
    cases.extend(tube_cases());
    cases
}

/// What the cases apply to.
fn prepared() -> [Command; 5] {
    let semaphore = SemaphoreCommand::Configure { key: key(), change: active(), only_new: false };
    [
        create("TUBE", None),
        create("other.a", None),
        Command::Semaphore(semaphore),
        set_schedule("TUBE", "TUBE"),
        put(),
    ]
}

/// The fault of a batch. Replies with an error are not faults: the command was allowed.
async fn fault_of(client: &mut RawClient, commands: &[Command]) -> Option<Fault> {
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 7, commands);
    client.send(&bytes).await;
    let frame = client.next_bytes().await.expect("the server answers");
    parse_reply(&frame).unwrap().fault()
}

/// The rights of a role on the names of one pattern, from the table of the server.
fn permissions(role: Role, pattern: &str) -> Permissions {
    Permissions::of_roles(&[role], vec![NamePattern::new(pattern).unwrap()])
}

// The cases are written down apart from the table, and agree with it.
#[test]
fn the_table_agrees_with_the_cases() {
    for (command, roles, foreign) in all_cases() {
        for role in Role::ALL {
            let is_allowed = roles.contains(&role.name()[..1]);
            let checked = permissions(role, "*").check(&command);
            assert_eq!(checked.is_ok(), is_allowed, "{role:?} {command:?}");
            let checked = permissions(role, "other.*").check(&command);
            let is_allowed = is_allowed && foreign == Foreign::Unnamed;
            assert_eq!(checked.is_ok(), is_allowed, "{role:?} of other names: {command:?}");
        }
    }
}

// Each cell of the table: a user with one role for all names sends each command, and a user of another pattern does so as well.
#[tokio::test]
async fn a_role_allows_its_commands_and_no_others() {
    let server = server(&["*", "other.*"]).await;
    let mut admin = log_in(&server, "admin", "secret-0123456789").await;
    for role in Role::ALL {
        let replies = execute(&mut admin, &prepared()).await;
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        let mut user = log_in(&server, &format!("{} *", role.name()), PASSWORD).await;
        let mut other = log_in(&server, &format!("{} other.*", role.name()), PASSWORD).await;
        for (command, roles, foreign) in all_cases() {
            let is_allowed = roles.contains(&role.name()[..1]);
            let fault = fault_of(&mut other, std::slice::from_ref(&command)).await;
            match fault {
                None => {
                    assert!(is_allowed && foreign == Foreign::Unnamed, "{role:?} {command:?}");
                }
                Some(fault) => {
                    assert!(!is_allowed || foreign != Foreign::Unnamed, "{command:?}: {fault:?}");
                    assert_refused(&fault, &command);
                    // A missing role may be reported for another name of the command.
                    let names = foreign != Foreign::Named || fault.text.contains("'TUBE'");
                    assert!(names || !is_allowed, "{command:?}: {}", fault.text);
                }
            }
            let fault = fault_of(&mut user, std::slice::from_ref(&command)).await;
            assert_eq!(fault.is_none(), is_allowed, "{role:?} {command:?}: {fault:?}");
            if let Some(fault) = fault {
                assert_refused(&fault, &command);
            }
        }
    }
}

fn assert_refused(fault: &Fault, command: &Command) {
    assert_eq!(fault.code, 42, "{command:?}: {}", fault.text);
    assert!(fault.text.contains("the role '"), "{command:?}: {}", fault.text);
}

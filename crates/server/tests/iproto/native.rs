//! The native call: a batch of encoded commands.

use serde_json::json;
use taskyard_core::schedule::TimingRule;
use taskyard_core::tube::Kind;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, NewTask, Outcome, Reply, Result,
    ScheduleCommand, SessionId, Span, StoredSchedule, Take, TubeName, TubeOptions,
};
use taskyard_iproto::{decode_replies, encode_execute, parse_reply};

use crate::fixture::{RawClient, TestServer};

pub async fn execute(client: &mut RawClient, commands: &[Command]) -> Vec<Result<Reply>> {
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 7, commands);
    client.send(&bytes).await;
    let frame = client.next_bytes().await.unwrap();
    let reply = parse_reply(&frame).unwrap();
    assert_eq!((reply.sync, reply.fault()), (7, None));
    // A list of one result.
    let data = reply.data.unwrap();
    assert_eq!(data[0], 0x91);
    decode_replies(&data[1..]).unwrap()
}

/// The command that sets an hourly schedule of this name, with the text `x` as the payload.
pub fn set_schedule(name: &str, tube: &str) -> Command {
    let rule = TimingRule::Every { every: Span::from_secs(3600), start: None };
    let schedule =
        StoredSchedule::new(name, tube, NewTask::new(Body::new(b"\xa1x")), &rule).unwrap();
    let set = ScheduleCommand::Set { schedule, only_new: false, keep_paused: false };
    Command::Schedule(Box::new(set))
}

fn mail() -> TubeName {
    TubeName::new("mail").unwrap()
}

fn create() -> Command {
    let options = TubeOptions::new(Kind::FifoTtl);
    Command::CreateTube { tube: mail(), options, if_not_exists: false }
}

fn put(data: &[u8]) -> Command {
    let tasks = vec![NewTask::new(Body::new(data))];
    Command::Put { tube: mail(), tasks, wait: Span::ZERO }
}

fn take(session: Option<SessionId>, wait: Span) -> Command {
    Command::Take(Take { tube: mail(), count: 1, session, lease: None, worker: None, wait })
}

// A session ended without a request of its connection, as it does when other servers declare a
// server dead: every later take of that connection was refused, and after a repair still the first
// one.
#[tokio::test]
async fn a_session_that_ended_is_joined_again() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifo").await;
    let session = SessionId(client.identity().await);
    let mut other = server.connect().await;
    let left = execute(&mut other, &[Command::LeaveSession { session }]).await;
    assert_eq!(left, [Ok(Reply::Nothing)]);
    client.done("queue.tube.mail:put", json!([1])).await;
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await, json!([[0, "t", 1]]));
    drop(client);
    server.ready("mail", 1).await;
}

#[tokio::test]
async fn a_batch_is_answered_command_by_command() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let commands = [create(), put(b"\xa1a"), create(), take(None, Span::ZERO)];
    let replies = execute(&mut client, &commands).await;
    assert_eq!(replies[0], Ok(Reply::Created(true)));
    assert!(matches!(&replies[1], Ok(Reply::Put(placed)) if placed.len() == 1));
    assert_eq!(replies[2], Err(Error::TubeExists(mail())));
    let Ok(Reply::Taken(tasks)) = &replies[3] else { panic!("{:?}", replies[3]) };
    assert_eq!(tasks[0].body.as_ref().unwrap().payload(), b"\xa1a");
    let holder = Holder::Lease(tasks[0].lease.unwrap());
    let items = vec![FinishItem { id: tasks[0].id, holder, finish: Finish::Ack }];
    let ack = Command::Finish { tube: mail(), items, show: false };
    let replies = execute(&mut client, &[ack]).await;
    assert_eq!(replies, [Ok(Reply::Finished(vec![Outcome::Done(None)]))]);
    assert_eq!(execute(&mut client, &[]).await, []);
}

#[tokio::test]
async fn a_waiting_batch_does_not_delay_others() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    execute(&mut client, &[create()]).await;
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 99, &[take(None, Span::FOREVER)]);
    client.send(&bytes).await;
    server.consumers("mail", 1).await;
    client.ping().await;
    server.connect().await.send(&[]).await;
    let mut other = server.connect().await;
    execute(&mut other, &[put(b"\x01")]).await;
    let frame = client.next_bytes().await.unwrap();
    assert_eq!(parse_reply(&frame).unwrap().sync, 99);
}

#[tokio::test]
async fn sessions_joined_in_a_batch_are_left_with_the_connection() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    execute(&mut client, &[create(), put(b"\x01"), put(b"\x02")]).await;
    let (one, two) = (SessionId([1; 16]), SessionId([2; 16]));
    let join = |session| Command::JoinSession { session, create: true };
    let mut leaving = server.connect().await;
    let replies = execute(&mut leaving, &[join(one), join(two)]).await;
    assert_eq!(replies, [Ok(Reply::Session(one)), Ok(Reply::Session(two))]);
    let takes = [take(Some(one), Span::ZERO), take(Some(two), Span::ZERO)];
    execute(&mut leaving, &takes).await;
    server.ready("mail", 0).await;
    execute(&mut leaving, &[Command::LeaveSession { session: two }]).await;
    server.ready("mail", 1).await;
    drop(leaving);
    server.ready("mail", 2).await;
}

// A connection that left its own session by a command left it once more when it closed: the tasks
// of other connections in that session were given back.
#[tokio::test]
async fn a_connection_leaves_its_own_session_once() {
    let server = TestServer::new().await;
    let mut one = server.connect().await;
    execute(&mut one, &[create(), put(b"\x01"), put(b"\x02")]).await;
    let session = SessionId(one.identity().await);
    let mut two = server.connect().await;
    two.identify(&session.0).await.unwrap();
    two.done("queue.tube.mail:take", json!([0])).await;
    execute(&mut one, &[Command::LeaveSession { session }]).await;
    drop(one);
    server.connections(1).await;
    two.done("queue.tube.mail:ack", json!([0])).await;
    // A session that was left can be joined again.
    execute(&mut two, &[Command::LeaveSession { session }]).await;
    let taken = two.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(taken, json!([[1, "t", 2]]));
    assert_eq!(two.identity().await, session.0);
}

#[tokio::test]
async fn a_batch_that_joins_must_not_wait() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    execute(&mut client, &[create()]).await;
    let join = Command::JoinSession { session: SessionId([1; 16]), create: true };
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 7, &[join, take(None, Span::FOREVER)]);
    client.send(&bytes).await;
    let (_, answer) = client.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert!(fault.text.contains("must not wait"), "{fault:?}");
}

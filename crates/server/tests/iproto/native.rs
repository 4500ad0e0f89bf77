//! Our own call: a batch of commands as they are.

use serde_json::json;
use taskyard_core::tube::Kind;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, NewTask, Outcome, Reply, Result, SessionId,
    Span, Take, TubeName, TubeOptions,
};
use taskyard_wire::iproto::{decode_replies, encode_execute, parse_reply};

use crate::rig::{Rig, Talk};

async fn execute(talk: &mut Talk, commands: &[Command]) -> Vec<Result<Reply>> {
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 7, commands);
    talk.send(&bytes).await;
    let frame = talk.next_bytes().await.unwrap();
    let reply = parse_reply(&frame).unwrap();
    assert_eq!((reply.sync, reply.fault()), (7, None));
    // A list of one result.
    let data = reply.data.unwrap();
    assert_eq!(data[0], 0x91);
    decode_replies(&data[1..]).unwrap()
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
    Command::Take(Take { tube: mail(), count: 1, session, lease: None, wait })
}

// A session ended behind the back of its connection, as it does when others take a server for dead: every later
// take of that connection was refused, and afterwards still the first one.
#[tokio::test]
async fn a_session_that_ended_elsewhere_begins_anew() {
    let rig = Rig::new().await;
    let mut talk = rig.with_tube("mail", "fifo").await;
    let session = SessionId(talk.identity().await);
    let mut other = rig.connect().await;
    let left = execute(&mut other, &[Command::LeaveSession { session }]).await;
    assert_eq!(left, [Ok(Reply::Nothing)]);
    talk.done("queue.tube.mail:put", json!([1])).await;
    assert_eq!(talk.done("queue.tube.mail:take", json!([0])).await, json!([[0, "t", 1]]));
    drop(talk);
    rig.ready("mail", 1).await;
}

#[tokio::test]
async fn a_batch_is_answered_command_by_command() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    let commands = [create(), put(b"\xa1a"), create(), take(None, Span::ZERO)];
    let replies = execute(&mut talk, &commands).await;
    assert_eq!(replies[0], Ok(Reply::Created(true)));
    assert!(matches!(&replies[1], Ok(Reply::Put(placed)) if placed.len() == 1));
    assert_eq!(replies[2], Err(Error::TubeExists(mail())));
    let Ok(Reply::Taken(tasks)) = &replies[3] else { panic!("{:?}", replies[3]) };
    assert_eq!(tasks[0].body.as_ref().unwrap().payload(), b"\xa1a");
    let holder = Holder::Lease(tasks[0].lease.unwrap());
    let items = vec![FinishItem { id: tasks[0].id, holder, finish: Finish::Ack }];
    let ack = Command::Finish { tube: mail(), items, show: false };
    let replies = execute(&mut talk, &[ack]).await;
    assert_eq!(replies, [Ok(Reply::Finished(vec![Outcome::Done(None)]))]);
    assert_eq!(execute(&mut talk, &[]).await, []);
}

#[tokio::test]
async fn a_batch_that_waits_holds_up_nobody() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    execute(&mut talk, &[create()]).await;
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 99, &[take(None, Span::FOREVER)]);
    talk.send(&bytes).await;
    rig.consumers("mail", 1).await;
    talk.ping().await;
    rig.connect().await.send(&[]).await;
    let mut other = rig.connect().await;
    execute(&mut other, &[put(b"\x01")]).await;
    let frame = talk.next_bytes().await.unwrap();
    assert_eq!(parse_reply(&frame).unwrap().sync, 99);
}

#[tokio::test]
async fn sessions_joined_in_a_batch_are_left_with_the_connection() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    execute(&mut talk, &[create(), put(b"\x01"), put(b"\x02")]).await;
    let (one, two) = (SessionId([1; 16]), SessionId([2; 16]));
    let join = |session| Command::JoinSession { session, create: true };
    let mut leaving = rig.connect().await;
    let replies = execute(&mut leaving, &[join(one), join(two)]).await;
    assert_eq!(replies, [Ok(Reply::Session(one)), Ok(Reply::Session(two))]);
    let takes = [take(Some(one), Span::ZERO), take(Some(two), Span::ZERO)];
    execute(&mut leaving, &takes).await;
    rig.ready("mail", 0).await;
    execute(&mut leaving, &[Command::LeaveSession { session: two }]).await;
    rig.ready("mail", 1).await;
    drop(leaving);
    rig.ready("mail", 2).await;
}

// A connection that left its own session by a command left it once more when it closed: the tasks of
// others in that session were given back under them.
#[tokio::test]
async fn a_connection_leaves_its_own_session_once() {
    let rig = Rig::new().await;
    let mut one = rig.connect().await;
    execute(&mut one, &[create(), put(b"\x01"), put(b"\x02")]).await;
    let session = SessionId(one.identity().await);
    let mut two = rig.connect().await;
    two.identify(&session.0).await.unwrap();
    two.done("queue.tube.mail:take", json!([0])).await;
    execute(&mut one, &[Command::LeaveSession { session }]).await;
    drop(one);
    rig.connections(1).await;
    two.done("queue.tube.mail:ack", json!([0])).await;
    // Whoever left can come back.
    execute(&mut two, &[Command::LeaveSession { session }]).await;
    let taken = two.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(taken, json!([[1, "t", 2]]));
    assert_eq!(two.identity().await, session.0);
}

#[tokio::test]
async fn a_batch_that_joins_must_not_wait() {
    let rig = Rig::new().await;
    let mut talk = rig.connect().await;
    execute(&mut talk, &[create()]).await;
    let join = Command::JoinSession { session: SessionId([1; 16]), create: true };
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 7, &[join, take(None, Span::FOREVER)]);
    talk.send(&bytes).await;
    let (_, answer) = talk.next().await.unwrap();
    let fault = answer.unwrap_err();
    assert!(fault.text.contains("must not wait"), "{fault:?}");
}

//! A server is frozen until the others declare it dead, and then continues.

use taskyard_core::{
    Body, Command, Execute, Finish, FinishItem, Holder, NewTask, Outcome, Reply, SessionId, Span,
    Take, Task,
};

use crate::database::DatabaseFixture;
use crate::fixture::{PLAIN, create_tubes, run, tube};
use crate::judge::{judge, wait_for_returns};
use crate::load::{ServerFate, StormLoad};
use taskyard_testkit::postgres::{sql, wait_until};

async fn execute(queue: &impl Execute, command: Command) -> Reply {
    let reply = queue.execute(vec![command]).await.remove(0);
    reply.unwrap_or_else(|error| panic!("{error}"))
}

async fn take(queue: &impl Execute, session: Option<SessionId>) -> Task {
    let lease = session.is_none().then_some(Span::from_secs(300));
    let wait = Span::from_secs(30);
    let take = Take { tube: tube("own"), count: 1, session, lease, worker: None, wait };
    match execute(queue, Command::Take(take)).await {
        Reply::Taken(mut tasks) if tasks.len() == 1 => tasks.remove(0),
        other => panic!("one task was expected, not {other:?}"),
    }
}

async fn ack(queue: &impl Execute, task: &Task, holder: Holder) -> Outcome {
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
    match execute(queue, Command::Finish { tube: tube("own"), items, show: false }).await {
        Reply::Finished(mut outcomes) => outcomes.remove(0),
        other => panic!("an ack has an outcome, not {other:?}"),
    }
}

#[test]
fn tasks_of_a_frozen_server_are_delivered_again_and_its_acks_refused() {
    run(async {
        let fixture = DatabaseFixture::new();
        let stays = fixture.serve();
        let known = fixture.server_ids();
        let frozen = fixture.serve();
        let frozen_id = fixture.server_ids().into_iter().find(|id| !known.contains(id));
        let frozen_id = frozen_id.expect("the second server is registered");
        let url = fixture.database.url();
        create_tubes(&stays).await;
        let own = vec![NewTask::new(Body::new(&[0xc0])); 2];
        let put = Command::Put { tube: tube("own"), tasks: own, wait: Span::ZERO };
        let create = Command::CreateTube {
            tube: tube("own"),
            options: taskyard_core::TubeOptions::new(taskyard_core::Kind::FifoTtl),
            if_not_exists: false,
        };
        execute(&stays.http, create).await;
        execute(&stays.http, put).await;
        let client = frozen.iproto();
        let session = client.identify().await.expect("a session begins");
        let by_session = take(&client, Some(session)).await;
        let by_lease = take(&frozen.http, None).await;
        let load = StormLoad::new();
        load.begin(&stays, ServerFate::Stays).await;
        load.begin(&frozen, ServerFate::Stops).await;
        load.wait_for_replies(100).await;

        frozen.serving.signal("STOP");
        let heartbeat =
            format!("SELECT heartbeat FROM taskyard.server WHERE id = '\\x{frozen_id}'");
        let heartbeat: i64 =
            sql(&url, &heartbeat).and_then(|at| at.parse().ok()).expect("it has a heartbeat");
        let other = stays.iproto();
        let others = other.identify().await.expect("a session begins");
        let again = take(&other, Some(others)).await;
        let now: i64 =
            sql(&url, "SELECT taskyard.clock()").and_then(|at| at.parse().ok()).expect("a clock");
        println!("delivered again {} ms after the last heartbeat", (now - heartbeat) / 1000);
        assert_eq!((again.id, again.attempts), (by_session.id, 1));
        load.wait_for_replies(100).await;

        frozen.serving.signal("CONT");
        let stale = Holder::Lease(by_session.lease.expect("a lease"));
        assert_eq!(ack(&client, &by_session, stale).await, Outcome::Stale);
        assert_eq!(ack(&client, &by_session, Holder::Session(session)).await, Outcome::Stale);
        // A lease with its own time belongs to no session and lasts until it ends.
        let good = Holder::Lease(by_lease.lease.expect("a lease"));
        assert_eq!(ack(&frozen.http, &by_lease, good).await, Outcome::Done(None));
        assert_eq!(ack(&other, &again, Holder::Session(others)).await, Outcome::Done(None));

        // The client of the frozen server was not interrupted: its session continues, and ends with its connection.
        let put = vec![NewTask::new(Body::new(&[0xc0]))];
        execute(&stays.http, Command::Put { tube: tube("own"), tasks: put, wait: Span::ZERO })
            .await;
        let new = take(&client, Some(session)).await;
        drop(client);
        let back = format!(
            "(SELECT t.state = 0 FROM taskyard.task t JOIN taskyard.tube u ON u.number = t.tube
              WHERE u.name = 'own' AND t.id = {})",
            new.id
        );
        wait_until(&url, &back);
        load.wait_for_replies(100).await;
        load.end().await;
        drop(frozen);
        wait_for_returns(&fixture);
        judge(&fixture, &load);
        assert!(load.acknowledged.lock().unwrap().keys().any(|(name, _)| name.as_str() == PLAIN));
    });
}

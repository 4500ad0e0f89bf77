//! Servers behind a transaction pooler.

use taskyard_core::{Body, Command, Execute, NewTask, Reply, Span, Take, TaskId};

use crate::database::DatabaseFixture;
use crate::fixture::{PLAIN, create_tubes, run, serve, tube};
use crate::judge::judge;
use crate::load::{ServerFate, StormLoad};
use taskyard_testkit::postgres::{is_there, pooler};

#[test]
fn servers_behind_a_pooler_poll_and_print_it() {
    run(async {
        if !is_there() {
            return;
        }
        let fixture = DatabaseFixture::new();
        let url = pooler().url(&fixture.database.url());
        let servers = [serve(&url), serve(&url)];
        assert!(servers[0].serving.screen.contains("behind a pooler"));
        create_tubes(&servers[0]).await;
        let take = Take {
            tube: tube(PLAIN),
            count: 1,
            session: None,
            lease: Some(Span::from_secs(60)),
            worker: None,
            wait: Span::from_secs(60),
        };
        let waiting = servers[0].http.execute(vec![Command::Take(take)]);
        let tasks = vec![NewTask::new(Body::new(&[0xc0]))];
        let put = Command::Put { tube: tube(PLAIN), tasks, wait: Span::ZERO };
        let (taken, put) = tokio::join!(waiting, servers[1].http.execute(vec![put]));
        assert!(matches!(&put[0], Ok(Reply::Put(_))), "{put:?}");
        assert!(matches!(&taken[0], Ok(Reply::Taken(tasks)) if tasks.len() == 1), "{taken:?}");
        let ids = vec![TaskId(0)];
        let delete = Command::Delete { tube: tube(PLAIN), ids, show: false };
        servers[0].http.execute(vec![delete]).await.remove(0).expect("it is deleted");
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        load.wait_for_replies(200).await;
        load.end().await;
        judge(&fixture, &load);
    });
}

//! Servers behind a transaction pooler.

use taskyard_core::{Body, Command, Execute, NewTask, Reply, Span, Take, TaskId};

use taskyard_testkit::OwnServer;
use taskyard_testkit::postgres::{OwnCluster, SharedPostgres, is_there, pooler};
use taskyard_testkit::storm::load::{Finishes, PLAIN, ServerFate, StormLoad, create_tubes, tube};
use taskyard_testkit::storm::server::StormServer;
use taskyard_testkit::storm::{StormDatabase, run};
use taskyard_testkit::suite::storms::judge_storm;

use crate::process::binary;

#[test]
fn servers_behind_a_pooler_poll_and_print_it() {
    let Some(cluster) = OwnCluster::steady().filter(|_| is_there()) else { return };
    run(async {
        let url = pooler().url(&cluster.url());
        let servers = [(); 2].map(|()| StormServer::start(binary, &url));
        assert!(servers[0].process.screen.contains("behind a pooler"));
        create_tubes(&servers[0].http, None).await;
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
        let load = StormLoad::new(Finishes::Any);
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        load.wait_for_replies(200).await;
        judge_storm::<SharedPostgres>(&cluster, &servers[0], &load).await;
    });
}

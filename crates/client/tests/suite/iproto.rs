//! The client over iproto: many requests on one connection, failures of connections.

use std::time::Duration;

use taskyard::{Call, Client, Iproto, IprotoError, Kind, Take, TaskId, TubeName, TubeOptions};
use taskyard_core::{Command, Error, Execute, Holder, Outcome, Reply, Span};
use taskyard_core::{Finish, FinishItem, SessionId};
use taskyard_iproto::Greeting;
use taskyard_store::MemoryStore;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use taskyard_testkit::server::{TestServer, block_on};

#[test]
fn a_task_is_put_taken_and_finished() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = Client::new(test_server.connect());
        let id = client.put("mail", "hello").await.expect("the first put creates the tube");
        let task =
            client.take("mail", Duration::ZERO).await.unwrap().expect("the queue has a task");
        assert_eq!((task.id(), task.data::<String>().unwrap().as_str()), (id, "hello"));
        client.ack(&task).await.unwrap();
        assert_eq!(client.stats("mail").await.unwrap().tasks.done, 1);
        test_server.stop().await;
    });
}

#[test]
fn a_waiting_take_does_not_block_its_connection() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = Client::new(test_server.connect());
        client.create("mail", TubeOptions::new(Kind::Fifo)).await.unwrap();
        let waiting = client.take("mail", Duration::from_secs(60));
        let putting = async {
            // The reply arrives while the take waits, because only this put ends the take.
            while test_server.engine.waiting().await.is_empty() {
                tokio::task::yield_now().await;
            }
            client.put("mail", &7).await
        };
        let (taken, put) = tokio::join!(waiting, putting);
        assert_eq!(taken.unwrap().expect("the put woke it").id(), put.unwrap());
        test_server.stop().await;
    });
}

/// The take of a cancelled caller continues at the server; a task that it got stayed taken until its lease ended.
#[test]
fn a_task_taken_for_a_cancelled_caller_is_released() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = Client::new(test_server.connect());
        client.create("mail", TubeOptions::new(Kind::FifoTtl)).await.unwrap();
        let impatient = tokio::spawn({
            let client = client.clone();
            async move { client.take("mail", Duration::from_secs(60)).await }
        });
        while test_server.engine.waiting().await.is_empty() {
            tokio::task::yield_now().await;
        }
        impatient.abort();
        assert!(impatient.await.unwrap_err().is_cancelled());
        let id = client.put("mail", &7).await.unwrap();
        let task = client
            .take("mail", Duration::from_secs(60))
            .await
            .unwrap()
            .expect("the task is ready again");
        assert_eq!(task.id(), id);
        assert_eq!(task.task.attempts, 0, "the delivery does not count");
        test_server.stop().await;
    });
}

#[test]
fn several_calls_in_one_request() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let queue = test_server.connect();
        Client::new(queue.clone()).create("mail", TubeOptions::new(Kind::Fifo)).await.unwrap();
        let put = Call { function: "queue.tube.mail:put", args: &[0x91, 0xa2, b'h', b'i'] };
        let unknown = Call { function: "queue.tube.none:put", args: &[0x91, 0x01] };
        let results = queue.call_many(&[put, unknown, put]).await.unwrap();
        let task = |id| [0xdd, 0, 0, 0, 1, 0x93, id, 0xa1, b'r', 0xa2, b'h', b'i'].to_vec();
        assert_eq!(results[0], Ok(task(0)));
        assert_eq!(results[1].as_ref().unwrap_err().code, 33);
        assert_eq!(results[2], Ok(task(1)));
        assert!(queue.call_many(&[]).await.unwrap().is_empty());
        queue.ping().await.unwrap();
        test_server.stop().await;
    });
}

/// The tasks of a session outlive its connection when the server is configured so, and a new connection of the session
/// holds them.
#[test]
fn a_new_connection_joins_the_session_of_the_old_one() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let proxy = Proxy::start(test_server.iproto).await;
        let queue = Iproto::new(&proxy.address).unwrap();
        let client = Client::new(queue.clone());
        client.put("mail", &7).await.unwrap();
        let ttr = Span::from_secs(60);
        execute(&queue, Command::ConfigureSessions { ttr }).await;
        let session = queue.identify().await.unwrap();
        let id = take_as(&queue, session).await;
        proxy.cut().await;
        while let Err(error) = queue.ping().await {
            assert!(matches!(error, IprotoError::Unreachable { .. }), "{error}");
        }
        assert_eq!(queue.identify().await.unwrap(), session, "it is the same session");
        let item = FinishItem { id, holder: Holder::Session(session), finish: Finish::Ack };
        let finish = Command::Finish {
            tube: TubeName::new("mail").unwrap(),
            items: vec![item],
            show: false,
        };
        let Reply::Finished(outcomes) = execute(&queue, finish).await else {
            panic!("no outcomes")
        };
        assert_eq!(outcomes, [Outcome::Done(None)]);
        test_server.stop().await;
    });
}

#[test]
fn without_a_server_every_call_fails() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let queue = Iproto::new(&address).unwrap();
        let error = queue.ping().await.unwrap_err();
        assert!(error.to_string().contains(&address), "{error}");
        let replies = queue.execute(vec![Command::Tubes { tube: None }; 2]).await;
        let unknown = |reply: &Result<_, _>| matches!(reply, Err(Error::OutcomeUnknown(_)));
        assert!(replies.len() == 2 && replies.iter().all(unknown), "{replies:?}");
    });
}

#[test]
fn a_program_that_is_not_a_server_is_recognized() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        // An HTTP server sends no greeting.
        let http = test_server.http.url().replace("http://", "");
        let queue = Iproto::new(&http).unwrap().connect_within(Duration::from_millis(50));
        let error = queue.ping().await.unwrap_err();
        assert!(error.to_string().contains("no response in time"), "{error}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let greeting = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&[b'x'; 128]).await.unwrap();
        };
        let queue = Iproto::new(&address).unwrap();
        let (error, ()) = tokio::join!(queue.ping(), greeting);
        assert!(matches!(error, Err(IprotoError::NotTaskyard { .. })), "{error:?}");
        test_server.stop().await;
    });
}

/// The timeout covered only the greeting: a server that was silent after it blocked its caller forever, and all other
/// callers connected one after the other.
#[test]
fn callers_share_the_result_of_connecting() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silent = tokio::spawn(async move {
            let mut greeted = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let greeting = Greeting::new([0; 16], [0; 32]).encode();
                stream.write_all(&greeting).await.unwrap();
                greeted.push(stream);
                if greeted.len() == 2 {
                    return greeted;
                }
            }
        });
        let queue = Iproto::new(&format!("iproto://ann:secret@{address}")).unwrap();
        let queue = queue.connect_within(Duration::from_millis(50));
        // The first caller is cancelled, which does not affect the others.
        let first = tokio::spawn({
            let queue = queue.clone();
            async move { queue.ping().await }
        });
        tokio::task::yield_now().await;
        first.abort();
        let (one, two, three) = tokio::join!(queue.ping(), queue.ping(), queue.ping());
        for outcome in [one, two, three] {
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains("no response in time"), "{error}");
        }
        assert!(!silent.is_finished(), "they connected once");
        queue.ping().await.unwrap_err();
        silent.await.unwrap();
    });
}

#[test]
fn an_overloaded_server_is_reported() {
    block_on(async {
        let mut config = taskyard_testkit::server::config();
        config.iproto.as_mut().unwrap().connections_max = 1;
        let test_server = TestServer::start(
            Box::new(MemoryStore::default()),
            taskyard_testkit::server::clock(),
            config,
        )
        .await;
        let (one, two) = (test_server.connect(), test_server.connect());
        one.ping().await.unwrap();
        let error = two.ping().await.unwrap_err();
        assert!(error.to_string().contains("overloaded"), "{error}");
        one.ping().await.unwrap();
        test_server.stop().await;
    });
}

/// More calls than a request may have were not sent, and the result was empty.
#[test]
fn too_many_calls_in_one_request_are_refused() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let call = Call { function: "queue.state", args: &[0x90] };
        let error = test_server.connect().call_many(&vec![call; (1 << 20) + 1]).await.unwrap_err();
        assert!(matches!(&error, IprotoError::Refused(fault) if fault.text.contains("send fewer")));
        test_server.stop().await;
    });
}

#[test]
fn a_batch_larger_than_the_socket_buffer_arrives() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let client = Client::new(test_server.connect());
        let data = "x".repeat(500_000);
        let put = client.put_many("mail", &vec![data; 40]).await.unwrap();
        assert_eq!(put.len(), 40);
        assert_eq!(client.stats("mail").await.unwrap().tasks.ready, 40);
        test_server.stop().await;
    });
}

async fn execute(queue: &Iproto, command: Command) -> Reply {
    queue.execute(vec![command]).await.remove(0).expect("the command succeeds")
}

async fn take_as(queue: &Iproto, session: SessionId) -> TaskId {
    let take = Take {
        tube: TubeName::new("mail").unwrap(),
        count: 1,
        session: Some(session),
        lease: None,
        worker: None,
        wait: Span::ZERO,
    };
    match execute(queue, Command::Take(take)).await {
        Reply::Taken(tasks) => tasks[0].id,
        other => panic!("{other:?}"),
    }
}

/// A proxy between client and server that can cut connections.
struct Proxy {
    address: String,
    cut: tokio::sync::mpsc::Sender<tokio::sync::oneshot::Sender<()>>,
}

impl Proxy {
    async fn start(server: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cut, mut cuts) = tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>(1);
        tokio::spawn(async move {
            loop {
                let Ok((mut client, _)) = listener.accept().await else { return };
                let Ok(mut server) = tokio::net::TcpStream::connect(server).await else { return };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    Some(done) = cuts.recv() => {
                        drop((client, server));
                        let _ = done.send(());
                    }
                }
            }
        });
        Proxy { address, cut }
    }

    /// Cuts the connection.
    async fn cut(&self) {
        let (done, cut) = tokio::sync::oneshot::channel();
        self.cut.send(done).await.expect("the proxy runs");
        cut.await.expect("the proxy cuts");
    }
}

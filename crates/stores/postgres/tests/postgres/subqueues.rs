//! Tests that a call reads few pages to find the head of a sub-queue in a large tube.

use taskyard_core::{Body, Command, Kind, NewTask, Reply, Span, TubeOptions};
use taskyard_testkit::calls::{ask, make_tube, take};
use taskyard_testkit::postgres::{Database, connect, run, runtime};

use crate::semaphore_heads::buffers;

const SUBQUEUES: usize = 5_000;

/// A put of 10,000 tasks with as many sub-queues took 13 seconds: without statistics the planner searched the head of each
/// sub-queue in the index of all ready tasks of the tube, and whether one runs in that of all taken ones.
#[test]
fn the_head_of_a_subqueue_is_not_searched_in_the_whole_tube() {
    let _runtime = runtime().enter();
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::UtubeTtl));
        let task = |key: usize| NewTask {
            subqueue: Some(key.to_string().into()),
            ..NewTask::new(Body::new(&[0xc0]))
        };
        let tasks = (0..SUBQUEUES).map(task).collect();
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        assert!(matches!(ask(&store, put), Ok(Reply::Put(_))));
        assert_eq!(take(&store, &tube, SUBQUEUES / 2).len(), SUBQUEUES / 2);
        let client = connect(&database.url()).await;
        let number = "(SELECT number FROM taskyard.tube WHERE name = 'mail')";
        let heads =
            |key: usize| format!("SELECT taskyard.set_subqueue_heads({number}, ARRAY['{key}'])");
        // The first call reads the catalogue.
        buffers(&client, &heads(0)).await;
        for key in [0, SUBQUEUES / 2 - 1, SUBQUEUES / 2, SUBQUEUES - 1] {
            let read = buffers(&client, &heads(key)).await;
            assert!(read <= 100, "{read} pages for the head of sub-queue {key}");
        }
    });
}

//! Tests the ids of temporary tubes, whose tasks are not on disk.

use taskyard_core::{Body, Kind, NewTask, TubeOptions};

use crate::fixture::{close, create, fast_folder, must, open, put_now};

fn tasks(count: usize) -> Vec<NewTask> {
    vec![NewTask::new(Body::new(b"task")); count]
}

/// Each restart skipped a million ids of every temporary tube, because that many are reserved on disk at a
/// time.
#[test]
fn a_stop_skips_no_ids() {
    let folder = fast_folder();
    let temporary = TubeOptions { temporary: true, ..TubeOptions::new(Kind::FifoTtl) };
    let store = open(folder.path());
    must(&store, create("mail", temporary));
    assert_eq!(put_now(&store, "mail", tasks(3)), [0, 1, 2]);
    close(store);
    for next in 3..6 {
        let store = open(folder.path());
        assert_eq!(put_now(&store, "mail", tasks(1)), [next]);
        close(store);
    }
    // A start without a put changes nothing either.
    close(open(folder.path()));
    assert_eq!(put_now(&open(folder.path()), "mail", tasks(1)), [6]);
}

#[test]
fn a_crash_skips_few_ids_and_repeats_none() {
    let folder = fast_folder();
    let temporary = TubeOptions { temporary: true, ..TubeOptions::new(Kind::FifoTtl) };
    let store = open(folder.path());
    must(&store, create("mail", temporary));
    drop(store);
    let mut next = 0;
    for count in [1, 3, 64, 65, 1000, 5000, 1] {
        let store = open(folder.path());
        let ids = put_now(&store, "mail", tasks(count));
        assert!(ids[0] >= next, "{} was issued before {next}", ids[0]);
        assert!(ids[0] <= next + 64.max(next / 4), "{} follows {next}", ids[0]);
        next = ids[count - 1] + 1;
        drop(store);
    }
}

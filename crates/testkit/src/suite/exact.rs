//! Values that a database must keep exactly: numbers beyond what a double holds, large batches, names with special characters.

use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, Lease, NewTask, Outcome, Reply, Span, Take,
    TaskId, Timestamp, TubeName, TubeOptions,
};

use crate::SharedDatabase;
use crate::calls::{ask, make_tube, put, take};

fn put_with_pri(tube: &TubeName, pri: u64) -> Command {
    let tasks = vec![NewTask { pri: Some(pri), ..NewTask::new(Body::new(&[0xc0])) }];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

pub fn priorities_beyond_what_a_double_holds_keep_their_order<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let pris = [u64::MAX, (1 << 53) + 1, 1 << 53, u64::MAX - 1, 0, 1 << 63, (1 << 63) - 1];
        for pri in pris {
            ask(&store, put_with_pri(&tube, pri)).expect("it is put");
        }
        let mut sorted = pris;
        sorted.sort_unstable();
        let taken: Vec<u64> = take(&store, &tube, 10).iter().map(|task| task.pri).collect();
        assert_eq!(taken, sorted);
    });
}

pub fn a_lease_that_rounds_to_the_right_one_is_stale<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        let task = take(&store, &tube, 1).remove(0);
        let lease = task.lease.expect("a lease").0;
        assert!(lease < 1 << 53);
        for wrong in [lease + 1, lease | 1 << 63, u64::MAX, 0] {
            let holder = Holder::Lease(Lease(wrong));
            let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
            let finish = Command::Finish { tube: tube.clone(), items, show: false };
            assert_eq!(ask(&store, finish), Ok(Reply::Finished(vec![Outcome::Stale])), "{wrong}");
        }
    });
}

pub fn a_start_after_all_that_can_be_counted_is_never<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let at = |micros| {
            let at = Some(Timestamp::from_micros(micros));
            let tasks = vec![NewTask { at, ..NewTask::new(Body::new(&[0xc0])) }];
            Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
        };
        let last = (1 << 53) - 1;
        for micros in [last, 1 << 53, i64::MAX] {
            ask(&store, at(micros)).expect("it is put");
        }
        let ids = (0..3).map(TaskId).collect();
        let Ok(Reply::Tasks(tasks)) = ask(&store, Command::Peek { tube: tube.clone(), ids }) else {
            panic!("a peek shows tasks")
        };
        let dues: Vec<i64> =
            tasks.iter().map(|task| task.due.expect("a due").as_micros()).collect();
        let second = if D::TIMES_ARE_DOUBLES { i64::MAX } else { 1 << 53 };
        assert_eq!(dues, [last, second, i64::MAX]);
    });
}

/// As many as one command may have: far more than the stack of a function in Redis has room for.
pub fn the_largest_batches_pass<D: SharedDatabase>() {
    D::run(async {
        const MANY: usize = 10_000;
        let part = D::part();
        let store = D::open(&part);
        let options =
            TubeOptions { ttr: Some(Span::from_secs(9)), ..TubeOptions::new(Kind::UtubeTtl) };
        let tube = make_tube(&store, options);
        let tasks = (0..MANY).map(|key| NewTask {
            subqueue: Some(key.to_string().into()),
            ..NewTask::new(Body::new(&[0xc0]))
        });
        let tasks = tasks.collect();
        ask(&store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO })
            .expect("they fit");
        let taken = take(&store, &tube, MANY);
        assert!(taken.iter().map(|task| task.id.0).eq(0..MANY as u64));
        assert_eq!(ask(&store, Command::ReleaseAll { tube: tube.clone() }), Ok(Reply::Nothing));
        let taken = take(&store, &tube, MANY);
        let items = taken.iter().map(|task| FinishItem {
            id: task.id,
            holder: Holder::Lease(task.lease.expect("a lease")),
            finish: Finish::Ack,
        });
        let finish = Command::Finish { tube: tube.clone(), items: items.collect(), show: true };
        let Ok(Reply::Finished(outcomes)) = ask(&store, finish) else { panic!("they are acked") };
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done(Some(_)))));
        assert_eq!(outcomes.len(), MANY);
    });
}

/// A name ends where its tag would, or begins like another's keys.
pub fn tubes_with_braces_in_their_names_are_apart<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let names = ["a", "a}", "{a}", "}", "{", "a}b", "a o", "mail}{"];
        let names = names.map(|name| TubeName::new(name).expect("a name"));
        for (place, tube) in names.iter().enumerate() {
            let options = TubeOptions::new(Kind::Fifo);
            let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
            assert_eq!(ask(&store, create), Ok(Reply::Created(true)), "{tube}");
            ask(&store, put(tube, place + 1)).expect("they are put");
        }
        for (place, tube) in names.iter().enumerate() {
            assert_eq!(take(&store, tube, 100).len(), place + 1, "{tube}");
        }
    });
}

/// Commands that are more than one call takes are several calls, one after the other.
pub fn a_batch_of_large_commands_keeps_its_order<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let all = |count| Take {
            tube: tube.clone(),
            count,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let commands = vec![
            put(&tube, 9_000),
            put(&tube, 9_000),
            Command::Take(all(10_000)),
            Command::Truncate { tube: tube.clone() },
            Command::Take(all(1)),
        ];
        let executed = taskyard_store::Store::execute(&store, crate::calls::NOW, commands).await;
        let sizes: Vec<Option<usize>> = executed
            .replies
            .iter()
            .map(|reply| match reply {
                Ok(Reply::Put(placed)) => Some(placed.len()),
                Ok(Reply::Taken(tasks)) => Some(tasks.len()),
                _ => None,
            })
            .collect();
        assert_eq!(sizes, [Some(9_000), Some(9_000), Some(10_000), None, Some(0)]);
    });
}

crate::suite::suite! {
    /// Runs the cases about exact values on a [`SharedDatabase`].
    exact_suite, exact, $:
    priorities_beyond_what_a_double_holds_keep_their_order
    a_lease_that_rounds_to_the_right_one_is_stale
    a_start_after_all_that_can_be_counted_is_never
    the_largest_batches_pass
    tubes_with_braces_in_their_names_are_apart
    a_batch_of_large_commands_keeps_its_order
}

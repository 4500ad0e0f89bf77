//! Numbers in Lua are doubles, and Tarantool's tuples and memory have limits: what must come through all the same.

use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, Lease, NewTask, Outcome, Reply, Span, Take,
    TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store::conformance::block_on;
use taskyard_store::tarantool::TarantoolStore;
use taskyard_tarantool::Word;

use crate::instance::{Instance, program};
use crate::yard::{CALL, NOW, ask, instance, make_tube, open, own, put, run, take};

fn store() -> TarantoolStore {
    open(&own(&instance().url()))
}

fn put_with_pri(tube: &TubeName, pri: u64) -> Command {
    let tasks = vec![NewTask { pri: Some(pri), ..NewTask::new(Body::new(&[0xc0])) }];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

#[test]
fn priorities_beyond_what_a_double_holds_keep_their_order() {
    run(async {
        let store = store();
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

#[test]
fn a_lease_that_rounds_to_the_right_one_is_stale() {
    run(async {
        let store = store();
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

#[test]
fn a_start_after_all_that_can_be_counted_is_never() {
    run(async {
        let store = store();
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
        assert_eq!(dues, [last, i64::MAX, i64::MAX]);
    });
}

/// As many as one command may have.
#[test]
fn the_largest_batches_pass() {
    run(async {
        const MANY: usize = 10_000;
        let store = store();
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

/// Names that other stores have trouble with.
#[test]
fn tubes_with_odd_names_are_apart() {
    run(async {
        let store = store();
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
#[test]
fn a_batch_of_large_commands_keeps_its_order() {
    run(async {
        let store = store();
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let all = |count| Take {
            tube: tube.clone(),
            count,
            session: None,
            lease: None,
            wait: Span::ZERO,
        };
        let commands = vec![
            put(&tube, 9_000),
            put(&tube, 9_000),
            Command::Take(all(10_000)),
            Command::Truncate { tube: tube.clone() },
            Command::Take(all(1)),
        ];
        let executed = taskyard_store::Store::execute(&store, crate::yard::NOW, commands).await;
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

/// Larger than the largest tuple that Tarantool takes unless it is told otherwise, and with a meta.
#[test]
fn large_bodies_come_back_byte_for_byte() {
    run(async {
        let store = store();
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let mut random = fastrand::Rng::with_seed(7);
        let sizes = [0, 8_192, 8_193, 524_288, 524_289, 3 << 20];
        let bodies: Vec<Body> = sizes
            .into_iter()
            .map(|size| {
                let payload: Vec<u8> = (0..size).map(|_| random.u8(..)).collect();
                let meta: &[u8] = if size % 2 == 1 { &[0x81, 0xa1, b'k', 0x01] } else { &[] };
                Body::with_meta(&payload, meta)
            })
            .collect();
        let tasks = bodies.iter().cloned().map(NewTask::new).collect();
        ask(&store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO })
            .expect("they fit");
        let ids = (0..bodies.len() as u64).map(TaskId).collect();
        let Ok(Reply::Tasks(seen)) = ask(&store, Command::Peek { tube: tube.clone(), ids }) else {
            panic!("a peek shows tasks")
        };
        let taken = take(&store, &tube, 10);
        for tasks in [seen, taken] {
            let found: Vec<Body> = tasks.into_iter().filter_map(|task| task.body).collect();
            assert!(found == bodies);
        }
        ask(&store, Command::Truncate { tube }).expect("it is emptied");
    });
}

// Each take may answer with 64 MiB, and a call may have two thousand of them: Lua had no memory for that, and the connection no room. A call
// stops when its answer is large, and what was sent behind it waits for the rest.
#[test]
fn one_answer_is_not_larger_than_it_may_be() {
    const MANY: u8 = 40;
    let Some(program) = program() else { return };
    let tarantool = Instance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let payload = |number| Body::new(&[&[0xc6, 0, 0x10, 0, 0][..], &[number; 1 << 20]].concat());
    for number in 0..MANY {
        let tasks = vec![NewTask::new(payload(number))];
        ask(&store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }).expect("put");
    }
    tarantool.talk(&format!(
        "{CALL}
        local real, msgpack = library.call, require('msgpack')
        rawset(_G, 'largest', 0)
        library.call = function(...)
            local answer = real(...)
            largest = math.max(largest, #msgpack.encode(answer))
            return answer
        end"
    ));
    let take = |tube: &TubeName, count| {
        let (session, lease, wait) = (None, None, Span::ZERO);
        Command::Take(Take { tube: tube.clone(), count, session, lease, wait })
    };
    let other = TubeName::new("other").expect("a name");
    let (kind, if_not_exists) = (TubeOptions::new(Kind::Fifo), false);
    let mut commands = vec![take(&tube, 1); usize::from(MANY)];
    commands.push(Command::CreateTube { tube: other.clone(), options: kind, if_not_exists });
    // These are too many for one call.
    commands.extend([put(&other, 2_000), take(&other, 2_000)]);
    let mut replies = block_on(store.execute(NOW, commands)).replies;
    let Some(Ok(Reply::Taken(tasks))) = replies.pop() else { panic!("a take") };
    assert_eq!(tasks.len(), 2_000, "they were put before");
    assert!(replies.drain(usize::from(MANY)..).all(|reply| reply.is_ok()));
    for (number, reply) in (0..MANY).zip(replies) {
        let Ok(Reply::Taken(tasks)) = reply else { panic!("{reply:?}") };
        assert_eq!(tasks[0].body, Some(payload(number)), "in order");
    }
    let Word::Int(largest) = tarantool.talk("return largest") else { panic!("a number") };
    assert!((16 << 20..18 << 20).contains(&largest), "{largest}");
    tarantool.audit("taskyard");
}

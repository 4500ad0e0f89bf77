//! Tests of bodies and answers that are larger than the limits of Tarantool.

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Kind, NewTask, Reply, Span, Take, TaskId, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{NOW, ask, make_tube, put, take};
use taskyard_testkit::tarantool::{CALL, open, run, store};
use taskyard_testkit::tarantool::{TarantoolInstance, program};

/// Larger than the default limit of a tuple, and with a meta.
#[test]
fn large_bodies_are_returned_unchanged() {
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

// Each take may answer 64 MiB, and a call may have two thousand of them: too much for the memory of Lua and for the connection. A call
// stops when its answer is large, and later calls wait for the rest.
#[test]
fn an_answer_is_limited_in_size() {
    const MANY: u8 = 40;
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
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
        Command::Take(Take { tube: tube.clone(), count, session, lease, worker: None, wait })
    };
    let other = TubeName::new("other").expect("a name");
    let (kind, if_not_exists) = (TubeOptions::new(Kind::Fifo), false);
    let mut commands = vec![take(&tube, 1); usize::from(MANY)];
    commands.push(Command::CreateTube { tube: other.clone(), options: kind, if_not_exists });
    // Too many for one call.
    commands.extend([put(&other, 2_000), take(&other, 2_000)]);
    let mut replies = block_on(store.execute(NOW, commands)).replies;
    let Some(Ok(Reply::Taken(tasks))) = replies.pop() else { panic!("a take") };
    assert_eq!(tasks.len(), 2_000, "they were put before");
    assert!(replies.drain(usize::from(MANY)..).all(|reply| reply.is_ok()));
    for (number, reply) in (0..MANY).zip(replies) {
        let Ok(Reply::Taken(tasks)) = reply else { panic!("{reply:?}") };
        assert_eq!(tasks[0].body, Some(payload(number)), "in order");
    }
    let LuaValue::Int(largest) = tarantool.talk("return largest") else { panic!("a number") };
    assert!((16 << 20..18 << 20).contains(&largest), "{largest}");
    tarantool.audit("taskyard");
}

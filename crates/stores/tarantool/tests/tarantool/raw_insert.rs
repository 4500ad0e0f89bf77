//! Tests of raw inserts: the rows must equal those of Tarantool, in memory, in the log, and for index lookups.

use std::collections::BTreeSet;

use taskyard_core::{
    Body, Command, Kind, NewTask, Reply, Span, Task, TaskId, TubeName, TubeOptions,
};
use taskyard_store_tarantool::TarantoolStore;
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::tarantool::open;
use taskyard_testkit::tarantool::{TarantoolInstance, program};

/// Sizes around which encoded numbers get one byte longer.
const EDGES: [u64; 11] =
    [0, 127, 128, 255, 256, 65_535, 65_536, 0xffff_ffff, 1 << 32, 1 << 40, 99_999_999_999_999];

fn make(store: &TarantoolStore, name: &str, options: TubeOptions) -> TubeName {
    let tube = TubeName::new(name).expect("a name");
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    assert_eq!(ask(store, create), Ok(Reply::Created(true)));
    tube
}

fn put_bodies(store: &TarantoolStore, tube: &TubeName, bodies: &[Body]) {
    let tasks = bodies.iter().map(|body| NewTask::new(body.clone())).collect();
    let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
    ask(store, put).expect("they are put");
}

fn peek(store: &TarantoolStore, tube: &TubeName, ids: &[u64]) -> Vec<Task> {
    let ids = ids.iter().map(|id| TaskId(*id)).collect();
    match ask(store, Command::Peek { tube: tube.clone(), ids }) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("{other:?}"),
    }
}

/// The log is written from the bytes of a row when its transaction ends, so they must not be reused before.
#[test]
fn bodies_and_numbers_of_every_length_survive_a_kill() {
    let Some(program) = program() else { return };
    let instance = TarantoolInstance::new(program);
    let store = open(&instance.url());
    let sizes = [0, 1, 31, 32, 33, 255, 256, 257, 8191, 8192, 8193, 70_000];
    let body = |size: usize| Body::new(&vec![b'a' + (size % 23) as u8; size]);
    let bodies: Vec<Body> = sizes.iter().map(|size| body(*size)).collect();
    let tubes: Vec<TubeName> = EDGES
        .iter()
        .map(|pri| {
            let options = TubeOptions { pri: *pri, ..TubeOptions::new(Kind::FifoTtl) };
            make(&store, &format!("pri{pri}"), options)
        })
        .collect();
    tubes.iter().for_each(|tube| put_bodies(&store, tube, &bodies));
    let many = make(&store, "many", TubeOptions::new(Kind::Fifo));
    let number = |id: u64| Body::new(format!("{id}").as_bytes());
    for first in (0..70_000).step_by(10_000) {
        let all: Vec<Body> = (first..first + 10_000).map(number).collect();
        put_bodies(&store, &many, &all);
    }
    drop(store);
    instance.kill();
    instance.start();
    let store = open(&instance.url());
    for (tube, pri) in tubes.iter().zip(EDGES) {
        let tasks = take(&store, tube, 99);
        assert_eq!(tasks.len(), sizes.len(), "{tube}");
        for (task, body) in tasks.iter().zip(&bodies) {
            assert!(task.body.as_ref() == Some(body), "{tube}: {} differs", task.id);
            assert_eq!(task.pri, pri);
            assert_eq!(ack(&store, tube, task), taskyard_core::Outcome::Done(None));
        }
    }
    let near = EDGES.iter().flat_map(|edge| [edge.saturating_sub(1), *edge, edge + 1]);
    let near: BTreeSet<u64> = near.filter(|id| *id < 70_000).collect();
    let near: Vec<u64> = near.into_iter().collect();
    for task in peek(&store, &many, &near) {
        assert_eq!(task.body, Some(number(task.id.0)));
    }
    assert_eq!(peek(&store, &many, &near).len(), near.len());
    instance.audit("taskyard");
}

/// A trigger runs Lua inside of an insert: with a trigger rows are inserted with `space:insert`.
#[test]
fn a_trigger_sees_every_task() {
    let Some(program) = program() else { return };
    let instance = TarantoolInstance::new(program);
    let store = open(&instance.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 3)).expect("they are put");
    instance.talk(
        "rawset(_G, 'heard', 0) \
         box.space.taskyard_task:on_replace(function() heard = heard + 1 end)",
    );
    ask(&store, put(&tube, 200)).expect("they are put");
    assert_eq!(instance.talk("return heard"), LuaValue::Int(200));
    assert_eq!(take(&store, &tube, 999).len(), 203);
    instance.audit("taskyard");
}

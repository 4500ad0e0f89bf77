//! Tests tubes of an existing tarantool/queue: they can be copied from, with the data they have, but not to.

use taskyard_core::{Body, Command, Reply, Span, State, Take, TaskId, Timestamp};
use taskyard_store::copy::CopyError;
use taskyard_store::{MemoryStore, Store};
use taskyard_store_tarantool::{Clock, TarantoolStore};
use taskyard_tarantool::LuaValue;

use crate::content::{ask, content, copy_all, fill_store, name};
use taskyard_testkit::tarantool::{TarantoolInstance, program};

fn queue() -> Option<(TarantoolInstance, TarantoolStore)> {
    let instance = TarantoolInstance::new(program()?);
    instance.load_queue();
    let url = instance.url().replace("tarantool://", "tarantool+queue://");
    let store = TarantoolStore::open_read_only(&url, Clock::Caller, Default::default());
    Some((instance, store.expect("the store opens")))
}

const FILL: &str = "
queue.create_tube('mail', 'fifottl', {pri = 3, ttr = 60})
queue.create_tube('plain', 'fifo', {})
queue.create_tube('sub', 'utubettl', {})
queue.create_tube('lim', 'limfifottl', {capacity = 7})
queue.create_tube('closed', 'limfifottl', {capacity = -1})
for number = 0, 3 do queue.tube.mail:put({to = 'ann', number = number}, {ttl = number == 1 and 100 or nil}) end
queue.tube.mail:put('late', {delay = 600})
queue.tube.mail:bury(1)
queue.tube.mail:delete(3)
queue.tube.plain:put('text')
queue.tube.sub:put(7, {utube = 'a'})
queue.tube.lim:put(8)
return true";

#[test]
fn it_can_be_copied_from() {
    let Some((instance, store)) = queue() else { return };
    assert_eq!(instance.talk(FILL), LuaValue::Bool(true));
    // A taken task stays taken in the source.
    let url = instance.url().replace("tarantool://", "tarantool+queue://");
    let worker = TarantoolStore::open(&url, Clock::Caller).expect("the store opens");
    let (session, lease, tube) = (None, None, name("mail"));
    ask(
        &worker,
        Command::Take(Take { tube, count: 1, session, lease, worker: None, wait: Span::ZERO }),
    );
    let to = MemoryStore::default();
    assert_eq!(copy_all(&store, &to).expect("it is copied").tasks, 7);
    let copied = content(&to);
    let names: Vec<_> = copied.tubes.iter().map(|tube| tube.name.as_str()).collect();
    assert_eq!(names, ["closed", "lim", "mail", "plain", "sub"]);
    let mail = &copied.tubes[2];
    assert_eq!((mail.next_id, mail.options.pri), (5, 3));
    assert_eq!(mail.options.ttr, Some(Span::from_secs(60)));
    // A tube with a negative capacity accepts nothing; it was copied as one without a limit.
    assert_eq!(copied.tubes[0].options.capacity, Some(0));
    assert_eq!(copied.tubes[1].options.capacity, Some(7));
    let of = |tube: &str, id: u64| &copied.peeked[&(tube.to_owned(), id)];
    // A taken task is ready in the copy; its attempts are unknown.
    assert_eq!((of("mail", 0).state, of("mail", 0).attempts), (State::Ready, 0));
    assert_eq!((of("mail", 0).pri, of("mail", 0).ttr), (3, Span::from_secs(60)));
    assert_eq!(of("mail", 1).state, State::Buried);
    assert!(of("mail", 1).expires < Timestamp::NEVER && of("mail", 2).expires == Timestamp::NEVER);
    assert_eq!(of("mail", 4).state, State::Delayed);
    assert_eq!(of("mail", 4).body, Some(Body::new(b"\xa4late")));
    assert_eq!(of("sub", 0).subqueue.as_deref(), Some("a"));
    assert_eq!(of("plain", 0).body, Some(Body::new(b"\xa4text")));
    assert!(!copied.peeked.contains_key(&("mail".to_owned(), 3)));
    assert_eq!(instance.talk("return queue.statistics('mail').tasks.total"), LuaValue::Int(4));
    assert!(copy_all(&store, &to).expect("it is there").already);
    let peek = Command::Peek { tube: name("mail"), ids: vec![TaskId(2)] };
    assert!(matches!(ask(&to, peek), Reply::Tasks(tasks) if tasks.len() == 1));
}

#[test]
fn it_cannot_be_copied_to() {
    let Some((instance, store)) = queue() else { return };
    let from = MemoryStore::default();
    fill_store(&from);
    let refused = copy_all(&from, &store);
    let Err(CopyError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert!(why[0].contains("tarantool+queue cannot store tasks"), "{why:?}");
    assert!(!store.capabilities().imports);
    assert_eq!(instance.talk("return box.space._queue:len()"), LuaValue::Int(0));
}

//! Tests of creating and renaming tubes, which takes several steps: what other servers see, and what is left after an
//! interruption.

use std::sync::Barrier;
use std::thread;

use taskyard_core::{
    Command, Error, Kind, Reply, SessionId, Span, Take, TaskId, TubeName, TubeOptions,
};
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{ack, ask, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

fn name(text: &str) -> TubeName {
    TubeName::new(text).expect("a name")
}

fn create(store: &RedisStore, tube: &str, queue_num: Option<u32>) -> Result<Reply, Error> {
    let options = TubeOptions { queue_num, ..TubeOptions::new(Kind::FifoTtl) };
    ask(store, Command::CreateTube { tube: name(tube), options, if_not_exists: false })
}

fn rename(store: &RedisStore, tube: &str, to: &str) -> Result<Reply, Error> {
    ask(store, Command::NameTube { tube: name(tube), name: name(to), queue_num: None })
}

/// A URL and a prefix of the test's own.
struct Part {
    url: String,
    prefix: String,
}

impl Part {
    fn new() -> Self {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        Part { url, prefix }
    }

    /// Writes into the registry, like a server that was interrupted.
    fn set(&self, hash: &str, field: &str, value: &str) {
        let key = format!("{{{}}}:{hash}", self.prefix);
        instance().talk(&["HSET", &key, field, value]);
    }

    fn get(&self, hash: &str, field: &str) -> String {
        instance().talk(&["HGET", &format!("{{{}}}:{hash}", self.prefix), field])
    }
}

/// A moment in the future.
const LATER: &str = "9000000000000000";

#[test]
fn another_server_finds_a_tube_by_its_new_name() {
    run(async {
        let part = Part::new();
        let (here, there) = (open(&part.url), open(&part.url));
        create(&here, "emails", None).expect("it is made");
        ask(&there, put(&name("emails"), 2)).expect("they are put");
        rename(&here, "emails", "letters").expect("it is renamed");
        let gone = ask(&there, put(&name("emails"), 1));
        assert_eq!(gone, Err(Error::TubeNotFound(name("emails"))));
        let task = take(&there, &name("letters"), 1).remove(0);
        ack(&here, &name("letters"), &task);
        create(&there, "emails", None).expect("the name is free");
        ask(&here, put(&name("emails"), 1)).expect("they are put");
        assert_eq!(take(&here, &name("emails"), 9).len(), 1);
        assert_eq!(take(&here, &name("letters"), 9).len(), 1);
        rename(&there, "emails", "notes").expect("it is renamed");
        rename(&there, "letters", "emails").expect("it is renamed");
        for (tube, left) in [("emails", 1), ("notes", 1)] {
            let show = ask(&here, Command::Tubes { tube: Some(name(tube)) });
            let Ok(Reply::Tubes(shown)) = show else { panic!("{show:?}") };
            assert_eq!(shown[0].stats.tasks.taken, left, "{tube}");
        }
    });
}

/// An ended session gives back its tasks even if the tube was renamed.
#[test]
fn sessions_give_back_tasks_of_renamed_tubes() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        create(&store, "emails", None).expect("it is made");
        ask(&store, put(&name("emails"), 1)).expect("it is put");
        let session = SessionId([3; 16]);
        ask(&store, Command::JoinSession { session, create: true }).expect("it begins");
        let (tube, wait) = (name("emails"), Span::ZERO);
        let take = Take { tube, count: 1, session: Some(session), lease: None, worker: None, wait };
        ask(&store, Command::Take(take)).expect("it is taken");
        rename(&store, "emails", "letters").expect("it is renamed");
        ask(&store, Command::LeaveSession { session }).expect("it ends");
        let back = taskyard_testkit::calls::take(&store, &name("letters"), 1).remove(0);
        assert_eq!((back.id, back.attempts), (TaskId(0), 1));
    });
}

/// The new name is listed, and the tube does not have it yet.
#[test]
fn a_rename_interrupted_before_the_tube_can_be_repeated() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        create(&store, "emails", None).expect("it is made");
        ask(&store, put(&name("emails"), 1)).expect("it is put");
        let number = part.get("tubes", "emails");
        part.set("tubes", "letters", &number);
        part.set("homes", "letters", "emails");
        part.set("pending", "letters", LATER);
        let missing = ask(&store, put(&name("letters"), 1));
        assert_eq!(missing, Err(Error::TubeNotFound(name("letters"))));
        let busy = create(&store, "letters", None);
        assert!(
            matches!(busy, Err(Error::StoreUnavailable(_))),
            "another server may be about to: {busy:?}"
        );
        rename(&store, "emails", "letters").expect("the same can be done again");
        assert_eq!(take(&store, &name("letters"), 9).len(), 1);
        assert_eq!(part.get("pending", "letters"), "");
    });
}

/// The same without a repetition: the name is free for another tube when the reservation has expired.
#[test]
fn an_abandoned_name_is_free_again() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        create(&store, "emails", None).expect("it is made");
        ask(&store, put(&name("emails"), 3)).expect("they are put");
        let number = part.get("tubes", "emails");
        part.set("tubes", "letters", &number);
        part.set("homes", "letters", "emails");
        part.set("pending", "letters", "1");
        create(&store, "letters", None).expect("it is made");
        ask(&store, put(&name("letters"), 1)).expect("it is put");
        assert_eq!(take(&store, &name("letters"), 9).len(), 1);
        assert_eq!(take(&store, &name("emails"), 9).len(), 3);
    });
}

/// The tube has its new name, and the old one is still listed.
#[test]
fn a_rename_interrupted_after_the_tube_is_done() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        create(&store, "emails", None).expect("it is made");
        ask(&store, put(&name("emails"), 1)).expect("it is put");
        let number = part.get("tubes", "emails");
        rename(&store, "emails", "letters").expect("it is renamed");
        part.set("tubes", "emails", &number);
        let other = open(&part.url);
        let gone = ask(&other, put(&name("emails"), 1));
        assert_eq!(gone, Err(Error::TubeNotFound(name("emails"))));
        let Ok(Reply::Tubes(shown)) = ask(&other, Command::Tubes { tube: None }) else {
            panic!("tubes are shown")
        };
        let names: Vec<_> = shown.iter().map(|tube| tube.name.as_str()).collect();
        assert_eq!(names, ["letters"]);
        create(&other, "emails", None).expect("the name is free");
        ask(&other, put(&name("emails"), 2)).expect("they are put");
        assert_eq!(take(&other, &name("emails"), 9).len(), 2);
        assert_eq!(take(&other, &name("letters"), 9).len(), 1);
    });
}

/// A queue number is listed before the tube has it, and the tube may never get it.
#[test]
fn an_abandoned_queue_number_is_free() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        part.set("queues", "7", &format!("ghost {LATER}"));
        let busy = create(&store, "emails", Some(7));
        assert!(
            matches!(busy, Err(Error::StoreUnavailable(_))),
            "another server may be about to: {busy:?}"
        );
        part.set("queues", "7", "ghost 1");
        create(&store, "emails", Some(7)).expect("the number is free");
        let taken = create(&store, "letters", Some(7));
        assert_eq!(taken, Err(Error::QueueNumTaken { tube: name("emails"), num: 7 }));
        ask(&store, Command::DropTube { tube: name("emails") }).expect("it is dropped");
        create(&store, "letters", Some(7)).expect("it is free again");
    });
}

// Both servers listed the name with a number of their own; the tube had one of them, and the name stayed listed with the other when the tube
// was dropped. After ten thousand of those no tube could be created.
#[test]
fn two_servers_that_create_the_same_tube_leave_no_name() {
    run(async {
        let part = Part::new();
        let (here, there) = (open(&part.url), open(&part.url));
        let both = Barrier::new(2);
        for round in 0..60 {
            let text = format!("tube {round}");
            let made = thread::scope(|scope| {
                let make = |store| {
                    let (both, text) = (&both, &text);
                    scope.spawn(move || {
                        both.wait();
                        create(store, text, None)
                    })
                };
                let makers = [make(&here), make(&there)];
                makers.map(|maker| maker.join().expect("it is answered"))
            });
            assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
            ask(&here, Command::DropTube { tube: name(&text) }).expect("it is dropped");
        }
        assert_eq!(instance().talk(&["HKEYS", &format!("{{{}}}:tubes", part.prefix)]), "");
    });
}

// One server listed the name of a tube, another listed it for itself, was refused and removed the name: an existing tube was in no list, and
// got no ticks.
#[test]
fn a_refused_create_does_not_remove_the_name_of_another() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        create(&store, "first", Some(7)).expect("it is made");
        // Another server has listed the name and is about to create the tube.
        part.set("tubes", "second", "90");
        let refused = create(&store, "second", Some(7));
        assert_eq!(refused, Err(Error::QueueNumTaken { tube: name("first"), num: 7 }));
        assert_eq!(part.get("tubes", "second"), "90");
    });
}

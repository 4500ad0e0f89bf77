//! Names of tubes concern two tags, so giving one is several steps: what other servers see, and what is left when it
//! breaks off between them.

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

/// A part of Redis of its own, with what its keys begin with.
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

    /// Writes into what the registry keeps, as somebody did who then broke off.
    fn set(&self, hash: &str, field: &str, value: &str) {
        let key = format!("{{{}}}:{hash}", self.prefix);
        instance().talk(&["HSET", &key, field, value]);
    }

    fn get(&self, hash: &str, field: &str) -> String {
        instance().talk(&["HGET", &format!("{{{}}}:{hash}", self.prefix), field])
    }
}

/// A moment that has not come.
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

/// What a session holds it gives back, whatever the tube is called by then.
#[test]
fn sessions_hold_on_to_renamed_tubes() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        create(&store, "emails", None).expect("it is made");
        ask(&store, put(&name("emails"), 1)).expect("it is put");
        let session = SessionId([3; 16]);
        ask(&store, Command::JoinSession { session, create: true }).expect("it begins");
        let (tube, wait) = (name("emails"), Span::ZERO);
        let take = Take { tube, count: 1, session: Some(session), lease: None, wait };
        ask(&store, Command::Take(take)).expect("it is taken");
        rename(&store, "emails", "letters").expect("it is renamed");
        ask(&store, Command::LeaveSession { session }).expect("it ends");
        let back = taskyard_testkit::calls::take(&store, &name("letters"), 1).remove(0);
        assert_eq!((back.id, back.attempts), (TaskId(0), 1));
    });
}

/// The new name is listed, and the tube does not have it yet.
#[test]
fn a_rename_that_broke_off_before_the_tube_can_be_repeated() {
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
        assert!(matches!(busy, Err(Error::StoreAway(_))), "somebody may be about to: {busy:?}");
        rename(&store, "emails", "letters").expect("the same can be done again");
        assert_eq!(take(&store, &name("letters"), 9).len(), 1);
        assert_eq!(part.get("pending", "letters"), "");
    });
}

/// The same, and nobody comes back to it: the name is for another when the time for it is over.
#[test]
fn a_name_that_nobody_came_for_is_free_again() {
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
fn a_rename_that_broke_off_after_the_tube_is_done() {
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

/// Who gets the number of a queue is listed before it has it, and may never get it.
#[test]
fn a_queue_number_that_nobody_has_is_free() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        part.set("queues", "7", &format!("ghost {LATER}"));
        let busy = create(&store, "emails", Some(7));
        assert!(matches!(busy, Err(Error::StoreAway(_))), "somebody may be about to: {busy:?}");
        part.set("queues", "7", "ghost 1");
        create(&store, "emails", Some(7)).expect("nobody has it");
        let taken = create(&store, "letters", Some(7));
        assert_eq!(taken, Err(Error::QueueNumTaken { tube: name("emails"), num: 7 }));
        ask(&store, Command::DropTube { tube: name("emails") }).expect("it is dropped");
        create(&store, "letters", Some(7)).expect("it is free again");
    });
}

// Each had the name listed under a number of its own, the tube had one of them, and with the other the name stayed when the tube was dropped.
// Ten thousand of those, and no tube could be made.
#[test]
fn a_tube_that_two_servers_make_at_once_leaves_no_name() {
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

// The name of a tube was listed by one server, another listed it for itself, was refused and took the name from the list: a tube that was there
// was in no list, and time did nothing to it.
#[test]
fn a_refusal_takes_no_name_from_somebody_else() {
    run(async {
        let part = Part::new();
        let store = open(&part.url);
        create(&store, "first", Some(7)).expect("it is made");
        // Somebody has the name listed and is about to make the tube.
        part.set("tubes", "second", "90");
        let refused = create(&store, "second", Some(7));
        assert_eq!(refused, Err(Error::QueueNumTaken { tube: name("first"), num: 7 }));
        assert_eq!(part.get("tubes", "second"), "90");
    });
}

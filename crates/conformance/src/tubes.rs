//! Tubes: create, show and change.

use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, RateLimit, Reply,
    Search, StateSet, TaskId, TubeChange, TubeName, TubeOptions, TubeStats,
};

use super::Harness;
use super::commands::{QueueCommands, name, put, secs, take, task};

/// A new tube has the options of its creation and no tasks.
pub async fn a_new_tube_is_empty<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let options = TubeOptions::new(kind);
        let tube = queue.tube_named(kind.name(), options.clone()).await;
        let info = queue.info(&tube).await;
        assert_eq!((&info.name, &info.options), (&tube, &options));
        assert_eq!(info.stats, TubeStats::default());
        assert_eq!((info.takeable, info.next_wakeup), (0, None));
    }
}

/// Options are returned as given.
pub async fn options_are_kept<H: Harness>(queue: H) {
    let options = TubeOptions {
        kind: Kind::LimFifoTtl,
        temporary: true,
        capacity: Some(10),
        ttl: Some(secs(60)),
        ttr: Some(secs(30)),
        delay: Some(secs(2)),
        pri: 3,
        attempts_max: Some(5),
        retry: None,
        rate: None,
        keep_done: Some(secs(70)),
        keep_done_max: 8,
        ttl_kills_taken: true,
        paused: true,
        semaphore: None,
        queue_num: Some(7),
    };
    let tube = queue.tube_with(options.clone()).await;
    assert_eq!(queue.info(&tube).await.options, options);
}

/// Invalid options are refused before the tube is looked for.
pub async fn invalid_options_are_refused_first<H: Harness>(queue: H) {
    let known = queue.tube(Kind::Fifo).await;
    for if_not_exists in [false, true] {
        let zero = TubeOptions { attempts_max: Some(0), ..TubeOptions::new(Kind::Fifo) };
        let rate = Box::new(RateLimit { count: 0, per: secs(1), burst: 1 });
        let rate = TubeOptions { rate: Some(rate), ..TubeOptions::new(Kind::Fifo) };
        for options in [zero, rate] {
            let create = Command::CreateTube { tube: known.clone(), options, if_not_exists };
            assert!(matches!(queue.refused(create).await, Error::Invalid(_)));
        }
    }
    for tube in [known, name("missing")] {
        let change = TubeChange { attempts_max: Some(Some(0)), ..TubeChange::default() };
        let alter = Command::AlterTube { tube: tube.clone(), change };
        assert!(matches!(queue.refused(alter).await, Error::Invalid(_)));
        let number = Command::NameTube { tube: tube.clone(), name: tube, queue_num: Some(0) };
        assert!(matches!(queue.refused(number).await, Error::Invalid(_)));
    }
}

/// All tubes are shown by name, each with its own number.
pub async fn all_are_shown_by_name<H: Harness>(queue: H) {
    for text in ["b", "c", "a"] {
        queue.tube_named(text, TubeOptions::new(Kind::Fifo)).await;
    }
    let tubes = queue.tubes().await;
    let names: Vec<&str> = tubes.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let mut numbers: Vec<u32> = tubes.iter().map(|info| info.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "each tube has its own number");
}

/// A second tube of the same name is refused.
pub async fn a_name_is_used_once<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let again = create(&tube, TubeOptions::new(Kind::Fifo), false);
    assert_eq!(queue.refused(again).await, Error::TubeExists(tube));
}

/// "If not exists" leaves an existing tube unchanged, also when the options differ.
pub async fn if_not_exists_compares_nothing<H: Harness>(queue: H) {
    let tube = name("jobs");
    let first = create(&tube, TubeOptions::new(Kind::Fifo), true);
    assert_eq!(queue.must(first).await, Reply::Created(true));
    queue.put(&tube, task("x")).await;
    let before = queue.info(&tube).await;
    let second = create(&tube, TubeOptions { pri: 3, ..TubeOptions::new(Kind::UtubeTtl) }, true);
    assert_eq!(queue.must(second).await, Reply::Created(false));
    assert_eq!(queue.info(&tube).await, before);
}

/// Every verb replies that an unknown tube does not exist.
pub async fn every_verb_refuses_an_unknown_tube<H: Harness>(queue: H) {
    let tube = name("nowhere");
    let finish = FinishItem { id: TaskId(0), holder: Holder::Any, finish: Finish::Ack };
    let commands = [
        Command::AlterTube { tube: tube.clone(), change: TubeChange::default() },
        Command::DropTube { tube: tube.clone() },
        Command::Tubes { tube: Some(tube.clone()) },
        put(&tube, vec![task("x")]),
        Command::Take(take(&tube, 1)),
        Command::Finish { tube: tube.clone(), items: vec![finish], show: true },
        Command::Kick { tube: tube.clone(), count: 1 },
        Command::Delete { tube: tube.clone(), ids: vec![TaskId(0)], show: true },
        Command::Peek { tube: tube.clone(), ids: vec![TaskId(0)] },
        Command::Positions { tube: tube.clone(), ids: vec![TaskId(0)] },
        Command::Deliveries { tube: tube.clone(), count: 1 },
        Command::List(List {
            tube: tube.clone(),
            order: ListOrder::Queue { after: None },
            limit: 1,
            key: None,
        }),
        Command::Search(Search {
            tube: tube.clone(),
            first: TaskId(0),
            count: 1,
            states: StateSet::ALL,
            run: b"x".as_slice().into(),
        }),
        Command::Truncate { tube: tube.clone() },
        Command::ReleaseAll { tube: tube.clone() },
    ];
    for command in commands {
        let verb = command.verb();
        assert_eq!(queue.refused(command).await, Error::TubeNotFound(tube.clone()), "{verb}");
    }
}

/// A change applies to later puts; existing tasks keep the values of their put.
pub async fn a_change_applies_to_later_puts<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let old = queue.put(&tube, task("old")).await;
    let before = queue.peek_existing(&tube, old).await;
    let change = TubeChange {
        ttl: Some(Some(secs(60))),
        ttr: Some(Some(secs(30))),
        delay: Some(Some(secs(5))),
        pri: Some(2),
        ..TubeChange::default()
    };
    let info = queue.alter(&tube, change).await;
    assert_eq!((info.options.ttl, info.options.ttr), (Some(secs(60)), Some(secs(30))));
    assert_eq!((info.options.delay, info.options.pri), (Some(secs(5)), 2));
    assert_eq!(queue.info(&tube).await, info);
    assert_eq!(queue.peek_existing(&tube, old).await, before);
    let id = queue.put(&tube, task("new")).await;
    let new = queue.peek_existing(&tube, id).await;
    assert_eq!((new.pri, new.ttr, new.expires), (2, secs(30), queue.now() + secs(65)));
}

/// `Some(None)` removes an option, `None` leaves it unchanged.
pub async fn options_can_be_removed<H: Harness>(queue: H) {
    let options = TubeOptions {
        ttl: Some(secs(60)),
        ttr: Some(secs(30)),
        capacity: Some(1),
        attempts_max: Some(2),
        ..TubeOptions::new(Kind::LimFifoTtl)
    };
    let tube = queue.tube_with(options.clone()).await;
    let change = TubeChange { ttr: Some(None), capacity: Some(None), ..TubeChange::default() };
    let info = queue.alter(&tube, change).await;
    assert_eq!(info.options, TubeOptions { ttr: None, capacity: None, ..options });
}

/// A tube shows how many tasks can be taken now, and its next deadline.
pub async fn a_tube_shows_available_tasks_and_its_next_deadline<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let later = NewTask { delay: Some(secs(50)), ..task("later") };
    queue.put(&tube, later).await;
    let info = queue.info(&tube).await;
    assert_eq!((info.takeable, info.next_wakeup), (2, Some(queue.now() + secs(50))));
    queue.take_for(&tube, secs(20)).await;
    let info = queue.info(&tube).await;
    assert_eq!((info.takeable, info.next_wakeup), (1, Some(queue.now() + secs(20))));
}

fn create(tube: &TubeName, options: TubeOptions, if_not_exists: bool) -> Command {
    Command::CreateTube { tube: tube.clone(), options, if_not_exists }
}

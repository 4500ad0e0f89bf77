use super::*;

const PUT: Did = Did::Put(State::Ready);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn take(lease: u64, start: i64, until: i64) -> Did {
    Did::Take { lease: Lease(lease), start: at(start), until: at(until) }
}

/// Calls one after another, none overlapping.
fn sequence(calls: &[Did], left: State) -> History {
    let calls: Vec<Call> = calls
        .iter()
        .zip(0..)
        .map(|(did, place)| Call { begin: 2 * place, end: Some(2 * place + 1), did: *did })
        .collect();
    history(&calls, left)
}

fn history(calls: &[Call], left: State) -> History {
    let tube = TubeName::new("jobs").unwrap();
    let mut history = History::default();
    for call in calls {
        history.record(&tube, TaskId(0), *call);
    }
    history.found(&tube, TaskId(0), left);
    history
}

#[track_caller]
fn assert_fine(history: &History, unseen: Unseen) {
    assert_eq!(history.check(unseen), []);
}

#[track_caller]
fn assert_wrong(history: &History, unseen: Unseen) {
    assert!(!history.check(unseen).is_empty(), "it cannot have happened: {history:?}");
}

#[test]
fn lease_numbers_must_grow_where_that_is_asked() {
    let back = |lease| Did::Release(Lease(lease), State::Ready);
    let grown = sequence(&[PUT, take(1, 0, 60), back(1), take(2, 0, 60)], State::Taken);
    assert_eq!(grown.check_lease_order(), []);
    let shrunk = sequence(&[PUT, take(2, 0, 60), back(2), take(1, 0, 60)], State::Taken);
    assert_fine(&shrunk, Unseen::until(at(100)));
    assert_eq!(shrunk.check_lease_order().len(), 1);
    // Which of two that were asked for at the same time came first is not known.
    let calls = [(0, 5, 2), (1, 6, 1)].map(|(begin, end, lease)| Call {
        begin,
        end: Some(end),
        did: take(lease, 0, 60),
    });
    assert_eq!(history(&calls, State::Taken).check_lease_order(), []);
}

#[test]
fn the_plain_way_is_fine() {
    let unseen = Unseen::until(at(100));
    assert_fine(&sequence(&[PUT, take(1, 0, 60), Did::Ack(Lease(1))], State::Done), unseen);
    assert_fine(&sequence(&[PUT], State::Ready), unseen);
    assert_fine(&sequence(&[Did::Put(State::Delayed), take(1, 5, 60)], State::Ready), unseen);
    let busy = [
        PUT,
        take(1, 0, 60),
        Did::Touch(Lease(1), at(90)),
        Did::Release(Lease(1), State::Delayed),
        take(2, 5, 60),
        Did::Bury(Some(Lease(2))),
        Did::Kick,
        Did::Delete,
    ];
    assert_fine(&sequence(&busy, State::Done), unseen);
}

#[test]
fn a_task_given_twice_within_a_lease_is_wrong() {
    let unseen = Unseen::until(at(100));
    let twice = |second| sequence(&[PUT, take(1, 0, 60), take(2, second, 120)], State::Taken);
    assert_wrong(&twice(59), unseen);
    assert_fine(&twice(60), unseen);
}

#[test]
fn an_ack_of_a_lost_lease_is_wrong() {
    let calls = [PUT, take(1, 0, 10), take(2, 10, 20), Did::Ack(Lease(1))];
    assert_wrong(&sequence(&calls, State::Done), Unseen::until(at(100)));
}

#[test]
fn a_lost_task_is_wrong() {
    let unseen = Unseen::until(at(100));
    assert_wrong(&sequence(&[PUT], State::Done), unseen);
    assert_wrong(&sequence(&[PUT, take(1, 0, 60)], State::Done), unseen);
    assert_fine(&sequence(&[PUT], State::Done), Unseen { expire: true, ..unseen });
}

#[test]
fn a_task_back_from_the_dead_is_wrong() {
    let unseen = Unseen::until(at(100));
    let acked = [PUT, take(1, 0, 60), Did::Ack(Lease(1))];
    assert_wrong(&sequence(&acked, State::Ready), unseen);
    assert_wrong(&sequence(&[&acked[..], &[take(2, 90, 99)]].concat(), State::Taken), unseen);
}

#[test]
fn a_lease_issued_twice_is_wrong() {
    let tube = TubeName::new("jobs").unwrap();
    let mut history = sequence(&[PUT, take(1, 0, 60)], State::Taken);
    history.record(&tube, TaskId(1), Call { begin: 0, end: Some(1), did: PUT });
    history.record(&tube, TaskId(1), Call { begin: 2, end: Some(3), did: take(1, 0, 60) });
    assert_eq!(history.check(Unseen::until(at(10))).len(), 1);
}

#[test]
fn calls_that_overlap_may_have_any_order() {
    let calls = |taken_again: u64| {
        [
            Call { begin: 0, end: Some(1), did: PUT },
            Call { begin: 2, end: Some(3), did: take(1, 0, 60) },
            Call { begin: taken_again, end: Some(7), did: take(2, 1, 60) },
            Call { begin: 5, end: Some(8), did: Did::Release(Lease(1), State::Ready) },
        ]
    };
    assert_fine(&history(&calls(4), State::Taken), Unseen::until(at(10)));
    // Here the take was answered before the release began.
    let mut early = calls(4);
    early[2].end = Some(4);
    assert_wrong(&history(&early, State::Taken), Unseen::until(at(10)));
}

#[test]
fn a_call_that_was_cut_off_may_have_happened_or_not() {
    let unseen = Unseen::until(at(100));
    let calls = [
        Call { begin: 0, end: Some(1), did: PUT },
        Call { begin: 2, end: Some(3), did: take(1, 0, 60) },
        Call { begin: 4, end: None, did: Did::Ack(Lease(1)) },
    ];
    for left in [State::Done, State::Taken, State::Ready] {
        assert_fine(&history(&calls, left), unseen);
    }
    let put = [Call { begin: 0, end: None, did: PUT }];
    assert_fine(&history(&put, State::Done), unseen);
    assert_fine(&history(&put, State::Ready), unseen);
    assert_wrong(&history(&put, State::Buried), unseen);
}

#[test]
fn a_restart_gives_back_what_was_taken() {
    let unseen = Unseen::until(at(10));
    let calls = [PUT, take(1, 0, 60), Did::GiveBack, take(2, 1, 60), Did::Ack(Lease(2))];
    assert_fine(&sequence(&calls, State::Done), unseen);
    assert_fine(&sequence(&[PUT, Did::GiveBack], State::Ready), unseen);
    let late = [PUT, take(1, 0, 60), Did::GiveBack, Did::Ack(Lease(1))];
    assert_fine(&sequence(&late, State::Done), unseen);
}

#[test]
fn what_nobody_saw_must_be_allowed() {
    let unseen = Unseen::until(at(100));
    let overdue = sequence(&[PUT, take(1, 0, 60)], State::Buried);
    assert_wrong(&overdue, unseen);
    assert_fine(&overdue, Unseen { dead_letter: true, ..unseen });
    let lost = sequence(&[PUT], State::Taken);
    assert_wrong(&lost, unseen);
    assert_fine(&lost, Unseen { lost_takes: true, ..unseen });
}

#[test]
fn threads_write_into_one_recorder() {
    let tube = TubeName::new("jobs").unwrap();
    let recorder = Recorder::default();
    std::thread::scope(|scope| {
        for id in 0..4 {
            let (recorder, tube) = (&recorder, &tube);
            scope.spawn(move || {
                let begin = recorder.begin();
                recorder.end(begin, tube, TaskId(id), PUT);
                recorder.cut_off(recorder.begin(), tube, TaskId(id), Did::Delete);
            });
        }
    });
    let history = recorder.history();
    assert_eq!(history.tasks().count(), 4);
    assert_fine(&history, Unseen::until(at(0)));
}

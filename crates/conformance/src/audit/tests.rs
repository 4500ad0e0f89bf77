//! Tests the checks of a recorded history.

use super::*;

const PUT: Operation = Operation::Put(State::Ready);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn take(lease: u64, start: i64, until: i64) -> Operation {
    Operation::Take { lease: Lease(lease), start: at(start), until: at(until) }
}

/// Calls one after another, none overlapping.
fn sequence(calls: &[Operation], left: State) -> History {
    let calls: Vec<Call> = calls
        .iter()
        .zip(0..)
        .map(|(operation, position)| Call {
            begin: 2 * position,
            end: Some(2 * position + 1),
            operation: *operation,
        })
        .collect();
    history(&calls, left)
}

fn history(calls: &[Call], left: State) -> History {
    let tube = TubeName::new("jobs").unwrap();
    let mut history = History::default();
    for call in calls {
        history.record(&tube, TaskId(0), *call);
    }
    history.record_final_state(&tube, TaskId(0), left);
    history
}

#[track_caller]
fn assert_valid(history: &History, unrecorded: Unrecorded) {
    assert_eq!(history.check(unrecorded), []);
}

#[track_caller]
fn assert_invalid(history: &History, unrecorded: Unrecorded) {
    assert!(!history.check(unrecorded).is_empty(), "this history violates the rules: {history:?}");
}

#[test]
fn lease_numbers_must_grow_where_requested() {
    let back = |lease| Operation::Release(Lease(lease), State::Ready);
    let grown = sequence(&[PUT, take(1, 0, 60), back(1), take(2, 0, 60)], State::Taken);
    assert_eq!(grown.check_lease_order(), []);
    let shrunk = sequence(&[PUT, take(2, 0, 60), back(2), take(1, 0, 60)], State::Taken);
    assert_valid(&shrunk, Unrecorded::until(at(100)));
    assert_eq!(shrunk.check_lease_order().len(), 1);
    // The order of two concurrent takes is unknown.
    let calls = [(0, 5, 2), (1, 6, 1)].map(|(begin, end, lease)| Call {
        begin,
        end: Some(end),
        operation: take(lease, 0, 60),
    });
    assert_eq!(history(&calls, State::Taken).check_lease_order(), []);
}

#[test]
fn a_regular_history_is_valid() {
    let unrecorded = Unrecorded::until(at(100));
    assert_valid(
        &sequence(&[PUT, take(1, 0, 60), Operation::Ack(Lease(1))], State::Done),
        unrecorded,
    );
    assert_valid(&sequence(&[PUT], State::Ready), unrecorded);
    assert_valid(
        &sequence(&[Operation::Put(State::Delayed), take(1, 5, 60)], State::Ready),
        unrecorded,
    );
    let busy = [
        PUT,
        take(1, 0, 60),
        Operation::Touch(Lease(1), at(90)),
        Operation::Release(Lease(1), State::Delayed),
        take(2, 5, 60),
        Operation::Bury(Some(Lease(2))),
        Operation::Kick,
        Operation::Delete,
    ];
    assert_valid(&sequence(&busy, State::Done), unrecorded);
}

#[test]
fn a_task_taken_twice_within_a_lease_is_invalid() {
    let unrecorded = Unrecorded::until(at(100));
    let twice = |second| sequence(&[PUT, take(1, 0, 60), take(2, second, 120)], State::Taken);
    assert_invalid(&twice(59), unrecorded);
    assert_valid(&twice(60), unrecorded);
}

#[test]
fn an_ack_of_a_lost_lease_is_invalid() {
    let calls = [PUT, take(1, 0, 10), take(2, 10, 20), Operation::Ack(Lease(1))];
    assert_invalid(&sequence(&calls, State::Done), Unrecorded::until(at(100)));
}

#[test]
fn a_lost_task_is_invalid() {
    let unrecorded = Unrecorded::until(at(100));
    assert_invalid(&sequence(&[PUT], State::Done), unrecorded);
    assert_invalid(&sequence(&[PUT, take(1, 0, 60)], State::Done), unrecorded);
    assert_valid(&sequence(&[PUT], State::Done), Unrecorded { expire: true, ..unrecorded });
}

#[test]
fn a_delivery_of_a_removed_task_is_invalid() {
    let unrecorded = Unrecorded::until(at(100));
    let acked = [PUT, take(1, 0, 60), Operation::Ack(Lease(1))];
    assert_invalid(&sequence(&acked, State::Ready), unrecorded);
    assert_invalid(&sequence(&[&acked[..], &[take(2, 90, 99)]].concat(), State::Taken), unrecorded);
}

#[test]
fn a_lease_issued_twice_is_invalid() {
    let tube = TubeName::new("jobs").unwrap();
    let mut history = sequence(&[PUT, take(1, 0, 60)], State::Taken);
    history.record(&tube, TaskId(1), Call { begin: 0, end: Some(1), operation: PUT });
    history.record(&tube, TaskId(1), Call { begin: 2, end: Some(3), operation: take(1, 0, 60) });
    assert_eq!(history.check(Unrecorded::until(at(10))).len(), 1);
}

#[test]
fn overlapping_calls_can_have_any_order() {
    let calls = |taken_again: u64| {
        [
            Call { begin: 0, end: Some(1), operation: PUT },
            Call { begin: 2, end: Some(3), operation: take(1, 0, 60) },
            Call { begin: taken_again, end: Some(7), operation: take(2, 1, 60) },
            Call { begin: 5, end: Some(8), operation: Operation::Release(Lease(1), State::Ready) },
        ]
    };
    assert_valid(&history(&calls(4), State::Taken), Unrecorded::until(at(10)));
    // Here the take was answered before the release began.
    let mut early = calls(4);
    early[2].end = Some(4);
    assert_invalid(&history(&early, State::Taken), Unrecorded::until(at(10)));
}

#[test]
fn an_interrupted_call_can_have_happened_or_not() {
    let unrecorded = Unrecorded::until(at(100));
    let calls = [
        Call { begin: 0, end: Some(1), operation: PUT },
        Call { begin: 2, end: Some(3), operation: take(1, 0, 60) },
        Call { begin: 4, end: None, operation: Operation::Ack(Lease(1)) },
    ];
    for left in [State::Done, State::Taken, State::Ready] {
        assert_valid(&history(&calls, left), unrecorded);
    }
    let put = [Call { begin: 0, end: None, operation: PUT }];
    assert_valid(&history(&put, State::Done), unrecorded);
    assert_valid(&history(&put, State::Ready), unrecorded);
    assert_invalid(&history(&put, State::Buried), unrecorded);
}

#[test]
fn a_restart_releases_taken_tasks() {
    let unrecorded = Unrecorded::until(at(10));
    let calls =
        [PUT, take(1, 0, 60), Operation::ReleaseTaken, take(2, 1, 60), Operation::Ack(Lease(2))];
    assert_valid(&sequence(&calls, State::Done), unrecorded);
    assert_valid(&sequence(&[PUT, Operation::ReleaseTaken], State::Ready), unrecorded);
    let late = [PUT, take(1, 0, 60), Operation::ReleaseTaken, Operation::Ack(Lease(1))];
    assert_valid(&sequence(&late, State::Done), unrecorded);
}

#[test]
fn unrecorded_changes_must_be_allowed() {
    let unrecorded = Unrecorded::until(at(100));
    let overdue = sequence(&[PUT, take(1, 0, 60)], State::Buried);
    assert_invalid(&overdue, unrecorded);
    assert_valid(&overdue, Unrecorded { dead_letter: true, ..unrecorded });
    let lost = sequence(&[PUT], State::Taken);
    assert_invalid(&lost, unrecorded);
    assert_valid(&lost, Unrecorded { lost_takes: true, ..unrecorded });
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
                recorder.interrupt(recorder.begin(), tube, TaskId(id), Operation::Delete);
            });
        }
    });
    let history = recorder.history();
    assert_eq!(history.tasks().count(), 4);
    assert_valid(&history, Unrecorded::until(at(0)));
}

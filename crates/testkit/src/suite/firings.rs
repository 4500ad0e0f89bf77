//! A firing of a schedule is interrupted at each of its steps: no time fires twice, and none is missed.
//!
//! The steps are the requests and replies between a server and its database: what is due is read, the time is compared and set with the
//! put of the tasks, and what else the store asks. Each is interrupted before it, in its middle and before its last byte. A firing that is
//! interrupted after its last step has ended, so the number of steps is found and not listed.

use taskyard_core::{CatchUp, Error, Overlap};

use super::firing_field::{DUE, FiringField, Outcome, Which, run_now};
use crate::step_proxy::{Portion, StopPoint};
use crate::storm::StormDatabase;
use crate::{OwnServer, Request, SharedDatabase};

/// Every firing has at least these steps: requests and replies of two batches, one that reads what is due and one that fires.
const STEPS_MIN: usize = 4;

/// What all times add that come due together.
const fn expected(catch_up: CatchUp, overlap: Overlap) -> Outcome {
    match (catch_up, overlap) {
        (CatchUp::All, Overlap::Allow) => Outcome { tasks: DUE, fired: DUE, skipped: 0 },
        _ => Outcome { tasks: 1, fired: 1, skipped: DUE - 1 },
    }
}

/// How much of each step passes: requests have even numbers, and replies odd ones.
#[derive(Clone, Copy)]
struct Portions {
    of_requests: &'static [Portion],
    of_replies: &'static [Portion],
}

impl Portions {
    /// For connections that are lost: a part of a reply arrives. Before a request arrives, nothing has happened since the reply before.
    const OF_LOST: Self = Portions {
        of_requests: &[Portion::Half, Portion::AllButOne],
        of_replies: &[Portion::Nothing, Portion::Half],
    };
    /// Between two steps.
    const NOTHING: Self =
        Portions { of_requests: &[Portion::Nothing], of_replies: &[Portion::Nothing] };
    /// For servers that are killed: then it does not matter what they got, and the time before a request is that after the reply before.
    const OF_KILLED: Self = Portions {
        of_requests: &[Portion::Half, Portion::AllButOne],
        of_replies: &[Portion::Nothing],
    };
    /// The same with a request that ends in its last statement.
    const LAST_BYTE: Self =
        Portions { of_requests: &[Portion::AllButOne], of_replies: &[Portion::Nothing] };

    fn of(self, step: usize) -> &'static [Portion] {
        if step.is_multiple_of(2) { self.of_requests } else { self.of_replies }
    }
}

/// Interrupts firings at each of their steps.
fn at_each_step<D: SharedDatabase<Server: StormDatabase>>(
    field: &mut FiringField<D>,
    portions: Portions,
    mut trial: impl FnMut(&mut FiringField<D>, StopPoint) -> bool,
) {
    for step in 0.. {
        for portion in portions.of(step) {
            let word = D::word_of(Request::DueSchedules);
            if !trial(field, StopPoint { word, step, portion: *portion }) {
                assert!(step >= STEPS_MIN, "a firing has only {step} steps");
                return field.audit();
            }
        }
    }
}

/// Fires one time in peace, and interrupts the next firing at this point.
fn interrupt<D: SharedDatabase<Server: StormDatabase>>(
    field: &mut FiringField<D>,
    point: StopPoint,
    then: impl FnOnce(&mut FiringField<D>),
) -> bool {
    field.warm_up();
    assert_eq!(field.look(&[]), Outcome { tasks: 1, fired: 1, skipped: 0 });
    let is_stopped = field.stop_firing(point);
    if is_stopped {
        then(field);
    }
    field.let_both_look();
    is_stopped
}

/// Panics unless this has happened.
fn check(found: Outcome, expected: Outcome, StopPoint { step, portion, .. }: StopPoint) {
    assert_eq!(found, expected, "step {step}, {portion:?}");
}

/// The connection of the server is lost, and it continues with another one.
pub fn a_server_that_loses_its_connection_fires_each_time_once<
    D: SharedDatabase<Server: StormDatabase>,
>() {
    let Some(database) = D::Server::steady() else { return };
    let mut field = FiringField::<D>::new(database);
    for (catch_up, portions) in
        [(CatchUp::All, Portions::OF_LOST), (CatchUp::Last, Portions::NOTHING)]
    {
        field.set_rules(catch_up, Overlap::Allow);
        at_each_step(&mut field, portions, |field, point| {
            let is_stopped = interrupt(field, point, |field| {
                field.proxy.close_stopped();
                field.continue_with(Which::Faulty);
            });
            check(field.look(&[]), expected(catch_up, Overlap::Allow), point);
            is_stopped
        });
    }
}

/// The server is killed, and another one continues. A consumer that waits there gets the first task, whichever of them has put it.
pub fn a_killed_server_leaves_each_time_to_another<D: SharedDatabase<Server: StormDatabase>>() {
    let Some(database) = D::Server::steady() else { return };
    let mut field = FiringField::<D>::new(database);
    for (catch_up, portions) in
        [(CatchUp::All, Portions::OF_KILLED), (CatchUp::Last, Portions::NOTHING)]
    {
        field.set_rules(catch_up, Overlap::Allow);
        at_each_step(&mut field, portions, |field, point| {
            field.warm_up();
            check(field.look(&[]), Outcome { tasks: 1, fired: 1, skipped: 0 }, point);
            let consumer = field.consume();
            let is_stopped = field.stop_firing(point);
            if is_stopped {
                field.kill_faulty();
                field.continue_with(Which::Steady);
                field.start_faulty();
            }
            field.let_both_look();
            let delivered = consumer.delivered();
            assert_eq!(delivered.len(), 1);
            check(field.look(&delivered), expected(catch_up, Overlap::Allow), point);
            is_stopped
        });
    }
}

/// The database is killed. When it is there again, the server that was firing continues after its requests; where the reply was on its
/// way, it is killed as well, and the other one continues.
pub fn a_killed_database_fires_each_time_once<D: SharedDatabase<Server: StormDatabase>>() {
    let Some(database) = D::server() else { return };
    let mut field = FiringField::<D>::new(database);
    at_each_step(&mut field, Portions::LAST_BYTE, |field, point| {
        let is_stopped = interrupt(field, point, |field| {
            field.database.kill();
            if point.portion == Portion::AllButOne {
                field.proxy.close_stopped();
                field.database.start();
                field.continue_with(Which::Faulty);
            } else {
                field.kill_faulty();
                field.database.start();
                field.continue_with(Which::Steady);
                field.start_faulty();
            }
        });
        check(field.look(&[]), expected(CatchUp::All, Overlap::Allow), point);
        is_stopped
    });
}

/// Two servers want to fire the same time. One of them stops between what it read and what it sends or gets, and the other one fires.
/// Then the first one goes on with what it knew, or is killed.
pub fn a_server_that_was_overtaken_fires_nothing<D: SharedDatabase<Server: StormDatabase>>() {
    let Some(database) = D::Server::steady() else { return };
    let mut field = FiringField::<D>::new(database);
    for is_killed in [false, true] {
        at_each_step(&mut field, Portions::NOTHING, |field, point| {
            let is_stopped = interrupt(field, point, |field| {
                field.continue_with(Which::Steady);
                if is_killed {
                    field.kill_faulty();
                    field.start_faulty();
                } else {
                    field.proxy.resume();
                }
            });
            check(field.look(&[]), expected(CatchUp::All, Overlap::Allow), point);
            is_stopped
        });
    }
}

/// While the task of an earlier time exists, no other one is added, and each time is counted once.
pub fn an_interrupted_firing_keeps_the_rule_of_overlaps<
    D: SharedDatabase<Server: StormDatabase>,
>() {
    let Some(database) = D::Server::steady() else { return };
    let mut field = FiringField::<D>::new(database);
    field.set_rules(CatchUp::All, Overlap::Skip);
    for exists_before in [false, true] {
        at_each_step(&mut field, Portions::LAST_BYTE, |field, point| {
            field.warm_up();
            if !exists_before {
                check(field.look(&[]), Outcome { tasks: 1, fired: 1, skipped: 0 }, point);
            }
            let is_stopped = field.stop_firing(point);
            if is_stopped {
                field.kill_faulty();
                field.continue_with(Which::Steady);
                field.start_faulty();
            }
            field.let_both_look();
            // The task of the time before, or of the first of these.
            let skipped = if exists_before { DUE } else { DUE - 1 };
            check(field.look(&[]), Outcome { tasks: 1, fired: 1, skipped }, point);
            is_stopped
        });
    }
}

/// A task is put outside the times of its schedule, and its server is killed or loses its connection. Each call has one answer, which
/// agrees with what has happened; then another server fires.
pub fn run_now_has_one_answer<D: SharedDatabase<Server: StormDatabase>>() {
    let Some(database) = D::Server::steady() else { return };
    let mut field = FiringField::<D>::new(database);
    for overlap in [Overlap::Allow, Overlap::Skip] {
        field.set_rules(CatchUp::All, overlap);
        at_each_step(&mut field, Portions::OF_KILLED, |field, point| {
            run_now_at(field, StopPoint { word: D::word_of(Request::ShowSchedule), ..point })
        });
    }
}

fn run_now_at<D: SharedDatabase<Server: StormDatabase>>(
    field: &mut FiringField<D>,
    point: StopPoint,
) -> bool {
    field.warm_up();
    field.look(&[]);
    assert_eq!(run_now(&field.engine(Which::Faulty), field.name()), Ok(true));
    field.look(&[]);
    let (engine, name) = (field.engine(Which::Faulty), field.name());
    let (sender, answers) = std::sync::mpsc::channel();
    let is_stopped = field.stop_during(point, move || {
        sender.send(run_now(&engine, name)).expect("the case waits for it");
    });
    match point.portion {
        _ if !is_stopped => {}
        Portion::Half => field.proxy.close_stopped(),
        _ => {
            field.kill_faulty();
            field.start_faulty();
        }
    }
    let answer = answers.recv().expect("there is an answer");
    field.let_times_come();
    field.continue_with(Which::Steady);
    field.let_both_look();
    let found = field.look(&[]);
    let put = match answer {
        Ok(is_new) => {
            assert!(is_new, "no other task has its key");
            1
        }
        Err(Error::StoreUnavailable(_)) => 0,
        Err(Error::OutcomeUnknown(_)) => match field.overlap() {
            Overlap::Allow => u64::from(found.tasks > DUE),
            Overlap::Skip => u64::from(found.fired == 0),
        },
        Err(error) => panic!("{error}"),
    };
    let expected = match field.overlap() {
        Overlap::Allow => Outcome { tasks: DUE + put, fired: DUE, skipped: 0 },
        Overlap::Skip => Outcome { tasks: 1, fired: 1 - put, skipped: DUE - 1 + put },
    };
    check(found, expected, point);
    is_stopped
}

crate::suite::suite! {
    /// Runs the cases about interrupted firings on a [`SharedDatabase`].
    firing_suite, firings, $:
    a_server_that_loses_its_connection_fires_each_time_once
    a_killed_server_leaves_each_time_to_another
    a_killed_database_fires_each_time_once
    a_server_that_was_overtaken_fires_nothing
    an_interrupted_firing_keeps_the_rule_of_overlaps
    run_now_has_one_answer
}

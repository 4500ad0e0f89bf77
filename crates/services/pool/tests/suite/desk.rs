//! The scheduler's desk with a clock of its own: no program, no socket.

use std::time::Duration;

use taskyard_core::classes::{Ask, Ticket};
use taskyard_core::{Span, Timestamp};
use taskyard_pool::Config;
use taskyard_pool::protocol::QueueNews;
use taskyard_pool::scheduler::{Desk, Ended, Freed, Order};

const PROGRAMS: &str = "seed: 1\nprograms: {x: {command: [/bin/true]}}\n";

fn at(millis: i64) -> Timestamp {
    Timestamp::from_micros(millis * 1_000)
}

/// A desk with so many backends; `more` is further configuration.
fn desk(backends: u32, more: &str) -> Desk {
    let config = Config::parse(&format!("{PROGRAMS}{more}")).unwrap();
    let mut desk = Desk::new(&config).unwrap();
    assert_eq!(desk.set_backends(at(0), backends), []);
    desk
}

fn arrive(desk: &mut Desk, millis: i64, ask: Ask) -> (Ticket, Vec<Order>) {
    let ticket = desk.ticket();
    let orders = desk.arrive(at(millis), ticket, ask);
    desk.plan_look(at(millis));
    (ticket, orders)
}

fn timed(seconds: u64) -> Ask {
    Ask::Timed(Span::from_secs(seconds))
}

/// The number of the run that the only order starts.
fn attempt(orders: &[Order]) -> u64 {
    match orders {
        [Order::Start { attempt, .. }] => *attempt,
        other => panic!("{other:?}"),
    }
}

fn freed(ticket: Ticket, attempt: u64, ended: Ended) -> Freed {
    let (took, stopping) = (Duration::from_secs(1), None);
    Freed { ticket, attempt, ended, seen: false, took, stopping }
}

/// What everybody was told at this moment.
fn told(desk: &mut Desk, millis: i64) -> Vec<(Ticket, QueueNews)> {
    let news = desk.look(at(millis)).into_iter().map(|order| match order {
        Order::News(ticket, news) => (ticket, news),
        other => panic!("{other:?}"),
    });
    news.collect()
}

/// Who was told which bound, and how many are ahead.
fn news(orders: &[Order]) -> Vec<(Ticket, Option<f64>, usize)> {
    let news = orders.iter().map(|order| match order {
        Order::News(ticket, news) => (*ticket, news.estimate, news.ahead),
        other => panic!("{other:?}"),
    });
    news.collect()
}

#[test]
fn a_shell_that_tries_again_and_again_lowers_one_task_in_its_pause() {
    let lowered = |desk: &Desk| (desk.status().counts.lowered, desk.status().counts.denied);
    for (pause, wanted) in [("", (2, 4)), ("denial_pause_seconds: 1", (1, 4))] {
        let mut desk = desk(1, pause);
        arrive(&mut desk, 0, Ask::Default);
        for millis in [100, 200, 300, 1_000] {
            let (ticket, orders) = arrive(&mut desk, millis, Ask::Interactive);
            assert!(matches!(&orders[0], Order::Deny(denied, _) if *denied == ticket));
        }
        assert_eq!(lowered(&desk), wanted);
        if wanted.0 == 1 {
            arrive(&mut desk, 1_100, Ask::Interactive);
            assert_eq!(lowered(&desk), (2, 5), "the pause is over");
        }
    }
}

#[test]
fn who_waits_is_told_at_once_when_something_changes_and_now_and_then() {
    let mut desk = desk(1, "");
    arrive(&mut desk, 0, timed(30));
    assert_eq!(desk.next_look(), None, "nobody waits");
    let (second, orders) = arrive(&mut desk, 1_000, timed(3));
    // What a program takes to be stopped comes on top.
    assert_eq!(news(&orders), [(second, Some(29.5), 0)]);
    assert_eq!((desk.next_look(), told(&mut desk, 1_000)), (Some(at(1_000)), vec![]));
    // Those who come later are told at once, each behind the ones before.
    let (third, orders) = arrive(&mut desk, 1_100, timed(30));
    assert_eq!(news(&orders), [(third, Some(29.4 + 3.5), 1)]);
    desk.leave(at(1_200), second);
    let (fourth, orders) = arrive(&mut desk, 1_200, timed(3));
    assert_eq!(news(&orders), [(fourth, Some(29.3 + 30.5), 1)]);
    desk.leave(at(1_200), third);
    assert_eq!(told(&mut desk, 1_500).len(), 1, "it is earlier by far now");
    // Counting down is no news, before five seconds have passed.
    for millis in [2_000, 2_500, 6_499] {
        assert_eq!(told(&mut desk, millis), []);
    }
    assert_eq!(told(&mut desk, 6_999).len(), 1);
    // Nobody is looked at twice within half a second.
    arrive(&mut desk, 7_100, timed(3));
    assert_eq!(desk.next_look(), Some(at(7_499)));
    // A look that took long is followed by a long pause.
    desk.note_look(Span::from_micros(100_000));
    assert_eq!(desk.next_look(), Some(at(7_999)));
}

#[test]
fn estimates_are_held_against_the_start() {
    let mut desk = desk(1, "");
    let (first, orders) = arrive(&mut desk, 0, timed(10));
    let run = attempt(&orders);
    arrive(&mut desk, 0, timed(3));
    arrive(&mut desk, 0, timed(30));
    // The first ends before its time, the second is started early.
    let orders = desk.free(at(4_000), freed(first, run, Ended::Done));
    let second = attempt(&orders);
    let counts = desk.status().counts;
    assert_eq!((counts.estimates.told, counts.estimates.kept), (1, 1));
    assert_eq!(counts.classes[0].estimates.early_seconds, 6.5);
    assert_eq!(counts.classes[0].waited_seconds, 4.0);
    // The second takes far longer than it may, which no estimate foresees: the third is late.
    desk.free(at(60_000), freed(Ticket(2), second, Ended::Done));
    let counts = desk.status().counts;
    assert_eq!((counts.estimates.told, counts.estimates.kept), (2, 1));
    assert_eq!(counts.classes[2].estimates.late_seconds, 46.0);
    assert_eq!(desk.status().kept_share, Some(0.5));
}

#[test]
fn a_run_that_is_over_changes_nothing_when_it_is_told_again() {
    let mut desk = desk(1, "");
    let (first, orders) = arrive(&mut desk, 0, timed(10));
    let run = attempt(&orders);
    // Lost before anybody saw anything: it runs again, and the old run is of no importance.
    let orders = desk.free(at(1_000), freed(first, run, Ended::Lost));
    let again = attempt(&orders);
    assert_ne!(run, again);
    for ended in [Ended::Done, Ended::Lost, Ended::Stuck] {
        assert_eq!(desk.free(at(2_000), freed(first, run, ended)), []);
    }
    assert_eq!(desk.status().running, 1);
    let seen = Freed { seen: true, ..freed(first, again, Ended::Lost) };
    assert_eq!(desk.free(at(3_000), seen), [Order::Lost(first)]);
    assert_eq!((desk.status().running, desk.status().remembered), (0, 0));
}

#[test]
fn a_task_runs_three_times_at_most() {
    let mut desk = desk(1, "");
    let (first, mut orders) = arrive(&mut desk, 0, timed(10));
    for (run, more) in [true, true, false].into_iter().enumerate() {
        let [Order::Start { attempt, again, .. }] = orders[..] else { panic!("{orders:?}") };
        assert_eq!(again, more, "run {run}");
        orders = desk.free(at(1_000), freed(first, attempt, Ended::Lost));
    }
    assert_eq!(orders, [Order::Lost(first)]);
}

#[test]
fn a_default_task_counts_where_it_waited_where_it_ran_and_where_it_was_lowered() {
    let mut desk = desk(1, "");
    let (first, orders) = arrive(&mut desk, 0, Ask::Default);
    let run = attempt(&orders);
    let (_, orders) = arrive(&mut desk, 1_000, timed(3));
    assert_eq!(orders, [Order::Limit(first, Duration::from_secs(3))]);
    desk.free(at(3_000), freed(first, run, Ended::Done));
    let classes = desk.status().counts.classes;
    assert_eq!((classes[0].admitted, classes[2].started, classes[2].lowered), (2, 1, 1));
    assert_eq!((classes[0].ended, classes[2].ended), (1, 0), "it ended as a fast one");
}

/// A task that should have ended has not: whoever comes then must not be told that it starts at once.
#[test]
fn a_newcomer_is_not_told_what_should_have_happened_already() {
    let mut desk = desk(1, "");
    arrive(&mut desk, 0, timed(10));
    let (second, orders) = arrive(&mut desk, 9_000, timed(3));
    assert_eq!(news(&orders), [(second, Some(1.5), 0)]);
    // The first was to be gone at 10.5 s, and the second to run until 14 s.
    let (third, orders) = arrive(&mut desk, 11_000, timed(3));
    assert_eq!(news(&orders), [(third, Some(0.5 + 3.5), 1)]);
}

/// Each `options` of a client was counted as a lowering, also one that said what was so already, and every shorter time as
/// one out of the class.
#[test]
fn only_what_takes_time_from_a_task_is_counted_as_lowered() {
    let mut desk = desk(4, "");
    let (ticket, _) = arrive(&mut desk, 0, timed(20));
    let counted = |desk: &Desk| {
        let counts = desk.status().counts;
        (counts.lowered, counts.classes.iter().map(|class| class.lowered).collect::<Vec<_>>())
    };
    let mut lower = |seconds| desk.lower(at(100), ticket, Span::from_secs(seconds)).unwrap();
    assert_eq!(lower(20), []);
    assert_eq!(lower(15), [Order::Limit(ticket, Duration::from_secs(15))]);
    assert_eq!(lower(15), []);
    assert_eq!(lower(10), [Order::Limit(ticket, Duration::from_secs(10))]);
    assert_eq!(counted(&desk), (2, vec![0, 0, 1]));
    // A default task of the pool's choice may have less than its client would have let it.
    let (default, _) = arrive(&mut desk, 200, Ask::Default);
    assert_eq!(desk.lower(at(300), default, Span::from_secs(30)), Ok(vec![]));
    assert_eq!(counted(&desk), (2, vec![0, 0, 1]));
}

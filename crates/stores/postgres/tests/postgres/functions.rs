//! Tests of single SQL functions.

use taskyard_core::{Command, Kind, TubeOptions};

use taskyard_testkit::calls::{ask, make_tube, put};
use taskyard_testkit::postgres::{Database, check_counts, run, sql};

// A tick searched each tube for its next timer: with ten thousand empty tubes that took a third of a second.
#[test]
fn a_tick_searches_only_tubes_with_timers() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let url = database.url();
        let of = |rows: &str| {
            let first = "SELECT string_agg(n || ':' || m, ' ' ORDER BY n) FROM (SELECT";
            sql(&url, &format!("{first} number AS n, min(timer) AS m FROM {rows} GROUP BY 1) f"))
        };
        let timed = || of("taskyard.first_timers(NULL)");
        let truly =
            || of("(SELECT tube AS number, timer FROM taskyard.task WHERE timer IS NOT NULL) t");
        assert_eq!(timed(), None);
        sql(
            &url,
            "SELECT taskyard.create_tube(n, 'fifottl', false, NULL, NULL, NULL, NULL, 0, NULL, false, \
                false, 100) FROM unnest('{never,delayed,expires,taken,both,empty}'::text[]) n",
        );
        sql(
            &url,
            "SELECT taskyard.put(t, '1') FROM unnest('{never,taken,both}'::text[]) t;
             SELECT taskyard.put('delayed', '1', delay => '1 hour');
             SELECT taskyard.put('expires', '1', ttl => '1 hour'),
                taskyard.put('both', '1', ttl => '1 hour');
             SELECT taskyard.take_tasks(t, NULL, 1, NULL, 60000000, 1000, NULL, NULL, true)
                FROM unnest('{taken,both}'::text[]) t",
        );
        assert_eq!(timed(), truly());
        assert_eq!(of("taskyard.first_timers(0)"), truly(), "from a moment on it is the same");
        let count = sql(&url, "SELECT count(DISTINCT number) FROM taskyard.first_timers(NULL)");
        assert_eq!(count.as_deref(), Some("4"));
    });
}

// A take that ended because its answer was full did not report that there was more: waiting callers were not woken, and
// the next take assumed that no task was left before it. And the tasks behind the hint did not count, so that an answer could
// have twice the limit.
#[test]
fn a_take_that_is_cut_short_reports_it() {
    run(async {
        let database = Database::new();
        let store = database.open();
        make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let url = database.url();
        let hundred = "SELECT taskyard.put_raw('mail', decode(repeat('c0', 100), 'hex')) \
            FROM generate_series(1, 10)";
        sql(&url, hundred);
        let take = |from: &str| {
            let text = format!(
                "SELECT string_agg(id::text, ',' ORDER BY id) FILTER (WHERE status = 0) || ' ' || \
                    count(*) FILTER (WHERE status = 3) \
                 FROM taskyard.deliver_tasks('mail', NULL, 10, NULL, NULL, 350, {from}, true)"
            );
            sql(&url, &text).expect("there is an answer")
        };
        let first = (-9223372036854775808_i64).to_string();
        assert_eq!(take(&format!("{first}, 8")), "0,8,9 1", "two at the hint and one before");
        assert_eq!(take("NULL, NULL"), "1,2,3 1");
        assert_eq!(take("NULL, NULL"), "4,5,6 1");
        assert_eq!(take("NULL, NULL"), "7 0");
        check_counts(&url);
    });
}

// Calls that changed nothing wrote a row of counts nevertheless, and each row had to be added up later.
#[test]
fn calls_that_change_nothing_write_no_counts() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        ask(&store, put(&tube, 1)).expect("it is put");
        let rows = || sql(&database.url(), "SELECT count(*) FROM taskyard.count");
        assert_eq!(rows().as_deref(), Some("1"));
        sql(
            &database.url(),
            "SELECT taskyard.kick_tasks('mail', 5);
             SELECT taskyard.delete_tasks('mail', 0, '{77}', false, 1000);
             SELECT taskyard.finish_tasks('mail', 0, '{0}', NULL, '{99}', NULL, '{1}', '{0}', '{true}', \
                false, 0);
             SELECT taskyard.release_deliveries(ARRAY[number], '{0}', '{99}', 5, NULL, NULL, 0) FROM taskyard.tube;
             SELECT taskyard.tick(0, 10, NULL)",
        );
        assert_eq!(ask(&store, Command::Tick { limit: 10, seed: 0 }).err(), None);
        assert_eq!(rows().as_deref(), Some("1"));
    });
}

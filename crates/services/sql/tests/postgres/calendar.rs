//! Compares the calendar of the core with that of the database.

use taskyard_core::Timestamp;
use taskyard_core::schedule::{Cron, Interval};
use taskyard_core::service::Service as _;
use taskyard_timezone::NamedZone;

use crate::fixture::{Client, Fixture, database, run};

/// Random sums as numbers: the timestamp, the parts of the interval, and the result of the database.
const SUMS: &str = "SELECT string_agg(concat_ws(' ', at, months, days, micros, round(extract(epoch FROM \
    to_timestamp(at / 1000000) + make_interval(months => months, days => days, secs => micros / 1000000)) * 1000000)::bigint), ',') \
    FROM (SELECT 1577836800000000 + floor(random() * 5000000)::bigint * 60000000 AS at, floor(random() * 30 - 10)::int AS months, \
    floor(random() * 80 - 20)::int AS days, floor(random() * 90000)::bigint * 1000000 AS micros FROM generate_series(1, 1000)) x";

#[test]
fn timestamps_and_intervals_add_up_as_in_the_database() {
    run(async {
        let client = Client::new(&database("postgres", "postgres")).await;
        for name in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"] {
            client.run(&format!("SET TimeZone = '{name}'")).await;
            let zone = NamedZone::find(name).expect("every database has it");
            client.run("SELECT setseed(0.25)").await;
            let sums = client.get(SUMS).await.expect("sums");
            for sum in sums.split(',') {
                let numbers: Vec<i64> =
                    sum.split(' ').map(|word| word.parse().expect(sum)).collect();
                let [at, months, days, micros, expected] = numbers[..] else { panic!("{sum}") };
                let interval = Interval { months: months as i32, days: days as i32, micros };
                let got = interval.after(Timestamp::from_micros(at), &zone).as_micros();
                assert_eq!(got, expected, "{name}: {sum}");
            }
        }
    });
}

/// Timestamps around changes of clocks and at other times, in microseconds: every 17 minutes for two days, then every 11 days.
const MOMENTS: &str = "SELECT string_agg(concat_ws(' ', at, round(extract(epoch FROM {schema}.taskyard_cron_next('{cron}', '{zone}', \
    to_timestamp(at / 1000000.0))) * 1000000)::bigint), ',') FROM (SELECT start + i::bigint * 1020000000 AS at FROM \
    unnest(ARRAY[1774656000000000, 1792800000000000]) AS start, generate_series(1, 170) AS i \
    UNION ALL SELECT 1767225600000001 + i::bigint * 950400000000 FROM generate_series(1, 40) AS i) x";

#[test]
fn database_and_scheduler_compute_the_same_cron_times() {
    // The first run of a row is planned by the database, all others by the scheduler.
    run(async {
        let fixture = Fixture::new().await;
        for (cron, name) in [
            ("30 2 * * *", "Europe/Berlin"),
            ("*/20 * * * *", "Europe/Berlin"),
            ("15 1-3 * * *", "Australia/Lord_Howe"),
            ("30 0 2 29 2 *", "America/New_York"),
            ("0 12 13 * fri", "UTC"),
            ("10/25 9 */7 jan-mar,oct mon", "Europe/Berlin"),
        ] {
            let zone = NamedZone::find(name).expect("every database has it");
            let rule = Cron::parse(cron).expect("a rule");
            let sql = MOMENTS.replace("{schema}", &fixture.schema);
            let sql = sql.replace("{cron}", cron).replace("{zone}", name);
            let pairs = fixture.get(&sql).await.expect("times");
            for pair in pairs.split(',') {
                let numbers: Vec<i64> =
                    pair.split(' ').map(|word| word.parse().expect(pair)).collect();
                let next = rule.next(Timestamp::from_micros(numbers[0]), &zone);
                let next = next.map(Timestamp::as_micros);
                assert_eq!(next, numbers.get(1).copied(), "{cron} in {name} after {}", numbers[0]);
            }
        }
        fixture.stop().await;
    });
}

#[test]
fn functions_of_an_earlier_version_are_replaced() {
    // They left out the times of the repeated hour after its first occurrence.
    run(async {
        let fixture = Fixture::new().await;
        fixture.stop().await;
        let next = format!("{}.taskyard_cron_next", fixture.schema);
        fixture
            .run(&format!(
                "CREATE OR REPLACE FUNCTION {next}(cron text, zone text, moment timestamptz) \
                 RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'"
            ))
            .await;
        let again = crate::fixture::start(&fixture.schema, "");
        let found = format!(
            "{next}('*/20 * * * *', 'Europe/Berlin', '2026-10-25 00:56Z') = '2026-10-25 01:00Z'"
        );
        fixture.until(&found).await;
        again.stop().await;
    });
}

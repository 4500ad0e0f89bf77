//! The core's calendar beside the database's.

use taskyard_core::Timestamp;
use taskyard_core::schedule::Interval;
use taskyard_sql::zone::Named;

use crate::rig::{Client, database, run};

/// Random sums as numbers: the moment, the parts of the interval, and what the database makes of them.
const SUMS: &str = "SELECT string_agg(concat_ws(' ', at, months, days, micros, round(extract(epoch FROM \
    to_timestamp(at / 1000000) + make_interval(months => months, days => days, secs => micros / 1000000)) * 1000000)::bigint), ',') \
    FROM (SELECT 1577836800000000 + floor(random() * 5000000)::bigint * 60000000 AS at, floor(random() * 30 - 10)::int AS months, \
    floor(random() * 80 - 20)::int AS days, floor(random() * 90000)::bigint * 1000000 AS micros FROM generate_series(1, 1000)) x";

#[test]
fn moments_and_intervals_add_up_as_in_the_database() {
    run(async {
        let client = Client::new(&database("postgres", "postgres")).await;
        for name in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"] {
            client.run(&format!("SET TimeZone = '{name}'")).await;
            let zone = Named::find(name).expect("it is in every table");
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

//! Interleaves two calls on one semaphore: one is stopped at each step of its call while the other runs.
//!
//! The steps are found by instrumentation: a call of `step` is added behind every statement of every function of
//! semaphores, and triggers call it before every row that is written and once more at the commit. Statements have a
//! snapshot each, so the data may change between two of them. A call that runs alone counts its steps; then it runs once for
//! each of them.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use taskyard_conformance::block_on;
use taskyard_conformance::random::{new_seed, runs};
use taskyard_conformance::semaphores::pair::{PAIRS, Pair};
use taskyard_core::{Command, Error, Execute, Reply};
use taskyard_store::Store;
use taskyard_store_postgres::{Clock, PostgresStore};
use tokio_postgres::Client;

use taskyard_testkit::calls::NOW;
use taskyard_testkit::postgres::{Database, cluster, connect, run, runtime};

/// `stop` has the side that counts its steps, and the step at which it waits for the lock 1; with 0 it only records them.
/// Waits have no timeout, which would depend on the speed of the machine.
const STEPS: &str = "
CREATE TABLE public.stop AS SELECT ''::text AS side, 0::bigint AS at;
CREATE SEQUENCE public.steps;
CREATE TABLE public.passed (place bigint, what text);
CREATE FUNCTION public.step(_what text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _side text := current_setting('test.side', true);
    _at bigint;
    _place bigint;
BEGIN
    IF _side IS NULL THEN
        RETURN true;
    END IF;
    PERFORM set_config('lock_timeout', '0', true);
    SELECT s.at INTO _at FROM public.stop s WHERE s.side = _side;
    IF FOUND THEN
        _place := nextval('public.steps');
        IF _at = 0 THEN
            INSERT INTO public.passed VALUES (_place, _what);
        ELSIF _at = _place THEN
            PERFORM pg_advisory_xact_lock_shared(1);
        END IF;
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION public.step_written() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- One step for all that is left to the commit.
    IF TG_WHEN = 'BEFORE' OR coalesce(current_setting('test.ends', true), '') = '' THEN
        PERFORM set_config('test.ends', CASE TG_WHEN WHEN 'AFTER' THEN 'now' ELSE '' END, true);
        PERFORM public.step(TG_WHEN || ' ' || TG_OP || ' ' || TG_TABLE_NAME);
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;
DO $$
DECLARE
    _table regclass;
BEGIN
    FOR _table IN SELECT c.oid FROM pg_class c
        WHERE c.relnamespace = 'taskyard'::regnamespace AND c.relkind = 'r' AND c.relname LIKE 'semaphore%'
    LOOP
        EXECUTE format('CREATE TRIGGER step BEFORE INSERT OR UPDATE OR DELETE ON %s
            FOR EACH ROW EXECUTE FUNCTION public.step_written()', _table);
        EXECUTE format('CREATE CONSTRAINT TRIGGER step_commit AFTER INSERT OR UPDATE OR DELETE ON %s
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.step_written()', _table);
    END LOOP;
END $$;
";

/// The functions whose statements are steps. Functions that change nothing run with the snapshot of their caller.
const FUNCTIONS: &str = "
SELECT p.proname::text, pg_get_functiondef(p.oid), p.prosrc FROM pg_proc p
WHERE p.pronamespace = 'taskyard'::regnamespace AND p.proname LIKE 'semaphore%' AND p.provolatile = 'v'
    AND p.prolang = (SELECT l.oid FROM pg_language l WHERE l.lanname = 'plpgsql')";

/// The text of a function with a step at its beginning and behind each statement that queries the database. A step is an
/// assertion, because it does not change FOUND.
fn with_steps(name: &str, text: &str) -> String {
    const ASKS: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "PERFORM"];
    let (mut out, mut depth, mut count) = (String::new(), 0, 0);
    let (mut inside, mut asks) = (false, false);
    for line in text.lines() {
        // A text in quotes with one of these in it would make a function that does not compile.
        let code = line.split("--").next().unwrap_or_default().trim_end();
        out.push_str(code);
        depth += code.matches('(').count();
        depth -= code.matches(')').count();
        asks |= ASKS.iter().any(|word| code.contains(word));
        let begins = !inside && code == "BEGIN";
        inside |= begins;
        if begins || (inside && asks && depth == 0 && code.ends_with(';')) {
            count += 1;
            out.push_str(&format!(" ASSERT public.step('{name} {count}');"));
            asks = false;
        }
        out.push('\n');
    }
    out
}

/// A server whose connections have a name.
struct Side(Arc<PostgresStore>);

impl Execute for Side {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.0.execute(NOW, commands).await.replies
    }
}

type Answers = Vec<Result<Reply, Error>>;

impl Side {
    fn open(database: &Database, name: &str) -> Self {
        let url = format!("{}?options=-c%20test.side%3D{name}", database.url());
        Side(Arc::new(PostgresStore::open(&url, Clock::Caller).expect("the store opens")))
    }

    /// Calls on a thread of its own.
    fn call(&self, commands: Vec<Command>) -> JoinHandle<Answers> {
        let store = self.0.clone();
        thread::spawn(move || block_on(store.execute(NOW, commands)).replies)
    }
}

/// Two servers, a connection that stops them, and a server that is never stopped.
struct Stage {
    sides: [Side; 2],
    audience: Side,
    director: Client,
    _database: Database,
}

const NAMES: [&str; 2] = ["one", "other"];

impl Stage {
    /// `change` may change the text of the functions.
    async fn new(change: impl Fn(String) -> String) -> Self {
        // Other tests must not reuse this database: it is instrumented.
        let database = Database::on(cluster());
        let audience = Side(Arc::new(database.open()));
        let director = connect(&database.url()).await;
        director.batch_execute(STEPS).await.expect("there are steps");
        for row in director.query(FUNCTIONS, &[]).await.expect("there are functions") {
            let (name, whole, text): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let whole = change(whole.replace(text, &with_steps(name, text)));
            director
                .batch_execute(&whole)
                .await
                .unwrap_or_else(|error| panic!("{whole}: {error:?}"));
        }
        let sides = NAMES.map(|name| Side::open(&database, name));
        Stage { sides, audience, director, _database: database }
    }

    async fn direct(&self, text: &str) {
        self.director.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }

    /// Lets this side count its steps, and stop at one of them until the lock is released.
    async fn stop(&self, side: usize, at: usize) {
        let name = NAMES[side];
        self.direct(&format!(
            "UPDATE public.stop SET side = '{name}', at = {at}; \
             SELECT setval('public.steps', 1, false), pg_advisory_lock(1)"
        ))
        .await;
    }

    /// Waits until this number of sessions wait for a lock, or the call is over.
    async fn wait(&self, count: i64, call: &JoinHandle<Answers>) {
        let waiting = "SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                       WHERE NOT l.granted AND a.datname = current_database()";
        while !call.is_finished() {
            let row = self.director.query_one(waiting, &[]).await.expect("it can be asked");
            if row.get::<_, i64>(0) >= count {
                return;
            }
        }
    }

    /// The steps of the call of one side, when it runs alone.
    async fn steps(&self, pair: &Pair, side: usize, name: &str) -> Vec<String> {
        let calls = pair.prepare(&self.audience, name).await;
        self.direct("TRUNCATE public.passed").await;
        self.stop(side, 0).await;
        self.sides[side].execute(calls[side].clone()).await;
        self.direct("SELECT pg_advisory_unlock(1)").await;
        let passed = "SELECT what FROM public.passed ORDER BY place";
        let rows = self.director.query(passed, &[]).await.expect("it is written down");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Stops one side at a step, lets the other do what it can, and then both go on.
    async fn meet(&self, pair: &Pair, side: usize, at: usize, name: &str) -> Result<(), String> {
        let calls = pair.prepare(&self.audience, name).await;
        self.stop(side, at).await;
        let stopped = self.sides[side].call(calls[side].clone());
        self.wait(1, &stopped).await;
        assert!(!stopped.is_finished(), "{}: step {at} of call {side} was not reached", pair.name);
        let whole = self.sides[1 - side].call(calls[1 - side].clone());
        self.wait(2, &whole).await;
        self.direct("SELECT pg_advisory_unlock(1)").await;
        self.judge(pair, side, [stopped, whole], name).await
    }

    /// A third connection holds rows that both need, until one after the other waits for them.
    async fn interleave_locked(
        &self,
        pair: &Pair,
        side: usize,
        table: &str,
        name: &str,
    ) -> Result<(), String> {
        let calls = pair.prepare(&self.audience, name).await;
        self.direct("UPDATE public.stop SET side = ''").await;
        self.direct(&format!("BEGIN; SELECT * FROM taskyard.{table} FOR UPDATE")).await;
        let first = self.sides[side].call(calls[side].clone());
        self.wait(1, &first).await;
        let second = self.sides[1 - side].call(calls[1 - side].clone());
        let count = if first.is_finished() { 1 } else { 2 };
        self.wait(count, &second).await;
        self.direct("COMMIT").await;
        self.judge(pair, side, [first, second], name).await
    }

    /// The inconsistency when both are done, if there is one.
    async fn judge(
        &self,
        pair: &Pair,
        side: usize,
        calls: [JoinHandle<Answers>; 2],
        name: &str,
    ) -> Result<(), String> {
        let [first, second] = calls.map(|call| call.join().expect("no call fails"));
        let answers = if side == 0 { [first, second] } else { [second, first] };
        let audit = "SELECT * FROM taskyard.semaphore_audit WHERE key = $1";
        let wrong = self.director.query(audit, &[&name]).await.expect("it can be asked");
        let seen = pair.observe(&self.audience, name, answers).await;
        match pair.order(NOW, name, &seen).await {
            None => Err(format!("neither order gives {seen:#?}")),
            Some(_) if !wrong.is_empty() => Err(format!("{wrong:?} is wrong in {seen:#?}")),
            Some(_) => Ok(()),
        }
    }
}

/// The steps that a run tries.
#[derive(Clone, Copy)]
struct StepSample {
    /// The first of them, below the distance.
    first: usize,
    /// The distance between two of them.
    distance: usize,
}

impl StepSample {
    /// All steps.
    const ALL: Self = StepSample { first: 0, distance: 1 };
    /// The distance in a run of default length.
    const DISTANCE: usize = 4;

    /// The steps of this run, which `TASKYARD_SEED` repeats.
    fn new() -> Self {
        let distance = (Self::DISTANCE / runs().max(1)).max(1);
        StepSample { first: new_seed() as usize % distance, distance }
    }
}

/// Interleaves the calls of a pair at these steps of either; returns the results.
async fn interleave(stage: &Stage, number: usize, sample: StepSample) -> Vec<Result<(), String>> {
    let (pair, mut met) = (&PAIRS[number], Vec::new());
    for side in [0, 1] {
        let steps = stage.steps(pair, side, &format!("alone {number} {side}")).await;
        for (place, step) in steps.iter().enumerate().skip(sample.first).step_by(sample.distance) {
            let name = format!("steps {number} {side} {place}");
            let story = format!("{}, call {side} stopped at {step}", pair.name);
            let how = stage.meet(pair, side, place + 1, &name).await;
            met.push(how.map_err(|wrong| format!("{story}: {wrong}")));
        }
    }
    met
}

/// Wherever two calls are interleaved, the result is the same as of one call after the other: no place is given twice or lost,
/// and no event. One run tries a part of the steps, another one in each run; `TASKYARD_RUNS` multiplies it.
#[test]
fn two_calls_interleaved_at_every_step() {
    let _runtime = runtime().enter();
    run(async {
        let stage = Stage::new(|text| text).await;
        let steps = StepSample::new();
        let mut meetings = 0;
        for number in 0..PAIRS.len() {
            for how in interleave(&stage, number, steps).await {
                how.unwrap_or_else(|wrong| panic!("{wrong}"));
                meetings += 1;
            }
        }
        assert!(
            meetings * steps.distance > 20 * PAIRS.len(),
            "too few steps: {meetings} in all, and one of {} was tried",
            steps.distance
        );
    });
}

/// The test detects calls that do not lock their semaphore.
#[test]
fn missing_locks_are_detected() {
    let _runtime = runtime().enter();
    run(async {
        let stage = Stage::new(|text| text.replace("FOR UPDATE;", ";")).await;
        let met = interleave(&stage, 0, StepSample::ALL).await;
        assert!(met.iter().any(Result::is_err), "no interleaving failed");
    });
}

/// Rows that a call locks without changing them are no step: here a third connection holds them.
#[test]
fn two_calls_that_wait_for_the_same_rows() {
    let _runtime = runtime().enter();
    run(async {
        let stage = Stage::new(|text| text).await;
        for (number, pair) in PAIRS.iter().enumerate() {
            for table in ["semaphore", "semaphore_state", "semaphore_task", "semaphore_event"] {
                for side in [0, 1] {
                    let name = format!("{table} {number} {side}");
                    let how = stage.interleave_locked(pair, side, table, &name).await;
                    how.unwrap_or_else(|wrong| {
                        panic!("{}, {table} held, {side} first: {wrong}", pair.name)
                    });
                }
            }
        }
    });
}

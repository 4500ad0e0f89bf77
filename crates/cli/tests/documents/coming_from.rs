//! The pages about other queues: the work moves over from the other system, or from the data that it leaves in its database.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use taskyard_testkit::free_port;

use crate::document_run::{DocumentRun, document_tests};

document_tests! {
    beanstalkd: "docs/coming-from/beanstalkd.md", beanstalkd_steps;
    bullmq: "docs/coming-from/bullmq.md", bullmq_steps;
    celery: "docs/coming-from/celery.md", celery_steps;
    graphile_worker: "docs/coming-from/graphile-worker.md", graphile_steps;
    pg_task: "docs/coming-from/pg_task.md", pg_task_steps;
    river: "docs/coming-from/river.md", river_steps;
    sidekiq: "docs/coming-from/sidekiq.md", sidekiq_steps;
    sqs: "docs/coming-from/sqs.md", sqs_steps;
    tarantool_queue: "docs/coming-from/tarantool-queue.md", tarantool_steps;
}

impl DocumentRun {
    /// The tasks of the tube `mail`, each as its state and payload, in the order of their ids; of a delayed task also the tens of
    /// minutes until it is due.
    fn mail(&self) -> Vec<String> {
        // There is no tube before the first put.
        let printed = self.succeed("taskyard tasks mail --json 2> none || true");
        let task = |line: &str| {
            let task: Value = serde_json::from_str(line).expect("a task is a line of JSON");
            let state = task["state"].as_str().expect("a task has a state");
            if state != "delayed" {
                return format!("{state} {}", task["data"]);
            }
            let due = UNIX_EPOCH + Duration::from_secs_f64(task["due"].as_f64().expect("a time"));
            let left = due.duration_since(SystemTime::now()).expect("it is not due").as_secs_f64();
            format!("{state} {} min {}", (left / 600.0).round() * 10.0, task["data"])
        };
        printed.lines().map(task).collect()
    }
}

const OLD_BEANSTALK: &str = r#"
import greenstalk
with greenstalk.Client(("127.0.0.1", 11300), use="mail") as old:
    for to, pri in [("ann", 10), ("bob", 5), ("cy", 20)]:
        old.put('{"to": "%s"}' % to, priority=pri)
    old.watch("mail")
    old.bury(old.reserve(), priority=5)
    old.put('{"to": "dan"}', delay=3600)
"#;

fn beanstalkd_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_python()?;
    document.program_or_skip("beanstalkd")?;
    let port = free_port();
    document.rename("11300", port.to_string());
    document.start_program(&format!("beanstalkd -V -l 127.0.0.1 -p {port}"), "");
    document.serve();
    document.write("old.py", &document.named_as_here(OLD_BEANSTALK));
    document.succeed("python old.py");
    document.program("python", "python forward.py");
    assert_eq!(document.mail()[0], "delayed 60 min {\"to\":\"dan\"}");
    assert_eq!(document.mail().len(), 4);
    Some(())
}

const OLD_BULLMQ: &str = r#"
import { Queue } from "bullmq";
const queue = new Queue("mail", { connection: { host: "127.0.0.1", port: 6379 } });
const options = { removeOnComplete: true };
for (const id of [1, 2, 3]) await queue.add("send", { to: "ann" }, { ...options, jobId: `job-${id}` });
await queue.add("send", { to: "bob" }, { ...options, jobId: "job-4", delay: 3600000 });
await queue.close();
"#;

/// A job that was forwarded and not acknowledged is forwarded again: here they are all added again.
fn bullmq_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_node()?;
    let port = document.with_redis("port: 6379", "port: PORT")?;
    document.rename("concurrency: 50", "concurrency: 1");
    document.serve();
    document.write("old.mjs", &document.named_as_here(OLD_BULLMQ));
    document.file("js", "forward.mjs");
    let shown = document.next(&["text"]).text.replace('\n', "\njob-");
    let shown = format!("job-{}", shown.trim_end_matches("job-"));
    for is_again in [false, true] {
        document.succeed("node old.mjs");
        let shown =
            if is_again { shown.replace("' }", "', existing: true }") } else { shown.clone() };
        document.start_program("node forward.mjs", &shown);
        document.until("the jobs are acknowledged", |document| {
            let active = document.succeed(&format!("redis-cli -p {port} llen bull:mail:active"));
            active.trim() == "0"
        });
        document.kill_program();
    }
    assert_eq!(document.mail()[0], "delayed 60 min {\"to\":\"bob\"}");
    assert_eq!(document.mail().len(), 4);
    Some(())
}

const TASKS: &str = r#"
import taskyard
app = taskyard.App()
@app.task("mail")
def send(to: str) -> None: ...
"#;

const OLD_CELERY: &str = r#"
from celery import Celery
app = Celery("old", broker="redis://127.0.0.1:6379/1")
for to in ["ann", "bob"]:
    app.send_task("mail.send", args=[to])
app.send_task("mail.send", args=["cy"], countdown=3600)
app.send_task("images.resize", args=["x"])
"#;

fn celery_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_python()?;
    let port = document.with_redis("127.0.0.1:6379", "127.0.0.1:PORT")?;
    document.serve();
    document.write("tasks.py", TASKS);
    document.write("old.py", &document.named_as_here(OLD_CELERY));
    document.succeed("python old.py");
    document.program("python", "python forward.py");
    let moved =
        ["ready {\"to\":\"ann\"}", "ready {\"to\":\"bob\"}", "delayed 60 min {\"to\":\"cy\"}"];
    assert_eq!(document.mail(), moved);
    // The message of another task stays.
    let left = document.succeed(&format!("redis-cli -p {port} -n 1 llen celery"));
    assert_eq!(left.trim(), "1");
    Some(())
}

const OLD_GRAPHILE: &str = r#"
import { makeWorkerUtils } from "graphile-worker";
const utils = await makeWorkerUtils({ connectionString: "postgres://shop@127.0.0.1/shop" });
await utils.migrate();
const runAt = new Date(Date.now() + 3600000);
await utils.addJob("send_email", { to: "ann" }, { priority: 3 });
await utils.addJob("send_email", { to: "bob" }, { priority: 3, runAt });
await utils.addJob("resize", { to: "cy" }, { runAt });
const failed = await utils.addJob("send_email", { to: "dan" }, { maxAttempts: 1, runAt });
await utils.permanentlyFailJobs([failed.id]);
await utils.release();
"#;

fn graphile_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_node()?;
    document.with_postgres()?;
    document.serve();
    document.write("old.mjs", &document.named_as_here(OLD_GRAPHILE));
    document.succeed("node old.mjs");
    document.file("js", "forward.mjs");
    document.start_program(
        "node forward.mjs",
        "2 { id: 0, state: 'delayed' }\n1 { id: 1, state: 'ready' }",
    );
    assert_eq!(document.mail(), ["delayed 60 min {\"to\":\"bob\"}", "ready {\"to\":\"ann\"}"]);
    // The failed job and that of another task stay.
    document.until("the forwarded jobs are removed", |document| {
        let jobs = "psql -At -c 'SELECT string_agg(id::text, chr(44) ORDER BY id) FROM graphile_worker.jobs'";
        document.succeed(jobs).trim() == "3,4"
    });
    Some(())
}

/// The relevant parts of a table of pg_task: columns, defaults that need its settings, its trigger.
const OLD_PG_TASK: &str = r#"
CREATE TYPE state AS ENUM ('PLAN', 'GONE', 'TAKE', 'WORK', 'DONE', 'FAIL', 'STOP');
SET pg_task.active = '1 hour'; SET pg_task.max = 0; SET "pg_task.null" = '\N'; SET pg_task.repeat = '0 sec';
CREATE TABLE task (id bigserial PRIMARY KEY, parent bigint, plan timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
    start timestamptz, stop timestamptz, active interval NOT NULL DEFAULT current_setting('pg_task.active')::interval,
    repeat interval NOT NULL DEFAULT current_setting('pg_task.repeat')::interval,
    max integer NOT NULL DEFAULT current_setting('pg_task.max')::integer, pid integer,
    state state NOT NULL DEFAULT 'PLAN', error text, "group" text NOT NULL DEFAULT 'group', input text NOT NULL,
    "null" text NOT NULL DEFAULT current_setting('pg_task.null'), output text, remote text);
CREATE FUNCTION wake_up() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''permission denied''; END';
INSERT INTO task (input, plan, repeat, state, pid, output, error) VALUES
    ('SELECT now()', now(), '0 sec', 'PLAN', NULL, NULL, NULL),
    ('SELECT 2', now() + interval '1 day', '0 sec', 'PLAN', NULL, NULL, NULL),
    ('SELECT 3', now(), '5 min', 'PLAN', NULL, NULL, NULL),
    ('SELECT 4', now(), '0 sec', 'WORK', 999999, NULL, NULL),
    ('SELECT 5', now(), '0 sec', 'FAIL', NULL, NULL, 'old error'),
    ('SELECT 6', now(), '0 sec', 'DONE', NULL, '6', NULL);
CREATE TRIGGER wake_up AFTER INSERT ON task FOR EACH STATEMENT EXECUTE PROCEDURE wake_up();
CREATE INDEX ON task (input);
"#;

fn pg_task_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_postgres()?;
    document.write("old.sql", OLD_PG_TASK);
    document.succeed("psql -v ON_ERROR_STOP=1 -f old.sql");
    document.run();
    let refused = "psql -c \"INSERT INTO task (input) VALUES ('SELECT 0')\" || true";
    assert!(document.succeed(refused).contains("unrecognized configuration parameter \"pg_task."));
    let upgrade = document.next(&["sh"]).text;
    let (scheduler, insert) = upgrade.split_once('\n').expect("two commands");
    document.start_program(scheduler, "");
    document.until("the first task repeats", |document| {
        document.succeed("psql -At -c 'SELECT count(*) FROM task'").trim() == "7"
    });
    document.succeed(insert);
    document.run_until();
    Some(())
}

/// What the migrations of River make of the table, as far as a move needs it.
const OLD_RIVER: &str = r#"
CREATE TYPE river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
CREATE TABLE river_job (id bigserial PRIMARY KEY, state river_job_state NOT NULL DEFAULT 'available',
    attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL DEFAULT 25, attempted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(), finalized_at timestamptz, scheduled_at timestamptz NOT NULL DEFAULT now(),
    priority smallint NOT NULL DEFAULT 1, args jsonb NOT NULL DEFAULT '{}', kind text NOT NULL,
    queue text NOT NULL DEFAULT 'default');
INSERT INTO river_job (state, kind, args, scheduled_at, priority) VALUES
    ('available', 'mail', '{"to": "ann"}', now(), 1), ('scheduled', 'mail', '{"to": "bob"}', now() + interval '1 hour', 1),
    ('running', 'mail', '{"to": "cy"}', now(), 1), ('available', 'other', '{}', now(), 1),
    ('retryable', 'mail', '{"to": "dan"}', now() + interval '30 minutes', 4), ('pending', 'mail', '{"to": "eve"}', now(), 1), ('completed', 'mail', '{}', now(), 1);
"#;

fn river_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_postgres()?;
    document.restart("--store postgres://shop@db/shop");
    document.succeed("taskyard tube create mail");
    document.write("old.sql", OLD_RIVER);
    document.succeed("psql -v ON_ERROR_STOP=1 -f old.sql");
    document.sql();
    let moved = [
        "ready {\"to\":\"ann\"}",
        "delayed 60 min {\"to\":\"bob\"}",
        "delayed 30 min {\"to\":\"dan\"}",
    ];
    assert_eq!(document.mail(), moved);
    let left = document.succeed(
        "psql -At -c \"SELECT string_agg(state || ' ' || kind, ', ' ORDER BY id) FROM river_job\"",
    );
    assert_eq!(left.trim(), "running mail, available other, pending mail, completed mail");
    Some(())
}

/// Jobs as Sidekiq writes them.
const OLD_SIDEKIQ: &str = r#"
import json, time
import redis
old = redis.Redis(host="127.0.0.1", port=6379)
def job(to: str, queue: str = "mail") -> str:
    return json.dumps({"retry": True, "queue": queue, "args": [to], "class": "MailJob", "jid": f"{to:0>24}", "created_at": 1795063688.3})
old.zadd("schedule", {job("cy"): time.time() + 3600, job("other", "images"): time.time() + 3600})
old.zadd("retry", {job("dan"): time.time() - 60})
for to in ["ann", "bob"]:
    old.lpush("queue:mail", job(to))
"#;

fn sidekiq_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_python()?;
    document.with_redis("port=6379", "port=PORT")?;
    document.serve();
    document.write("old.py", &document.named_as_here(OLD_SIDEKIQ));
    document.succeed("python old.py");
    document.program("python", "python forward.py");
    assert_eq!(document.mail()[0], "delayed 60 min {\"to\":\"cy\"}");
    // The job of the other queue stays.
    let left = "python -c 'import redis; print(redis.Redis(port=6379).zcard(\"schedule\"))'";
    assert_eq!(document.succeed(left).trim(), "1");
    Some(())
}

/// Runs a program with a substitute of SQS that has a queue with messages.
const OLD_SQS: &str = r#"
import runpy
import boto3, moto
with moto.mock_aws():
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="mail")["QueueUrl"]
    for to in ["ann", "bob"]:
        sqs.send_message(QueueUrl=url, MessageBody='{"to": "%s"}' % to)
    runpy.run_path("forward.py")
"#;

fn sqs_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_python()?;
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        document.set(name, "none");
    }
    document.set("AWS_DEFAULT_REGION", "eu-central-1");
    document.rename("WaitTimeSeconds=20", "WaitTimeSeconds=0");
    document.serve();
    document.write("old.py", OLD_SQS);
    document.file("python", "forward.py");
    let shown = document.next(&["text"]).text;
    assert_eq!(document.succeed("python old.py"), shown);
    document.serve_anew();
    document.run();
    Some(())
}

/// Tubes of all kinds but one, with tasks in all states.
const OLD_QUEUE: &str = "
queue.create_tube('imports', 'utubettl', {})
queue.create_tube('lim', 'limfifottl', {capacity = 5})
queue.create_tube('mail', 'fifottl', {})
queue.create_tube('plain', 'fifo', {})
for _, name in ipairs({'a', 'b'}) do queue.tube.imports:put(name, {utube = name}) end
queue.tube.lim:put('x')
for n = 1, 6 do queue.tube.mail:put({to = n}, {pri = n}) end
queue.tube.mail:bury(0)
queue.tube.mail:put('later', {delay = 3600})
for n = 1, 3 do queue.tube.plain:put(n) end
";

/// Without the module, a substitute has what its documentation says.
fn tarantool_steps(document: &mut DocumentRun) -> Option<()> {
    let tarantool = document.with_tarantool("app:secret", "127.0.0.1:3302")?;
    // A terminal shows the progress of a copy, and then its end in its place.
    document.rename("--to sqlite:new", "--to sqlite:new 2>progress");
    tarantool.load_queue();
    tarantool.talk(OLD_QUEUE);
    document.run();
    document.stop_server();
    document.run();
    document.restart("--data new");
    document.run();
    assert!(fs::exists(document.folder().join("new")).is_ok_and(|is_there| is_there));
    Some(())
}

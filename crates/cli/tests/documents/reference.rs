//! The pages of the reference.

use taskyard_testkit::free_port;

use crate::document_run::{DocumentRun, commands_on_a_server, document_tests};

document_tests! {
    estimates: "docs/estimates.md", estimates_steps;
    http: "docs/http.md", http_steps;
    iproto: "docs/iproto.md", iproto_steps;
    pools: "docs/pool.md", pool_steps;
    postgres: "docs/postgres.md", postgres_steps;
    redis: "docs/redis.md", redis_steps;
    schedules: "docs/schedules.md", commands_on_a_server;
    semaphores: "docs/semaphores.md", commands_on_a_server;
    sql: "docs/sql.md", sql_steps;
    tarantool: "docs/tarantool.md", tarantool_steps;
    tubes: "docs/tubes.md", commands_on_a_server;
    workers: "docs/workers.md", workers_steps;
}

/// The numbers of these pages are those of a busy queue, so only the words are compared.
fn estimates_steps(document: &mut DocumentRun) -> Option<()> {
    document.serve();
    document.succeed("seq 450 | taskyard put mail --lines");
    document.start_program("taskyard worker mail --exec 'sleep 0.5' --concurrency 4", "");
    // An estimate needs tasks that have ended.
    document.words_until();
    document.words_until();
    let shown = document.next(&["json"]).text;
    let answer = document.succeed(
        "curl -s -XPOST $TASKYARD_URL/v1/tubes/mail/peek -H 'content-type: application/json' \
         -d '{\"ids\": [440], \"estimate\": true}'",
    );
    for field in ["ahead", "estimate", "p50", "p90", "basis"] {
        let field = format!("\"{field}\":");
        assert!(shown.contains(&field) && answer.contains(&field), "{field}: {answer}");
    }
    document.kill_program();
    document.serve_anew();
    document.stop_server();
    document.run();
    document
        .succeed("seq 20 | taskyard put mail --lines && taskyard worker mail --exec true --drain");
    document.stop_server();
    document.words_until();
    Some(())
}

fn http_steps(document: &mut DocumentRun) -> Option<()> {
    document.serve();
    document.succeed("taskyard put mail a b c d e && taskyard take mail --count 5");
    document.succeed("taskyard semaphore create yang --active 1 --try-release 1");
    document.run();
    document.run();
    document.serve_anew();
    document.succeed("taskyard put mail x");
    document.run();
    document.run();
    document.succeed("taskyard bury mail 0");
    document.run();
    Some(())
}

fn iproto_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_python()?;
    document.serve();
    document.program("python", "python letters.py");
    document.file("yaml", "users.yaml");
    document.succeed("chmod 600 users.yaml");
    document.restart("--iproto-users users.yaml");
    Some(())
}

fn pool_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_asymptote()?;
    document.run();
    // Its address is only known when the server before it has ended.
    document.run();
    document.rename("6390", free_port().to_string());
    document.run();
    Some(())
}

impl DocumentRun {
    /// The pool of the example, which draws; `None` when the tests run without its program.
    fn with_asymptote(&mut self) -> Option<()> {
        self.program_or_skip("asy")?;
        std::fs::create_dir(self.folder().join("examples")).expect("a folder");
        self.copy("examples/asymptote.yaml", "examples/asymptote.yaml");
        self.allow_no_sandbox("examples/asymptote.yaml");
        Some(())
    }
}

fn postgres_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_postgres()?;
    document.rename("postgres://user@host/database", document.database());
    document.run();
    document.succeed("taskyard tube create mail && psql -c 'CREATE TABLE letters (text text)'");
    document.sql();
    document.sql();
    let tasks = document.succeed("taskyard tasks mail");
    assert!(tasks.contains("\"copy\":true") && tasks.lines().count() == 3, "{tasks}");
    Some(())
}

fn redis_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_redis("redis://host", "redis://127.0.0.1:PORT")?;
    document.run();
    assert_eq!(document.succeed("taskyard put mail hello"), "0\n");
    Some(())
}

fn sql_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_postgres()?;
    document.run();
    document.kill_program();
    document.file("json", "tasks.json");
    document.set("TASKYARD_DATABASE", document.named_as_here("postgres://postgres@db/postgres"));
    let (scheduler, check) = two_lines(&document.next(&["sh"]).text);
    document.start_program(&scheduler, "");
    // The scheduler makes users, databases and tables at its start.
    document.until("all tables are complete", |document| {
        document.succeed(&format!("{check} && echo checked || true")).contains("checked")
    });
    document.succeed(
        "psql -c \"INSERT INTO task (input) SELECT 'SELECT ' || n FROM generate_series(1, 5) n\" \
         -c \"INSERT INTO task (\\\"group\\\", input, repeat) VALUES ('reports', 'SELECT 6', '1 day')\"",
    );
    document.rename(" URL", format!(" {}", document.database()));
    document.run();
    Some(())
}

fn tarantool_steps(document: &mut DocumentRun) -> Option<()> {
    document.rename("host1:3301,host2:3301", "host:3301");
    let tarantool = document.with_tarantool("user:password", "host:3301")?;
    document.run();
    document.succeed("taskyard put mail hello");
    let user = document.next(&["lua"]).text;
    tarantool.talk(&user.replace("'taskyard'", "'another'").replace('…', "a password"));
    tarantool.load_queue();
    document.run();
    Some(())
}

fn workers_steps(document: &mut DocumentRun) -> Option<()> {
    let contract = "examples/mailer/queues.yaml";
    std::fs::create_dir_all(document.folder().join("examples/mailer")).expect("a folder");
    document.copy(contract, contract);
    document.copy(contract, "queues.yaml");
    document.copy(contract, "old.yaml");
    // The worker runs beside the put.
    document.run();
    document.prints("{\"body\":\"\",\"subject\":\"hello\",\"to\":\"ann\"}");
    std::fs::create_dir(document.folder().join("src")).expect("a folder");
    document.run();
    document.run();
    document.run();
    document.run();
    document.write("send.sh", "#!/bin/sh\ncat\n");
    document.write("send", "#!/bin/sh\ncat\n");
    document.succeed("chmod +x send send.sh");
    document.run();
    document.run();
    Some(())
}

fn two_lines(text: &str) -> (String, String) {
    let mut lines = text.lines().map(String::from);
    (lines.next().expect("a line"), lines.next().expect("another"))
}

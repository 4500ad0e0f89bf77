//! The pages of the reference.

use taskyard_testkit::free_port;
use taskyard_testkit::tarantool::QUEUE_MODULE;

use crate::play::{Play, commands_on_a_server, plays};

plays! {
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
fn estimates_steps(play: &mut Play) -> Option<()> {
    play.serve();
    play.succeed("seq 450 | taskyard put mail --lines");
    play.start_program("taskyard worker mail --exec 'sleep 0.5' --concurrency 4", "");
    // An estimate needs tasks that have ended.
    play.words_until();
    play.words_until();
    let shown = play.next(&["json"]).text;
    let answer = play.succeed(
        "curl -s -XPOST $TASKYARD_URL/v1/tubes/mail/peek -H 'content-type: application/json' \
         -d '{\"ids\": [440], \"estimate\": true}'",
    );
    for field in ["ahead", "estimate", "p50", "p90", "basis"] {
        let field = format!("\"{field}\":");
        assert!(shown.contains(&field) && answer.contains(&field), "{field}: {answer}");
    }
    play.kill_program();
    play.serve_anew();
    play.stop_server();
    play.run();
    play.succeed("seq 20 | taskyard put mail --lines && taskyard worker mail --exec true --drain");
    play.stop_server();
    play.words_until();
    Some(())
}

fn http_steps(play: &mut Play) -> Option<()> {
    play.serve();
    play.succeed("taskyard put mail a b c d e && taskyard take mail --count 5");
    play.succeed("taskyard semaphore create yang --active 1 --try-release 1");
    play.run();
    play.run();
    play.serve_anew();
    play.succeed("taskyard put mail x");
    play.run();
    play.run();
    play.succeed("taskyard bury mail 0");
    play.run();
    Some(())
}

fn iproto_steps(play: &mut Play) -> Option<()> {
    play.with_python()?;
    play.serve();
    play.program("python", "python letters.py");
    play.file("yaml", "users.yaml");
    play.succeed("chmod 600 users.yaml");
    play.restart("--iproto-users users.yaml");
    Some(())
}

fn pool_steps(play: &mut Play) -> Option<()> {
    play.with_asymptote()?;
    play.run();
    // Its address is only known when the server before it has ended.
    play.run();
    play.rename("6390", free_port().to_string());
    play.run();
    Some(())
}

impl Play {
    /// The pool of the example, which draws; `None` when the tests run without its program.
    fn with_asymptote(&mut self) -> Option<()> {
        self.program_or_skip("asy")?;
        std::fs::create_dir(self.folder().join("examples")).expect("a folder");
        self.copy("examples/asymptote.yaml", "examples/asymptote.yaml");
        self.allow_no_sandbox("examples/asymptote.yaml");
        Some(())
    }
}

fn postgres_steps(play: &mut Play) -> Option<()> {
    play.with_postgres()?;
    play.rename("postgres://user@host/database", play.database());
    play.run();
    play.succeed("taskyard tube create mail && psql -c 'CREATE TABLE letters (text text)'");
    play.sql();
    play.sql();
    let tasks = play.succeed("taskyard tasks mail");
    assert!(tasks.contains("\"copy\":true") && tasks.lines().count() == 3, "{tasks}");
    Some(())
}

fn redis_steps(play: &mut Play) -> Option<()> {
    play.with_redis("redis://host", "redis://127.0.0.1:PORT")?;
    play.run();
    assert_eq!(play.succeed("taskyard put mail hello"), "0\n");
    Some(())
}

fn sql_steps(play: &mut Play) -> Option<()> {
    play.with_postgres()?;
    play.run();
    play.kill_program();
    play.file("json", "tasks.json");
    play.set("TASKYARD_DATABASE", play.named_as_here("postgres://postgres@db/postgres"));
    let (scheduler, check) = two_lines(&play.next(&["sh"]).text);
    play.start_program(&scheduler, "");
    // The scheduler makes users, databases and tables at its start.
    play.until("all tables are complete", |play| {
        play.succeed(&format!("{check} && echo checked || true")).contains("checked")
    });
    play.succeed(
        "psql -c \"INSERT INTO task (input) SELECT 'SELECT ' || n FROM generate_series(1, 5) n\" \
         -c \"INSERT INTO task (\\\"group\\\", input, repeat) VALUES ('reports', 'SELECT 6', '1 day')\"",
    );
    play.rename(" URL", format!(" {}", play.database()));
    play.run();
    Some(())
}

fn tarantool_steps(play: &mut Play) -> Option<()> {
    play.rename("host1:3301,host2:3301", "host:3301");
    let tarantool = play.with_tarantool("user:password", "host:3301")?;
    play.run();
    play.succeed("taskyard put mail hello");
    let user = play.next(&["lua"]).text;
    tarantool.talk(&user.replace("'taskyard'", "'another'").replace('…', "a password"));
    tarantool.talk(QUEUE_MODULE);
    play.run();
    Some(())
}

fn workers_steps(play: &mut Play) -> Option<()> {
    let contract = "examples/mailer/queues.yaml";
    std::fs::create_dir_all(play.folder().join("examples/mailer")).expect("a folder");
    play.copy(contract, contract);
    play.copy(contract, "queues.yaml");
    play.copy(contract, "old.yaml");
    // The worker runs beside the put.
    play.run();
    play.prints("{\"body\":\"\",\"subject\":\"hello\",\"to\":\"ann\"}");
    std::fs::create_dir(play.folder().join("src")).expect("a folder");
    play.run();
    play.run();
    play.run();
    play.run();
    play.write("send.sh", "#!/bin/sh\ncat\n");
    play.write("send", "#!/bin/sh\ncat\n");
    play.succeed("chmod +x send send.sh");
    play.run();
    play.run();
    Some(())
}

fn two_lines(text: &str) -> (String, String) {
    let mut lines = text.lines().map(String::from);
    (lines.next().expect("a line"), lines.next().expect("another"))
}

//! The guides, and the session of the README.

use crate::page::DocumentPage;
use crate::play::{Play, commands_on_a_server, plays};

plays! {
    the_readme: "README.md", commands_on_a_server;
    limits_by_semaphore: "docs/guides/limits-by-semaphore.md", commands_on_a_server;
    long_tasks: "docs/guides/long-tasks.md", long_tasks_steps;
    priorities_and_fairness: "docs/guides/priorities-and-fairness.md", commands_on_a_server;
    programs_in_a_pool: "docs/guides/programs-in-a-pool.md", pool_steps;
    recurring_tasks: "docs/guides/recurring-tasks.md", commands_on_a_server;
    sql_tasks: "docs/guides/sql-tasks.md", sql_steps;
    transactional_puts: "docs/guides/transactional-puts.md", transaction_steps;
    unique_work: "docs/guides/unique-work.md", unique_steps;
    workers_in_node: "docs/guides/workers-node.md", node_steps;
    workers_in_python: "docs/guides/workers-python.md", python_steps;
    workers_in_rust: "docs/guides/workers-rust.md", rust_steps;
}

fn long_tasks_steps(play: &mut Play) -> Option<()> {
    play.with_python()?;
    play.serve();
    play.file("python", "reports.py");
    play.succeed("taskyard put reports '{\"month\": \"2026-10\"}'");
    play.run();
    play.kill_program();
    // The lease ends after a second, and the server forgets the worker.
    play.run_until();
    play.run();
    Some(())
}

fn pool_steps(play: &mut Play) -> Option<()> {
    play.file("yaml", "pool.yaml");
    play.allow_no_sandbox("pool.yaml");
    play.run_all();
    Some(())
}

fn sql_steps(play: &mut Play) -> Option<()> {
    play.with_postgres()?;
    play.run();
    play.until("the table is made", |play| {
        play.succeed("psql -At -c \"SELECT to_regclass('task') IS NOT NULL\"").trim() == "t"
    });
    play.sql();
    // One task is tried again after one and two seconds.
    play.run_until();
    Some(())
}

fn transaction_steps(play: &mut Play) -> Option<()> {
    play.with_postgres()?;
    play.with_python()?;
    play.succeed("psql -c 'CREATE TABLE orders (id serial PRIMARY KEY, customer text)'");
    play.run();
    play.sql();
    play.run();
    play.program("python", "python order.py");
    Some(())
}

fn unique_steps(play: &mut Play) -> Option<()> {
    play.with_python()?;
    play.serve();
    play.run();
    play.run();
    play.program("python", "python put.py");
    Some(())
}

fn node_steps(play: &mut Play) -> Option<()> {
    play.with_node()?;
    play.serve();
    play.file("js", "put.mjs");
    play.file("js", "worker.mjs");
    play.succeed("node put.mjs");
    play.start_program("node worker.mjs", "mail to ann@example.org, attempt 2");
    play.run_until();
    Some(())
}

fn python_steps(play: &mut Play) -> Option<()> {
    play.with_python()?;
    play.serve();
    play.file("python", "shop.py");
    play.file("python", "put_shop.py");
    play.run();
    play.run_until();
    play.file("python", "test_shop.py");
    play.succeed("python -m unittest test_shop");
    Some(())
}

/// A test of the client builds a project with the dependencies and the program of the README.
fn rust_steps(play: &mut Play) -> Option<()> {
    let dependencies = play.next(&["toml"]).text;
    let readme = DocumentPage::read("README.md");
    assert!(readme.blocks.iter().any(|block| block.text == dependencies), "{dependencies}");
    Some(())
}

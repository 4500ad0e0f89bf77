//! The guides, and the session of the README.

use crate::document_run::{DocumentRun, commands_on_a_server, document_tests};
use crate::page::DocumentPage;

document_tests! {
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

fn long_tasks_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_python()?;
    document.serve();
    document.file("python", "reports.py");
    document.succeed("taskyard put reports '{\"month\": \"2026-10\"}'");
    document.run();
    document.kill_program();
    // The lease ends after a second, and the server forgets the worker.
    document.run_until();
    document.run();
    Some(())
}

fn pool_steps(document: &mut DocumentRun) -> Option<()> {
    document.file("yaml", "pool.yaml");
    document.allow_no_sandbox("pool.yaml");
    document.run_all();
    Some(())
}

fn sql_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_postgres()?;
    document.run();
    document.until("the table is made", |document| {
        document.succeed("psql -At -c \"SELECT to_regclass('task') IS NOT NULL\"").trim() == "t"
    });
    document.sql();
    // One task is tried again after one and two seconds.
    document.run_until();
    Some(())
}

fn transaction_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_postgres()?;
    document.with_python()?;
    document.succeed("psql -c 'CREATE TABLE orders (id serial PRIMARY KEY, customer text)'");
    document.run();
    document.sql();
    document.run();
    document.program("python", "python order.py");
    Some(())
}

fn unique_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_python()?;
    document.serve();
    document.run();
    document.run();
    document.program("python", "python put.py");
    Some(())
}

fn node_steps(document: &mut DocumentRun) -> Option<()> {
    document.install_node_package()?;
    document.serve();
    document.file("js", "put.mjs");
    document.file("js", "worker.mjs");
    document.succeed("node put.mjs");
    document.start_program("node worker.mjs", "mail to ann@example.org, attempt 2");
    document.run_until();
    Some(())
}

fn python_steps(document: &mut DocumentRun) -> Option<()> {
    document.install_python_package()?;
    document.serve();
    document.file("python", "shop.py");
    document.file("python", "put_shop.py");
    document.run();
    document.run_until();
    document.file("python", "test_shop.py");
    document.succeed("python -m unittest test_shop");
    Some(())
}

/// A test of the client builds a project with the dependencies and the program of the README.
fn rust_steps(document: &mut DocumentRun) -> Option<()> {
    let dependencies = document.next(&["toml"]).text;
    let readme = DocumentPage::read("README.md");
    assert!(readme.blocks.iter().any(|block| block.text == dependencies), "{dependencies}");
    Some(())
}
